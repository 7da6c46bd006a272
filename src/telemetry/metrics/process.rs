//! The metrics of any process, under the names that all of Prometheus's libraries use. A metric is left out where
//! the system does not report it, or only at a cost that grows with the number of clients.

use std::time::{SystemTime, UNIX_EPOCH};

use super::exposition::Family;

/// Returns the metrics of this process, which started at that time.
pub fn families(started_at: SystemTime) -> Vec<Family> {
    let since = started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let families = [
        Family::gauge_seconds(
            "process_start_time_seconds",
            "When the process started, in seconds since 1970.",
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
        ),
        Family::seconds(
            "process_cpu_seconds_total",
            "How long the process has used a core, in seconds.",
            cpu_micros(),
        ),
    ]
    .into_iter();
    #[cfg(target_os = "linux")]
    let families = families.chain(linux::families());
    families.collect()
}

fn cpu_micros() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1_000
}

#[cfg(target_os = "linux")]
mod linux {
    use rustix::process::{Resource, getrlimit};

    use super::Family;

    pub(super) fn families() -> Vec<Family> {
        let mut families = Vec::new();
        if let Some((virtual_pages, resident_pages)) = memory() {
            let page = rustix::param::page_size();
            families.push(Family::gauge(
                "process_virtual_memory_bytes",
                "Addresses that the process has reserved, in bytes.",
                virtual_pages * page,
            ));
            families.push(Family::gauge(
                "process_resident_memory_bytes",
                "Memory of the machine that the process has, in bytes.",
                resident_pages * page,
            ));
        }
        if let Some(open) = open_files() {
            families.push(Family::gauge(
                "process_open_fds",
                "Files and sockets that the process has open.",
                open,
            ));
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            families.push(Family::gauge(
                "process_max_fds",
                "Files and sockets that the process may have open.",
                usize::try_from(most).unwrap_or(usize::MAX),
            ));
        }
        families
    }

    fn memory() -> Option<(usize, usize)> {
        let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
        let mut pages = pages.split(' ').map(str::parse);
        Some((pages.next()?.ok()?, pages.next()?.ok()?))
    }

    /// Returns the number of open files: since Linux 6.2 the size of the directory. Before, the size is zero, and
    /// counting the files takes longer the more clients there are.
    fn open_files() -> Option<usize> {
        let size = std::fs::metadata("/proc/self/fd").ok()?.len();
        usize::try_from(size).ok().filter(|open| *open > 0)
    }
}
