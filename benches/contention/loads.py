"""The loads, and the ways to put each: what run measures."""

import resource
from dataclasses import dataclass


@dataclass
class Way:
    """One way to lock. `name` is one of lockgate's ways or a rival, `mode` what the program of the language calls it,
    `server` where it connects to: redis, haproxy, or a lockgate (see Servers.start_lockgate)."""

    name: str
    language: str
    mode: str
    server: str = "redis"
    clients: int = 0  # those of the load

    @property
    def id(self):
        return f"{self.name}/{self.language}"


@dataclass
class Load:
    name: str
    title: str
    ways: list
    job: str = "contest"
    clients: int = 64
    locks: int = 1
    hold_us: int = 0
    seconds: float = 1.0  # of each turn; 0: each client acquires the lock once
    processes: int = 1
    pinned: bool = False  # everything on one core

    def job_line(self, key, seconds):
        if self.job == "contest":
            return f"contest {key} {self.locks} {seconds} {self.hold_us}"
        if self.job == "cycle":
            return f"cycle {key} {seconds}"
        return f"handoff {int(500 * seconds)}"


def lockgate(language, before=True):
    ways = [Way("lockgate", language, "lock", "lockgate")]
    return ways + [Way("before", language, "lock", "before")] * before


GO = [
    *lockgate("go"),
    Way("rueidislock", "go", "rueidislock"),
    Way("redsync", "go", "redsync"),
    Way("redislock", "go", "redislock"),
]
GO_ABSORBED = [
    Way("redsync-absorbed", "go", "redsync", "absorb"),
    Way("redislock-absorbed", "go", "redislock", "absorb"),
]
JAVA = [
    *lockgate("java", before=False),
    Way("redisson", "java", "redisson"),
    Way("redisson-fair", "java", "redisson-fair"),
]
PYTHON = [
    *lockgate("python", before=False),
    Way("redis-py", "python", "redis-py"),
    Way("redis-py-absorbed", "python", "redis-py", "absorb"),
    Way("python-redis-lock", "python", "python-redis-lock"),
]
JAVASCRIPT = [
    *lockgate("javascript", before=False),
    Way("redlock", "javascript", "redlock"),
    Way("redlock-absorbed", "javascript", "redlock", "absorb"),
]
BLPOP = Way("blpop", "go", "blpop")


def threads(mode):
    return [Way("lockgate-threads-2", "go", mode, "lockgate-threads-2")]


UNCONTENDED = [
    Way("lockgate", "go", "own-lock", "lockgate"),
    Way("before", "go", "own-lock", "before"),
    Way("direct", "go", "own-set"),
    Way("haproxy", "go", "own-set", "haproxy"),
    Way("relay", "go", "own-set", "lockgate"),
    Way("rueidislock", "go", "own-library"),
]
MULTIPLEXED = [
    Way("lockgate", "go", "shared-lock", "lockgate"),
    Way("before", "go", "shared-lock", "before"),
    Way("direct", "go", "shared-set"),
    Way("haproxy", "go", "shared-set", "haproxy"),
]
MIXED = [
    Way("lockgate", "go", "shared-mixed", "lockgate"),
    Way("before", "go", "shared-mixed", "before"),
    Way("without-locks", "go", "shared-plain", "lockgate"),
    Way("without-locks-before", "go", "shared-plain", "before"),
]

# Each waiter needs two open files in lockgate, which has some others.
CROWD = min(10_000, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 200) // 2)
HANDOFF = [
    Way(f"{name}-{label}", "go", mode, server, clients)
    for label, clients in [("10", 10), ("10000", CROWD)]
    for name, mode, server in [
        ("lockgate", "handoff-lock", "lockgate"),
        ("before", "handoff-lock", "before"),
        ("blpop", "handoff-blpop", "redis"),
    ]
]
# A lockgate of its own for each.
MEMORY = [
    Way(f"{prefix}{mode}", "go", mode, f"{prefix or 'lockgate-'}{mode}", clients)
    for prefix in ("", "before-")
    for mode, clients in [("idle", 5_000), ("used", 5_000), ("waiting", 5_000), ("held", 100_000)]
]

LOADS = [
    Load("contended", "100 clients, one lock, hold 10 ms", GO + GO_ABSORBED + PYTHON + JAVASCRIPT + JAVA,
         clients=100, hold_us=10_000, seconds=0),
    Load("no-hold", "64 clients, one lock, no hold",
         GO + threads("lock") + GO_ABSORBED + [BLPOP] + PYTHON + JAVASCRIPT + JAVA),
    Load("no-hold-one-core", "64 clients, one lock, no hold, everything on one core", GO + [BLPOP] + JAVA, pinned=True),
    Load("processes", "64 clients in 4 processes, one lock, no hold", GO + JAVA, processes=4),
    Load("zipf", "256 clients, 100 locks, Zipf, hold 1 ms", GO + JAVA, clients=256, locks=100, hold_us=1000, seconds=3),
    Load("uncontended", "64 clients, a lock and a connection each", UNCONTENDED + threads("own-lock"), job="cycle"),
    Load("uncontended-one-core", "64 clients, a lock and a connection each, everything on one core", UNCONTENDED,
         job="cycle", pinned=True),
    Load("multiplexed", "64 tasks, a lock each, over one connection", MULTIPLEXED, job="cycle"),
    Load("mixed", "64 tasks over one connection, 90 % GET and SET, 10 % lock cycles", MIXED, job="cycle"),
    Load("handoff", "from the sending of the release to the next grant", HANDOFF, job="handoff"),
    Load("memory", "memory for each client and lock", MEMORY, job="memory"),
]
