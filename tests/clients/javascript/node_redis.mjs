// lockgate from node-redis: node node_redis.mjs HOST PORT locks|everything [PASSWORD]. Exits nonzero
// where something is not as promised. `locks` tries what works without a Redis behind lockgate,
// `everything` ordinary commands, too.
import { deepStrictEqual as same, ok, rejects } from "node:assert";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { createClient, createClientPool, ErrorReply, WatchError } from "redis";

const [host, port, what, password] = process.argv.slice(2);
const name = "node-redis";

function settings({ socketTimeout, ...options }) {
  // Left to itself, node-redis does not connect again after a socket timeout.
  const socket = { host, port: Number(port), socketTimeout, reconnectStrategy: 20 };
  return { socket, password, ...options };
}

// A connection that is closed while a command is on its way is reset; node-redis connects anew.
let mayBeClosed = false;

async function connect(options) {
  const client = createClient(settings(options));
  client.on("error", (error) => {
    const expected = mayBeClosed ? /closed unexpectedly|ECONNRESET/ : /[Tt]imeout/;
    ok(expected.test(error.message), error);
  });
  return client.connect();
}

const call = (client, ...words) => client.sendCommand(words.map(String));

async function withLock(client, key, work) {
  const token = randomUUID();
  await call(client, "LOCK", key, "TOKEN", token, "PX", 30_000);
  try {
    return await work(token);
  } finally {
    await call(client, "UNLOCK", key, token);
  }
}

/** Resolves when so many wait for the lock. */
async function untilWaiting(client, key, waiters) {
  for (;;) {
    let info = await call(client, "LOCKINFO", key);
    if (Array.isArray(info)) {
      info = Object.fromEntries(info.map((field, i) => [field, info[i + 1]]));
    }
    if (info.waiters === waiters) return;
    await sleep(10);
  }
}

async function lockCommands(client) {
  const key = `${name}:k`;
  const token = await call(client, "LOCK", key);
  same(token.length, 36, "a UUID");
  same(await call(client, "TRYLOCK", key), null);
  same(await call(client, "LOCK", key, "WAIT", 50), null);
  same(await call(client, "UNLOCK", key, "other"), 0);
  same(await call(client, "UNLOCK", key, token), 1);
  same(await call(client, "UNLOCK", key, token), 0);
  const [one, fence] = await call(client, "LOCK", key, "TOKEN", "one", "FENCE");
  ok(one === "one" && Number.isInteger(fence), `FENCE: ${one} ${fence}`);
  same(await call(client, "UNLOCK", key, "one"), 1);
  await rejects(call(client, "LOCK"), { message: "ERR wrong number of arguments for 'lock' command" });
  await rejects(call(client, "LOCK", key, "SOON"), { message: "ERR syntax error" });
}

async function oneAfterTheOther(clients, times = 25) {
  let counter = 0;
  const count = async (client) => {
    for (let i = 0; i < times; i++) {
      await withLock(client, `${name}:counter`, async () => {
        const value = counter;
        await sleep(1);
        counter = value + 1;
      });
    }
  };
  await Promise.all(clients.map(count));
  same(counter, times * clients.length);
}

/** node-redis gives up on its socket and connects anew; to ask again is its user's business. */
async function retryKeepsItsPlace(client, behind, options) {
  const key = `${name}:retry`;
  const order = [];
  const impatient = await connect({ socketTimeout: 1_000, ...options });
  const token = randomUUID();
  let [tries, retries] = [0, 0];
  const insist = async () => {
    for (;;) {
      try {
        tries++;
        await call(impatient, "LOCK", key, "TOKEN", token);
        order.push("the one that retries");
        return await call(impatient, "UNLOCK", key, token);
      } catch (error) {
        if (error instanceof ErrorReply || tries > 5) throw error;
        // lockgate has seen that the first connection is closed.
        await untilWaiting(client, key, 1);
        retries++;
      }
    }
  };
  let waiting;
  await withLock(client, key, async () => {
    waiting = [insist()];
    await untilWaiting(client, key, 1);
    waiting.push(withLock(behind, key, async () => order.push("the one behind it")));
    await untilWaiting(client, key, 2);
    while (retries < 1) await sleep(10);
    await untilWaiting(client, key, 2);
    same(order, []);
  });
  same(await Promise.all(waiting), [1, 2]);
  same(order, ["the one that retries", "the one behind it"]);
  impatient.destroy();
}

/** All tasks of a program usually share one connection. */
async function sharedConnection(client, other) {
  await oneAfterTheOther([client, client, client, client]);
  const key = `${name}:shared`;
  same(await call(client, "LOCK", key, "TOKEN", "holder"), "holder");
  const waiter = call(client, "LOCK", key, "TOKEN", "waiter");
  await untilWaiting(other, key, 1);
  // What belongs to the work under the lock is not overtaken, so this can never be granted.
  const replies = Promise.all([client.echo("work"), call(client, "UNLOCK", key, "holder")]);
  await rejects(waiter, /DEADLOCK/);
  same(await replies, ["work", 1]);
}

/** A lock is a key of the database that the connection is in. */
async function databases(client, options) {
  const key = `${name}:k`;
  const elsewhere = await connect({ ...options, database: 7 });
  await withLock(client, key, (token) =>
    withLock(elsewhere, key, async (other) => {
      if (what !== "everything") return;
      same([await client.get(key), await elsewhere.get(key)], [token, other]);
    }),
  );
  elsewhere.destroy();
}

async function ordinaryCommands(client, other, options) {
  const key = `${name}:data`;
  const value = "\r\n$-1\r\n".repeat(20_000);
  same(await client.set(key, value), "OK");
  same(await client.get(key), value);
  await rejects(client.lPush(key, "x"), /WRONGTYPE/);
  await client.hSet(`${name}:hash`, { a: 1, b: 2 });
  same({ ...(await client.hGetAll(`${name}:hash`)) }, { a: "1", b: "2" });

  // Commands of one tick are a pipeline.
  const piped = [client.set(key, 1), call(client, "LOCK", `${name}:k`, "TOKEN", "piped"),
    client.incr(key), call(client, "UNLOCK", `${name}:k`, "piped")];
  same(await Promise.all(piped), ["OK", "piped", 2, 1]);

  same(await client.multi().incr(key).get(key).exec(), [3, "3"]);
  await client.watch(key);
  await other.set(key, "other");
  await rejects(client.multi().set(key, "never").exec(), WatchError);
  await rejects(client.multi().addCommand(["LOCK", `${name}:k`]).exec(), /EXECABORT|unknown command/);
  same(await client.get(key), "other");

  const pool = await createClientPool(settings(options), { minimum: 2, maximum: 3 }).connect();
  same(await Promise.all([1, 2, 3, 4, 5].map(() => pool.get(key))), Array(5).fill("other"));
  await pool.close();
  await client.del([key, `${name}:hash`]);
}

async function publishAndSubscribe(client, options) {
  const listener = await connect(options);
  const heard = [];
  await new Promise((done) => {
    const hear = (message, channel) => heard.push([channel, message]) === 3 && done();
    listener.subscribe([`${name}:a`, `${name}:b`], hear).then(async () => {
      for (const channel of ["a", "b", "a"]) await client.publish(`${name}:${channel}`, "hello");
    });
  });
  same(heard.map(([channel]) => channel.at(-1)), ["a", "b", "a"]);
  await listener.unsubscribe();
  listener.destroy();
}

async function blockingPop(client, other) {
  const popped = client.blPop(`${name}:list`, 10);
  while (!/blocked_clients:[1-9]/.test(await other.info("clients"))) await sleep(10);
  await other.rPush(`${name}:list`, "x");
  same({ ...(await popped) }, { key: `${name}:list`, element: "x" });
}

/**
 * A lock bound to the connection is lost: a RESP2 client is closed, and node-redis connects anew; a
 * RESP3 client is pushed a message that disturbs nothing.
 */
async function sessionLost(client, other, options) {
  const key = `${name}:session`;
  const token = await call(client, "LOCK", key, "SESSION");
  const reconnected = new Promise((done) => client.once("ready", done));
  mayBeClosed = options.RESP === 2;
  same(await other.del(key), 1);
  if (options.RESP === 2) await reconnected;
  mayBeClosed = false;
  for (let i = 0; i < 20; i++) same(await client.echo(`${i}`), `${i}`);
  same(await call(client, "UNLOCK", key, token), 0);
}

const watchdog = setTimeout(() => ok(false, "not done after 50 s"), 50_000);
for (const options of [{ RESP: 2, database: 0 }, { RESP: 3, database: 3 }]) {
  const clients = await Promise.all([1, 2, 3].map(() => connect(options)));
  const [client, other, third] = clients;
  await lockCommands(client);
  await oneAfterTheOther(clients);
  await retryKeepsItsPlace(client, third, options);
  await sharedConnection(client, other);
  await databases(client, options);
  if (what === "everything") {
    await ordinaryCommands(client, other, options);
    await publishAndSubscribe(client, options);
    await blockingPop(client, other);
    await sessionLost(client, other, options);
  }
  clients.forEach((client) => client.destroy());
}
clearTimeout(watchdog);
console.log(`${name}: right`);
