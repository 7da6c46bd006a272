"""Waiting in slices, as docs/clients.md shows it: HOST PORT locks|everything [PASSWORD]. Exits nonzero where it fails."""

import sys
import threading
import time
import uuid

import redis

HOST, PORT = sys.argv[1], int(sys.argv[2])
PASSWORD = sys.argv[4] if len(sys.argv) > 4 else None
KEY = f"redis-py:slices:{uuid.uuid4()}"


class Client(redis.Redis):
    """A client that counts the slices in which it was not granted the lock."""

    def __init__(self):
        super().__init__(host=HOST, port=PORT, password=PASSWORD, decode_responses=True, socket_timeout=15)
        self.slices = 0

    def execute_command(self, *words):
        reply = super().execute_command(*words)
        self.slices += reply is None
        return reply


def lock(client, key, token, seconds, slice_ms=20_000):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if client.execute_command("LOCK", key, "TOKEN", token, "PX", 30_000, "WAIT", slice_ms):
            return True
    client.execute_command("UNLOCK", key, token)  # gives up the place in the queue
    return False


def waiters():
    info = control.execute_command("LOCKINFO", KEY)
    info = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2]))
    return info["waiters"]


def work(client, token, slice_ms):
    assert lock(client, KEY, token, 60, slice_ms)
    served.append(token)
    assert client.execute_command("UNLOCK", KEY, token) == 1


def begin(*args):
    thread = threading.Thread(target=work, args=args)
    thread.start()
    return thread


control, sliced, served = Client(), Client(), []
assert control.execute_command("LOCK", KEY, "TOKEN", "holder", "PX", 60_000) == "holder"
threads = [begin(sliced, "sliced", 500)]
while waiters() < 1:
    time.sleep(0.001)
threads.append(begin(Client(), "patient", 60_000))
while sliced.slices < 2 or waiters() < 2:
    time.sleep(0.001)
assert control.execute_command("UNLOCK", KEY, "holder") == 1
for thread in threads:
    thread.join()
assert served == ["sliced", "patient"], f"the first one lost its place: {served}"

assert control.execute_command("LOCK", KEY, "TOKEN", "holder", "PX", 60_000) == "holder"
assert not lock(Client(), KEY, "late", 0.1, 20)
assert waiters() == 0
assert control.execute_command("UNLOCK", KEY, "holder") == 1
print(f"redis-py {redis.__version__} in slices: right")
