// node-redis waits for a lock while Redis fails over: node wait_node_redis.mjs HOST PORT LOCK CLIENTS. A connection
// that ends is an error here.
import { strictEqual as same } from "node:assert";
import { createClient } from "redis";

const [host, port, lock, clients] = process.argv.slice(2);

async function wait(number) {
  const socket = { host, port: Number(port), reconnectStrategy: false };
  const client = createClient({ socket, RESP: 2 + (number % 2) });
  client.on("error", (error) => {
    throw error;
  });
  await client.connect();
  const token = `node-redis-${number}`;
  same(await client.sendCommand(["LOCK", lock, "TOKEN", token, "PX", "60000"]), token);
  await client.set(`${lock}:${number}`, String(number));
  same(await client.get(`${lock}:${number}`), String(number));
  same(await client.sendCommand(["UNLOCK", lock, token]), 1);
  await client.close();
}

await Promise.all(Array.from({ length: Number(clients) }, (_, number) => wait(number)));
