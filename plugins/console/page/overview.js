// The whole broker at a glance: what needs attention first, then rates, latency, links, memory.

import { get } from "./api.js";
import { el, figures, panel, replace, setText, shown, title, tone } from "./dom.js";
import { bytes, count, many, percent, perSecond, rate, seconds } from "./format.js";
import { bar, graph, GRAPH_SECONDS, range, rangeEnds } from "./graphs.js";
import { name, number, Table, text } from "./table.js";
import { clientLink, linkColumns, STUCK_SECONDS } from "./clients.js";

const LATE_LOOP_SECONDS = 0.1;
const FULL = 0.8;
const WORST = 6;

/** Returns what an operator is to look at, worst first: [tone, words, where]. */
export function attention(data, worst) {
  const found = Object.entries(data.problems ?? {}).map(([name, why]) => ["bad", `${name}: ${why}`, "#/system"]);
  const { memory, messages, loop } = data;
  if (memory.limit_bytes && memory.used_bytes > FULL * memory.limit_bytes)
    found.push(["bad", `${percent(memory.used_bytes / memory.limit_bytes)} of the memory limit is used`, "#/topics"]);
  if (data.rates.dropped > 0)
    found.push(["bad", `${rate(data.rates.dropped)} messages a second are dropped`, "#/clients?sort=dropped"]);
  for (const one of data.uplinks ?? [])
    if (one.is_connected === false) found.push(["bad", `uplink ${one.name} is not connected`, "#/uplinks"]);
  if (messages?.crowded_sessions)
    found.push([
      "warn",
      `${many(messages.crowded_sessions, "session")} above half of the queue limit`,
      "#/clients?sort=queued_bytes",
    ]);
  if (messages?.withheld)
    found.push(["warn", `${many(messages.withheld, "message")} held back for slow links`, "#/clients?sort=withheld"]);
  const [slowest] = worst;
  if (slowest?.rtt > STUCK_SECONDS)
    found.push([
      "warn",
      `${shown(slowest.client_id, 60)} answers after ${seconds(slowest.rtt)}`,
      clientLink(slowest.client_id),
    ]);
  const dead = (data.queues ?? []).reduce((sum, queue) => sum + (queue.dead_letters ?? 0), 0);
  if (dead) found.push(["warn", many(dead, "dead letter"), "#/queues"]);
  if (loop?.p99_seconds > LATE_LOOP_SECONDS)
    found.push(["warn", `the event loop runs ${seconds(loop.p99_seconds)} late`, "#/system"]);
  return found;
}

function tile(name, value, note, points, format) {
  const words = el("p.value");
  const more = el("p.note");
  const drawn = points ? graph(name, format) : null;
  const node = el("section.tile", el("h2.label", name), words, more, drawn?.node);
  return {
    node,
    update(data, history) {
      setText(words, value(data));
      setText(more, note(data));
      drawn?.update(points(history));
    },
  };
}

/** Keeps ten minutes of measurements, those of before the page was opened from the server. */
class History {
  #points = new Map();

  add(data) {
    const past = data.history;
    past?.at?.forEach((at, n) =>
      this.#points.set(at, Object.fromEntries(Object.entries(past).map(([name, list]) => [name, list[n]]))),
    );
    this.#points.set(data.at, { ...data.rates, withheld: data.messages?.withheld, used_bytes: data.memory.used_bytes });
    for (const at of this.#points.keys()) if (at < data.at - GRAPH_SECONDS) this.#points.delete(at);
  }

  of(name) {
    return [...this.#points].sort(([one], [other]) => one - other).map(([at, point]) => [at, point[name]]);
  }
}

const history = new History();

const drawRange = (r) => range(r.messages ? r.p50_seconds : null, r.p99_seconds, r.congested ? "warn" : "");

export function overview(page) {
  const tiles = [
    tile(
      "Received",
      (d) => perSecond(d.rates.received_messages),
      (d) => perSecond(d.rates.received_bytes, bytes),
      (h) => h.of("received_messages"),
      rate,
    ),
    tile(
      "Sent",
      (d) => perSecond(d.rates.sent_messages),
      (d) => perSecond(d.rates.sent_bytes, bytes),
      (h) => h.of("sent_messages"),
      rate,
    ),
    tile(
      "Held now",
      (d) => count(d.messages?.withheld),
      (d) => `${count(d.messages?.queued)} more wait, ${bytes(d.messages?.queued_bytes)}`,
      (h) => h.of("withheld"),
      count,
    ),
    tile(
      "Memory",
      (d) => bytes(d.memory.used_bytes),
      (d) =>
        d.memory.limit_bytes
          ? `${percent(d.memory.used_bytes / d.memory.limit_bytes)} of ${bytes(d.memory.limit_bytes)}`
          : "no limit set",
      (h) => h.of("used_bytes"),
      bytes,
    ),
  ];
  const needs = el("ul.attention");
  const latency = new Table(
    [
      text("Messages", (r) => r.size, { kind: "" }),
      text("Path", (r) => (r.congested ? "congested" : "calm"), { tone: (r) => (r.congested ? "warn" : "ok") }),
      number("p50", (r) => seconds(r.p50_seconds)),
      number("p99", (r) => seconds(r.p99_seconds)),
      number("Count", (r) => count(r.messages)),
      text("p50 to p99", null, { kind: "drawn", head: rangeEnds, draw: drawRange }),
    ],
    (r) => `${r.size} ${r.congested}`,
    "No delivery was timed in the last minute. Small messages are timed at QoS 1 and 2, by the plugin probing.",
    { caption: "Latency from publish to delivery" },
  );
  const worst = new Table(
    linkColumns(),
    (r) => r.client_id,
    "No client is connected. Clients appear here as soon as they connect to a listener.",
    { caption: "Worst links" },
  );
  const queues = new Table(
    [
      name("Queue", (r) => r.name, { href: (r) => `#/queues/${encodeURIComponent(r.name)}` }),
      number("Messages", (r) => count(r.messages)),
      number("Most behind", (r) => count(r.lag)),
      number("Dead letters", (r) => count(r.dead_letters), { tone: (r) => (r.dead_letters ? "warn" : "") }),
    ],
    (r) => r.name,
    "There is no queue.",
    { caption: "Queues" },
  );
  const dropped = el("div");
  const memory = el("ul.meters");
  const inside = figures([
    ["Clients connected", (d) => count(d.clients?.connected)],
    ["Sessions", (d) => count(d.clients?.sessions)],
    ["Most connected at once", (d) => count(d.clients?.maximum)],
    ["Connections", (d) => perSecond(d.rates.connections)],
    ["Oldest message that waits", (d) => seconds(d.messages?.oldest_seconds)],
    [
      "Event loop late, p99",
      (d) => seconds(d.loop?.p99_seconds),
      (d) => (d.loop?.p99_seconds > LATE_LOOP_SECONDS ? "warn" : ""),
    ],
    ["Commit, p99", (d) => seconds(d.persistence?.p99_seconds)],
    ["Commits", (d) => perSecond(d.persistence?.commits_per_second)],
  ]);
  let newest = null;
  let rows = [];
  let isFirst = true;

  function showCounts(node, found, none) {
    const pairs = Object.entries(found ?? {}).filter(([, n]) => n);
    replace(
      node,
      () =>
        pairs.length
          ? [
              el(
                "dl.figures",
                pairs.map(([why, n]) => el("div", el("dt", why.replaceAll("_", " ")), el("dd", count(n)))),
              ),
            ]
          : [el("p.empty", none)],
      pairs,
    );
  }

  function showMeters(data) {
    const limit = data.memory.limit_bytes;
    const meters = [
      ["Process", data.memory.used_bytes, limit],
      ["Payloads", data.memory.payload_bytes, limit],
      ["Waiting", data.messages?.queued_bytes ?? 0, limit],
    ];
    replace(
      memory,
      () =>
        meters.map(([name, used, most]) =>
          el(
            "li",
            el("span.words", el("span", name), el("span", most ? `${bytes(used)} of ${bytes(most)}` : bytes(used))),
            bar(most ? used / most : 0),
          ),
        ),
      meters,
    );
  }

  function showNeeds() {
    const found = attention(newest, rows);
    replace(
      needs,
      () =>
        found.length
          ? found.map(([kind, words, where]) =>
              el(
                "li",
                tone(kind, kind === "bad" ? "Problem" : "Warning"),
                el("span", words),
                el("a", { href: where, "aria-label": `Show: ${words}` }, "Show"),
              ),
            )
          : [el("li", tone("ok", "Fine"), el("span", "Nothing needs attention."))],
      found,
    );
  }

  async function load(signal) {
    const data = await get(isFirst ? "overview?history=true" : "overview", signal);
    isFirst = false;
    history.add(data);
    for (const one of tiles) one.update(data, history);
    newest = data;
    showNeeds();
    latency.update(data.latency ?? []);
    queues.update(data.queues ?? []);
    showCounts(dropped, data.dropped, "Nothing was dropped since the start.");
    showMeters(data);
    inside.update(data);
  }

  async function loadWorst(signal) {
    const answer = await get(`clients?sort=rtt&order=desc&limit=${WORST}`, signal);
    rows = answer.clients;
    worst.update(rows);
    if (newest) showNeeds();
  }

  const queuesPanel = page.has("queues") && panel("Queues", queues.node);
  const about = "What goes through, and whether anything stands in its way. Graphs show the last 10 minutes.";
  const head = [title("Overview", about), panel("Needs attention", needs)];
  if (!page.has("clients")) return { node: [...head, queuesPanel], sources: [load] };
  const allClients = el("a", { href: "#/clients?sort=rtt" }, "All clients");
  return {
    node: [
      ...head,
      el(
        "div.tiles",
        tiles.map(({ node }) => node),
      ),
      el("section.panel", el("div.head", el("h2", "Worst links first"), allClients), worst.node),
      panel("Latency from publish to delivery, last minute", latency.node),
      queuesPanel,
      el(
        "div.thirds",
        panel("Inside", inside.node),
        panel("Memory against its limit", memory),
        panel("Dropped since the start, by reason", dropped),
      ),
    ],
    sources: [load, loadWorst],
  };
}
