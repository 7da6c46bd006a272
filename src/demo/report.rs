//! The report of the demo: four groups of bars for the first glance, and a table of the figures behind them, each with
//! its meaning. It has 80 columns, and colours that terminals show legibly on light and on dark: red, cyan and green.
//! No fact is in a colour alone.

use std::{fmt::Write, time::Duration};

use anstyle::{AnsiColor, Style};

use super::contest::{LONGEST, Outcome, Rules, Way, percentile};

/// Columns of a bar.
const BAR: usize = 38;

/// Headings.
const HEADING: Style = Style::new().bold();
/// Side notes.
const ASIDE: Style = Style::new().dimmed();
/// Warnings.
const WARNING: Style = AnsiColor::Yellow.on_default().bold();

/// All contests.
pub(super) struct Comparison {
    pub(super) rules: Rules,
    /// The outcomes, in the order of [`Way::ALL`].
    pub(super) outcomes: [Outcome; 3],
    /// Commands that other clients sent in [`QUIET`](super::QUIET), while the demo sent none.
    pub(super) others: u64,
    /// The Redis that the operator named, without credentials.
    pub(super) upstream: Option<String>,
}

/// One figure of all contests, in the order of [`Way::ALL`].
#[derive(Clone, Copy)]
struct Bars {
    values: [f64; 3],
    show: fn(f64) -> String,
    /// The words for less of it than while spinning, and for more of it.
    words: (&'static str, &'static str),
}

impl Way {
    /// Returns its name in the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Spinning => "spinning",
            Self::Absorbed => "absorbed",
            Self::Lock => "LOCK",
        }
    }

    /// Returns its colour, as an ANSI colour and by name.
    pub(super) fn color(self) -> (AnsiColor, &'static str) {
        match self {
            Self::Spinning => (AnsiColor::Red, "red"),
            Self::Absorbed => (AnsiColor::Cyan, "cyan"),
            Self::Lock => (AnsiColor::Green, "green"),
        }
    }
}

/// Returns the introduction.
pub(super) fn introduction(rules: Rules, redis: &str) -> String {
    let (clients, hold) = (grouped(rules.clients as u64), shown(rules.hold));
    let poll = shown(rules.poll);
    format!(
        "{HEADING}lockgate demo{HEADING:#}  {ASIDE}{redis}{ASIDE:#}\n\n\
         {clients} clients want the same lock, once each, all from the same moment on, and\n\
         hold it for {hold}. First they spin, as everybody does: SET NX PX, and again\n\
         every {poll}. Then they do the same through a lockgate in front of the same\n\
         Redis, which absorbs it (absorb.keys). Last they say LOCK to lockgate.\n"
    )
}

/// Returns the line of a finished contest: the bar that moved.
pub(super) fn line(way: Way, rules: Rules, outcome: &Outcome) -> String {
    let had = outcome.turns.len();
    let bar = bar(way, had as f64 / rules.clients as f64);
    let had = format!(
        "{} of {}",
        grouped(had as u64),
        grouped(rules.clients as u64)
    );
    format!(
        "  {:9} {bar}  {had:>9} {:>9}",
        way.name(),
        time(outcome.whole().as_secs_f64())
    )
}

impl Comparison {
    /// Returns the whole report.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        for (heading, aside, bars) in self.bars() {
            writeln!(
                text,
                "\n{HEADING}{heading}{HEADING:#}  {ASIDE}{aside}{ASIDE:#}"
            )?;
            bars.write(text)?;
        }
        let [spinning, absorbed, lock] = Way::ALL.map(Way::name);
        writeln!(
            text,
            "\n{HEADING}{:21}{spinning:>9}{absorbed:>9}{lock:>9}{HEADING:#}",
            ""
        )?;
        for (name, [spinning, absorbed, lock], meaning) in self.table() {
            writeln!(
                text,
                "  {name:19}{spinning:>9}{absorbed:>9}{lock:>9}  {ASIDE}{meaning}{ASIDE:#}"
            )?;
        }
        for note in self.notes() {
            writeln!(text, "\n{WARNING}Note:{WARNING:#} {note}")?;
        }
        let url = self.upstream.as_deref().unwrap_or("redis://127.0.0.1:6379");
        writeln!(
            text,
            "\nIn front of a Redis of yours: {HEADING}lockgate --upstream {url}{HEADING:#}"
        )
    }

    /// Returns the bars.
    fn bars(&self) -> [(&'static str, &'static str, Bars); 4] {
        let bars = |figure: fn(&Outcome) -> f64, show, words| Bars {
            values: self.outcomes.each_ref().map(figure),
            show,
            words,
        };
        let faster = ("times faster", "times slower");
        let shorter = ("times shorter", "times longer");
        let fewer = ("times fewer", "times more");
        let less = ("times less", "times more");
        [
            (
                "Time",
                "from the first attempt to the last release",
                bars(|it| it.whole().as_secs_f64(), time, faster),
            ),
            (
                "Commands",
                "that Redis executed (a script is one)",
                bars(|it| it.used.commands as f64, |n| grouped(n as u64), fewer),
            ),
            (
                "CPU",
                "that Redis used meanwhile",
                bars(|it| it.used.cpu.as_secs_f64(), time, less),
            ),
            (
                "Wait",
                "for the lock; half of the clients waited no longer",
                bars(
                    |it| percentile(&it.waits(), 50).as_secs_f64(),
                    time,
                    shorter,
                ),
            ),
        ]
    }

    /// Returns the rows of the table.
    fn table(&self) -> Vec<(&'static str, [String; 3], &'static str)> {
        let row = |name, figure: &dyn Fn(&Outcome) -> String, meaning| {
            (name, self.outcomes.each_ref().map(figure), meaning)
        };
        let wait =
            |percent| move |it: &Outcome| time(percentile(&it.waits(), percent).as_secs_f64());
        let locks = |it: &Outcome| it.turns.len().max(1) as f64;
        vec![
            row(
                "sum of all holds",
                &|it| time(it.held().as_secs_f64()),
                "it cannot be done in less",
            ),
            row(
                "time / sum of holds",
                &|it| ratio(it),
                "1: never free while wanted",
            ),
            row(
                "commands per lock",
                &|it| format!("{:.2}", it.used.commands as f64 / locks(it)),
                "1: a release is the next grant",
            ),
            row("wait, p50", &wait(50), "half of the clients, at most"),
            row("wait, p95", &wait(95), "95 of 100 clients, at most"),
            row("wait, p99", &wait(99), "99 of 100 clients, at most"),
            row("wait, max", &wait(100), "the last one"),
            row(
                "overtaken clients",
                &|it| grouped(it.overtaken() as u64),
                "0: first come, first served",
            ),
        ]
    }

    /// Returns the caveats about the figures.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (way, outcome) in Way::ALL.into_iter().zip(&self.outcomes) {
            if outcome.stopped {
                notes.push(format!(
                    "{} was stopped after {}: {} of {} clients had had the lock.\n\
                     Its figures are those of these clients.",
                    way.name(),
                    shown(LONGEST),
                    grouped(outcome.turns.len() as u64),
                    grouped(self.rules.clients as u64),
                ));
            }
        }
        let [spinning, ..] = &self.outcomes;
        let (counted, sent) = (spinning.used.commands, spinning.sent);
        if self.others > 0 || counted != sent {
            notes.push(format!(
                "others are at work on this Redis, and its CPU includes theirs:\n\
                 of {} commands counted while spinning the demo sent {}.",
                grouped(counted),
                grouped(sent),
            ));
        }
        notes
    }
}

impl Bars {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        let most = self.values.into_iter().fold(0.0, f64::max);
        let part = |value: f64| if most > 0.0 { value / most } else { 0.0 };
        for (way, value) in Way::ALL.into_iter().zip(self.values) {
            let (bar, shown) = (bar(way, part(value)), (self.show)(value));
            let factor = match way {
                Way::Spinning => String::new(),
                _ => format!("  {HEADING}{}{HEADING:#}", self.factor(value)),
            };
            writeln!(text, "  {:9} {bar} {shown:>9}{factor}", way.name())?;
        }
        Ok(())
    }

    /// Returns how much less of it this is than while spinning, or how much more.
    fn factor(&self, value: f64) -> String {
        let (less, more) = self.words;
        let [spinning, ..] = self.values;
        let factor = spinning / value;
        if !factor.is_finite() || factor <= 0.0 {
            return String::new();
        }
        let (factor, word) = if factor < 1.0 {
            (1.0 / factor, more)
        } else {
            (factor, less)
        };
        match factor {
            ..1.05 => "about as much".to_owned(),
            ..10.0 => format!("{factor:.1} {word}"),
            _ => format!("{} {word}", grouped(factor.round() as u64)),
        }
    }
}

/// Returns the time for each second that the lock was held.
fn ratio(outcome: &Outcome) -> String {
    let held = outcome.held().as_secs_f64();
    match held > 0.0 {
        true => format!("{:.2}", outcome.whole().as_secs_f64() / held),
        false => "-".to_owned(),
    }
}

/// Returns this part of a whole bar, in eighths of a column; a part above zero has at least one.
fn bar(way: Way, part: f64) -> String {
    let eighths = (part.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let eighths = eighths.max(usize::from(part > 0.0));
    let (whole, rest) = (eighths / 8, eighths % 8);
    let end = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][rest];
    let blank = BAR - whole - usize::from(rest > 0);
    let color = way.color().0.on_default();
    format!(
        "{color}{}{end}{color:#}{}",
        "█".repeat(whole),
        " ".repeat(blank)
    )
}

/// Returns a time with three significant digits.
fn time(seconds: f64) -> String {
    let ms = seconds * 1_000.0;
    match ms {
        ..9.995 => format!("{ms:.2} ms"),
        ..99.95 => format!("{ms:.1} ms"),
        ..999.5 => format!("{ms:.0} ms"),
        ..9_995.0 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.1} s"),
    }
}

/// Returns a number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a duration as it may be typed.
fn shown(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::{contest::Turn, observer::Used};

    const RULES: Rules = Rules {
        clients: 10_000,
        hold: Duration::from_millis(999),
        poll: Duration::from_millis(9_999),
    };

    fn outcome(seconds: u64, commands: u64) -> Outcome {
        let turn = Turn {
            arrived: Duration::ZERO,
            granted: Duration::from_secs(seconds),
            gave_back: Duration::from_secs(seconds),
            done: Duration::from_secs(seconds),
        };
        Outcome {
            turns: vec![turn; 10_000],
            stopped: true,
            used: Used {
                cpu: Duration::from_secs(seconds),
                commands,
            },
            sent: 1,
        }
    }

    fn comparison(outcomes: [Outcome; 3]) -> Comparison {
        Comparison {
            rules: RULES,
            outcomes,
            others: 1,
            upstream: None,
        }
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn it_fits_a_terminal_whatever_the_figures() {
        for seconds in [[59, 1, 1], [1, 59, 30], [0, 0, 0], [59, 59, 59]] {
            let [spinning, absorbed, lock] = seconds;
            let all = comparison([
                outcome(spinning, 9_999_999),
                outcome(absorbed, 9_999_999),
                outcome(lock, 200),
            ]);
            let text = introduction(
                RULES,
                "Redis 7.0.15 at redis://127.0.0.1:65535, started for this",
            ) + &line(Way::Spinning, RULES, &all.outcomes[0])
                + "\n"
                + &all.text();
            for line in plain(&text).lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }

    #[test]
    fn a_factor_says_in_which_direction() {
        let factor = |spinning, value| {
            Bars {
                values: [spinning, value, value],
                show: time,
                words: ("times less", "times more"),
            }
            .factor(value)
        };
        assert_eq!(factor(5_150.0, 105.0), "49 times less");
        assert_eq!(factor(100_000.0, 20.0), "5,000 times less");
        assert_eq!(factor(5.0, 1.25), "4.0 times less");
        assert_eq!(factor(1.0, 3.0), "3.0 times more");
        assert_eq!(factor(1.0, 1.02), "about as much");
        assert_eq!(factor(0.0, 1.0), "");
        assert_eq!(factor(1.0, 0.0), "");
    }

    #[test]
    fn bars_are_as_long_as_their_part_and_never_nothing_for_something() {
        let columns = |part| plain(&bar(Way::Spinning, part)).trim_end().to_owned();
        assert_eq!(columns(0.0), "");
        assert_eq!(columns(0.000_1), "▏");
        assert_eq!(columns(0.5), "█".repeat(BAR / 2));
        assert_eq!(columns(1.0), "█".repeat(BAR));
        assert_eq!(plain(&bar(Way::Lock, 0.33)).chars().count(), BAR);
    }

    #[test]
    fn figures_are_shown_as_people_read_them() {
        assert_eq!(grouped(105), "105");
        assert_eq!(grouped(5_150), "5,150");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(time(5.003), "5.00 s");
        assert_eq!(time(59.96), "60.0 s");
        assert_eq!(time(0.54), "540 ms");
        assert_eq!(time(0.0512), "51.2 ms");
        assert_eq!(time(0.005_12), "5.12 ms");
    }

    #[test]
    fn notes_say_what_was_stopped_and_whose_commands_are_counted() {
        let all = comparison([5, 5, 5].map(|commands| outcome(1, commands)))
            .notes()
            .join("\n");
        assert!(all.contains("spinning was stopped after 1m"), "{all}");
        assert!(
            all.contains("of 5 commands counted while spinning the demo sent 1"),
            "{all}"
        );
        let quiet = |sent| Outcome {
            stopped: false,
            sent,
            ..outcome(1, 5)
        };
        let mut nothing = comparison([5, 5, 5].map(quiet));
        nothing.others = 0;
        assert_eq!(nothing.notes(), Vec::<String>::new());
    }
}
