//! What is told at the end.

use std::{collections::BTreeMap, fmt::Write};

use crate::{
    checks::Verdict,
    history::{History, Incident, Micros, Through, What},
    world::Counts,
};

pub(crate) fn figures(counts: &Counts, history: &History, verdict: &Verdict) -> String {
    let mut text = String::new();
    table(
        &mut text,
        "acquisitions, and what was asked for in vain",
        &counts.acquisitions,
    );
    table(&mut text, "faults", &counts.faults);
    table(
        &mut text,
        "errors and refusals seen by clients",
        &counts.errors,
    );
    let mut waits = counts.waits.clone();
    waits.sort_unstable();
    let line = |text: &mut String, name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{name}: {value}");
    };
    line(
        &mut text,
        "wait, p50",
        &milliseconds(percentile(&waits, 50)),
    );
    line(
        &mut text,
        "wait, p99",
        &milliseconds(percentile(&waits, 99)),
    );
    line(
        &mut text,
        "longest time without any grant by a gate",
        &without_a_grant(history),
    );
    line(
        &mut text,
        "longest time from the return of Redis to the next grant by a gate, with nothing else broken",
        &milliseconds(until_the_next_grant(history)),
    );
    for (command, late) in &verdict.latest {
        let name = format!("latest reply to {command} where nothing hindered, after its time");
        line(&mut text, &name, &milliseconds(*late));
    }
    line(
        &mut text,
        "excused overlaps with a plain client",
        &verdict.excused_with_plain,
    );
    line(
        &mut text,
        "excused overlaps with a lease from before a loss of data",
        &verdict.excused_after_loss,
    );
    line(
        &mut text,
        "of them after a restart without data between well gates",
        &verdict.write_back_holes.len(),
    );
    line(
        &mut text,
        "leases that were to be written back after such a restart",
        &verdict.to_write_back,
    );
    line(&mut text, "violations", &verdict.violations.len());
    text
}

fn table(text: &mut String, title: &str, rows: &BTreeMap<String, u64>) {
    let _ = writeln!(text, "{title}: {}", rows.values().sum::<u64>());
    for (name, count) in rows {
        let _ = writeln!(text, "  {count:>8}  {name}");
    }
}

fn percentile(sorted: &[Micros], percent: usize) -> Micros {
    let at = sorted.len() * percent / 100;
    sorted.get(at).copied().unwrap_or_default()
}

fn milliseconds(micros: Micros) -> String {
    format!("{} ms", micros / 1_000)
}

/// When gates granted something, in order.
fn grants(history: &History) -> Vec<Micros> {
    let granted = history
        .tenures
        .iter()
        .filter(|t| t.through != Through::Redis && !t.extended);
    let mut moments: Vec<_> = granted.map(|tenure| tenure.read).collect();
    moments.sort_unstable();
    moments
}

/// The longest, and what was broken then.
fn without_a_grant(history: &History) -> String {
    let grants = grants(history);
    let longest = grants.windows(2).max_by_key(|pair| pair[1] - pair[0]);
    let Some(&[from, to]) = longest else {
        return "(all of it)".to_owned();
    };
    let broken = history.incidents.iter().filter(|i| i.overlaps(from, to));
    let broken: Vec<_> = broken.map(|i| format!("{:?}", i.what)).collect();
    format!("{} ({})", milliseconds(to - from), broken.join(", "))
}

fn until_the_next_grant(history: &History) -> Micros {
    let grants = grants(history);
    let is_return =
        |i: &&Incident| matches!(i.what, What::Forgot | What::Restarted | What::RedisStopped);
    let nothing_else = |this: &Incident, to| {
        let others = history
            .incidents
            .iter()
            .filter(|i| i.overlaps(this.from, to));
        others.count() == 1
    };
    let returns = history.incidents.iter().filter(is_return);
    let waits = returns.filter_map(|incident| {
        let next = grants[grants.partition_point(|grant| *grant <= incident.to)..].first()?;
        nothing_else(incident, *next).then(|| next - incident.to)
    });
    waits.max().unwrap_or_default()
}
