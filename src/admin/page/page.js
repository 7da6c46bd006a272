// Draws the events of GET /events. All of their data enters the page as text (textContent), never as markup:
// lock and client names come from clients.
"use strict";

const STALE_MS = 3500;      // Without an event for this long, the page shows its data as old.
const DEAD_MS = 12000;      // Without an event for this long, the page reconnects: the connection may be dead.
const AGAIN_MS = 2000;      // The page retries an address that responds with an error; a browser does not.
const STUCK_MS = 10000;     // A lock held for this long, with waiters, is highlighted.
const KEPT = 600;           // Samples: ten minutes.
const SHORTEST_MS = 60000;  // A young instance has a shorter chart; a whole one would be almost empty.
const MAX_GAP_MS = 3000;    // A line is not drawn across a gap without samples.
const FIND_AFTER_MS = 250;  // A search begins when the reader has not typed for this long.
const PHONE = matchMedia("(max-width: 40rem)");   // As in page.css.

const $ = (id) => document.getElementById(id);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// ── words ────────────────────────────────────────────────────────────────────

const whole = (number) => number.toLocaleString("en");

function rate(number) {
  if (number === null || number === undefined) return "–";
  return number < 10 ? String(Math.round(number * 10) / 10) : whole(Math.round(number));
}

function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min ${Math.floor(s % 60)} s`;
  const h = Math.floor(m / 60);
  if (h < 48) return `${h} h ${m % 60} min`;
  return `${Math.floor(h / 24)} days ${h % 24} h`;
}

const spins = (who) => who.spins ? " · spins" : "";

const pad = (number) => String(number).padStart(2, "0");
function clock(ms) {
  const at = new Date(ms);
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const today = Math.abs(Date.now() - ms) < 12 * 3600 * 1000;
  return today ? time : `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${time}`;
}

function client(who) {
  const shown = document.createDocumentFragment();
  const words = [who.name, who.library && `(${who.library})`].filter(Boolean).join(" ");
  if (words) shown.append(element("span", "who", words), " ");
  shown.append(element("span", "address", who.address));
  return shown;
}

// ── locks ────────────────────────────────────────────────────────────────────

const rows = new Map();

function newRow() {
  const row = element("li");
  const top = element("div", "top");
  const title = element("span");
  const name = element("bdi", "name");
  title.append(name, element("span", "stuck", "held long, others wait"));
  const queue = element("span", "queue");
  top.append(title, queue);
  const holder = element("p", "holder");
  const fold = element("details", "fold");
  fold.open = !PHONE.matches;
  const waiting = element("ul", "waiting");
  waiting.setAttribute("aria-label", "first in the queue");
  fold.append(element("summary", "", "first in the queue"), waiting);
  const bar = element("div", "bar");
  bar.setAttribute("aria-hidden", "true");
  row.append(top, holder, fold, bar);
  return { row, name, queue, holder, fold, waiting, bar };
}

function lastAsked(lock) {
  if (lock.error) return `Redis puts it off: ${lock.error}`;
  return lock.asked_ms === null ? "not being asked for now" : `last asked for ${span(lock.asked_ms)} ago`;
}

function fillRow(parts, lock, now, most) {
  const { row, name, queue, holder, fold, waiting, bar } = parts;
  const database = lock.database ? `db ${lock.database} · ` : "";
  name.textContent = `${database}${lock.name}${lock.is_cut ? `… (${whole(lock.bytes)} bytes)` : ""}`;
  queue.textContent = lock.waiters
    ? `${whole(lock.waiters)} waiting, longest ${span(lock.longest_wait_ms)}`
    : "nobody waits";
  row.dataset.waiters = lock.waiters;
  row.dataset.held = lock.held;
  const stuck = lock.waiters > 0
    && (lock.held_ms >= STUCK_MS || (lock.held === "elsewhere" && lock.longest_wait_ms >= STUCK_MS));
  row.toggleAttribute("data-stuck", stuck);
  holder.replaceChildren();
  if (lock.held === "here") {
    holder.append("held by ", lock.holder ? client(lock.holder) : element("span", "who", "an unknown client"));
    const since = element("span", "since", ` since ${clock(now - lock.held_ms)} (${span(lock.held_ms)})`);
    const lease = lock.session ? "for as long as its connection lives" : `lease ends in ${span(lock.lease_left_ms)}`;
    holder.append(since, element("span", "quiet", ` · ${lease}${spins(lock)}`));
  } else if (lock.held === "elsewhere") {
    holder.append("held by somebody who did not ask here: another lockgate, or a client of Redis itself");
  } else if (lock.waiters) {
    holder.append("granted to none of them yet", element("span", "quiet", ` · ${lastAsked(lock)}`));
  } else {
    holder.append("free");
  }
  fold.hidden = lock.first.length === 0;
  waiting.replaceChildren(...lock.first.map((waiter) => {
    const shown = element("li");
    shown.append(client(waiter), ` ${span(waiter.waited_ms)}${spins(waiter)}`);
    const part = lock.longest_wait_ms ? Math.min(100, 100 * waiter.waited_ms / lock.longest_wait_ms) : 0;
    shown.style.setProperty("--part", `${part}%`);
    return shown;
  }));
  const beyond = lock.waiters - lock.first.length;
  if (beyond > 0 && lock.first.length) waiting.append(element("li", "", `and ${whole(beyond)} more`));
  bar.style.width = `${most ? 100 * lock.waiters / most : 0}%`;
}

function showLocks(state) {
  const list = $("locks");
  const most = Math.max(0, ...state.locks.map((lock) => lock.waiters));
  const seen = new Set();
  state.locks.forEach((lock, at) => {
    seen.add(lock.id);
    let parts = rows.get(lock.id);
    if (!parts) rows.set(lock.id, parts = newRow());
    fillRow(parts, lock, state.now, most);
    if (list.children[at] !== parts.row) list.insertBefore(parts.row, list.children[at] ?? null);
  });
  for (const [id, parts] of rows) {
    if (!seen.has(id)) {
      parts.row.remove();
      rows.delete(id);
    }
  }
  const beyond = state.found - state.locks.length;
  $("none").hidden = state.locks.length > 0;
  $("none").textContent = sought ? "No lock that is held or waited for has that in its name." : "Nothing is held or waited for.";
  $("more").hidden = beyond <= 0;
  $("more").textContent = `and ${whole(beyond)} more`;
  $("locks-heading").textContent = sought ? "Locks found" : "Busiest locks";
}

// ── charts ───────────────────────────────────────────────────────────────────

const [AT, GRANTS, RELAYED, ASKED, WAITERS, MEDIAN, P99] = [0, 1, 2, 3, 4, 5, 6];
const CHARTS = [
  { id: "chart-grants", title: "locks granted", unit: "per second", lines: [[GRANTS, "granted"]], show: rate },
  { id: "chart-waiters", title: "waiting", unit: "requests", lines: [[WAITERS, "waiting"]], show: rate },
  { id: "chart-wait", title: "time to a grant", unit: "", lines: [[MEDIAN, "median"], [P99, "99 %"]],
    show: (ms) => (ms === null || ms === undefined ? "–" : span(ms)) },
  { id: "chart-redis", title: "commands to Redis", unit: "per second", lines: [[ASKED, "for locks"], [RELAYED, "relayed"]], show: rate },
];
const SVG = "http://www.w3.org/2000/svg";
let samples = [];

function path(line, from, to, top) {
  let drawn = "";
  let before = null;
  for (const sample of samples) {
    const value = sample[line];
    if (value === null || sample[AT] < from) {
      before = null;
      continue;
    }
    const x = (1000 * (sample[AT] - from) / (to - from)).toFixed(1);
    const y = (98 - 96 * value / top).toFixed(1);
    const goesOn = before !== null && sample[AT] - before <= MAX_GAP_MS;
    // A single point is a short line, or it would be invisible.
    drawn += goesOn ? `L${x} ${y}` : `M${x} ${y}h1.5`;
    before = sample[AT];
  }
  return drawn;
}

function drawChart(chart) {
  const figure = $(chart.id);
  const to = samples.length ? samples[samples.length - 1][AT] : 0;
  const length = Math.min(KEPT * 1000, Math.max(SHORTEST_MS, samples.length ? to - samples[0][AT] : 0));
  const from = to - length;
  let top = 0;
  let measured = false;
  for (const sample of samples) {
    for (const [line] of chart.lines) {
      measured ||= sample[line] !== null;
      top = Math.max(top, sample[line] ?? 0);
    }
  }
  figure.hidden = !measured;
  if (!figure.chart) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 1000 100");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    const make = (className) => {
      const made = document.createElementNS(SVG, "path");
      made.setAttribute("class", className);
      svg.append(made);
      return made;
    };
    make("grid").setAttribute("d", "M0 2H1000M0 50H1000M0 98H1000");
    const lines = chart.lines.map((_, at) => make(at ? "two" : "one"));
    const axis = element("div", "axis");
    const left = element("span");
    const most = element("span");
    axis.append(left, most, element("span", "", "now"));
    figure.append(svg, axis);
    figure.chart = { lines, most, left };
  }
  const last = samples[samples.length - 1] ?? [];
  const title = element("span", "", chart.title + (chart.unit ? `, ${chart.unit}` : ""));
  const now = element("span");
  chart.lines.forEach(([line, word], at) => {
    if (at) now.append(" · ");
    now.append(element("span", at ? "two" : "one", chart.lines.length > 1 ? `${word} ` : ""),
      element("b", at ? "two" : "one", chart.show(last[line])));
    figure.chart.lines[at].setAttribute("d", top ? path(line, from, to, top) : path(line, from, to, 1));
  });
  figure.querySelector("figcaption").replaceChildren(title, now);
  figure.chart.left.textContent = `${span(length)} ago`;
  figure.chart.most.textContent = top ? `highest ${chart.show(top)}` : "";
}

// ── state ────────────────────────────────────────────────────────────────────

function showUpstream(upstream, now) {
  const shown = $("upstream");
  if (upstream.name === null) {
    shown.dataset.state = "good";
    shown.textContent = "locks live in this process, without a Redis";
  } else if (upstream.ready === null) {
    shown.dataset.state = "unknown";
    shown.textContent = `Redis at ${upstream.name}: not asked yet`;
  } else if (upstream.ready) {
    shown.dataset.state = "good";
    shown.textContent = `Redis at ${upstream.name} answers`;
  } else {
    shown.dataset.state = "bad";
    shown.textContent = `Redis does not serve, for ${span(upstream.for_ms)}: ${upstream.why}`;
  }
  if (upstream.sentinels) shown.textContent += ` · ${sentinels(upstream.sentinels, now)}`;
}

function sentinels({known, heard, last_failover_ms: at, outage_ms: outage}, now) {
  const text = `${heard} of ${known} sentinels are heard`;
  if (at === null) return text;
  return `${text}, last failover ${span(now - at)} ago, ${span(outage)} without a connection`;
}

function show(state) {
  $("waiters").textContent = whole(state.waiters);
  $("longest").textContent = state.waiters ? span(state.longest_wait_ms) : "–";
  $("held").textContent = whole(state.held);
  $("awaited").textContent = whole(state.awaited);
  $("clients").textContent = whole(state.clients);
  $("grants").textContent = state.grants === null ? "–" : whole(state.grants);
  $("about").textContent = `lockgate ${state.version}, up ${span(state.up_ms)}`;
  document.title = state.waiters ? `(${whole(state.waiters)}) lockgate` : "lockgate";
  showUpstream(state.upstream, state.now);
  showLocks(state);
  if (state.sample && state.sample[AT] !== samples[samples.length - 1]?.[AT]) {
    samples.push(state.sample);
    if (samples.length > KEPT) samples.shift();
  }
  CHARTS.forEach(drawChart);
}

let sought = "";            // What the names of the locks shown contain.
let heard = null;           // When the last event came, by this machine's clock.
let events = null;
let begun = 0;              // When the connection was started.

function showConnection() {
  const shown = $("connection");
  const lost = heard === null || performance.now() - heard.at > STALE_MS;
  document.body.toggleAttribute("data-stale", lost);
  const text = heard === null ? "connecting …"
    : lost ? `connection lost since ${clock(heard.time)}: what is below is from then`
    : "live";
  // Set only when it changes, so that a screen reader speaks it once, not every second.
  if (shown.textContent !== text) shown.textContent = text;
  shown.dataset.state = heard === null ? "waiting" : lost ? "bad" : "good";
  if (lost) document.title = "lockgate: no connection";
}

function watch() {
  showConnection();
  const latest = Math.max(begun, heard ? heard.at : 0);
  if (performance.now() - latest > DEAD_MS) {
    events.close();
    connect();
  }
}

// A name may be typed as the page shows it: \xff is a byte, \u{202e} a character, \\ a backslash.
function asQuery(text) {
  const bytes = text.replaceAll(/\\x([0-9a-f]{2})|\\u\{((?!d[89a-f]..\})[0-9a-f]{1,5})\}|\\(\\)|[^\\]+|\\/g, (typed, byte, point, backslash) => {
    if (byte) return `%${byte}`;
    if (point) return encodeURIComponent(String.fromCodePoint(parseInt(point, 16)));
    return encodeURIComponent(backslash ?? typed);
  });
  return bytes && `?find=${bytes}`;
}

function find(text) {
  sought = text;
  events.close();
  connect();
}

function connect() {
  begun = performance.now();
  events = new EventSource(`/events${asQuery(sought)}`);
  events.addEventListener("history", (event) => { samples = JSON.parse(event.data); });
  events.addEventListener("state", (event) => {
    show(JSON.parse(event.data));
    heard = { at: performance.now(), time: Date.now() };
    showConnection();
  });
  events.addEventListener("error", () => {
    if (heard) heard.at = -Infinity;
    showConnection();
    // The browser has given up; the page retries.
    if (events.readyState === EventSource.CLOSED) begun = performance.now() - DEAD_MS + AGAIN_MS;
  });
}

// On a phone the charts come first, and queues are folded.
function arrange() {
  $("live").insertBefore($("charts-section"), PHONE.matches ? $("locks-section") : null);
  for (const { fold } of rows.values()) fold.open = !PHONE.matches;
}

let typing = 0;
$("find").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => { if ($("find").value !== sought) find($("find").value); }, FIND_AFTER_MS);
});
PHONE.addEventListener("change", arrange);
arrange();
setInterval(watch, 500);
connect();
