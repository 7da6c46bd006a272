// Lock libraries of Node on one lock: spin.mjs MODE PORT KEY CLIENTS ROUNDS LEASE CONNECTIONS
//
// See ../run for the arguments and the output. With one connection, all clients are tasks that share it. `ping` measures
// a command that comes behind an attempt on the same connection.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import Redlock4 from "redlock4";
import Redlock5 from "redlock5";
import { Mutex } from "redis-semaphore";

const HOLD = 10;
// An acquisition that takes longer never comes.
const PATIENCE = 60_000;

const [mode, port, key, ...numbers] = process.argv.slice(2);
const [clients, rounds, lease, connections] = numbers.map(Number);
const now = () => performance.now();

const open = Array.from({ length: connections }, () => new Redis(port, "127.0.0.1"));
for (const redis of open) redis.on("error", fail);

function fail(error) {
  console.error("wrong:", error);
  process.exit(1);
}

// Each returns, for a connection, a function that takes the lock of that name. It resolves to how to release it, and
// until when the library believes in it.
const libraries = {
  lock: (redis) => async (name) => {
    const token = await redis.call("LOCK", name, "PX", lease);
    return { release: () => redis.call("UNLOCK", name, token) };
  },
  redlock4: (redis) => {
    const redlock = new Redlock4([redis], { retryCount: -1 });
    return async (name) => {
      const lock = await redlock.lock(name, lease);
      return { release: () => lock.unlock(), until: lock.expiration };
    };
  },
  redlock5: (redis) => {
    const redlock = new Redlock5([redis], { retryCount: -1 });
    return async (name) => release5(await redlock.acquire([name], lease));
  },
  // The library counts a lease from the first attempt on, so a lock that was waited for looks expired. Where that matters,
  // each attempt is an acquisition of its own.
  redlock5attempts: (redis) => {
    const redlock = new Redlock5([redis], { retryCount: 0 });
    return async (name) => {
      for (;;) {
        const lock = await redlock.acquire([name], lease).catch(() => undefined);
        if (lock) return release5(lock);
        await sleep(100 + Math.random() * 200);
      }
    };
  },
  semaphore: (redis) => async (name) => {
    const mutex = new Mutex(redis, name, { lockTimeout: lease, acquireTimeout: PATIENCE });
    await mutex.acquire();
    return { release: () => mutex.release() };
  },
};

function release5(lock) {
  return { release: () => lock.release(), until: lock.expiration };
}

const waits = [];
let held = 0;
let negative = 0; // grants of leases that were over already
let holder; // the lease of the client inside

async function round(acquire) {
  const asked = now();
  const { release, until } = await acquire(key);
  const got = now();
  waits.push(got - asked);
  if (until < Date.now()) negative++;
  if (holder && Date.now() < holder.until) fail("two clients hold the lock");
  const mine = { until: until ?? Date.now() + lease };
  holder = mine;
  await sleep(HOLD);
  if (holder === mine) holder = undefined;
  held += now() - got;
  // A lease that is over cannot be released.
  await release().catch((error) => Date.now() < mine.until && fail(error));
}

// All clients take the same lock, `rounds` times each.
async function contest(library) {
  const acquires = Array.from({ length: clients }, (_, i) => library(open[i % connections]));
  // Opens the connection, and loads the scripts.
  await Promise.all(acquires.map(async (acquire, i) => (await acquire(`${key}-warm-${i}`)).release()));
  const never = setTimeout(() => fail("an acquisition never came"), PATIENCE);
  await open[0].echo(`begin ${key}`);
  const begun = now();
  await Promise.all(
    acquires.map(async (acquire) => {
      for (let i = 0; i < rounds; i++) await round(acquire);
    }),
  );
  const elapsed = now() - begun;
  await open[0].echo(`end ${key}`);
  clearTimeout(never);
  report(`time=${(elapsed / held).toFixed(2)} elapsed=${elapsed.toFixed(2)} negative=${negative}`);
}

// The waits are those of PINGs behind an attempt at a lock that another connection holds.
async function ping() {
  const other = new Redis(port, "127.0.0.1");
  other.on("error", fail);
  await other.set(key, "holder", "PX", 60_000, "NX");
  await other.echo(`begin ${key}`);
  for (let i = 0; i < rounds; i++) {
    const attempt = open[0].set(key, randomUUID(), "PX", lease, "NX");
    // Without this the attempt would never be parked.
    await sleep(5);
    const asked = now();
    await open[0].ping();
    waits.push(now() - asked);
    if (await attempt) fail("two clients hold the lock");
  }
  await other.echo(`end ${key}`);
  await other.del(key);
  report("");
}

function report(more) {
  waits.sort((a, b) => a - b);
  const at = (part) => waits[Math.floor(waits.length * part)].toFixed(2);
  console.log(`p50=${at(0.5)} p99=${at(0.99)} ${more}`);
}

await (mode === "ping" ? ping() : contest(libraries[mode])).catch(fail);
process.exit(0);
