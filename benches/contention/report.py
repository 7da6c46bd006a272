#!/usr/bin/env python3
"""Puts what run measured into docs/benchmarks.md."""

from statistics import median


def spread(way, name, scale=1, digits=0):
    values = [figures[name] * scale for figures in way["rounds"]]
    show = lambda value: f"{value:,.{digits}f}"
    if len(values) == 1:
        return show(values[0])
    return f"{show(median(values))} ({show(min(values))}–{show(max(values))})"


def columns(load):
    """Returns the columns of a load's table: each a title and a function from a way to its text."""
    cpu = [
        ("commands", lambda way: f"{way['commands']:.2f}"),
        ("Redis CPU", lambda way: spread(way, "redis_cpu_us", digits=1) + " µs"),
        ("proxy CPU", lambda way: spread(way, "proxy_cpu_us", digits=1) + " µs"),
    ]
    rate = [("a second", lambda way: spread(way, "rate"))]
    waits = [
        ("p50", lambda way: spread(way, "p50_us", 0.001, 2) + " ms"),
        ("p99", lambda way: spread(way, "p99_us", 0.001, 2) + " ms"),
    ]
    order = [
        ("overtaken", lambda way: spread(way, "overtaken", 100, 1) + " %"),
        ("by at most", lambda way: f"{max(f['most_overtakings'] for f in way['rounds']):,}"),
        ("never came", lambda way: f"{sum(f['never'] for f in way['rounds']):,}"),
    ]
    if load.job == "cycle":
        return rate + waits + cpu
    if load.job == "handoff":
        return waits + cpu
    if load.job == "memory":
        of_redis = lambda way: spread(way, "redis_bytes") if "redis_bytes" in way["rounds"][0] else ""
        return [("bytes", lambda way: spread(way, "bytes")), ("bytes in Redis", of_redis)]
    if load.seconds:
        return rate + waits + cpu + order
    return [("time ÷ holds", lambda way: spread(way, "time", digits=3))] + waits + cpu + order


def table(load, ways):
    """Returns the lines of a load's table, a row for each way."""
    shown = columns(load)
    yield "| way | " + " | ".join(title for title, _ in shown) + " |"
    yield "| --- |" + " ---: |" * len(shown)
    for id, way in ways.items():
        yield f"| {id} | " + " | ".join(text(way) for _, text in shown) + " |"
