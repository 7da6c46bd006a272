// What docs/clients.md shows for ioredis. tests/clients/run puts its own host and port here.
import { randomUUID } from "node:crypto";
import { Redis } from "ioredis";

const redis = new Redis(6380, "localhost");

const token = randomUUID();
if (await redis.call("LOCK", "order:42", "TOKEN", token, "PX", 30_000, "WAIT", 10_000)) {
  try {
    console.log("working on order 42");
  } finally {
    await redis.call("UNLOCK", "order:42", token);
  }
} else {
  console.log("order 42 is busy");
}

redis.disconnect();
