"""redis-py waits for a lock while Redis fails over: python wait_redis_py.py HOST PORT LOCK CLIENTS.

Nothing is tried again here: a connection that ends is an exception.
"""

import sys
import threading

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

HOST, PORT, LOCK, CLIENTS = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
served = []


def wait(number):
    with redis.Redis(
        HOST, PORT, protocol=2 + number % 2, retry=Retry(NoBackoff(), 0), socket_timeout=None, single_connection_client=True
    ) as client:
        token = f"redis-py-{number}"
        assert client.execute_command("LOCK", LOCK, "TOKEN", token, "PX", 60_000) == token.encode()
        assert client.set(f"{LOCK}:{number}", number)
        assert client.get(f"{LOCK}:{number}") == str(number).encode()
        assert client.execute_command("UNLOCK", LOCK, token) == 1
        served.append(number)


threads = [threading.Thread(target=wait, args=(number,)) for number in range(CLIENTS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(0 if len(served) == CLIENTS else f"{len(served)} of {CLIENTS} were served")
