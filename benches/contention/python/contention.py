"""Locks from Python: contention.py WAY PORT CLIENTS

See ../go/main.go for the arguments, the jobs on standard input and the output; there is only the job "contest" here.
Clients are threads.
"""

import sys
import threading
import time
import uuid
from importlib.metadata import version

import redis
import redis_lock

LEASE_MS = 30_000

way, port, clients = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
# LOCK and BLPOP wait for long.
client = redis.Redis("127.0.0.1", port, socket_timeout=60)


def acquire_lockgate(name):
    token = str(uuid.uuid4())
    client.execute_command("LOCK", name, "TOKEN", token, "PX", LEASE_MS)
    return lambda: client.execute_command("UNLOCK", name, token)


def acquire_redis_py(name):
    lock = client.lock(name, timeout=LEASE_MS / 1000)
    return lock.acquire() and lock.release


def acquire_python_redis_lock(name):
    lock = redis_lock.Lock(client, name, expire=LEASE_MS // 1000)
    return lock.acquire() and lock.release


def now_us():
    return time.time_ns() // 1000


class Contest:
    def __init__(self, acquire, key, locks, seconds, hold_us):
        self.acquire, self.key, self.seconds, self.hold = acquire, key, seconds, hold_us / 1_000_000
        self.inside = 0
        self.turns = []
        self.wrong = []

    def run(self):
        self.begun = time.monotonic()
        threads = [threading.Thread(target=self.client, args=[i]) for i in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.wrong:
            sys.exit(f"wrong: {self.wrong[0]}")
        print(*("0 %d %d %d" % turn for turn in self.turns), sep="\n")

    def client(self, i):
        try:
            time.sleep(max(0, self.begun + i / 1000 - time.monotonic()))
            if not self.seconds:
                self.turn()
            while time.monotonic() < self.begun + self.seconds:
                self.turn()
        except Exception as error:
            self.wrong.append(repr(error))

    def turn(self):
        asked = now_us()
        release = self.acquire(f"{self.key}:0")
        got = now_us()
        self.inside += 1
        if self.inside != 1:
            self.wrong.append("two clients hold the lock")
        if self.hold:
            time.sleep(self.hold)
        self.inside -= 1
        self.turns.append((asked, got, now_us()))
        release()


acquire = {
    "lock": acquire_lockgate,
    "redis-py": acquire_redis_py,
    "python-redis-lock": acquire_python_redis_lock,
}[way]
libraries = [f"{name}={version(name)}" for name in ("redis", "python-redis-lock")]
print("ready", *libraries, f"python={sys.version.split()[0]}", flush=True)
for line in sys.stdin:
    _, key, locks, seconds, hold_us = line.split()
    Contest(acquire, key, int(locks), float(seconds), int(hold_us)).run()
    print(".", flush=True)
