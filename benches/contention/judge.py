"""The bounds that lockgate is held to: ratios within one run, each the median over the rounds."""

from dataclasses import dataclass
from statistics import median

# Rivals whose waiters Redis wakes, and those whose waiters try again after some time.
WOKEN = {"rueidislock/go", "python-redis-lock/python", "redisson/java", "redisson-fair/java"}
POLLING = {"redsync/go", "redislock/go", "redis-py/python", "redlock/javascript"}
CONTESTS = {"contended": 100, "no-hold": 64, "no-hold-one-core": 64, "processes": 64, "zipf": 256}
OURS = "lockgate/go"


@dataclass
class Bound:
    load: str
    text: str
    measured: float
    sign: str = ""
    limit: float = 0
    noise_proof: bool = False  # busy machines cannot break it

    def holds(self):
        return not self.sign or (self.measured <= self.limit if self.sign == "≤" else self.measured >= self.limit)


def of(way, name):
    return median(figures[name] for figures in way["rounds"])


def ratio(ways, name, one, other):
    return median(a[name] / b[name] for a, b in zip(ways[one]["rounds"], ways[other]["rounds"]))


def bounds(results):
    """Yields each bound that the results suffice for."""
    for load, entry in results.items():
        ways = entry["ways"]
        if load in CONTESTS:
            yield from orders(load, ways)
        if OURS in ways:
            yield from ours(load, ways)
        if load == "handoff" and {"lockgate-10/go", "lockgate-10000/go"} <= ways.keys():
            measured = ratio(ways, "p50_us", "lockgate-10000/go", "lockgate-10/go")
            yield Bound(load, "p50, 10,000 waiters : 10 waiters", measured, "≤", 1.2)
        if load == "memory":
            for way, limit in [("held/go", 600), ("waiting/go", 3000), ("idle/go", 2500)]:
                if way in ways:
                    yield Bound(load, f"bytes, {way.split('/')[0]}", of(ways[way], "bytes"), "≤", limit)
        for way in ways:
            now = current(load, way)
            if now != way and now in ways:
                name = next(name for name in ("rate", "time", "p50_us", "bytes") if name in ways[way]["rounds"][0])
                yield Bound(load, f"{name}, {now} : {way}", ratio(ways, name, now, way))


def current(load, way):
    """Returns the way that this way of the other build is compared with; any other way is itself.

    >>> current("handoff", "before-10/go"), current("memory", "before-idle/go"), current("zipf", "redsync/go")
    ('lockgate-10/go', 'idle/go', 'redsync/go')
    """
    if way.startswith("before"):
        return way.removeprefix("before-") if load == "memory" else way.replace("before", "lockgate", 1)
    return way.replace("-before", "")


def orders(load, ways):
    for way, measured in ways.items():
        if way.startswith("lockgate"):
            # With many locks, most acquisitions find theirs free.
            if load != "zipf":
                yield Bound(load, f"commands, {way}", measured["commands"], "≤", 1.05, noise_proof=True)
        if way == OURS:
            # A client may stall between its clock and its socket, though hardly for a whole turn of the queue. (JVMs do.)
            most = max(figures["most_overtakings"] for figures in measured["rounds"])
            yield Bound(load, f"most overtakings, {way}", most, "≤", CONTESTS[load] - 1, noise_proof=True)


def ours(load, ways):
    rivals = (WOKEN | POLLING) & ways.keys()
    woken, polling = WOKEN & ways.keys(), POLLING & ways.keys()
    fastest = lambda some: max(some, key=lambda way: of(ways[way], "rate"))

    def against(name, other, sign, limit):
        if other in ways:
            yield Bound(load, f"{NAMES[name]}, lockgate : {other}", ratio(ways, name, OURS, other), sign, limit)

    if load == "contended":
        yield Bound(load, "time ÷ holds", of(ways[OURS], "time"), "≤", 1.03)
    if load in ("no-hold", "no-hold-one-core"):
        if woken:
            yield from against("rate", fastest(woken), "≥", 1.2)
        if polling:
            # Most acquisitions of a lock that its releaser takes again do not wait at all, so their p99 says nothing.
            yield from against("p99_of_time_us", fastest(polling), "≤", 0.2)
    if load == "zipf" and rivals:
        yield from against("p99_us", fastest(rivals), "≤", 1 / 3)
        yield from against("rate", fastest(rivals), "≥", 1.0)
    if load in ("uncontended", "uncontended-one-core"):
        yield from against("rate", "haproxy/go", "≥", 1.0)
        yield from against("redis_cpu_us", "direct/go", "≤", 0.6)
    if load == "multiplexed":
        yield from against("rate", "haproxy/go", "≥", 0.6)
    if load == "mixed":
        yield from against("rate", "without-locks/go", "≥", 0.8)
    if "lockgate-threads-2/go" in ways:
        measured = ratio(ways, "rate", "lockgate-threads-2/go", OURS)
        yield Bound(load, "rate, two threads : one", measured, "≥", 1.0)


NAMES = {"rate": "rate", "p99_us": "p99", "p99_of_time_us": "p99 by time", "redis_cpu_us": "Redis CPU"}


def print_bounds(results, strict):
    """Prints what was measured beside the bounds, and returns whether one is missed that counts."""
    missed = False
    for bound in bounds(results):
        said = f" ({bound.sign} {bound.limit:.4g}{'' if bound.holds() else ', missed'})" if bound.sign else ""
        print(f"{bound.load}: {bound.text}: {bound.measured:,.3f}{said}")
        missed |= not bound.holds() and (strict or bound.noise_proof)
    return missed
