"""Lock libraries of Python, and locks written by hand, on one lock: spin.py MODE PORT KEY CLIENTS ROUNDS LEASE CONNECTIONS

See ../run for the arguments and the output. Three modes measure something else than a contest for the lock:
`once`, `rights` and, as the baseline of all others, `lock`.
"""

import socket
import sys
import threading
import time
import uuid

import pottery
import redis

HOLD = 0.010
# An acquisition that takes longer never comes.
PATIENCE = 60

mode, port, key = sys.argv[1], int(sys.argv[2]), sys.argv[3]
clients, rounds, lease, connections = map(int, sys.argv[4:8])

COMPARE_AND_DELETE = """
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
else
    return 0
end
"""
# Wakes clients that listen, as python-redis-lock and simple-redis-mutex do: more than a release.
DELETE_AND_SIGNAL = """
if redis.call("get", KEYS[1]) ~= ARGV[1] then return 0 end
redis.call("publish", "released:" .. KEYS[1], ARGV[1])
return redis.call("del", KEYS[1])
"""


def connect():
    """Returns a client with a pool of `connections`. LOCK may wait for long; the impatient gives up after 100 ms."""
    options = {"lock": {"socket_timeout": PATIENCE}, "impatient": {"socket_timeout": 0.1, "retry": None}}
    pool = redis.BlockingConnectionPool(
        host="127.0.0.1", port=port, max_connections=connections, timeout=PATIENCE, **options.get(mode, {})
    )
    return redis.Redis(connection_pool=pool)


client = connect()
timeouts = 0


def spin(name, token, poll=0.05):
    """Takes a lock as a program without a library does."""
    deadline = time.monotonic() + PATIENCE
    while not client.set(name, token, nx=True, px=lease):
        if time.monotonic() > deadline:
            return False
        time.sleep(poll)
    return True


def acquire_lock(name):
    token = client.execute_command("LOCK", name, "PX", lease)
    return lambda: client.execute_command("UNLOCK", name, token)


def acquire_redis_py(name):
    lock = client.lock(name, timeout=lease / 1000, blocking_timeout=PATIENCE, thread_local=False)
    return lock.acquire() and lock.release


def acquire_and_call_all_methods(name):
    lock = client.lock(name, timeout=lease / 1000, blocking_timeout=PATIENCE, thread_local=False)
    if not lock.acquire():
        return None
    lock.extend(lease / 1000)
    lock.extend(lease / 1000, replace_ttl=True)
    lock.reacquire()
    if not lock.locked() or not lock.owned():
        raise AssertionError("the lock is not held")
    return lock.release


def acquire_impatient(name):
    def count_timeout(command):
        global timeouts
        try:
            return command()
        except redis.TimeoutError:
            timeouts += 1

    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        release = count_timeout(lambda: acquire_redis_py(name))
        if release:
            return lambda: count_timeout(release)


def acquire_pottery(name):
    lock = pottery.Redlock(key=name, masters={client}, auto_release_time=lease / 1000)
    return lock.acquire(timeout=PATIENCE) and lock.release


def acquire_constant(name):
    return spin(name, "1") and (lambda: client.delete(name))


def acquire_transaction(name):
    def release():
        with client.pipeline(transaction=True) as transaction:
            transaction.delete(name).execute()

    return spin(name, uuid.uuid4().hex) and release


def acquire_signal(name):
    token = uuid.uuid4().hex
    return spin(name, token) and (lambda: client.eval(DELETE_AND_SIGNAL, 1, name, token))


class Contest:
    """All clients take the same lock, `rounds` times each."""

    def __init__(self, acquire):
        self.acquire = acquire
        self.begin = threading.Barrier(clients + 1)
        self.waits, self.holds = [], []
        self.inside = 0
        self.wrong = []

    def run(self):
        threads = [threading.Thread(target=self.client, args=[i], daemon=True) for i in range(clients)]
        for thread in threads:
            thread.start()
        try:
            elapsed = self.measure(threads)
        except threading.BrokenBarrierError:
            elapsed = 0
        if len(self.waits) < clients * rounds:
            self.wrong.append("an acquisition never came")
        if self.wrong:
            sys.exit(f"wrong: {self.wrong[0]}")
        per_hold = elapsed / sum(self.holds)
        report(self.waits, time=f"{per_hold:.2f}", elapsed=f"{1000 * elapsed:.2f}", timeouts=timeouts)

    def measure(self, threads):
        """Returns how long all rounds took, without the clients' first connections."""
        global timeouts
        self.begin.wait(PATIENCE)
        timeouts = 0
        client.echo(f"begin {key}")
        begun = time.monotonic()
        self.begin.wait(PATIENCE)
        for thread in threads:
            thread.join(2 * PATIENCE)
        elapsed = time.monotonic() - begun
        client.echo(f"end {key}")
        return elapsed

    def client(self, i):
        try:
            # Opens the connection, and loads the scripts.
            self.acquire(f"{key}-warm-{i}")()
            self.begin.wait(PATIENCE)
            self.begin.wait(PATIENCE)
            for _ in range(rounds):
                self.round()
        except Exception as error:
            self.wrong.append(repr(error))
            self.begin.abort()

    def round(self):
        asked = time.monotonic()
        release = self.acquire(key)
        got = time.monotonic()
        if not release:
            raise TimeoutError("an acquisition never came")
        self.inside += 1
        if self.inside != 1:
            self.wrong.append("two clients hold the lock")
        time.sleep(HOLD)
        self.inside -= 1
        self.holds.append(time.monotonic() - got)
        release()
        self.waits.append(got - asked)


def once():
    """Measures the replies to clients that try once, while another holds the lock."""
    if not client.set(key, "holder", nx=True, px=60_000):
        sys.exit("wrong: the lock is not free")
    other = connect()
    other.set(key, "another", nx=True, px=lease)
    waits = []
    client.echo(f"begin {key}")
    for i in range(rounds):
        asked = time.monotonic()
        if other.set(key, f"another {i}", nx=True, px=lease):
            sys.exit("wrong: two clients hold the lock")
        waits.append(time.monotonic() - asked)
    client.echo(f"end {key}")
    client.eval(COMPARE_AND_DELETE, 1, key, "holder")
    report(waits)


def rights():
    """Prints the replies to users with few rights, byte for byte."""
    client.delete(key)
    client.acl_setuser("no-scripts", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-evalsha"])
    client.acl_setuser("no-key", enabled=True, passwords=["+secret"], keys=["other:*"], commands=["+@all"])
    digest = client.script_load(COMPARE_AND_DELETE)
    for user in ("no-scripts", "no-key"):
        one, two = Raw(), Raw()
        for who, *words in [
            (one, "AUTH", user, "secret"),
            (two, "AUTH", user, "secret"),
            (one, "SET", key, "one", "NX", "PX", "10000"),
            (two, "SET", key, "two", "NX", "PX", "10000"),
            (one, "EVALSHA", digest, "1", key, "one"),
            (two, "SET", key, "two", "NX", "PX", "10000"),
            (one, "EVAL", COMPARE_AND_DELETE, "1", key, "one"),
            (two, "SET", key, "two", "PX", "10000", "NX"),
            (one, "EVAL", COMPARE_AND_DELETE, "1", key, "one"),
            (two, "DEL", key),
            (two, "DEL", key),
        ]:
            print(user, words[0], who.say(*words))


class Raw:
    """A connection that shows replies as they come."""

    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.lines = self.socket.makefile("rb")

    def say(self, *words):
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words))
        return self.lines.readline()


def report(waits, **more):
    """Prints what was measured, in ms: the median of the waits, and what one in a hundred exceeds."""
    waits = sorted(1000 * wait for wait in waits)
    at = lambda part: waits[min(len(waits) - 1, int(len(waits) * part))]
    print(f"p50={at(0.5):.2f} p99={at(0.99):.2f}", *(f"{name}={value}" for name, value in more.items()))


contests = {
    "lock": acquire_lock,
    "redis-py": acquire_redis_py,
    "redis-py-methods": acquire_and_call_all_methods,
    "impatient": acquire_impatient,
    "pottery": acquire_pottery,
    "constant": acquire_constant,
    "transaction": acquire_transaction,
    "signal": acquire_signal,
}
if mode in contests:
    Contest(contests[mode]).run()
else:
    {"once": once, "rights": rights}[mode]()
