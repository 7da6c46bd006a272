"""Pipelines through a plain socket, written whole before it reads anything: plain_socket.py HOST PORT everything.

Like the programs of tests/clients, it checks every byte of the replies, except those to INFO and COMMAND, and prints
the duration of each pipeline in seconds.
"""

import os
import socket
import sys
import time

LOCKS = os.environ.get("LOCKS") != "no"
SMALL = int(os.environ.get("SMALL", 200_000))
KEY, VALUE, END = "socket:pipeline", b"v" * 1024, b"the end of it"


def frame(*words):
    words = [word if isinstance(word, bytes) else word.encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def exchange(connection, request, end):
    connection.sendall(request)
    replies = bytearray()
    while not replies.endswith(end):
        some = connection.recv(1 << 20)
        if not some:
            raise ConnectionError("closed")
        replies += some
    return bytes(replies)


def pipeline(connection, name, command, reply, count, middle):
    between = [frame("INFO"), frame("COMMAND")]
    if LOCKS:
        between = [frame("LOCK", f"{KEY}:k", "TOKEN", "t"), *between, frame("UNLOCK", f"{KEY}:k", "t")]
    half = command * (count // 2)
    request = half + (b"".join(between) if middle else b"") + half + frame("ECHO", END)
    start = time.monotonic()
    replies = exchange(connection, request, b"$%d\r\n%s\r\n" % (len(END), END))
    took = time.monotonic() - start
    replies = replies[: -len(END) - len(b"$13\r\n\r\n")]
    expected = reply * (count // 2)
    added = replies[len(expected) : len(replies) - len(expected)]
    if not (replies.startswith(expected) and replies.endswith(expected) and bool(added) == middle):
        raise AssertionError(f"{name}: a reply is missing or wrong")
    if middle and LOCKS and not (added.startswith(b"$1\r\nt\r\n") and added.endswith(b":1\r\n")):
        raise AssertionError(f"{name}: {added[:100]} … {added[-100:]}")
    print(f"socket {name} {took:.3f}")


def main():
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
    values = frame("SET", KEY, VALUE) + frame("GET", KEY), b"+OK\r\n$1024\r\n" + VALUE + b"\r\n"
    small = frame("SET", KEY, "1"), b"+OK\r\n"
    for name, (command, reply), count in (("values", values, 20_000), ("small", small, SMALL)):
        for middle in (False, True):
            pipeline(connection, name + ("+middle" if middle else ""), command, reply, count, middle)


main()
