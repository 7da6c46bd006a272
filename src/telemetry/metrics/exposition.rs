//! Families of samples, and Prometheus's text format of them: a line of help, a line with the type, and a line for
//! each sample.
//!
//! Names, help and labels are words of this program, so nothing needs to be escaped; a test ensures that.

use std::fmt::{self, Write as _};

use super::histogram::Distribution;

/// The samples of one name.
#[derive(Debug, Clone)]
pub struct Family {
    /// The name, with its unit.
    pub name: &'static str,
    /// The help text, one sentence.
    pub help: &'static str,
    /// The type of the numbers.
    pub kind: Kind,
    /// One sample, or one for each value of a label.
    pub samples: Vec<Sample>,
}

/// The type of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows, until the next start.
    Counter,
    /// A current value.
    Gauge,
    /// A distribution of durations.
    Histogram,
}

/// One sample of a family.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Names and values of its labels.
    pub labels: Vec<(&'static str, &'static str)>,
    /// The number.
    pub value: Value,
}

/// The number of a sample.
#[derive(Debug, Clone)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Microseconds, written as seconds.
    Micros(u64),
    /// A distribution of durations.
    Distribution(Distribution),
}

impl Sample {
    /// Creates one of several samples, told apart by a label.
    pub fn of(label: &'static str, value: &'static str, number: u64) -> Self {
        Self {
            labels: vec![(label, value)],
            value: Value::Whole(number),
        }
    }

    fn alone(value: Value) -> Self {
        Self {
            labels: Vec::new(),
            value,
        }
    }
}

impl Family {
    /// Creates counters.
    pub fn counters(name: &'static str, help: &'static str, samples: Vec<Sample>) -> Self {
        Self {
            name,
            help,
            kind: Kind::Counter,
            samples,
        }
    }

    /// Creates a counter.
    pub fn counter(name: &'static str, help: &'static str, number: u64) -> Self {
        Self::counters(name, help, vec![Sample::alone(Value::Whole(number))])
    }

    /// Creates a counter of time.
    pub fn seconds(name: &'static str, help: &'static str, micros: u64) -> Self {
        Self::counters(name, help, vec![Sample::alone(Value::Micros(micros))])
    }

    /// Creates gauges.
    pub fn gauges(name: &'static str, help: &'static str, samples: Vec<Sample>) -> Self {
        Self {
            name,
            help,
            kind: Kind::Gauge,
            samples,
        }
    }

    /// Creates a gauge.
    pub fn gauge(name: &'static str, help: &'static str, number: usize) -> Self {
        let value = Value::Whole(u64::try_from(number).unwrap_or(u64::MAX));
        Self::gauges(name, help, vec![Sample::alone(value)])
    }

    /// Creates a gauge that is always 1; the information is in its labels.
    pub fn info(
        name: &'static str,
        help: &'static str,
        labels: Vec<(&'static str, &'static str)>,
    ) -> Self {
        let value = Value::Whole(1);
        Self::gauges(name, help, vec![Sample { labels, value }])
    }

    /// Creates a gauge of time, written in seconds.
    pub fn gauge_seconds(name: &'static str, help: &'static str, micros: u64) -> Self {
        Self::gauges(name, help, vec![Sample::alone(Value::Micros(micros))])
    }

    /// Creates a histogram.
    pub fn histogram(name: &'static str, help: &'static str, of: Distribution) -> Self {
        Self {
            name,
            help,
            kind: Kind::Histogram,
            samples: vec![Sample::alone(Value::Distribution(of))],
        }
    }
}

/// Returns the families in Prometheus's text format.
pub fn text(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        // Writing to a string cannot fail.
        let _ = write!(text, "{family}");
    }
    text
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name, help, kind, ..
        } = self;
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        writeln!(f, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
        for sample in &self.samples {
            let labels = shown(&sample.labels);
            match &sample.value {
                Value::Whole(number) => writeln!(f, "{name}{labels} {number}")?,
                Value::Micros(micros) => writeln!(f, "{name}{labels} {}", Seconds(*micros))?,
                Value::Distribution(distribution) => write_distribution(f, name, distribution)?,
            }
        }
        Ok(())
    }
}

/// Returns the labels in braces; nothing where there are none.
fn shown(labels: &[(&str, &str)]) -> String {
    let labels = labels
        .iter()
        .map(|(name, value)| format!("{name}=\"{value}\""));
    let labels: Vec<_> = labels.collect();
    match labels.is_empty() {
        true => String::new(),
        false => format!("{{{}}}", labels.join(",")),
    }
}

/// Writes the buckets. Each counts all durations up to its bound, those of smaller buckets included.
fn write_distribution(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    distribution: &Distribution,
) -> fmt::Result {
    let mut count = 0;
    for (bound, here) in distribution.bounds.iter().zip(&distribution.counts) {
        count += here;
        writeln!(f, "{name}_bucket{{le=\"{}\"}} {count}", Seconds(*bound))?;
    }
    let count = distribution.count();
    writeln!(f, "{name}_bucket{{le=\"+Inf\"}} {count}")?;
    let sum = Seconds(distribution.sum_micros);
    writeln!(f, "{name}_sum {sum}\n{name}_count {count}")
}

/// Microseconds, written as seconds.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if micros == 0 {
            return write!(f, "{whole}");
        }
        let fraction = format!("{micros:06}");
        write!(f, "{whole}.{}", fraction.trim_end_matches('0'))
    }
}
