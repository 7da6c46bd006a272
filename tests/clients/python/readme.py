"""What docs/clients.md shows for redis-py. tests/clients/run puts its own host and port here."""

import uuid

import redis

# redis-py gives up after 5 s unless told otherwise; this must be longer than WAIT.
client = redis.Redis("localhost", 6380, socket_timeout=15)

token = str(uuid.uuid4())
if client.execute_command("LOCK", "order:42", "TOKEN", token, "PX", 30_000, "WAIT", 10_000):
    try:
        print("working on order 42")
    finally:
        client.execute_command("UNLOCK", "order:42", token)
else:
    print("order 42 is busy")
