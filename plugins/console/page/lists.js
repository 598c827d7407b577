// Topics that fill queues, subscriptions, retained messages and uplinks.

import { call, get, path } from "./api.js";
import { clientLink } from "./clients.js";
import { ask, button, el, figures, notice, panel, replace, setText, shown, title, tone } from "./dom.js";
import { bytes, count, NONE, seconds } from "./format.js";
import { listView, Table } from "./table.js";

const topicColumn = (href) => ({ label: "Topic", sort: "topic", kind: "wide", text: (r) => shown(r.topic), full: (r) => shown(r.topic, 1000), href });

export function topics(page) {
  return listView(page, {
    title: "Topics that fill queues",
    about: "What waits in the broker's memory, by topic and size. Most bytes first.",
    api: "topics",
    list: "topics",
    key: (r) => `${r.size} ${r.topic}`,
    search: ["search", "Search", "a part of the topic"],
    sort: "bytes",
    ascending: ["topic"],
    empty: "Nothing waits: every message has been delivered.",
    columns: [
      topicColumn((r) => `#/tail?filter=${encodeURIComponent(r.topic)}`),
      { label: "Size", sort: "size", text: (r) => r.size },
      { label: "Messages", sort: "messages", kind: "number", text: (r) => count(r.messages) },
      { label: "Bytes", sort: "bytes", kind: "number", text: (r) => bytes(r.bytes) },
      { label: "Oldest", sort: "oldest_seconds", kind: "number", text: (r) => seconds(r.oldest_seconds) },
    ],
  });
}

export function subscriptions(page) {
  return listView(page, {
    title: "Subscriptions",
    about: "Who gets what. A client narrows the list to its own, a topic filter to those that are written so.",
    api: "subscriptions",
    list: "subscriptions",
    key: (r) => JSON.stringify([r.client_id, r.share_name, r.topic_filter]),
    search: ["search", "Search", "a part of a client id or topic filter"],
    filters: [["client", "Client", "a client id"], ["filter", "Topic filter", "sensors/#"]],
    empty: "No subscription matches. Leave a field empty to see more.",
    columns: [
      { label: "Topic filter", kind: "wide", text: (r) => shown(r.topic_filter), full: (r) => shown(r.topic_filter, 1000) },
      { label: "Client", kind: "wide", text: (r) => shown(r.client_id), href: (r) => clientLink(r.client_id) },
      { label: "QoS", kind: "number", text: (r) => String(r.qos) },
      { label: "Shared as", text: (r) => shown(r.share_name || NONE) },
    ],
  });
}

async function clear(page, topic, then) {
  const name = shown(topic, 80);
  if (!(await ask(`Clear the retained message of ${name}?`, "New subscribers no longer get it. Those that have it keep it.", "Clear"))) return;
  await call("DELETE", path`retained/${topic}`);
  notice(`Cleared the retained message of ${name}.`);
  then();
}

export function retained(page) {
  const act = { label: "", kind: "acts", act: [{ words: "Clear", kind: "danger", named: (r) => shown(r.topic, 80), run: page.acts((r) => clear(page, r.topic, page.refresh)) }] };
  return listView(page, {
    title: "Retained messages",
    about: "What a new subscriber gets at once. Open one to see its payload.",
    api: "retained",
    list: "retained",
    key: (r) => r.topic,
    search: ["filter", "Topic filter", "sensors/+/state, or # for all"],
    empty: "No retained message matches. Leave the topic filter empty to see all.",
    columns: [
      topicColumn((r) => `#/retained/${encodeURIComponent(r.topic)}`),
      { label: "Size", kind: "number", text: (r) => bytes(r.bytes) },
      { label: "QoS", kind: "number", text: (r) => String(r.qos) },
      { label: "Age", kind: "number", text: (r) => seconds(r.age_seconds) },
      ...(page.isAdmin ? [act] : []),
    ],
  });
}

/** A payload as text where it is some, else as hexadecimal bytes; the beginning of a long one. */
export function payloadText(base64, text = undefined) {
  const raw = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  let decoded = text;
  if (decoded === undefined) {
    try {
      decoded = new TextDecoder("utf-8", { fatal: true }).decode(raw);
    } catch {
      decoded = null;
    }
  }
  if (decoded !== null) return decoded.split("\n").map((line) => (line ? shown(line, 65_536) : "")).join("\n");
  const hex = [...raw.subarray(0, 1024)].map((byte) => byte.toString(16).padStart(2, "0"));
  return (hex.join(" ").match(/.{1,48}/g) ?? []).join("\n") + (raw.length > 1024 ? "\n…" : "");
}

export function retainedMessage(page, topic) {
  const payload = el("pre", { tabindex: "0", "aria-label": "Payload" });
  const facts = figures([
    ["Size", (d) => bytes(d.bytes)],
    ["QoS", (d) => String(d.qos)],
    ["Age", (d) => seconds(d.age_seconds)],
    ["Properties", (d) => (Object.keys(d.properties ?? {}).length ? shown(JSON.stringify(d.properties), 2000) : "none")],
  ]);
  const doClear = button("Clear", page.acts(() => clear(page, topic, () => page.go("#/retained"))), "danger");
  const heading = title(shown(topic, 300), "Retained message", ...(page.isAdmin ? [doClear] : []));
  heading.querySelector("h1").classList.add("id");
  return {
    node: [heading, panel("Message", facts.node), panel("Payload", payload)],
    sources: [
      async (signal) => {
        const data = await get(path`retained/${topic}`, signal);
        facts.update(data);
        setText(payload, data.bytes ? payloadText(data.base64, data.text) : "(empty)");
      },
    ],
  };
}

const words = (name) => name.replaceAll("_", " ").replace(/ (seconds|bytes)$/, "");
const written = (name, value) =>
  value === null || value === "" ? NONE : name.endsWith("seconds") ? seconds(value) : name.endsWith("bytes") ? bytes(value) : typeof value === "number" ? count(value) : typeof value === "boolean" ? (value ? "yes" : "no") : shown(String(value), 300);
const isPlain = ([, value]) => typeof value !== "object" || value === null;

export function uplinks(page) {
  const list = el("div", { class: "halves" });
  return {
    node: [title("Uplinks", "Connections to other brokers, and the lanes of each."), list],
    sources: [
      async (signal) => {
        const found = (await get("uplinks", signal)).uplinks;
        replace(
          list,
          () =>
            found.length
              ? found.map((one) => {
                  const { name, lanes, ...rest } = one;
                  const facts = Object.entries(rest).filter(isPlain).map(([key, value]) => [words(key), () => written(key, value)]);
                  const shownFacts = figures(facts);
                  shownFacts.update({});
                  const head = el("h2", {}, `${shown(name)} `, one.is_connected === undefined ? "" : tone(one.is_connected ? "ok" : "bad", one.is_connected ? "connected" : "not connected"));
                  return panel(head, shownFacts.node, ...(lanes?.length ? [laneTable(lanes)] : []));
                })
              : [el("p", { class: "empty" }, "This broker has no uplink. The plugin uplink in the policy file joins it to another broker: docs/how-to/edge.md.")],
          found,
        );
      },
    ],
  };
}

function laneTable(lanes) {
  const keys = Object.entries(lanes[0]).filter(isPlain).map(([key]) => key);
  const table = new Table(
    keys.map((key) => ({ label: words(key), kind: typeof lanes[0][key] === "number" ? "number" : "", text: (r) => written(key, r[key]) })),
    (r) => JSON.stringify(r[keys[0]]),
    "",
    { caption: "Lanes" },
  );
  table.update(lanes);
  return table.node;
}
