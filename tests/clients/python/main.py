"""lockgate from redis-py: python main.py HOST PORT. Exits nonzero where something is not as promised."""

import sys
import threading
import time
import uuid
from contextlib import contextmanager

import redis


@contextmanager
def lock(client, key, lease_ms=30_000):
    # A new token for each acquisition: should redis-py send the LOCK again after a timeout, it is
    # the same owner asking again.
    token = str(uuid.uuid4())
    client.execute_command("LOCK", key, "TOKEN", token, "PX", lease_ms)
    try:
        yield token
    finally:
        client.execute_command("UNLOCK", key, token)


def check(holds, what):
    if not holds:
        sys.exit(f"redis-py: {what}")


def one_after_the_other(client, threads=8, times=25):
    """A counter, read and written in two steps, by several threads."""
    counter = {"value": 0}

    def count():
        for _ in range(times):
            with lock(client, "python:counter"):
                value = counter["value"]
                time.sleep(0.001)
                counter["value"] = value + 1

    running = [threading.Thread(target=count) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    check(counter["value"] == threads * times, f"{counter['value']} of {threads * times} counted")


def handover(client, hold=0.5):
    """Who waits has the lock as soon as it is released; returns when, after the release."""
    granted = []

    def wait():
        with lock(client, "python:handover"):
            granted.append(time.monotonic())

    with lock(client, "python:handover"):
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(hold)
        check(not granted, "granted while held")
        released = time.monotonic()
    waiter.join(10)
    check(len(granted) == 1, "the waiter was not granted the lock")
    check(granted[0] - released < 0.25, f"granted {granted[0] - released:.3f} s after the release")


def main(host, port):
    for protocol in (2, 3):
        client = redis.Redis(host, int(port), protocol=protocol, decode_responses=True)
        token = client.execute_command("LOCK", "python:k")
        check(len(token) == 36, f"a UUID was expected, not {token!r}")
        check(client.execute_command("TRYLOCK", "python:k") is None, "granted twice")
        check(client.execute_command("LOCK", "python:k", "WAIT", 50) is None, "granted twice")
        check(client.execute_command("UNLOCK", "python:k", "other") == 0, "released by a stranger")
        check(client.execute_command("UNLOCK", "python:k", token) == 1, "not released")
        check(client.execute_command("UNLOCK", "python:k", token) == 0, "released twice")
        handover(client)
        one_after_the_other(client)
        # The client gives up on its socket while it waits, and sends the LOCK again on a new one.
        handover(redis.Redis(host, int(port), protocol=protocol, socket_timeout=0.3), hold=0.45)
    print(f"redis-py {redis.__version__}: right")


main(*sys.argv[1:])
