// Topics that fill queues, subscriptions, retained messages and uplinks.

import { call, get, path } from "./api.js";
import { clientLink } from "./clients.js";
import { askAndDo, button, el, figures, panel, setText, shown, title } from "./dom.js";
import { bytes, count, NONE, seconds } from "./format.js";
import { acts, listView, name, number, Table, text } from "./table.js";

export function topics(page) {
  return listView(page, {
    title: "Topics that fill queues",
    about: "What waits in the broker's memory, by topic and size. Most bytes first.",
    list: "topics",
    key: (r) => `${r.size} ${r.topic} ${r.node}`,
    search: ["search", "Search", "a part of the topic"],
    sort: "bytes",
    ascending: ["topic"],
    empty: "Nothing waits: every message has been delivered.",
    columns: [
      name("Topic", (r) => r.topic, { sort: "topic", href: (r) => `#/tail?filter=${encodeURIComponent(r.topic)}` }),
      text("Size", (r) => r.size),
      number("Messages", (r) => count(r.messages), { sort: "messages" }),
      number("Bytes", (r) => bytes(r.bytes), { sort: "bytes" }),
      number("Oldest", (r) => seconds(r.oldest_seconds), { sort: "oldest_seconds" }),
      ...(page.has("nodes") ? [text("Node", (r) => shown(r.node, 40))] : []),
    ],
  });
}

export function subscriptions(page) {
  return listView(page, {
    title: "Subscriptions",
    about: "Who gets what. A client narrows the list to its own, a topic filter to those that are written so.",
    list: "subscriptions",
    key: (r) => JSON.stringify([r.client_id, r.share_name, r.topic_filter]),
    search: ["search", "Search", "a part of a client id or topic filter"],
    filters: [
      ["client", "Client", "a client id"],
      ["filter", "Topic filter", "sensors/#"],
    ],
    empty: "No subscription matches. Leave a field empty to see more.",
    columns: [
      name("Topic filter", (r) => r.topic_filter),
      name("Client", (r) => r.client_id, { href: (r) => clientLink(r.client_id) }),
      number("QoS", (r) => String(r.qos)),
      text("Shared as", (r) => shown(r.share_name || NONE)),
      text("Sizes", (r) => r.sizes ?? "all"),
    ],
  });
}

async function clear(topic, then) {
  const which = shown(topic, 80);
  const told = "New subscribers no longer get it. Those that have it keep it.";
  const isDone = await askAndDo(
    [`Clear the retained message of ${which}?`, told, "Clear"],
    () => call("DELETE", path`retained/${topic}`),
    () => `Cleared the retained message of ${which}.`,
  );
  if (isDone) then();
}

export function retained(page) {
  const clearOne = {
    words: "Clear",
    kind: "danger",
    named: (r) => shown(r.topic, 80),
    run: page.acts((r) => clear(r.topic, page.refresh)),
  };
  return listView(page, {
    title: "Retained messages",
    about: "What a new subscriber gets at once. Open one to see its payload.",
    list: "retained",
    key: (r) => r.topic,
    search: ["filter", "Topic filter", "sensors/+/state, or # for all"],
    sort: "topic",
    ascending: ["topic"],
    empty: "No retained message matches. Leave the topic filter empty to see all.",
    columns: [
      name("Topic", (r) => r.topic, { sort: "topic", href: (r) => `#/retained/${encodeURIComponent(r.topic)}` }),
      number("Size", (r) => bytes(r.bytes), { sort: "bytes" }),
      number("QoS", (r) => String(r.qos)),
      number("Age", (r) => seconds(r.age_seconds), { sort: "age_seconds" }),
      name("From", (r) => r.publisher || NONE),
      ...(page.isAdmin ? [acts(clearOne)] : []),
    ],
  });
}

const SHOWN_BYTES = 1024;

/** A payload as text where it is some, else as hexadecimal bytes; it may have lost its end. */
export function payloadText(base64) {
  const raw = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  if (!raw.length) return "(empty)";
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(raw, { stream: true });
    return text
      .split("\n")
      .map((line) => (line ? shown(line, Infinity) : ""))
      .join("\n");
  } catch {
    const hex = [...raw.subarray(0, SHOWN_BYTES)].map((byte) => byte.toString(16).padStart(2, "0"));
    return (
      hex
        .join(" ")
        .match(/.{1,48}/g)
        .join("\n") + (raw.length > SHOWN_BYTES ? "\n…" : "")
    );
  }
}

export function retainedMessage(page, topic) {
  const payload = el("pre", { tabindex: "0", "aria-label": "Payload" });
  const facts = figures([
    ["Size", (d) => bytes(d.bytes)],
    ["QoS", (d) => String(d.qos)],
    ["Age", (d) => seconds(d.age_seconds)],
    ["Expires in", (d) => (d.expires_seconds === null ? "never" : seconds(d.expires_seconds))],
    ["From", (d) => shown(d.publisher || NONE, 500)],
    [
      "Properties",
      (d) => (Object.keys(d.properties ?? {}).length ? shown(JSON.stringify(d.properties), 2000) : "none"),
    ],
  ]);
  const doClear = button(
    "Clear",
    page.acts(() => clear(topic, () => page.go("#/retained"))),
    "danger",
  );
  const heading = title(shown(topic, 300), "Retained message", page.isAdmin && doClear);
  heading.querySelector("h1").classList.add("id");
  return {
    node: [heading, panel("Message", facts.node), panel("Payload", payload)],
    sources: [
      async (signal) => {
        const data = await get(path`retained/${topic}`, signal);
        facts.update(data);
        setText(payload, payloadText(data.base64));
      },
    ],
  };
}

const laneColumns = () => [
  text("Lane", (r) => (r.name ? shown(r.name) : "the only one")),
  text("State", (r) => (r.is_connected ? "connected" : "not connected"), {
    tone: (r) => (r.is_connected ? "ok" : "bad"),
  }),
  number("For", (r) => seconds(r.since_seconds)),
  name("To", (r) => r.address),
  number("RTT", (r) => seconds(r.rtt)),
  number("Waiting", (r) => (r.waiting ? `${count(r.waiting)}, ${bytes(r.waiting_bytes)}` : "0")),
  number("Oldest", (r) => seconds(r.oldest_seconds)),
  text("Why", (r) => shown(r.why || NONE, 500), { kind: "wrap" }),
];

export function uplinks() {
  const list = el("div");
  const tables = new Map();
  const none = el(
    "p",
    { class: "empty", hidden: true },
    "This broker has no uplink. The plugin uplink in the policy file joins it to another broker: docs/how-to/edge.md.",
  );
  return {
    node: [title("Uplinks", "Whether the other brokers are reached, and what waits for each lane."), none, list],
    sources: [
      async (signal) => {
        const found = (await get("uplinks", signal)).uplinks;
        none.hidden = found.length > 0;
        for (const one of found) {
          if (!tables.has(one.name)) {
            tables.set(one.name, new Table(laneColumns(), (r) => r.name, "", { caption: "Lanes" }));
            list.append(panel(shown(one.name), tables.get(one.name).node));
          }
          tables.get(one.name).update(one.lanes);
        }
      },
    ],
  };
}

export function upstreams() {
  const brokers = new Table(
    [
      name("Broker", (r) => r.address),
      text("State", (r) => (r.is_up ? "up" : "down"), { tone: (r) => (r.is_up ? "ok" : "bad") }),
      number("For", (r) => seconds(r.since_seconds)),
      number("Connections", (r) => count(r.connections)),
      text("Why", (r) => shown(r.why || NONE, 500), { kind: "wrap" }),
    ],
    (r) => r.address,
    "No broker is named.",
    { caption: "Brokers behind the proxy" },
  );
  const passed = figures([
    ["Clients connected", (d) => count(d.clients.connected)],
    ["Clients gone", (d) => count(d.clients.gone)],
    [
      "Clients refused",
      (d) =>
        Object.entries(d.clients.refused)
          .map(([why, n]) => `${count(n)} ${why}`)
          .join(", ") || "0",
    ],
    ["Messages matched", (d) => count(d.messages.matched)],
    ["Delivered", (d) => count(d.messages.delivered)],
    ["Held", (d) => count(d.messages.withheld)],
    ["Waiting", (d) => count(d.messages.queued)],
  ]);
  return {
    node: [
      title("Brokers behind the proxy", "Which are up, and what goes through."),
      el("section.panel", brokers.node),
      panel("Through the proxy", passed.node),
    ],
    sources: [
      async (signal) => {
        const found = await get("proxy", signal);
        brokers.update(found.upstreams);
        passed.update(found);
      },
    ],
  };
}
