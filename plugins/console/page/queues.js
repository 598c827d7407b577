// Pull queues: how much waits, which group is behind, and what became a dead letter.

import { call, get, path } from "./api.js";
import { askAndDo, button, el, field, figures, notice, panel, setText, shown, title } from "./dom.js";
import { bytes, clock, count, many, NONE, seconds } from "./format.js";
import { payloadText } from "./lists.js";
import { name, number, Table, text } from "./table.js";

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
      name("Queue", (r) => r.name, { href: (r) => link(r.name) }),
      number("Messages", (r) => count(r.messages), { tone: (r) => (dead[r.name] && r.messages ? "warn" : "") }),
      number("Stored", (r) => bytes(r.stored_bytes)),
      number("Oldest", (r) => seconds(r.oldest_seconds)),
      number("Groups", (r) => count(Object.keys(r.groups).length)),
      number("Most behind", (r) => count(lag(r))),
      text("Holds dead letters of", (r) => shown(dead[r.name]?.join("; ") ?? NONE), { kind: "wrap" }),
    ],
    (r) => r.name,
    "There is no queue. Name one under plugins: queue: queues: in the policy file, with the topics that fill it: docs/how-to/queue.md.",
    { caption: "Queues" },
  );
  return {
    node: [
      title("Queues", "How many messages each holds, and how far its groups are behind."),
      el("section.panel", table.node),
    ],
    sources: [
      async (signal) => {
        const found = (await get("queues", signal)).queues;
        dead = deadLettersOf(found);
        table.update(found);
      },
    ],
  };
}

export function queue(page, queueName) {
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
      name("Group", ([group]) => group),
      number("Behind", ([, g]) => count(g.waiting)),
      number("Leased", ([, g]) => count(g.leased)),
      number("Delayed", ([, g]) => count(g.delayed)),
      number("Received", ([, g]) => count(g.received)),
      number("Last request", ([, g]) => `${seconds(g.idle_seconds)} ago`),
      name("Dead letters to", ([, g]) => g.settings.dead_letter_queue ?? NONE, {
        href: ([, g]) => g.settings.dead_letter_queue && link(g.settings.dead_letter_queue),
      }),
    ],
    ([group]) => group,
    "The queue has no group yet: the first receiver makes one.",
    { caption: "Groups" },
  );
  const peeked = new Table(
    [
      name("Topic", (m) => m.topic),
      number("Place", (m) => `${m.physical_queue}-${m.offset}`),
      text("Arrived", (m) => clock(m.enqueued_at)),
      name("From", (m) => m.publisher),
      text(
        "Dead because",
        (m) =>
          m.properties.dead_letter
            ? `${m.properties.dead_letter.reason.replaceAll("_", " ")} after ${many(m.properties.dead_letter.receives, "receive")}, group ${shown(m.properties.dead_letter.group)} of ${shown(m.properties.dead_letter.queue)}`
            : NONE,
        { kind: "wrap" },
      ),
      text("Payload", (m) => shown(payloadText(m.payload), 300), { kind: "wrap" }),
    ],
    (m) => `${m.physical_queue}-${m.offset}`,
    "The queue is empty.",
    { caption: "Oldest messages" },
  );
  const peekPanel = panel("Oldest messages", peeked.node);
  peekPanel.hidden = true;
  const peek = async () => {
    const found = (await get(path`queues/${queueName}/peek` + `?max_messages=${PEEKED}`)).messages;
    peekPanel.hidden = false;
    peeked.update(found);
    notice(`Showing ${many(found.length, "message")}; nothing was taken.`);
  };
  const change = async (...asked) => {
    if (!(await askAndDo(...asked))) return;
    page.refresh();
    if (!peekPanel.hidden) await peek();
  };
  const redrive = async () => {
    const most = el("input", { name: "max_messages", type: "number", min: 1, placeholder: "all" });
    const told = "They go back to the queues they came from, and their groups receive them again.";
    await change(
      [`Redrive the dead letters of ${shown(queueName)}?`, told, "Redrive", [field("At most so many", most)], ""],
      (asked) =>
        call(
          "POST",
          path`queues/${queueName}/redrive`,
          asked.max_messages ? { max_messages: Number(asked.max_messages) } : {},
        ),
      ({ moved }) => `Redriven: ${many(moved, "message")}.`,
    );
  };
  const purge = () =>
    change(
      [
        `Purge ${shown(queueName)}?`,
        "All its messages are deleted, those that are leased as well. This cannot be undone.",
        "Purge",
      ],
      () => call("POST", path`queues/${queueName}/purge`),
      ({ removed }) => `Purged: ${many(removed, "message")}.`,
    );
  const redriveButton = button("Redrive…", page.acts(redrive));
  redriveButton.disabled = true;
  const about = el("p");
  const heading = title(
    shown(queueName),
    "",
    button("Peek", page.acts(peek)),
    page.isAdmin && redriveButton,
    page.isAdmin && button("Purge…", page.acts(purge), "danger"),
  );
  heading.querySelector("p").replaceWith(about);
  return {
    node: [heading, el("div.halves", panel("Queue", facts.node)), panel("Groups", groups.node), peekPanel],
    sources: [
      async (signal) => {
        const all = (await get("queues", signal)).queues;
        const data = all.find((one) => one.name === queueName) ?? (await get(path`queues/${queueName}`, signal));
        const dead = deadLettersOf(all)[queueName];
        redriveButton.disabled = !dead || !data.messages;
        setText(about, dead ? `Holds the dead letters of ${shown(dead.join("; "), 300)}.` : "Queue");
        facts.update(data);
        groups.update(Object.entries(data.groups));
      },
    ],
  };
}
