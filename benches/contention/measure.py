"""Measures locks side by side: see run, which prepares everything and starts this.

For each load of loads.py one program runs for each way; the programs stay connected and take turns. The first round of
each way is not measured: it warms up, and MONITOR counts the commands that Redis executes. (Redis's own counters count
each command inside of a script as well; MONITOR marks those.) What a new connection says first, and PING, is not
counted. The CPU time is that of Redis by its own account (INFO), in the rounds without MONITOR. With QUICK, the first
round is the only one.

The results go to the JSON file named as the argument, those of each way that was measured in place of its former ones;
with QUICK or another build to compare with (BEFORE) they are only printed.
"""

import bisect
import json
import os
import platform
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from itertools import accumulate
from pathlib import Path
from statistics import median

import judge
import report
from loads import LOADS

QUICK = bool(os.environ.get("QUICK"))
ROUNDS = 1 if QUICK else int(os.environ.get("ROUNDS", 5))
SECONDS = float(os.environ.get("SECONDS", 1))
ONLY = os.environ.get("ONLY", "").split()
WAYS = os.environ.get("WAYS", "").split()
LEFT_OUT = os.environ.get("LEFT_OUT", "").split()
INSTALLED = Path(os.environ["INSTALLED"])
LOCKGATE, BEFORE = os.environ["LOCKGATE"], os.environ.get("BEFORE")

# An acquisition that was asked for this much later counts as later: programs stall between the clock and the socket.
LATER_US = 5_000
# A job that takes longer never ends.
PATIENCE = 180
UNCOUNTED = re.compile(rb'"(hello|auth|select|client|command|info|ping|script|echo|monitor)"', re.IGNORECASE)

PROGRAMS = {
    "go": ["./contention"],
    "python": ["venv/bin/python", "contention.py"],
    "java": ["java", "-Xmx512m", "-cp", ".:lib/*", "Contention"],
    "javascript": ["node", "contention.mjs"],
}


class Failed(Exception):
    """A way could not be measured."""


def free_port():
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as it:
            if it.connect_ex(("127.0.0.1", port)):
                return port


class Redis:
    """A connection to Redis that sends one command at a time."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.lines = self.socket.makefile("rb")

    def do(self, *words):
        words = [word.encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        line = self.lines.readline()
        if line[:1] == b"$":
            return self.lines.read(int(line[1:]) + 2).decode()
        return line.decode().strip()

    def info(self, name):
        return float(re.search(rf"^{name}:([\d.]+)", self.do("INFO", "everything"), re.MULTILINE)[1])

    def cpu_us(self):
        text = self.do("INFO", "cpu")
        return sum(map(float, re.findall(r"^used_cpu_(?:user|sys):([\d.]+)", text, re.MULTILINE))) * 1e6


class Servers:
    """A Redis and its proxies, each started when a way needs it first; `pinned` to one core, with all programs."""

    def __init__(self, pinned):
        self.directory = tempfile.TemporaryDirectory()
        self.work = work = self.directory.name
        self.prefix = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if pinned else []
        self.processes, self.ports, self.pids = [], {}, {}
        port = self.ports["redis"] = free_port()
        self.start(
            "redis",
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", work]
            + ["--maxclients", "20000"],
        )
        self.redis = Redis(port)

    def start(self, name, command, environment=()):
        log = open(f"{self.work}/{name}.log", "wb")
        process = subprocess.Popen(
            self.prefix + command, stdout=log, stderr=log, env=os.environ | dict(environment)
        )
        self.processes.append(process)
        self.pids[name] = process.pid
        for _ in range(200):
            with socket.socket() as it:
                if not it.connect_ex(("127.0.0.1", self.ports[name])):
                    return
            if process.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"{name} does not listen:\n" + Path(log.name).read_text())

    def port(self, name):
        """Returns the port of a server: redis, haproxy, or a lockgate."""
        if name not in self.ports:
            self.ports[name] = free_port()
            (self.start_haproxy if name == "haproxy" else self.start_lockgate)(name)
        return self.ports[name]

    def start_haproxy(self, name):
        Path(f"{self.work}/haproxy.cfg").write_text(
            f"""
global
    nbthread 1
    maxconn 8000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen redis
    bind 127.0.0.1:{self.ports[name]}
    server redis 127.0.0.1:{self.ports["redis"]}
"""
        )
        self.start(name, ["haproxy", "-f", f"{self.work}/haproxy.cfg"])

    def start_lockgate(self, name):
        program = BEFORE if name.startswith("before") else LOCKGATE
        settings = {
            "LOCKGATE_THREADS": "2" if "threads-2" in name else "1",
            "LOCKGATE_LIMITS_CLIENTS": "20000",
            "LOCKGATE_LIMITS_WAITERS": "20000",
        }
        if "absorb" in name:
            settings["LOCKGATE_ABSORB_KEYS"] = "lock:*"
        listen, upstream = f"127.0.0.1:{self.ports[name]}", f"redis://127.0.0.1:{self.ports['redis']}"
        self.start(name, [program, "--listen", listen, "--upstream", upstream], settings)

    def cpu_us(self, name):
        """Returns the CPU time of a proxy so far."""
        if name == "redis":
            return 0
        tasks = Path(f"/proc/{self.pids[name]}/task")
        return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1000

    def stop(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.directory.cleanup()


class Monitor:
    """What Redis executes, as MONITOR reports it."""

    def __init__(self, redis, port):
        self.redis = redis
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(b"MONITOR\r\n")
        self.socket.recv(5, socket.MSG_WAITALL)  # +OK
        self.received = bytearray()
        self.changed = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        while some := self.socket.recv(1 << 20):
            with self.changed:
                self.received += some
                self.changed.notify()

    def reached(self, mark):
        """Waits until everything is here that Redis has executed, and returns its length."""
        self.redis.do("ECHO", mark)
        with self.changed:
            if not self.changed.wait_for(lambda: mark.encode() in self.received[-(1 << 16) :], 60):
                raise Failed("MONITOR fell silent")
            return len(self.received)

    def commands(self, begin, end):
        lines = self.received[begin:end].splitlines()
        return sum(b" lua]" not in line and not UNCOUNTED.match(line.split(b"] ", 1)[-1]) for line in lines)

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)


class Program:
    """The processes of one way, connected and ready; they share the clients equally."""

    def __init__(self, way, load, servers):
        self.way = way
        command = servers.prefix + PROGRAMS[way.language]
        arguments = [way.mode, str(servers.port(way.server)), str((way.clients or load.clients) // load.processes)]
        self.log = open(f"{servers.work}/{way.id.replace('/', '-')}.log", "w+b")
        directory, pipe = INSTALLED / way.language, subprocess.PIPE
        self.processes = [
            subprocess.Popen(command + arguments, cwd=directory, stdin=pipe, stdout=pipe, stderr=self.log)
            for _ in range(load.processes)
        ]
        self.versions = dict(word.split("=", 1) for word in self.replies("ready")[0].split())

    def replies(self, end):
        """Returns the lines of all processes up to the one that begins with `end`, or what follows it in that one."""
        watch = threading.Timer(PATIENCE, self.stop)
        watch.start()
        lines = []
        for process in self.processes:
            while not (line := process.stdout.readline().decode()).startswith(end):
                if not line:
                    watch.cancel()
                    self.log.seek(0)
                    raise Failed(f"the program failed: {self.log.read().decode()[-2000:]}")
                lines.append(line)
        watch.cancel()
        return lines or [line[len(end) :]]

    def do(self, job):
        for process in self.processes:
            process.stdin.write(job.encode() + b"\n")
            process.stdin.flush()
        return self.replies(".")

    def stop(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def percentile(ordered, part):
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def percentile_of_time(ordered, part):
    """Returns the wait such that this part of all waiting time belongs to waits that are no longer.

    >>> percentile_of_time([1] * 99 + [900], 0.99)
    900
    >>> percentile_of_time([5] * 100, 0.99)
    5
    """
    sums = list(accumulate(ordered))
    return ordered[bisect.bisect_left(sums, sums[-1] * part)]


def acquisitions(lines, seconds):
    """Returns the figures of a contest from its lines "lock asked got done"."""
    came = [line for line in lines if "-" not in line]
    turns = sorted((tuple(map(int, line.split())) for line in came), key=lambda turn: turn[2])
    begun = min(turn[1] for turn in turns)
    waits = sorted(got - asked for _, asked, got, _ in turns)
    overtakings = count_overtakings(turns)
    figures = {
        "count": len(turns),
        "never": len(lines) - len(came),
        "p50_us": percentile(waits, 0.5),
        "p99_us": percentile(waits, 0.99),
        "p99_of_time_us": percentile_of_time(waits, 0.99),
        "overtaken": sum(map(bool, overtakings)) / len(turns),
        "most_overtakings": max(overtakings),
    }
    if seconds:
        # What is granted after the end is no throughput: fewer clients contend for it.
        figures["rate"] = sum(turn[2] <= begun + seconds * 1e6 for turn in turns) / seconds
    else:
        figures["time"] = (turns[-1][3] - begun) / sum(done - got for _, _, got, done in turns)
    return figures


def count_overtakings(turns):
    """Returns, for each acquisition, how many of the same lock were asked for later (LATER_US) and got it earlier.

    >>> count_overtakings([(0, 0, 10_000, 0), (0, 9_000, 20_000, 0), (0, 1_000, 30_000, 0), (1, 0, 40_000, 0)])
    [0, 0, 1, 0]
    """
    earlier = {}
    counts = []
    for lock, asked, _, _ in turns:
        others = earlier.setdefault(lock, [])
        counts.append(len(others) - bisect.bisect_left(others, asked + LATER_US))
        bisect.insort(others, asked)
    return counts


def figures_of(load, lines, seconds):
    if load.job == "contest":
        return acquisitions(lines, seconds)
    if load.job == "handoff":
        ordered = sorted(float(line) for line in lines)
        return {"count": len(ordered), "p50_us": percentile(ordered, 0.5), "p99_us": percentile(ordered, 0.99)}
    units, elapsed, p50, p99 = map(float, lines[0].split())
    return {"count": units, "rate": units / elapsed, "p50_us": p50, "p99_us": p99}


def measure(load, way, program, servers, turn, seconds):
    job = load.job_line(key=f"lock:{load.name}:{way.id}:{turn}", seconds=seconds)
    redis, proxy = servers.redis.cpu_us(), servers.cpu_us(way.server)
    lines = program.do(job)
    redis, proxy = servers.redis.cpu_us() - redis, servers.cpu_us(way.server) - proxy
    figures = figures_of(load, lines, seconds)
    if way.mode == "lock" and figures.get("never"):
        raise Failed(f"{figures['never']} acquisitions never came")
    return figures | {"redis_cpu_us": redis / figures["count"], "proxy_cpu_us": proxy / figures["count"]}


def measure_load(load, ways, servers, failures):
    """Returns what was measured of each way: the commands an acquisition, and the rounds, in turns."""
    seconds = load.seconds * (0.3 if QUICK else SECONDS)
    results, programs, versions = {}, {}, {}

    def attempt(way, action):
        try:
            action()
        except Failed as failure:
            failures.append(f"{load.name}, {way.id}: {failure}")
            results.pop(way.id, None)

    def begin(way):
        program = programs[way.id] = Program(way, load, servers)
        versions.update(program.versions)
        program.do(load.job_line(f"lock:{load.name}:{way.id}:warm", seconds=0.1))
        # Where each client acquires the lock once, it is luck how often it polls.
        counted = [count(way, program, number) for number in range(3 if not (load.seconds or QUICK) else 1)]
        commands = median(commands for commands, _ in counted)
        results[way.id] = {"commands": commands, "rounds": [counted[0][1]] if QUICK else []}

    def count(way, program, number):
        monitor = Monitor(servers.redis, servers.ports["redis"])
        begin = monitor.reached(f"begin {way.id}")
        figures = measure(load, way, program, servers, f"count-{number}", min(seconds, 0.5))
        commands = monitor.commands(begin, monitor.reached(f"end {way.id}"))
        monitor.close()
        return commands / figures["count"], figures

    def turn(way, number):
        results[way.id]["rounds"].append(measure(load, way, programs[way.id], servers, number, seconds))

    try:
        for way in ways:
            attempt(way, lambda: begin(way))
        for number in range(0 if QUICK else ROUNDS):
            # Another way is first in each round, and every second round is in reverse.
            order = [way for way in ways if way.id in results]
            order = order[number % max(1, len(order)) :] + order[: number % max(1, len(order))]
            for way in order[:: -1 if number % 2 else 1]:
                attempt(way, lambda: turn(way, number))
    finally:
        for program in programs.values():
            program.stop()
    return results, versions


def measure_memory(load, ways, servers, failures):
    """Returns the resident bytes that each client or lock of a way adds to a lockgate, and to Redis."""
    results, versions = {}, {}
    for way in ways:
        gate = Redis(servers.port(way.server))
        # Opens its connection to Redis for locks.
        gate.do("TRYLOCK", "lock:first", "TOKEN", "first")
        gate.do("UNLOCK", "lock:first", "first")
        status = Path(f"/proc/{servers.pids[way.server]}/status")
        resident = lambda: int(re.search(r"VmRSS:\s*(\d+)", status.read_text())[1]) * 1024
        before, before_redis = resident(), servers.redis.info("used_memory")
        try:
            program = Program(way, load, servers)
        except Failed as failure:
            failures.append(f"memory, {way.id}: {failure}")
            continue
        deadline = time.monotonic() + PATIENCE
        while way.mode == "waiting" and gate.info("lockgate_waiters") < way.clients:
            if time.monotonic() > deadline:
                failures.append(f"memory, {way.id}: some clients do not wait")
                break
            time.sleep(0.05)
        figures = {"bytes": (resident() - before) / way.clients}
        if way.mode == "held":
            figures["redis_bytes"] = (servers.redis.info("used_memory") - before_redis) / way.clients
        results[way.id] = {"rounds": [figures]}
        versions |= program.versions
        program.stop()
    return results, versions


def output(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def environment():
    """Returns what the figures belong to."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores = len(os.sched_getaffinity(0))
    return {
        "date": date.today().isoformat(),
        "machine": f"{cpu[1] if cpu else platform.machine()}, {cores} cores, Linux {platform.release()}",
        "rounds": ROUNDS,
    }


def server_versions():
    return {
        "lockgate": output(LOCKGATE, "--version").removeprefix("lockgate "),
        "redis-server": re.search(r"v=(\S+)", output("redis-server", "--version"))[1],
        "haproxy": re.search(r"version (\S+)", output("haproxy", "-v"))[1],
    }


def wanted(load, way):
    if way.language in LEFT_OUT or ("before" in way.name and not BEFORE):
        return False
    now = judge.current(load.name, way.id)
    return not WAYS or not {way.id, way.name, now, now.split("/")[0]}.isdisjoint(WAYS)


def chosen():
    """Returns the loads to measure, each with its ways."""
    unknown = set(ONLY) - {load.name for load in LOADS}
    unknown |= set(WAYS) - {name for load in LOADS for way in load.ways for name in (way.name, way.id)}
    if unknown:
        sys.exit(f"there is no such load or way: {' '.join(sorted(unknown))}")
    for load in LOADS:
        ways = [way for way in load.ways if wanted(load, way)]
        if ways and (not ONLY or load.name in ONLY):
            yield load, ways


def main(path):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results = json.loads(path.read_text()) if path.exists() else {}
    measured, failures, servers = {}, [], {}
    try:
        for load, ways in chosen():
            print(f"== {load.title} ({load.name})", flush=True)
            if load.pinned not in servers:
                servers[load.pinned] = Servers(load.pinned)
            how = measure_memory if load.job == "memory" else measure_load
            ways, versions = how(load, ways, servers[load.pinned], failures)
            measured[load.name] = {"ways": ways}
            print("\n".join(report.table(load, ways)), flush=True)
            if not QUICK and not BEFORE:
                entry = results.setdefault(load.name, {"ways": {}, "versions": {}})
                entry["ways"] |= ways
                entry["versions"] |= server_versions() | versions
                entry |= environment()
                path.write_text(json.dumps(results, indent=1))
    finally:
        for each in servers.values():
            each.stop()
    print("== bounds")
    missed = judge.print_bounds(measured, strict=bool(os.environ.get("JUDGE")))
    for failure in failures:
        print(f"wrong: {failure}")
    sys.exit(1 if failures or missed else 0)


if __name__ == "__main__":
    if sys.argv[1] == "languages":
        print(*sorted({way.language for _, ways in chosen() for way in ways}))
    else:
        main(Path(sys.argv[1]))
