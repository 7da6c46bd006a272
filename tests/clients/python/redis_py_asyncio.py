"""lockgate from redis-py's asyncio: python redis_py_asyncio.py HOST PORT locks|everything [PASSWORD].

Exits nonzero where something is not as promised. `locks` tries what works without a Redis behind
lockgate, `everything` ordinary commands, too.
"""

import asyncio
import sys
import uuid
from contextlib import asynccontextmanager

import redis.asyncio as redis
from redis.exceptions import ResponseError, WatchError

HOST, PORT, WHAT = sys.argv[1], int(sys.argv[2]), sys.argv[3]
PASSWORD = sys.argv[4] if len(sys.argv) > 4 else None
NAME = "redis-py-asyncio"


def connect(**options):
    return redis.Redis(host=HOST, port=PORT, password=PASSWORD, decode_responses=True, **options)


@asynccontextmanager
async def lock(client, key):
    token = str(uuid.uuid4())
    await client.execute_command("LOCK", key, "TOKEN", token, "PX", 30_000)
    try:
        yield token
    finally:
        await client.execute_command("UNLOCK", key, token)


def check(holds, what):
    if not holds:
        raise AssertionError(what)


async def refused(command):
    """The error that a command gets."""
    try:
        reply = await command
    except ResponseError as error:
        return str(error)
    raise AssertionError(f"an error was expected, not {reply!r}")


async def until_waiting(client, key, waiters):
    """Returns when so many wait for the lock."""
    async with asyncio.timeout(10):
        while True:
            info = await client.execute_command("LOCKINFO", key)
            if isinstance(info, list):  # RESP2 has no maps
                info = dict(zip(info[::2], info[1::2]))
            if info["waiters"] == waiters:
                return
            await asyncio.sleep(0.01)


async def lock_commands(client):
    key, run = f"{NAME}:k", client.execute_command
    token = await run("LOCK", key)
    check(len(token) == 36, f"a UUID was expected, not {token!r}")
    check(await run("TRYLOCK", key) is None, "granted twice")
    check(await run("LOCK", key, "WAIT", 50) is None, "granted twice")
    check(await run("UNLOCK", key, "other") == 0, "released by a stranger")
    check(await run("UNLOCK", key, token) == 1, "not released")
    check(await run("UNLOCK", key, token) == 0, "released twice")
    token, fence = await run("LOCK", key, "FENCE")
    check(isinstance(fence, int) and await run("UNLOCK", key, token) == 1, f"FENCE: {fence!r}")
    error = await refused(run("LOCK", key, "SOON"))
    check(error == "syntax error", error)


async def one_after_the_other(client, tasks=20, times=10):
    """A counter, read and written in two steps, by several tasks."""
    counter = 0

    async def count():
        nonlocal counter
        for _ in range(times):
            async with lock(client, f"{NAME}:counter"):
                value = counter
                await asyncio.sleep(0.001)
                counter = value + 1

    await asyncio.gather(*(count() for _ in range(tasks)))
    check(counter == tasks * times, f"{counter} of {tasks * times} counted")


async def retry_keeps_its_place(client, **options):
    """redis-py gives up on its socket while it waits, and sends the LOCK again on a new one."""
    key, connects, order = f"{NAME}:retry", [], []

    async def connected(connection):
        await connection.on_connect()
        if connects:
            await until_waiting(client, key, 1)  # lockgate has seen that the first connection is closed
        connects.append(connection)

    async def wait(client, name):
        async with lock(client, key):
            order.append(name)

    impatient = connect(socket_timeout=1, redis_connect_func=connected, **options)
    async with lock(client, key):
        first = asyncio.create_task(wait(impatient, "the one that retries"))
        await until_waiting(client, key, 1)
        second = asyncio.create_task(wait(client, "the one behind it"))
        await until_waiting(client, key, 2)
        while len(connects) < 2:
            check(not first.done() and not order, "it should wait for the lock")
            await asyncio.sleep(0.01)
        await until_waiting(client, key, 2)
    async with asyncio.timeout(10):
        await asyncio.gather(first, second)
    check(order == ["the one that retries", "the one behind it"], f"granted to {order}")
    await impatient.aclose()


async def a_cancelled_task_leaves_the_queue(client):
    """Its connection is closed, and nobody gets its reply."""
    key = f"{NAME}:cancelled"
    async with lock(client, key):
        waiting = asyncio.create_task(client.execute_command("LOCK", key))
        await until_waiting(client, key, 1)
        waiting.cancel()
        await until_waiting(client, key, 0)
        replies = await asyncio.gather(*(client.echo(f"{i}") for i in range(20)))
        check(replies == [f"{i}" for i in range(20)], f"replies to other commands: {replies}")
    async with lock(client, key):
        pass


async def databases(client):
    key, elsewhere = f"{NAME}:k", connect(db=7)
    async with lock(client, key) as token, lock(elsewhere, key) as other:
        check(token != other, "a lock of its own")
        if WHAT == "everything":
            check(await client.get(key) == token and await elsewhere.get(key) == other, "the lock's key")
    await elsewhere.aclose()


async def ordinary_commands(client):
    key = f"{NAME}:data"
    value = "\r\n$-1\r\n" * 20_000
    check(await client.set(key, value) and await client.get(key) == value, "a long value")
    check("WRONGTYPE" in await refused(client.lpush(key, "x")), "an error of Redis")
    replies = await asyncio.gather(*(client.incr(f"{NAME}:n") for _ in range(50)))
    check(sorted(replies) == list(range(1, 51)), f"50 tasks at once: {replies}")
    pipeline = client.pipeline(transaction=False)
    pipeline.set(key, 1).execute_command("LOCK", f"{NAME}:k", "TOKEN", "piped")
    pipeline.incr(key).execute_command("UNLOCK", f"{NAME}:k", "piped")
    replies = await pipeline.execute()
    check(replies == [True, "piped", 2, 1], f"a pipeline: {replies}")
    check(await client.delete(key, f"{NAME}:n") == 2, "DEL")


async def transactions(client, other):
    key = f"{NAME}:n"
    async with client.pipeline(transaction=True) as pipeline:
        check(await pipeline.set(key, 1).incr(key).execute() == [True, 2], "MULTI")
        await pipeline.watch(key)
        await other.incr(key)
        pipeline.multi()
        pipeline.set(key, "never")
        try:
            await pipeline.execute()
            check(False, "WATCH did not discard the transaction")
        except WatchError:
            pass
    check(await client.get(key) == "3", "the other's write is there")
    await client.delete(key)


async def publish_and_subscribe(client):
    async with client.pubsub() as listener:
        await listener.subscribe(f"{NAME}:news")
        heard = []

        async def listen():
            async for message in listener.listen():
                heard.append(message["data"])
                if message["data"] == "bye":
                    return

        listening = asyncio.create_task(listen())
        while await client.publish(f"{NAME}:news", "anybody?") == 0:
            await asyncio.sleep(0.01)
        await client.publish(f"{NAME}:news", "bye")
        async with asyncio.timeout(10):
            await listening
        check(heard == [1, "anybody?", "bye"], f"heard: {heard}")


async def blocking_pop(client, other):
    key = f"{NAME}:list"
    popping = asyncio.create_task(client.blpop([key], timeout=10))
    while (await other.info("clients"))["blocked_clients"] == 0:
        await asyncio.sleep(0.01)
    await other.rpush(key, "x")
    check(list(await popping) == [key, "x"], "BLPOP")


async def session_lost(client, other):
    """The push that a lock bound to the connection is lost disturbs nothing; RESP2 clients are closed."""
    key = f"{NAME}:session"
    token = await client.execute_command("LOCK", key, "SESSION", "PX", 30_000)
    check(await other.get(key) == token and await other.delete(key) == 1, "deleted")
    for i in range(20):
        check(await client.echo(f"{i}") == f"{i}", "a reply to another command")
        await asyncio.sleep(0.005)
    check(await client.execute_command("UNLOCK", key, token) == 0, "lost")


async def main():
    for protocol, database in ((2, 0), (3, 3)):
        client = connect(protocol=protocol, db=database)
        other = connect(protocol=protocol, db=database)
        await lock_commands(client)
        await one_after_the_other(client)
        await retry_keeps_its_place(client, protocol=protocol, db=database)
        await a_cancelled_task_leaves_the_queue(client)
        await databases(client)
        if WHAT == "everything":
            await ordinary_commands(client)
            await transactions(client, other)
            await publish_and_subscribe(client)
            await blocking_pop(client, other)
            await session_lost(client, other)
        await client.aclose()
        await other.aclose()
    print(f"{NAME}: right")


asyncio.run(main())
