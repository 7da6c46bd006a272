#!/usr/bin/env python3
"""Puts what run measured into docs/benchmarks.md: report.py RESULTS.json

Each section there ends with what is between its markers, <!-- measured: LOAD --> and <!-- end -->: a picture and a
table. A load that RESULTS.json does not have keeps its section, and a way its row.
"""

import json
import re
import sys
from html import escape
from pathlib import Path
from statistics import median

import judge
from loads import LOADS

DOCS = Path(__file__).resolve().parents[2] / "docs"
LANGUAGES = {"go": "Go", "python": "Python", "java": "Java", "javascript": "Node"}


def label(id):
    name, language = id.split("/")
    return f"{name} ({LANGUAGES[language]})"


def spread(way, name, scale=1, digits=0):
    values = [figures[name] * scale for figures in way["rounds"]]
    show = lambda value: f"{value:,.{digits}f}"
    if len(values) == 1:
        return show(values[0])
    return f"{show(median(values))} ({show(min(values))}–{show(max(values))})"


def middle(way, name, scale=1, digits=1):
    return f"{median(figures[name] for figures in way['rounds']) * scale:,.{digits}f}"


def order(way):
    """Returns how many acquisitions were overtaken, by how many at most, and how many never came."""
    most = max(figures["most_overtakings"] for figures in way["rounds"])
    never = sum(figures["never"] for figures in way["rounds"])
    text = f"{middle(way, 'overtaken', 100)} %, by {most:,}" if most else "none"
    return text + (f"; {never} never came" if never else "")


def proxy_cpu(way):
    return middle(way, "proxy_cpu_us") if judge.of(way, "proxy_cpu_us") else "–"


def columns(load):
    """Returns the columns of a load's table: each a title and a function from a way to its text."""
    rate = ("a second", lambda way: spread(way, "rate"))
    waits = [
        ("p50, ms", lambda way: middle(way, "p50_us", 0.001, 2)),
        ("p99, ms", lambda way: middle(way, "p99_us", 0.001, 2)),
    ]
    cost = [
        ("commands", lambda way: f"{way['commands']:.2f}"),
        ("Redis CPU, µs", lambda way: middle(way, "redis_cpu_us")),
        ("proxy CPU, µs", proxy_cpu),
    ]
    if load.job == "contest":
        waits.append(("p99 by time, ms", lambda way: spread(way, "p99_of_time_us", 0.001, 1)))
    if load.job == "memory":
        of_redis = lambda way: spread(way, "redis_bytes") if "redis_bytes" in way["rounds"][0] else "–"
        return [("bytes in lockgate", lambda way: spread(way, "bytes")), ("in Redis", of_redis)]
    if load.job == "handoff":
        return waits + cost
    if load.job == "cycle":
        return [rate, *waits, *cost]
    first = rate if load.seconds else ("time ÷ holds", lambda way: spread(way, "time", digits=3))
    return [first, *waits, *cost, ("overtaken", order)]


def table(load, ways, former=()):
    """Yields the lines of a load's table, a row for each way; `former` are rows to keep."""
    shown = columns(load)
    yield "| way | " + " | ".join(title for title, _ in shown) + " |"
    yield "| --- |" + " ---: |" * len(shown)
    known = [way.id for way in load.ways if "before" not in way.name or way.id in ways]
    for id in known:
        if id in ways:
            yield f"| {label(id)} | " + " | ".join(text(ways[id]) for _, text in shown) + " |"
        else:
            yield from (row for row in former if row.startswith(f"| {label(id)} |"))


# What the pictures show of each load: a title, a function from a way to its number, and how to print it.
RATE = ("a second", lambda way: judge.of(way, "rate"), "{:,.0f}")
P99 = ("p99 of the waits by time, ms", lambda way: judge.of(way, "p99_of_time_us") / 1000, "{:,.0f}")
COMMANDS = ("commands for each lock", lambda way: way["commands"], "{:.2f}")
BEYOND = ("time beyond the holds, %", lambda way: 100 * (judge.of(way, "time") - 1), "{:.1f}")
PICTURES = {
    "contended": [COMMANDS, BEYOND],
    "no-hold": [RATE, P99],
    "zipf": [RATE, P99],
    "uncontended": [RATE],
    "multiplexed": [RATE],
}

STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #57606a }
rect { fill: #8c959f }
.ours { fill: #1a7f37 }
@media (prefers-color-scheme: dark) { text { fill: #adbac7 } rect { fill: #768390 } .ours { fill: #46954a } }
</style>"""


def picture(load, ways):
    """Yields the lines of an SVG: a bar for each way and number, in columns."""
    panels, labels, bar, value, height = PICTURES[load.name], 190, 200, 60, 20
    shown = [way.id for way in load.ways if way.id in ways]
    width, lower = labels + len(panels) * (bar + value), height * (len(shown) + 1)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{lower + 6}" role="img">'
    yield f"<title>{escape(load.title)}</title>"
    yield STYLE
    for row, id in enumerate(shown):
        yield f'<text y="{(row + 2) * height - 6}">{escape(label(id))}</text>'
    for column, (title, number, form) in enumerate(panels):
        left = labels + column * (bar + value)
        most = max(number(ways[id]) for id in shown)
        yield f'<text x="{left}" y="{height - 6}" font-weight="bold">{escape(title)}</text>'
        for row, id in enumerate(shown):
            length = max(1, round(bar * number(ways[id]) / most))
            kind = ' class="ours"' if id.startswith("lockgate") or "-absorbed/" in id else ""
            y = (row + 1) * height
            yield f'<rect x="{left}" y="{y + 3}" width="{length}" height="14"{kind}/>'
            yield f'<text x="{left + length + 5}" y="{y + height - 6}">{form.format(number(ways[id]))}</text>'
    yield "</svg>"


def bounds_table(results):
    yield "| load | what | measured | bound | |"
    yield "| --- | --- | ---: | ---: | --- |"
    for bound in judge.bounds(results):
        holds = "" if bound.holds() else "missed"
        yield f"| {bound.load} | {bound.text} | {bound.measured:,.2f} | {bound.sign} {bound.limit:.4g} | {holds} |"


# Libraries of libraries.
INDIRECT = {"cespare/xxhash/v2", "go.uber.org/atomic", "golang.org/x/sys", "klauspost/cpuid/v2", "golang.org/x/text"}


def environment(results):
    """Yields the machine and the versions that the figures belong to."""
    versions = {}
    for entry in results.values():
        for name, version in entry["versions"].items():
            if name not in INDIRECT:
                short = re.sub("/v[0-9]+$", "", name).split("/")[-1]
                versions.setdefault(short, {})[version.removeprefix("v").removeprefix("go")] = None
    machines = dict.fromkeys(entry["machine"] for entry in results.values())
    listed = ", ".join(f"{name} {' and '.join(of_it)}" for name, of_it in sorted(versions.items()))
    yield f"{'; '.join(machines)}; {listed}."


def section(load, entry, former):
    if load.name in PICTURES:
        yield f"![{load.title}](benchmarks/{load.name}.svg)"
        yield ""
    yield from table(load, entry["ways"], former)
    yield ""
    yield f"{entry['date']}, {entry['rounds']} round{'s' * (entry['rounds'] > 1)}."


def main(results):
    page = (DOCS / "benchmarks.md").read_text()

    def put(name, lines_of):
        nonlocal page
        markers = re.compile(rf"(?<=<!-- measured: {name} -->\n).*?(?=<!-- end -->)", re.DOTALL)
        found = markers.search(page)
        if not found:
            sys.exit(f"docs/benchmarks.md has no section for {name}")
        lines = list(lines_of(found[0].splitlines()))
        page = page[: found.start()] + "\n" + "\n".join(lines) + "\n\n" + page[found.end() :]

    (DOCS / "benchmarks").mkdir(exist_ok=True)
    for load in LOADS:
        if load.name in results:
            ways = results[load.name]["ways"]
            put(load.name, lambda former: section(load, results[load.name], former))
            if load.name in PICTURES:
                (DOCS / "benchmarks" / f"{load.name}.svg").write_text("\n".join(picture(load, ways)) + "\n")
    put("environment", lambda _: environment(results))
    if results.keys() >= {load.name for load in LOADS}:
        put("bounds", lambda _: bounds_table(results))
    (DOCS / "benchmarks.md").write_text(page)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
