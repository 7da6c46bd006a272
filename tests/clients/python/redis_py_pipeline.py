"""Pipelines of redis-py, which writes all of one before it reads anything: HOST PORT locks|everything [PASSWORD].

Exits nonzero where a reply is missing or wrong. `locks` tries what works without a Redis behind lockgate. Prints what
each pipeline took, in seconds. The environment may say that there are no lock commands (LOCKS=no), to compare with a
Redis, and how many small commands there are (SMALL).
"""

import os
import sys
import time

import redis

HOST, PORT, WHAT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
PASSWORD = sys.argv[4] if len(sys.argv) > 4 else None
LOCKS = os.environ.get("LOCKS") != "no"
VALUES, SMALL = 20_000, int(os.environ.get("SMALL", 200_000))
KEY, VALUE = "redis-py:pipeline", "v" * 1024


def middle(pipe):
    """Commands that run only when all before them are answered, and two whose replies lockgate changes."""
    if LOCKS:
        pipe.execute_command("LOCK", f"{KEY}:k", "TOKEN", "t")
    pipe.execute_command("INFO").execute_command("COMMAND")
    if LOCKS:
        pipe.execute_command("UNLOCK", f"{KEY}:k", "t")
    return 4 if LOCKS else 2


def values(pipe, begin, end):
    for _ in range(begin, end):
        if WHAT == "locks":
            pipe.echo(VALUE).echo(VALUE)
        else:
            pipe.set(KEY, VALUE).get(KEY)


def small(pipe, begin, end):
    for i in range(begin, end):
        pipe.echo(i) if WHAT == "locks" else pipe.incr(KEY)


def expected(command, count):
    if command is values:
        return [VALUE if WHAT == "locks" else True, VALUE] * count
    return [str(i) if WHAT == "locks" else i + 1 for i in range(count)]


def pipeline(name, client, command, count, with_middle):
    if WHAT == "everything":
        client.delete(KEY)
    with client.pipeline(transaction=False) as pipe:
        command(pipe, 0, count // 2)
        before = len(pipe)
        between = middle(pipe) if with_middle else 0
        command(pipe, count // 2, count)
        start = time.monotonic()
        replies = pipe.execute(raise_on_error=False)
        took = time.monotonic() - start
    added = replies[before : before + between]
    del replies[before : before + between]
    if replies != expected(command, count):
        raise AssertionError(f"{name}: a reply is missing or wrong, of {len(replies)}")
    if any(isinstance(reply, Exception) for reply in added):
        raise AssertionError(f"{name}: {added}")
    if with_middle and LOCKS and (added[0] != "t" or added[3] != 1):
        raise AssertionError(f"{name}: {added[0]}, {added[3]}")
    print(f"{name} {took:.3f}")


def main():
    client = redis.Redis(HOST, PORT, password=PASSWORD, decode_responses=True, socket_timeout=60)
    for command, count in ((values, VALUES), (small, SMALL)):
        pipeline(f"redis-py {command.__name__}", client, command, count, False)
        pipeline(f"redis-py {command.__name__}+middle", client, command, count, True)
    if WHAT == "everything":
        client.delete(KEY)


main()
