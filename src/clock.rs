//! The gate's clock: it does not jump when somebody sets the date, and where the system can
//! (`CLOCK_BOOTTIME`) it goes on while the machine is suspended, as the clock of Redis does.

use crate::lock::Time;

/// The time now. Only differences mean something.
pub fn now() -> Time {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(CLOCK);
    // Neither clock is ever before its zero.
    Time::from_micros(time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000)
}
