"""The bounds that lockgate is held to: ratios within one run, medians of the rounds."""

import os
from statistics import median


def medians(way, name):
    return median(figures[name] for figures in way["rounds"])


def ratio(ways, name, one, other):
    """Returns the median of the ratios within each round."""
    pairs = zip(ways[one]["rounds"], ways[other]["rounds"])
    return median(a[name] / b[name] for a, b in pairs)


def bounds(results):
    """Yields each bound that the results suffice for: its text, what was measured, the sign and the limit."""
    ours = "lockgate/go"
    for load, name, other, sign, limit in [
        ("uncontended", "rate", "haproxy/go", ">=", 1.0),
        ("uncontended", "redis_cpu_us", "direct/go", "<=", 0.6),
        ("uncontended-one-core", "rate", "haproxy/go", ">=", 1.0),
        ("multiplexed", "rate", "haproxy/go", ">=", 0.6),
        ("mixed", "rate", "without-locks/go", ">=", 0.8),
    ]:
        ways = results.get(load, {}).get("ways", {})
        if ours in ways and other in ways:
            yield f"{load}: {name}, lockgate : {other}", ratio(ways, name, ours, other), sign, limit
    for load, entry in results.items():
        for way in entry["ways"]:
            name = way.replace("before", "lockgate").replace("lockgate-before", "lockgate")
            if "before" in way and name in entry["ways"]:
                yield f"{load}: rate, {name} : {way}", ratio(entry["ways"], "rate", name, way), "", 0


def print_bounds(results, quick):
    """Prints what was measured beside the bounds, and returns whether one is missed that counts."""
    missed = False
    for text, measured, sign, limit in bounds(results):
        holds = not sign or (measured <= limit if sign == "<=" else measured >= limit)
        print(f"{text}: {measured:.3f}" + (f" ({sign} {limit}{'' if holds else ', missed'})" if sign else ""))
        missed |= not holds and bool(os.environ.get("JUDGE"))
    return missed
