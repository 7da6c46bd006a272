// lockgate from ioredis: node main.mjs HOST PORT. Exits nonzero where something is not as promised.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";

async function withLock(redis, key, work, leaseMs = 30_000) {
  const token = randomUUID();
  await redis.call("LOCK", key, "TOKEN", token, "PX", leaseMs);
  try {
    return await work(token);
  } finally {
    await redis.call("UNLOCK", key, token);
  }
}

function check(holds, what) {
  if (!holds) {
    console.error(`ioredis: ${what}`);
    process.exit(1);
  }
}

async function oneAfterTheOther(clients, times = 25) {
  let counter = 0;
  const count = async (redis) => {
    for (let i = 0; i < times; i++) {
      await withLock(redis, "javascript:counter", async () => {
        const value = counter;
        await sleep(1);
        counter = value + 1;
      });
    }
  };
  await Promise.all(clients.map(count));
  check(counter === times * clients.length, `${counter} of ${times * clients.length} counted`);
}

async function handover(holder, waiter) {
  let granted = 0;
  let waiting;
  let released;
  await withLock(holder, "javascript:handover", async () => {
    waiting = withLock(waiter, "javascript:handover", async () => {
      granted = performance.now();
    });
    await sleep(300);
    check(granted === 0, "granted while held");
    released = performance.now();
  });
  await waiting;
  check(granted > 0, "the waiter was not granted the lock");
  check(granted - released < 250, `granted ${granted - released} ms after the release`);
}

const [host, port] = process.argv.slice(2);
const clients = [1, 2, 3].map(() => new Redis({ host, port: Number(port) }));
const [redis, other] = clients;
const watchdog = setTimeout(() => check(false, "not done after 30 s"), 30_000);

const token = await redis.call("LOCK", "javascript:k");
check(token.length === 36, `a UUID was expected, not ${token}`);
check((await redis.call("TRYLOCK", "javascript:k")) === null, "granted twice");
check((await redis.call("LOCK", "javascript:k", "WAIT", 50)) === null, "granted twice");
check((await redis.call("UNLOCK", "javascript:k", "other")) === 0, "released by a stranger");
check((await redis.call("UNLOCK", "javascript:k", token)) === 1, "not released");
check((await redis.call("UNLOCK", "javascript:k", token)) === 0, "released twice");
await handover(redis, other);
await oneAfterTheOther(clients);
// All tasks of a program usually share one connection: one holds, the others wait on it.
await handover(redis, redis);
await oneAfterTheOther([redis, redis, redis, redis]);

clearTimeout(watchdog);
clients.forEach((client) => client.disconnect());
console.log("ioredis: right");
