// What the test is made of: the programs, clients over plain sockets, and a browser.
import { spawn } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import net from "node:net";
import { join } from "node:path";
import { chromium } from "playwright-core";

export const { LOCKGATE, CHROMIUM, SCREENSHOTS, WORK } = process.env;
const SOON_MS = 20_000;
const started = [];

process.on("exit", () => started.forEach((child) => child.kill("SIGKILL")));

export function check(holds, what) {
  if (!holds) throw new Error(`not so: ${what}`);
}

export function equal(found, expected, what) {
  const [one, other] = [found, expected].map((value) => JSON.stringify(value));
  check(one === other, `${what}: ${one}, but expected ${other}`);
}

// Asks again and again until the answer is yes.
export async function eventually(what, holds, within = SOON_MS) {
  const deadline = Date.now() + within;
  for (;;) {
    const answer = await holds();
    if (answer) return answer;
    check(Date.now() < deadline, `within ${within} ms: ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

export async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await new Promise((done) => server.once("listening", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

function start(program, args, env = {}) {
  const child = spawn(program, args, { env: { PATH: process.env.PATH, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  child.log = "";
  child.stdout.on("data", (text) => { child.log += text; });
  child.stderr.on("data", (text) => { child.log += text; });
  child.ended = new Promise((done) => child.once("exit", done));
  started.push(child);
  return child;
}

export async function startRedis(port, ...more) {
  const dir = mkdtempSync(join(WORK, "redis-"));
  const redis = start("redis-server", ["--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
    "--repl-diskless-sync-delay", "0", ...more]);
  await eventually("Redis is ready", () => redis.log.includes("Ready to accept connections"));
  return redis;
}

// A sentinel that decides alone, of the service "m".
export async function startSentinel(port, masterPort) {
  const file = join(mkdtempSync(join(WORK, "sentinel-")), "sentinel.conf");
  writeFileSync(file, `port ${port}\nbind 127.0.0.1\nsentinel monitor m 127.0.0.1 ${masterPort} 1\n`);
  const sentinel = start("redis-server", [file, "--sentinel"]);
  await eventually("the sentinel watches", () => sentinel.log.includes("+monitor master m"));
  return sentinel;
}

export async function startGate(port, upstream, adminPort) {
  const gate = start(LOCKGATE, ["--listen", `127.0.0.1:${port}`, "--upstream", upstream,
    "--admin", `127.0.0.1:${adminPort}`], {
    LOCKGATE_UPSTREAM_CONNECT_TIMEOUT: "300ms", LOCKGATE_WRITE_BACK_GRACE: "2500ms", LOCKGATE_UPSTREAM_TIMEOUT: "1s",
    LOCKGATE_ABSORB_KEYS: "spin:*", LOCKGATE_ABSORB_PARK: "10s",
  });
  await eventually(`lockgate listens: ${gate.log}`, () => gate.log.includes("listening on"));
  return gate;
}

// A client of Redis, RESP2, one reply after the other. Text is latin1: one character a byte.
export class Client {
  static async connect(port) {
    const client = new Client();
    client.socket = net.connect(port, "127.0.0.1");
    client.buffer = "";
    client.waiting = [];
    client.socket.setNoDelay(true);
    client.socket.setEncoding("latin1");
    client.socket.on("data", (text) => {
      client.buffer += text;
      for (;;) {
        const reply = parse(client.buffer, 0);
        if (!reply) break;
        client.buffer = client.buffer.slice(reply.end);
        client.waiting.shift()?.(reply.value);
      }
    });
    client.socket.on("error", () => {});
    client.socket.on("close", () => client.waiting.splice(0).forEach((done) => done(new Error("closed"))));
    await new Promise((done, fail) => { client.socket.once("connect", done); client.socket.once("error", fail); });
    client.address = `127.0.0.1:${client.socket.localPort}`;
    return client;
  }

  say(...words) {
    const frame = words.map((word) => {
      const bytes = Buffer.isBuffer(word) ? word : Buffer.from(String(word), "utf8");
      return Buffer.concat([Buffer.from(`$${bytes.length}\r\n`), bytes, Buffer.from("\r\n")]);
    });
    this.socket.write(Buffer.concat([Buffer.from(`*${words.length}\r\n`), ...frame]));
    return new Promise((done) => this.waiting.push(done));
  }

  // LOCKINFO as an object.
  async info(key) {
    const list = await this.say("LOCKINFO", key);
    return Object.fromEntries(list.map((value, at) => (at % 2 ? [] : [value, list[at + 1]])).filter((pair) => pair.length));
  }

  async counted(name) {
    const text = await this.say("INFO", "lockgate");
    return Number(text.match(new RegExp(`^lockgate_${name}:(.*)\r$`, "m"))[1]);
  }

  close() {
    this.socket.destroy();
  }
}

function parse(text, from) {
  const end = text.indexOf("\r\n", from);
  if (end < 0) return null;
  const line = text.slice(from + 1, end);
  switch (text[from]) {
    case "+": return { value: line, end: end + 2 };
    case "-": return { value: new Error(line), end: end + 2 };
    case ":": return { value: Number(line), end: end + 2 };
    case "$": {
      const length = Number(line);
      if (length < 0) return { value: null, end: end + 2 };
      if (text.length < end + 4 + length) return null;
      return { value: text.slice(end + 2, end + 2 + length), end: end + 4 + length };
    }
    case "*": {
      let at = end + 2;
      const values = [];
      for (let left = Number(line); left > 0; left -= 1) {
        const item = parse(text, at);
        if (!item) return null;
        values.push(item.value);
        at = item.end;
      }
      return { value: values, end: at };
    }
    default: throw new Error(`not RESP: ${text.slice(from, from + 40)}`);
  }
}

export async function startBrowser() {
  return chromium.launchPersistentContext(mkdtempSync(join(WORK, "browser-")), {
    executablePath: CHROMIUM,
    headless: true,
    viewport: { width: 1200, height: 900 },
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync"],
  });
}
