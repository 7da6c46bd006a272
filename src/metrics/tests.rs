use std::{collections::HashSet, sync::Arc};

use super::{
    exposition::{Kind, Value, text},
    histogram::Histogram,
    *,
};
use crate::{config::Config, live::Live};

fn shared() -> Shared {
    let config = Config::default();
    crate::shared(&config, Arc::new(Live::new(&config)), None, 0)
}

/// Help, labels and names need no escapes, and are as Prometheus wants them.
#[tokio::test]
async fn names_and_labels_are_plain_words() {
    let plain = |text: &str| {
        let first = text.starts_with(|c: char| c.is_ascii_lowercase());
        first
            && text
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let shared = shared();
    let (families, mut names) = (families(&shared), HashSet::new());
    for family in &families {
        let Family {
            name,
            help,
            kind,
            samples,
        } = family;
        assert!(plain(name), "{name}");
        assert!(names.insert(name), "{name} twice");
        assert!(
            help.ends_with('.') && !help.contains(['\\', '\n']),
            "{name}: {help}"
        );
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        assert!(!samples.is_empty(), "{name}");
        let mut labels = HashSet::new();
        for sample in samples {
            assert!(
                labels.insert(sample.label),
                "{name}: {:?} twice",
                sample.label
            );
            let Some((label, value)) = sample.label else {
                continue;
            };
            assert!(
                plain(label) && !value.contains(['\\', '"', '\n']),
                "{name}: {label}={value}"
            );
        }
    }
}

#[test]
fn a_family_is_written_as_the_format_says() {
    let histogram = Histogram::new(&[1_000, 2_500_000]);
    for micros in [1_000, 1_001, 9_000_000] {
        histogram.count(micros);
    }
    let labelled = vec![Sample::of("how", "free", 3), Sample::of("how", "waited", 0)];
    let families = [
        Family::counters("grants_total", "Grants.", labelled),
        Family::gauge("waiters", "Waiters.", 7),
        Family::moment("start_seconds", "Start.", 1_500_000),
        Family::histogram("wait_seconds", "Waits.", histogram.get()),
    ];
    assert_eq!(
        text(&families),
        "# HELP grants_total Grants.\n# TYPE grants_total counter\n\
         grants_total{how=\"free\"} 3\ngrants_total{how=\"waited\"} 0\n\
         # HELP waiters Waiters.\n# TYPE waiters gauge\nwaiters 7\n\
         # HELP start_seconds Start.\n# TYPE start_seconds gauge\nstart_seconds 1.5\n\
         # HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\n\
         wait_seconds_bucket{le=\"0.001\"} 1\nwait_seconds_bucket{le=\"2.5\"} 2\n\
         wait_seconds_bucket{le=\"+Inf\"} 3\nwait_seconds_sum 9.002001\nwait_seconds_count 3\n"
    );
}

/// The process tells of itself what the system says of it.
#[cfg(target_os = "linux")]
#[test]
fn the_process_tells_its_memory_and_its_time() {
    let families = process::families(std::time::SystemTime::now());
    let number = |name: &str| {
        let family = families.iter().find(|family| family.name == name);
        match family.expect(name).samples[0].value {
            Value::Whole(number) | Value::Micros(number) => number,
            Value::Distribution(_) => panic!("{name}"),
        }
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = |field: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let (told, seen) = (
        number("process_resident_memory_bytes"),
        kib("VmRSS:") * 1024,
    );
    // The system counts pages in batches.
    assert!(told.abs_diff(seen) < 4 * 1024 * 1024, "{told} and {seen}");
    assert!(number("process_cpu_seconds_total") > 0);
    assert!(number("process_start_time_seconds") > 1_700_000_000_000_000);
}
