// ioredis waits for a lock while Redis fails over: node wait_ioredis.mjs HOST PORT LOCK CLIENTS. A connection that
// ends is an error here.
import { strictEqual as same } from "node:assert";
import { Redis } from "ioredis";

const [host, port, lock, clients] = process.argv.slice(2);

async function wait(number) {
  const redis = new Redis({ host, port: Number(port), retryStrategy: null, maxRetriesPerRequest: 0 });
  redis.on("error", (error) => {
    throw error;
  });
  const token = `ioredis-${number}`;
  same(await redis.call("LOCK", lock, "TOKEN", token, "PX", 60_000), token);
  await redis.set(`${lock}:${number}`, number);
  same(await redis.get(`${lock}:${number}`), String(number));
  same(await redis.call("UNLOCK", lock, token), 1);
  await redis.quit();
}

await Promise.all(Array.from({ length: Number(clients) }, (_, number) => wait(number)));
