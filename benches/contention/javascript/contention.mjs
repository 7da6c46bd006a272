// Locks from Node: contention.mjs WAY PORT CLIENTS
//
// See ../go/main.go for the arguments, the jobs on standard input and the output; there is only the job "contest" here,
// with one lock. Clients are tasks, with a connection each.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import Redlock from "redlock";

const LEASE = 30_000;

const [way, port, clients] = process.argv.slice(2);
const open = Array.from({ length: Number(clients) }, () => new Redis(port, "127.0.0.1"));
for (const redis of open) redis.on("error", fail);

function fail(error) {
  console.error("wrong:", error);
  process.exit(1);
}

// Each returns, for a connection, a function that waits for the lock of that name and resolves to how to release it.
const ways = {
  lock: (redis) => async (name) => {
    const token = randomUUID();
    await redis.call("LOCK", name, "TOKEN", token, "PX", LEASE);
    return () => redis.call("UNLOCK", name, token);
  },
  redlock: (redis) => {
    const redlock = new Redlock([redis], { retryCount: -1 });
    return async (name) => {
      const lock = await redlock.acquire([name], LEASE);
      return () => lock.release();
    };
  },
};

const nowUs = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

async function contest(acquires, key, seconds, hold) {
  const begun = performance.now();
  const turns = [];
  let inside = 0;
  const turn = async (acquire) => {
    const asked = nowUs();
    const release = await acquire(`${key}:0`);
    const got = nowUs();
    if (++inside !== 1) fail("two clients hold the lock");
    if (hold) await sleep(hold);
    inside--;
    turns.push(`0 ${asked} ${got} ${nowUs()}`);
    await release();
  };
  await Promise.all(
    acquires.map(async (acquire, i) => {
      await sleep(i);
      if (!seconds) await turn(acquire);
      while (performance.now() < begun + seconds * 1000) await turn(acquire);
    }),
  );
  console.log(turns.join("\n"));
}

const version = (name) => `${name}=${JSON.parse(readFileSync(`node_modules/${name}/package.json`)).version}`;

const acquires = open.map(ways[way]);
await Promise.all(open.map((redis) => redis.ping()));
console.log("ready", version("ioredis"), version("redlock"), `node=${process.versions.node}`);
for await (const line of createInterface({ input: process.stdin })) {
  const [, key, , seconds, holdUs] = line.split(" ");
  await contest(acquires, key, Number(seconds), Number(holdUs) / 1000).catch(fail);
  console.log(".");
}
