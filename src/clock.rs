//! lockgate's clock. It does not jump when the system's date is set. Where the system supports it
//! (`CLOCK_BOOTTIME`), the clock goes on while the machine is suspended, as Redis's clock does.

use crate::lock::Time;

/// Returns the time now. Only differences between times are meaningful.
pub fn now() -> Time {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(CLOCK);
    // Neither clock reads below zero.
    Time::from_micros(time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000)
}
