// lockgate from ioredis: node ioredis.mjs HOST PORT locks|everything [PASSWORD]. Exits nonzero where
// something is not as promised. `locks` tries what works without a Redis behind lockgate,
// `everything` ordinary commands, too.
import { deepStrictEqual as same, ok, rejects } from "node:assert";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";

const [host, port, what, password] = process.argv.slice(2);
const name = "ioredis";

// A connection that is closed while a command is on its way is reset; ioredis sends that again on another.
let mayBeReset = false;

function connect(options) {
  const redis = new Redis({ host, port: Number(port), password, ...options });
  redis.on("error", (error) => {
    ok(/Socket timeout/.test(error.message) || (mayBeReset && error.code === "ECONNRESET"), error);
  });
  return redis;
}

async function withLock(redis, key, work) {
  const token = randomUUID();
  await redis.call("LOCK", key, "TOKEN", token, "PX", 30_000);
  try {
    return await work(token);
  } finally {
    await redis.call("UNLOCK", key, token);
  }
}

/** Resolves when so many wait for the lock. */
async function untilWaiting(redis, key, waiters) {
  for (;;) {
    let info = await redis.call("LOCKINFO", key);
    if (Array.isArray(info)) {
      info = Object.fromEntries(info.map((field, i) => [field, info[i + 1]]));
    }
    if (info.waiters === waiters) return;
    await sleep(10);
  }
}

async function lockCommands(redis) {
  const key = `${name}:k`;
  const token = await redis.call("LOCK", key);
  same(token.length, 36, "a UUID");
  same(await redis.call("TRYLOCK", key), null);
  same(await redis.call("LOCK", key, "WAIT", 50), null);
  same(await redis.call("UNLOCK", key, "other"), 0);
  same(await redis.call("UNLOCK", key, token), 1);
  same(await redis.call("UNLOCK", key, token), 0);
  const [one, fence] = await redis.call("LOCK", key, "TOKEN", "one", "FENCE");
  ok(one === "one" && Number.isInteger(fence), `FENCE: ${one} ${fence}`);
  same(await redis.call("UNLOCK", key, "one"), 1);
  await rejects(redis.call("LOCK"), { message: "ERR wrong number of arguments for 'lock' command" });
  await rejects(redis.call("LOCK", key, "SOON"), { message: "ERR syntax error" });
}

async function oneAfterTheOther(clients, times = 25) {
  let counter = 0;
  const count = async (redis) => {
    for (let i = 0; i < times; i++) {
      await withLock(redis, `${name}:counter`, async () => {
        const value = counter;
        await sleep(1);
        counter = value + 1;
      });
    }
  };
  await Promise.all(clients.map(count));
  same(counter, times * clients.length);
}

/** ioredis gives up on its socket while it waits, and sends the LOCK again on a new one. */
async function retryKeepsItsPlace(redis, behind, options) {
  const key = `${name}:retry`;
  const order = [];
  const impatient = connect({ socketTimeout: 1_000, ...options });
  let connects = 0;
  impatient.on("ready", () => connects++);
  const wait = (redis, who) => withLock(redis, key, async () => order.push(who));
  let waiting;
  await withLock(redis, key, async () => {
    waiting = [wait(impatient, "the one that retries")];
    await untilWaiting(redis, key, 1);
    waiting.push(wait(behind, "the one behind it"));
    await untilWaiting(redis, key, 2);
    while (connects < 2) await sleep(10);
    await untilWaiting(redis, key, 2);
    same(order, []);
  });
  await Promise.all(waiting);
  same(order, ["the one that retries", "the one behind it"]);
  impatient.disconnect();
}

/** All tasks of a program usually share one connection. */
async function sharedConnection(redis, other) {
  await oneAfterTheOther([redis, redis, redis, redis]);
  const key = `${name}:shared`;
  same(await redis.call("LOCK", key, "TOKEN", "holder"), "holder");
  const waiter = redis.call("LOCK", key, "TOKEN", "waiter");
  await untilWaiting(other, key, 1);
  // What belongs to the work under the lock is not overtaken, so this can never be granted.
  const replies = Promise.all([redis.echo("work"), redis.call("UNLOCK", key, "holder")]);
  await rejects(waiter, /^ReplyError: DEADLOCK/);
  same(await replies, ["work", 1]);
}

/** A lock is a key of the database that the connection is in. */
async function databases(redis, options) {
  const key = `${name}:k`;
  const elsewhere = connect({ ...options, db: 7 });
  await withLock(redis, key, (token) =>
    withLock(elsewhere, key, async (other) => {
      if (what !== "everything") return;
      same([await redis.get(key), await elsewhere.get(key)], [token, other]);
    }),
  );
  elsewhere.disconnect();
}

async function ordinaryCommands(redis, other) {
  const key = `${name}:data`;
  const value = "\r\n$-1\r\n".repeat(20_000);
  same(await redis.set(key, value), "OK");
  same(await redis.get(key), value);
  same(await redis.getBuffer(key), Buffer.from(value));
  await rejects(redis.lpush(key, "x"), /WRONGTYPE/);
  await redis.hset(`${name}:hash`, { a: 1, b: 2 });
  same({ ...(await redis.hgetall(`${name}:hash`)) }, { a: "1", b: "2" });

  const piped = await redis.pipeline().set(key, 1).call("LOCK", `${name}:k`, "TOKEN", "piped")
    .incr(key).call("UNLOCK", `${name}:k`, "piped").exec();
  same(piped, [[null, "OK"], [null, "piped"], [null, 2], [null, 1]]);

  same(await redis.multi().incr(key).get(key).exec(), [[null, 3], [null, "3"]]);
  await redis.watch(key);
  await other.set(key, "other");
  same(await redis.multi().set(key, "never").exec(), null, "WATCH discards");
  await rejects(redis.multi().set(key, "never").call("LOCK", `${name}:k`).exec(), /EXECABORT/);
  same(await redis.get(key), "other");
  await redis.del(key, `${name}:hash`);
}

async function publishAndSubscribe(redis, options) {
  const listener = connect(options);
  const heard = [];
  const all = new Promise((done) => {
    listener.on("message", (channel, message) => heard.push([channel, message]) === 3 && done());
  });
  await listener.subscribe(`${name}:a`, `${name}:b`);
  for (const channel of ["a", "b", "a"]) await redis.publish(`${name}:${channel}`, "hello");
  await all;
  same(heard.map(([channel]) => channel.at(-1)), ["a", "b", "a"]);
  same(await listener.unsubscribe(`${name}:a`), 1);
  listener.disconnect();
}

async function blockingPop(redis, other) {
  const popped = redis.blpop(`${name}:list`, 10);
  while (!/blocked_clients:[1-9]/.test(await other.info("clients"))) await sleep(10);
  await other.rpush(`${name}:list`, "x");
  same(await popped, [`${name}:list`, "x"]);
}

/**
 * A lock bound to the connection is lost: a RESP2 client is closed, and ioredis connects anew; a
 * RESP3 client is pushed a message that disturbs nothing.
 */
async function sessionLost(redis, other) {
  const key = `${name}:session`;
  const token = await redis.call("LOCK", key, "SESSION");
  mayBeReset = true;
  same(await other.del(key), 1);
  for (let i = 0; i < 20; i++) same(await redis.echo(`${i}`), `${i}`);
  same(await redis.call("UNLOCK", key, token), 0);
  mayBeReset = false;
}

const watchdog = setTimeout(() => ok(false, "not done after 50 s"), 50_000);
for (const options of [{ protocol: 2, db: 0 }, { protocol: 3, db: 3 }]) {
  const clients = [1, 2, 3].map(() => connect(options));
  const [redis, other, third] = clients;
  await lockCommands(redis);
  await oneAfterTheOther(clients);
  await retryKeepsItsPlace(redis, third, options);
  await sharedConnection(redis, other);
  await databases(redis, options);
  if (what === "everything") {
    await ordinaryCommands(redis, other);
    await publishAndSubscribe(redis, options);
    await blockingPop(redis, other);
    await sessionLost(redis, other);
  }
  clients.forEach((client) => client.disconnect());
}
clearTimeout(watchdog);
console.log(`${name}: right`);
