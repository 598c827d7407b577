// Pull queues: how much waits, which group is behind, and what became a dead letter.

import { call, get, path } from "./api.js";
import { ask, button, el, field, figures, notice, panel, setText, shown, title } from "./dom.js";
import { bytes, clock, count, many, NONE, seconds } from "./format.js";
import { payloadText } from "./lists.js";
import { Table } from "./table.js";

const link = (name) => `#/queues/${encodeURIComponent(name)}`;
const PEEKED = 20;

/** Returns the names of the groups ("queue, group") whose dead letters each queue takes. */
function deadLettersOf(queues) {
  const found = {};
  for (const queue of queues)
    for (const [group, { settings }] of Object.entries(queue.groups))
      if (settings.dead_letter_queue) (found[settings.dead_letter_queue] ??= []).push(`${queue.name}, ${group}`);
  return found;
}

const lag = (queue) => Math.max(0, ...Object.values(queue.groups).map((group) => group.waiting));

export function queues() {
  let dead = {};
  const table = new Table(
    [
      { label: "Queue", kind: "wide", text: (r) => shown(r.name), href: (r) => link(r.name) },
      { label: "Messages", kind: "number", text: (r) => count(r.messages), tone: (r) => (dead[r.name] && r.messages ? "warn" : "") },
      { label: "Stored", kind: "number", text: (r) => bytes(r.stored_bytes) },
      { label: "Oldest", kind: "number", text: (r) => seconds(r.oldest_seconds) },
      { label: "Groups", kind: "number", text: (r) => count(Object.keys(r.groups).length) },
      { label: "Most behind", kind: "number", text: (r) => count(lag(r)) },
      { label: "Holds dead letters of", kind: "wrap", text: (r) => shown(dead[r.name]?.join("; ") ?? NONE) },
    ],
    (r) => r.name,
    "There is no queue. Name one under plugins: queue: queues: in the policy file, with the topics that fill it: docs/how-to/queue.md.",
    { caption: "Queues" },
  );
  return {
    node: [title("Queues", "How many messages each holds, and how far its groups are behind."), el("section", { class: "panel" }, table.node)],
    sources: [
      async (signal) => {
        const found = (await get("queues", signal)).queues;
        dead = deadLettersOf(found);
        table.update(found);
      },
    ],
  };
}

export function queue(page, name) {
  const facts = figures([
    ["Messages", (d) => count(d.messages)],
    ["Payloads", (d) => bytes(d.payload_bytes)],
    ["Stored", (d) => bytes(d.stored_bytes)],
    ["Oldest", (d) => seconds(d.oldest_seconds)],
    ["Topics", (d) => shown((d.settings.topics ?? []).join(", "), 300) || "none"],
    ["Set aside as damaged", (d) => count(d.set_aside), (d) => (d.set_aside ? "bad" : "")],
  ]);
  const groups = new Table(
    [
      { label: "Group", kind: "wide", text: ([group]) => shown(group) },
      { label: "Behind", kind: "number", text: ([, g]) => count(g.waiting) },
      { label: "Leased", kind: "number", text: ([, g]) => count(g.leased) },
      { label: "Delayed", kind: "number", text: ([, g]) => count(g.delayed) },
      { label: "Received", kind: "number", text: ([, g]) => count(g.received) },
      { label: "Last request", kind: "number", text: ([, g]) => `${seconds(g.idle_seconds)} ago` },
      { label: "Dead letters to", kind: "wide", text: ([, g]) => shown(g.settings.dead_letter_queue ?? NONE), href: ([, g]) => (g.settings.dead_letter_queue ? link(g.settings.dead_letter_queue) : link(name)) },
    ],
    ([group]) => group,
    "The queue has no group yet: the first receiver makes one.",
    { caption: "Groups" },
  );
  const peeked = new Table(
    [
      { label: "Topic", kind: "wide", text: (m) => shown(m.topic), full: (m) => shown(m.topic, 1000) },
      { label: "Place", kind: "number", text: (m) => `${m.physical_queue}-${m.offset}` },
      { label: "Arrived", text: (m) => clock(m.enqueued_at) },
      { label: "From", kind: "wide", text: (m) => shown(m.publisher) },
      { label: "Dead because", kind: "wrap", text: (m) => (m.properties.dead_letter ? `${m.properties.dead_letter.reason.replaceAll("_", " ")} after ${many(m.properties.dead_letter.receives, "receive")}, group ${shown(m.properties.dead_letter.group)} of ${shown(m.properties.dead_letter.queue)}` : NONE) },
      { label: "Payload", kind: "wrap whole", text: (m) => shown(payloadText(m.payload), 300) },
    ],
    (m) => `${m.physical_queue}-${m.offset}`,
    "The queue is empty.",
    { caption: "Oldest messages" },
  );
  const peekPanel = panel("Oldest messages", peeked.node);
  peekPanel.hidden = true;
  const peek = async () => {
    const found = (await get(path`queues/${name}/peek` + `?max_messages=${PEEKED}`)).messages;
    peekPanel.hidden = false;
    peeked.update(found);
    notice(`Showing ${many(found.length, "message")}; nothing was taken.`);
  };
  let isTarget = false;
  const redrive = async () => {
    const most = el("input", { name: "max_messages", type: "number", min: 1, placeholder: "all" });
    const answer = await ask(`Redrive the dead letters of ${shown(name)}?`, "They go back to the queues they came from, and their groups receive them again.", "Redrive", [field("At most so many", most)], "");
    if (!answer) return;
    const { moved } = await call("POST", path`queues/${name}/redrive`, answer.max_messages ? { max_messages: Number(answer.max_messages) } : {});
    notice(`Redriven: ${many(moved, "message")}.`);
    page.refresh();
    if (!peekPanel.hidden) await peek();
  };
  const purge = async () => {
    if (!(await ask(`Purge ${shown(name)}?`, "All its messages are deleted, those that are leased as well. This cannot be undone.", "Purge"))) return;
    const { removed } = await call("POST", path`queues/${name}/purge`);
    notice(`Purged: ${many(removed, "message")}.`);
    page.refresh();
    if (!peekPanel.hidden) await peek();
  };
  const redriveButton = button("Redrive…", page.acts(redrive));
  redriveButton.disabled = true;
  const about = el("p", {});
  const heading = title(shown(name), "", button("Peek", page.acts(peek)), ...(page.isAdmin ? [redriveButton, button("Purge…", page.acts(purge), "danger")] : []));
  heading.querySelector("p").replaceWith(about);
  return {
    node: [heading, el("div", { class: "halves" }, panel("Queue", facts.node)), panel("Groups", groups.node), peekPanel],
    sources: [
      async (signal) => {
        const all = (await get("queues", signal)).queues;
        const data = all.find((one) => one.name === name) ?? (await get(path`queues/${name}`, signal));
        const dead = deadLettersOf(all)[name];
        isTarget = Boolean(dead);
        redriveButton.disabled = !isTarget || !data.messages;
        setText(about, dead ? `Holds the dead letters of ${shown(dead.join("; "), 300)}.` : "Queue");
        facts.update(data);
        groups.update(Object.entries(data.groups));
      },
    ],
  };
}
