// The live page as an operator sees it, compared with what lockgate says to its clients.
import { Client, SCREENSHOTS, check, equal, eventually, freePort, startBrowser, startGate, startRedis,
  startSentinel } from "./parts.mjs";

const [port, redisPort, adminPort] = [await freePort(), await freePort(), await freePort()];
const redis = await startRedis(redisPort);
let gate = await startGate(port, `redis://127.0.0.1:${redisPort}`, adminPort);
const browser = await startBrowser();
const page = browser.pages()[0] ?? await browser.newPage();
const trouble = [];
// That an address does not answer while lockgate is dead, the browser says, too.
page.on("console", (message) => {
  if (message.type() === "error" && !/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET/.test(message.text())) {
    trouble.push(message.text());
  }
});
page.on("pageerror", (error) => trouble.push(String(error)));

const text = (selector) => page.locator(selector).textContent();
const number = async (id) => Number((await text(`#${id}`)).replaceAll(",", ""));
const shot = (name, options = {}) => page.screenshot({ path: `${SCREENSHOTS}/${name}.png`, fullPage: true, ...options });
const rows = () => page.locator("#locks > li").evaluateAll((all) => all.map((row) => ({
  name: row.querySelector(".name").textContent,
  waiters: Number(row.dataset.waiters),
  held: row.dataset.held,
  holder: row.querySelector(".holder").textContent,
  queue: row.querySelector(".queue").textContent,
  stuck: row.hasAttribute("data-stuck"),
  bar: row.querySelector(".bar").style.width,
  first: [...row.querySelectorAll(".waiting li")].map((item) => item.textContent),
})));
const row = async (name) => (await rows()).find((found) => found.name === name);
const step = (words) => console.log(`· ${words}`);

// Whoever looks at nothing costs nothing; the connection says when it is live.
await page.goto(`http://127.0.0.1:${adminPort}/`);
await eventually("the page is live", async () => await text("#connection") === "live");
await eventually("nothing is shown where nothing is", () => page.locator("#none").isVisible());
equal(await rows(), [], "rows");
await eventually("Redis is asked", async () => (await text("#upstream")).includes("answers"));

step("50 clients contend: numbers and bars move");
const observer = await Client.connect(port);
let contend = true;
const contenders = await Promise.all(Array.from({ length: 50 }, () => Client.connect(port)));
const work = contenders.map(async (client, at) => {
  await client.say("CLIENT", "SETNAME", `worker-${at}`);
  while (contend) {
    const token = await client.say("LOCK", `job:${at % 4}`);
    await new Promise((done) => setTimeout(done, 5 + at % 20));
    await client.say("UNLOCK", `job:${at % 4}`, token);
  }
});
await eventually("every lock has a row", async () => (await rows()).length === 4);
const seen = { waits: new Set(), holders: new Set(), grants: new Set() };
await eventually("what is shown changes", async () => {
  const shown = await rows();
  shown.forEach((lock) => { seen.waits.add(lock.queue); seen.holders.add(lock.holder); });
  seen.grants.add(await text("#grants"));
  return seen.waits.size > 6 && seen.holders.size > 6 && seen.grants.size > 2;
});
// All of them are there, and at any moment nearly all wait.
equal(await number("clients"), 51, "clients");
await eventually("nearly all wait", async () => await number("waiters") > 40);
const moving = "#chart-grants path.one, #chart-waiters path.one, #chart-wait path.one";
const lines = () => page.locator(moving)
  .evaluateAll((all) => all.map((path) => path.getAttribute("d")));
const before = await lines();
await eventually("the charts go on", async () => (await lines()).every((line, at) => line !== before[at]));
for (const [name, options] of [["busy-light", { colorScheme: "light" }], ["busy-dark", { colorScheme: "dark" }]]) {
  await page.emulateMedia(options);
  await shot(name);
}
contend = false;
await Promise.all(work);
await eventually("all rows go", async () => (await rows()).length === 0);

step("a queue that stands still: the numbers are those of LOCKS, LOCKINFO and INFO");
// Bytes that are no text, markup, a change of direction, a line, a name as long as may be.
const LONG = "x".repeat(1024);
const NAMES = [
  ["orders:42", "orders:42", 12],
  ["<script>pwned = 1</script><img src=x onerror='pwned = 1'>", "<script>pwned = 1</script><img src=x onerror='pwned = 1'>", 9],
  [Buffer.from([0x61, 0xff, 0x00, 0x0a, 0x1b]), "a\\xff\\x00\\x0a\\x1b", 7],
  ["safe\u202Eexe.txt\u200B", "safe\\u{202e}exe.txt\\u{200b}", 5],
  [LONG, `${"x".repeat(256)}… (1,024 bytes)`, 3],
  ["שלום & <b>größe</b> \\", "שלום & <b>größe</b> \\\\", 1],
  ["quiet", "quiet", 0],
];
const free = [...contenders];
const holders = new Map();
for (const [key, , waiters] of NAMES) {
  const holder = free.pop();
  const token = await holder.say("LOCK", key, "PX", 600_000);
  check(typeof token === "string", `granted: ${token}`);
  holders.set(key, { holder, token, at: Date.now() });
  for (let count = 0; count < waiters; count += 1) free.pop().say("LOCK", key, "PX", 600_000);
  await eventually("they wait", async () => (await observer.info(key)).waiters === waiters);
}
await eventually("every lock has a row", async () => (await rows()).length === NAMES.length);
let shown;
await eventually("the page is settled", async () => {
  shown = await rows();
  return shown.reduce((sum, lock) => sum + lock.waiters, 0) === 37;
});
const told = (await observer.say("LOCKS")).map((name) => Buffer.from(name, "latin1").toString("hex"));
const asHex = (key) => Buffer.from(key).toString("hex");
equal(told, NAMES.map(([key]) => asHex(key)), "LOCKS");
equal(shown.map((lock) => lock.name), NAMES.map(([, escaped]) => escaped), "names, busiest first, escaped");
for (const [at, [key]] of NAMES.entries()) {
  const info = await observer.info(key);
  const { holder } = holders.get(key);
  equal(shown[at].waiters, info.waiters, "waiters, as LOCKINFO has it");
  equal(info.client, holder.address, "the address of the holder, as LOCKINFO has it");
  check(shown[at].holder.includes(holder.address), `the address of the holder: ${shown[at].holder}`);
  check(shown[at].holder.includes(info["client-name"]), `the name of the holder: ${shown[at].holder}`);
  check(info["client-name"].startsWith("worker-"), info["client-name"]);
  equal(shown[at].first.length, Math.min(info.waiters, 10) + (info.waiters > 10 ? 1 : 0), "those who wait");
}
equal(shown[0].bar, "100%", "the longest bar");
equal(shown[6].bar, "0%", "the shortest bar");
equal(await number("waiters"), await observer.counted("waiters"), "waiters, as INFO has it");
equal(await number("clients"), await observer.counted("clients"), "clients, as INFO has it");
equal(await number("held"), NAMES.length, "locks held");
equal(await number("awaited"), 6, "locks awaited");

step("names do nothing but be shown");
equal(await page.evaluate(() => [typeof pwned, document.images.length, document.querySelectorAll("main script").length]),
  ["undefined", 0, 0], "markup of names");
const refused = await fetch(`http://127.0.0.1:${adminPort}/`).then((answer) => answer.headers.get("content-security-policy"));
check(refused.includes("script-src 'self';") && !refused.includes("unsafe"), refused);

step("a stuck lock: its holder is found by label, address and since when");
const { holder, at: heldAt } = holders.get("orders:42");
const stuck = await eventually("it stands out", async () => {
  const found = await row("orders:42");
  return found?.stuck && found;
});
const [, h, m, s] = stuck.holder.match(/since (\d\d):(\d\d):(\d\d)/);
const since = new Date(heldAt);
since.setHours(h, m, s, 0);
check(Math.abs(since - heldAt) < 2500, `held since ${since}, and taken at ${new Date(heldAt)}`);
check(stuck.holder.startsWith("held by worker-") && stuck.holder.includes(holder.address), stuck.holder);
equal((await row("quiet")).stuck, false, "a lock that nobody waits for is not stuck");
check(await page.locator("#locks > li[data-stuck] .stuck").first().isVisible(), "it is said in words, too");

step("a lock is found by its name");
const seek = (words) => page.locator("#find").fill(words);
await seek("rders:4");
await eventually("only it is shown", async () => JSON.stringify((await rows()).map((lock) => lock.name)) === '["orders:42"]');
equal(await text("#locks-heading"), "Locks found", "heading");
equal(await number("waiters"), 37, "the numbers above are those of all locks");
for (const [, escaped] of NAMES.filter(([key]) => key !== LONG)) {
  await seek(escaped);
  await eventually(`${escaped} is found as it is shown`, async () => (await rows()).length === 1 && (await rows())[0].name === escaped);
}
await seek("no such lock");
await eventually("the page says that there is none", async () => (await rows()).length === 0 && (await text("#none")).startsWith("No lock"));
await seek("");
await eventually("all are shown again", async () => (await rows()).length === NAMES.length);

step("among a thousand");
const many = free.at(-1);
for (let at = 0; at < 1000; at += 1) await many.say("LOCK", `many:${at}`, "TOKEN", "many", "PX", 600_000);
await eventually("the rest are counted", async () => (await text("#more")) === `and ${(NAMES.length + 1000 - 20).toLocaleString("en")} more`);
await seek("many:777");
await eventually("one of them is found", async () => (await row("many:777"))?.holder.includes(many.address));
await seek("many:77");
await eventually("eleven", async () => (await rows()).length === 11);
check(!await page.locator("#more").isVisible(), "no more than these");
await seek("");
for (let at = 0; at < 1000; at += 1) await many.say("UNLOCK", `many:${at}`, "many");
await eventually("they are gone", async () => (await rows()).length === NAMES.length);

step("clients that spin are marked");
const [spinning, parked] = [free.pop(), free.pop()];
equal(await spinning.say("SET", "spin:1", "one", "NX", "PX", 600_000), "OK", "taken by SET");
parked.say("SET", "spin:1", "two", "NX", "PX", 600_000);
await eventually("the holder and the waiter are marked", async () => {
  const found = await row("spin:1");
  return found?.holder.endsWith(" · spins") && found.first.length === 1 && found.first[0].endsWith(" · spins");
});
check(!stuck.holder.includes("spins"), `a client of LOCK is not: ${stuck.holder}`);

step("light, dark, and a phone; contrast; nothing to scroll sideways");
for (const colorScheme of ["light", "dark"]) {
  for (const [name, viewport] of [["desk", { width: 1200, height: 900 }], ["phone", { width: 360, height: 740 }]]) {
    await page.setViewportSize(viewport);
    await page.emulateMedia({ colorScheme });
    const wide = await page.evaluate(() => document.scrollingElement.scrollWidth - window.innerWidth);
    check(wide <= 0, `${name}: ${wide} pixels too wide`);
    const top = (id) => page.locator(id).evaluate((at) => at.getBoundingClientRect().top);
    const chartsFirst = await top("#charts-section") < await top("#locks-section");
    equal(chartsFirst, name === "phone", `${name}: charts before locks`);
    const queue = page.locator("#locks > li").first().locator(".waiting");
    equal(await queue.isVisible(), name === "desk", `${name}: queues are open`);
    const handle = page.locator("#locks > li").first().locator("summary");
    equal(await handle.isVisible(), name === "phone", `${name}: queues can be opened`);
    if (name === "phone") {
      await handle.click();
      check(await queue.isVisible(), "a queue opens");
      const told = await text("#about");
      await eventually("and stays open", async () => await text("#about") !== told);
      check(await queue.isVisible(), "it stays open");
    }
    await shot(`stuck-${name}-${colorScheme}`);
  }
  const poor = await page.evaluate(contrasts);
  equal(poor, [], `contrast below 4.5 (${colorScheme})`);
}

step("without a mouse, and without motion");
await page.setViewportSize({ width: 1200, height: 900 });
await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" });
equal(await page.evaluate(() => getComputedStyle(document.querySelector(".bar")).transitionDuration), "0s", "motion");
const reached = [];
for (let count = 0; count < 8; count += 1) {
  await page.keyboard.press("Tab");
  reached.push(await page.evaluate(() => {
    const focused = document.activeElement;
    return [focused.id || focused.textContent, getComputedStyle(focused).outlineStyle];
  }));
}
for (const name of ["chart-grants", "chart-redis", "chart-waiters", "metrics", "readiness"]) {
  check(reached.some(([id, outline]) => id === name && outline === "solid"), `${name} by the keyboard: ${JSON.stringify(reached)}`);
}
await page.emulateMedia({ reducedMotion: "no-preference" });

step("Redis hangs and comes back");
redis.kill("SIGSTOP");
await eventually("the page says so", async () => (await text("#upstream")).includes("does not serve"));
equal(await page.locator("#upstream").getAttribute("data-state"), "bad", "state");
const asking = free.pop().say("LOCK", "asked-for", "PX", 60_000, "WAIT", 60_000);
await eventually("a lock that is granted to none of its waiters is not called free", async () => {
  const found = await row("asked-for");
  return found?.waiters === 1 && /^granted to none of them yet · (last asked for .* ago|not being asked for now)$/.test(found.holder);
});
await shot("redis-hangs");
redis.kill("SIGCONT");
await eventually("it is well again", async () => (await text("#upstream")).endsWith("answers"));
check(typeof await asking === "string", "and it is granted");

step("lockgate hangs and goes on");
const isLost = async () => /^connection lost since \d\d:\d\d:\d\d/.test(await text("#connection"));
gate.kill("SIGSTOP");
await eventually("the page says so", isLost);
gate.kill("SIGCONT");
await eventually("the page is live again", async () => await text("#connection") === "live");

step("lockgate dies and comes back");
gate.kill("SIGKILL");
await gate.ended;
await eventually("the page says so", isLost);
check(!await page.locator("#upstream").isVisible(), "what is not known any more is not said");
check(await page.evaluate(() => document.body.hasAttribute("data-stale")), "what is shown is shown as old");
await shot("lost");
gate = await startGate(port, `redis://127.0.0.1:${redisPort}`, adminPort);
await eventually("the page is live again", async () => await text("#connection") === "live");
await eventually("and shows what is now", async () => (await rows()).length === 0);

step("sentinels move the master");
gate.kill("SIGKILL");
await gate.ended;
const [replicaPort, sentinelPort] = [await freePort(), await freePort()];
await startRedis(replicaPort, "--replicaof", "127.0.0.1", redisPort);
await startSentinel(sentinelPort, redisPort);
gate = await startGate(port, `redis+sentinel://127.0.0.1:${sentinelPort}/m`, adminPort);
await eventually("the page names the master and the sentinels", async () =>
  (await text("#upstream")) === `Redis at 127.0.0.1:${redisPort} (m) answers · 1 of 1 sentinels are heard`);
const operator = await Client.connect(sentinelPort);
await eventually("the sentinel begins", async () => await operator.say("SENTINEL", "FAILOVER", "m") === "OK");
const movedOn = new RegExp(`^Redis at 127\\.0\\.0\\.1:${replicaPort} \\(m\\) answers · 1 of 1 sentinels are heard, last failover `
  + "[\\d.]+ m?s ago, [\\d.]+ m?s without a connection$");
await eventually("the page names the new one, and what the failover cost", async () => movedOn.test(await text("#upstream")), 30_000);

equal(trouble, [], "what the browser complained about");
await browser.close();
console.log("the page is as it should be");
process.exit(0);

// Runs in the page: texts whose contrast with what is behind them is below 4.5.
function contrasts() {
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = channels(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("noscript, .unseen")) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(channels(style.color)), light(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push([element.tagName, element.className, element.textContent.slice(0, 40), ratio.toFixed(2)]);
  }
  return poor;
}
