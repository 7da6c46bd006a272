"""lockgate from redis-py: python redis_py.py HOST PORT locks|everything [PASSWORD].

Exits nonzero where something is not as promised. `locks` tries what works without a Redis behind
lockgate, `everything` ordinary commands, too. With TLS where the environment names an authority (CA).
"""

import os
import sys
import threading
import time
import uuid
from contextlib import contextmanager

import redis

HOST, PORT, WHAT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
PASSWORD = sys.argv[4] if len(sys.argv) > 4 else None
TLS = {"ssl": True, "ssl_ca_certs": os.environ["CA"]} if "CA" in os.environ else {}
NAME = "redis-py"


def connect(**options):
    return redis.Redis(HOST, PORT, password=PASSWORD, decode_responses=True, **TLS, **options)


@contextmanager
def lock(client, key, token=None):
    # A new token for each acquisition: should redis-py send the LOCK again after a timeout, it is
    # the same owner asking again.
    token = token or str(uuid.uuid4())
    client.execute_command("LOCK", key, "TOKEN", token, "PX", 30_000)
    try:
        yield token
    finally:
        client.execute_command("UNLOCK", key, token)


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def refused(command, *arguments):
    """The error that a command gets."""
    try:
        reply = command(*arguments)
    except redis.ResponseError as error:
        return str(error)
    raise AssertionError(f"{arguments}: an error was expected, not {reply!r}")


def until_waiting(client, key, waiters):
    """Returns when so many wait for the lock."""
    deadline = time.monotonic() + 10
    while True:
        info = client.execute_command("LOCKINFO", key)
        if isinstance(info, list):  # RESP2 has no maps
            info = dict(zip(info[::2], info[1::2]))
        if info["waiters"] == waiters:
            return
        check(time.monotonic() < deadline, f"{waiters} should wait for {key}: {info}")
        time.sleep(0.01)


def lock_commands(client):
    key = f"{NAME}:k"
    run = client.execute_command
    token = run("LOCK", key)
    check(len(token) == 36, f"a UUID was expected, not {token!r}")
    check(run("TRYLOCK", key) is None, "granted twice")
    check(run("LOCK", key, "WAIT", 50) is None, "granted twice")
    check(run("RELOCK", key, token, "EX", 60) == 1, "not extended")
    check(run("UNLOCK", key, "other") == 0, "released by a stranger")
    check(run("UNLOCK", key, token) == 1, "not released")
    check(run("UNLOCK", key, token) == 0, "released twice")
    fences = []
    for _ in range(2):
        token, fence = run("LOCK", key, "TOKEN", "fenced", "FENCE")
        check(token == "fenced" and isinstance(fence, int), f"FENCE: {token!r} {fence!r}")
        fences.append(fence)
        check(run("UNLOCK", key, token) == 1, "not released")
    check(fences[0] < fences[1], f"fences rise: {fences}")
    error = refused(run, "LOCK")
    check(error == "wrong number of arguments for 'lock' command", error)
    check(refused(run, "LOCK", key, "SOON") == "syntax error", "an unknown option")


def one_after_the_other(client, threads=8, times=25):
    """A counter, read and written in two steps, by several threads."""
    counter = {"value": 0}

    def count():
        for _ in range(times):
            with lock(client, f"{NAME}:counter"):
                value = counter["value"]
                time.sleep(0.001)
                counter["value"] = value + 1

    running = [threading.Thread(target=count) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    check(counter["value"] == threads * times, f"{counter['value']} of {threads * times} counted")


def retry_keeps_its_place(client, **options):
    """redis-py gives up on its socket while it waits, and sends the LOCK again on a new one."""
    key, connects, order = f"{NAME}:retry", [], []

    def connected(connection):
        connection.on_connect()
        if connects:
            until_waiting(client, key, 1)  # lockgate has seen that the first connection is closed
        connects.append(connection)

    impatient = connect(socket_timeout=1, redis_connect_func=connected, **options)

    def wait(client, name):
        with lock(client, key):
            order.append(name)

    first = threading.Thread(target=wait, args=(impatient, "the one that retries"))
    second = threading.Thread(target=wait, args=(client, "the one behind it"))
    with lock(client, key):
        first.start()
        until_waiting(client, key, 1)
        second.start()
        until_waiting(client, key, 2)
        while len(connects) < 2:
            check(first.is_alive() and not order, "it should wait for the lock")
            time.sleep(0.01)
        until_waiting(client, key, 2)
    first.join(10)
    second.join(10)
    check(order == ["the one that retries", "the one behind it"], f"granted to {order}")


def ordinary_commands(client):
    key = f"{NAME}:data"
    value = "\r\n$-1\r\n" * 20_000
    check(client.set(key, value) and client.get(key) == value, "a long value")
    check(client.get(f"{NAME}:none") is None, "nil")
    check("WRONGTYPE" in refused(client.lpush, key, "x"), "an error of Redis")
    check(client.hset(f"{NAME}:hash", mapping={"a": 1, "b": 2}) == 2, "HSET")
    check(client.hgetall(f"{NAME}:hash") == {"a": "1", "b": "2"}, "HGETALL")
    check(client.eval("return {KEYS[1], 7}", 1, key) == [key, 7], "EVAL")
    check(list(client.scan_iter(f"{NAME}:hash")) == [f"{NAME}:hash"], "SCAN")
    check("get" in client.command() and "redis_version" in client.info(), "COMMAND, INFO")
    check(client.delete(key, f"{NAME}:hash") == 2, "DEL")


def pipelines(client):
    key = f"{NAME}:n"
    pipeline = client.pipeline(transaction=False)
    pipeline.set(key, 1).execute_command("LOCK", f"{NAME}:k", "TOKEN", "piped")
    pipeline.incr(key).execute_command("UNLOCK", f"{NAME}:k", "piped")
    pipeline.lpush(key, "x").get(key)
    *replies, error, last = pipeline.execute(raise_on_error=False)
    check(replies == [True, "piped", 2, 1], f"a pipeline: {replies}")
    check(isinstance(error, redis.ResponseError) and last == "2", "an error in a pipeline")
    pipeline = client.pipeline()
    for _ in range(1_000):
        pipeline.incr(key)
    check(pipeline.execute() == list(range(3, 1_003)), "a transaction of 1,000")


def transactions(client, other):
    key = f"{NAME}:n"
    with client.pipeline() as pipeline:
        pipeline.watch(key)
        before = int(pipeline.get(key))
        other.incr(key)
        pipeline.multi()
        pipeline.set(key, before + 1)
        try:
            pipeline.execute()
            check(False, "WATCH did not discard the transaction")
        except redis.WatchError:
            pass
    check(int(client.get(key)) == before + 1, "the other's write is there")
    with client.pipeline() as pipeline:
        pipeline.set(key, "never").execute_command("LOCK", f"{NAME}:k")
        check("unknown command" in refused(pipeline.execute), "LOCK inside MULTI")
    check(int(client.get(key)) == before + 1, "Redis discards a transaction with LOCK")
    client.delete(key)


def publish_and_subscribe(client):
    with client.pubsub() as listener:
        listener.subscribe(f"{NAME}:news")
        listener.psubscribe(f"{NAME}:n*")
        kinds = [listener.get_message(timeout=5)["type"] for _ in range(2)]
        check(kinds == ["subscribe", "psubscribe"], f"{kinds}")
        check(client.publish(f"{NAME}:news", "hello") == 2, "two hear it")
        heard = [listener.get_message(timeout=5) for _ in range(2)]
        check([(m["type"], m["data"]) for m in heard] == [("message", "hello"), ("pmessage", "hello")], f"{heard}")
        listener.unsubscribe()
        check(listener.get_message(timeout=5)["type"] == "unsubscribe", "UNSUBSCRIBE")


def blocking_pop(client, other):
    key, popped = f"{NAME}:list", []
    waiter = threading.Thread(target=lambda: popped.append(client.blpop([key], timeout=10)))
    waiter.start()
    while other.info("clients")["blocked_clients"] == 0:
        time.sleep(0.01)
    other.rpush(key, "x")
    waiter.join(10)
    check([list(pair) for pair in popped] == [[key, "x"]], f"BLPOP: {popped}")
    check(client.blpop([key], timeout=0.05) is None, "BLPOP that runs out")


def databases(client):
    """A lock is a key of the database that the connection is in."""
    key = f"{NAME}:k"
    elsewhere = connect(db=7)
    with lock(client, key) as token:
        with lock(elsewhere, key) as other:
            check(token != other, "a lock of its own")
            if WHAT == "everything":
                check(client.get(key) == token and elsewhere.get(key) == other, "the lock's key")
        check(client.execute_command("TRYLOCK", key) is None, "still held")
    elsewhere.close()


def session_lost(client, other):
    """The push that a lock bound to the connection is lost disturbs nothing; RESP2 clients are closed."""
    key = f"{NAME}:session"
    token = client.execute_command("LOCK", key, "SESSION", "PX", 30_000)
    check(other.get(key) == token and other.delete(key) == 1, "deleted")
    for i in range(20):
        check(client.echo(f"{i}") == f"{i}", "a reply to another command")
        time.sleep(0.005)
    check(client.execute_command("UNLOCK", key, token) == 0, "lost")


def main():
    for protocol, database in ((2, 0), (3, 3)):
        client = connect(protocol=protocol, db=database)
        other = connect(protocol=protocol, db=database)
        lock_commands(client)
        one_after_the_other(client)
        retry_keeps_its_place(client, protocol=protocol, db=database)
        databases(client)
        if WHAT == "everything":
            ordinary_commands(client)
            pipelines(client)
            transactions(client, other)
            publish_and_subscribe(client)
            blocking_pop(client, other)
            session_lost(client, other)
    print(f"{NAME} {redis.__version__}: right")


main()
