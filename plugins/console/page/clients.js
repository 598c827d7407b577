// The clients, and one of them: why its messages are late, and what an operator can do.

import { call, get, path } from "./api.js";
import { askAndDo, button, el, field, figures, panel, replace, select, shown, title, tone } from "./dom.js";
import { bytes, clock, count, many, NONE, percent, seconds } from "./format.js";
import { holds } from "./graphs.js";
import { listView, name, number, Table, text } from "./table.js";

const SLOW_SECONDS = 0.5;
export const STUCK_SECONDS = 2;

export const clientLink = (clientId) => `#/clients/${encodeURIComponent(clientId)}`;

/** A link's state in a word: [tone, word]. */
function state(row) {
  if (!row.is_connected) return ["", "away"];
  if (row.withheld) return ["warn", "holding"];
  if (row.rtt > STUCK_SECONDS) return ["bad", "very slow"];
  if (row.rtt > SLOW_SECONDS) return ["warn", "slow"];
  return ["ok", "connected"];
}

/** What waits, held messages included, as their number and bytes. */
const waiting = (row) =>
  row.queued_bytes ? `${count(row.withheld + row.queued)}, ${bytes(row.queued_bytes)}` : count(row.queued);

const rttTone = (row) => (row.rtt > STUCK_SECONDS ? "bad" : row.rtt > SLOW_SECONDS ? "warn" : "");

export function linkColumns() {
  return [
    name("Client", (r) => r.client_id, { sort: "client_id", href: (r) => clientLink(r.client_id) }),
    text("State", (r) => state(r)[1], { tone: (r) => state(r)[0] }),
    number("RTT", (r) => seconds(r.rtt), { sort: "rtt", tone: rttTone }),
    number("Held", (r) => count(r.withheld), { sort: "withheld", tone: (r) => (r.withheld ? "warn" : "") }),
    number("Waiting", waiting, { sort: "queued_bytes" }),
    number("Delivered", (r) => count(r.delivered), { sort: "delivered" }),
    number("Dropped", (r) => count(r.dropped), { sort: "dropped", tone: (r) => (r.dropped ? "bad" : "") }),
  ];
}

const ORDERS = [
  ["rtt", "Worst links"],
  ["withheld", "Most held"],
  ["queued_bytes", "Most waiting"],
  ["dropped", "Most dropped"],
  ["connected_seconds", "Longest connected"],
];

export function clients(page) {
  const choices = el(
    "nav",
    { class: "choices", "aria-label": "Order" },
    ORDERS.map(([sort, words]) => el("a", { href: "#", data: { sort } }, words)),
  );
  const mark = () => {
    for (const link of choices.children) {
      link.href = page.link({ sort: link.dataset.sort, order: "", after: "", from: "" });
      if ((page.params.sort ?? "rtt") === link.dataset.sort) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  mark();
  const view = listView(page, {
    title: "Clients",
    about: "Who has a session, worst links first. Open one to see why its messages are late.",
    list: "clients",
    key: (r) => r.client_id,
    search: ["search", "Search", "client id, user, address, listener or node"],
    sort: "rtt",
    ascending: ["client_id"],
    empty: "No client matches. Clients appear here as soon as they connect; shorten the search to see more.",
    columns: [
      ...linkColumns(),
      text("User", (r) => shown(r.username || NONE, 40), { kind: "clip" }),
      text("From", (r) => shown(r.address || NONE, 50), { kind: "clip" }),
      ...(page.has("nodes") ? [text("Node", (r) => shown(r.node || NONE, 40))] : []),
      text("MQTT", (r) => r.version ?? NONE),
      number("Since", (r) => seconds(r.connected_seconds), { sort: "connected_seconds" }),
    ],
    changed: mark,
  });
  view.node.splice(1, 0, choices);
  return view;
}

const DURATIONS = [
  ["600", "10 minutes"],
  ["3600", "an hour"],
  ["86400", "a day"],
  ["604800", "a week"],
  ["31536000", "a year"],
];

/** Asks for the rest of a ban and orders it. */
export async function ban(kinds, refresh) {
  const value = el("input", { name: "value", required: true, maxlength: 65_535, spellcheck: "false" });
  value.value = kinds[0][2];
  const kind = select("kind", kinds, kinds[0][0]);
  kind.addEventListener("change", () => (value.value = kinds.find(([name]) => name === kind.value)[2]));
  const fields = [
    field("Whom", kind),
    field("Which", value),
    field("For", select("seconds", DURATIONS, "3600")),
    field("Reason, for the log", el("input", { name: "reason", maxlength: 200 })),
  ];
  const told = "Whoever it meets is disconnected and cannot connect until the time is over.";
  const isDone = await askAndDo(
    ["Ban for a time", told, "Ban", fields],
    (asked) => call("POST", "bans", { ...asked, seconds: Number(asked.seconds) }),
    (_, asked) => `Banned ${shown(asked.value, 60)} for ${seconds(Number(asked.seconds))}.`,
  );
  if (isDone) refresh();
}

function clientActions(page, clientId) {
  const who = shown(clientId, 60);
  const act = (words, question, told, verb, order, done) =>
    button(
      words,
      page.acts(async () => {
        if (await askAndDo([question, told, verb], order, done)) page.refresh();
      }),
      verb === "Release" ? "" : "danger",
    );
  const parts = {
    disconnect: act(
      "Disconnect",
      `Disconnect ${who}?`,
      "Its connection is closed; its session stays. Most clients connect again at once: to keep it away, ban it.",
      "Disconnect",
      () => call("POST", path`clients/${clientId}/disconnect`),
      () => `Disconnected ${who}.`,
    ),
    ban: !page.has("bans")
      ? null
      : button(
          "Ban…",
          page.acts(() =>
            ban(
              [
                ["client_id", "this client id", clientId],
                ...(page.row?.username ? [["username", "its user", page.row.username]] : []),
                ...(page.row?.address
                  ? [["address", "its address", page.row.address.replace(/^\[?(.*?)\]?(:\d+)?$/, "$1")]]
                  : []),
              ],
              page.refresh,
            ),
          ),
          "danger",
        ),
    release: act(
      "Release held",
      `Release what is held for ${who}?`,
      "The held messages are sent at once, however slow the link is. Small ones may wait behind them.",
      "Release",
      () => call("POST", path`clients/${clientId}/release`),
      (a) => `Released ${many(a.released, "held message")} of ${who}.`,
    ),
    drop: act(
      "Drop held",
      `Drop what is held for ${who}?`,
      "The held messages are deleted and counted as dropped. The client does not get them.",
      "Drop",
      () => call("POST", path`clients/${clientId}/drop`),
      (a) => `Dropped ${many(a.dropped, "held message")} of ${who}.`,
    ),
    end: act(
      "End session",
      `End the session of ${who}?`,
      "It is disconnected; its subscriptions and all messages that wait for it are deleted.",
      "End session",
      () => call("DELETE", path`clients/${clientId}`),
      () => `Ended the session of ${who}.`,
    ),
  };
  return {
    nodes: page.isAdmin ? Object.values(parts).filter(Boolean) : [],
    update(data) {
      parts.disconnect.disabled = !data.is_connected;
      parts.release.disabled = parts.drop.disabled = !data.withholding.withheld;
      parts.end.disabled = data.gone_seconds !== null;
    },
  };
}

/** Returns a line of `penstock why`: what it is about and what it says, or more about the line before. */
function reason(line) {
  const words = shown(line.trim(), 2000);
  if (line.startsWith(" ")) return el("dd", { class: words.startsWith("because ") ? "because" : "more" }, words);
  const [about, said] = words.split(/: (.*)/s);
  return [el("dt", about), el("dd", said ?? "")];
}

export function client(page, clientId) {
  const actions = clientActions(page, clientId);
  const head = el("p");
  const why = el("dl.why");
  const holding = holds();
  const link = figures([
    ["RTT", (d) => seconds(d.link.rtt_latest), (d) => rttTone({ rtt: d.link.rtt_latest })],
    [
      "Measured",
      (d) =>
        d.link.rtt_age_seconds === null ? null : `${seconds(d.link.rtt_age_seconds)} ago, by ${d.link.rtt_source}`,
    ],
    ["Least RTT lately", (d) => seconds(d.link.rtt_min)],
    ["Congested above", (d) => seconds(d.link.threshold_l)],
    [
      "Unanswered for",
      (d) =>
        d.link.outstanding_age_seconds === null
          ? null
          : `${seconds(d.link.outstanding_age_seconds)}, ${bytes(d.link.outstanding_bytes)}`,
    ],
    ["Unsent in the broker", (d) => bytes(d.link.unsent_bytes)],
    ["Unsent in the kernel", (d) => bytes(d.link.tcp?.unsent_bytes)],
    [
      "Throughput",
      (d) =>
        d.link.tcp?.delivery_rate_bytes_per_second ? `${bytes(d.link.tcp.delivery_rate_bytes_per_second)}/s` : null,
    ],
    ["Retransmitted lately", (d) => percent(d.link.tcp?.retransmit_ratio)],
  ]);
  const messages = figures([
    ["Matched", (d) => count(d.ledger.matched)],
    ["Delivered", (d) => count(d.ledger.delivered)],
    ["In flight", (d) => count(d.ledger.inflight)],
    ["Held", (d) => count(d.ledger.withheld), (d) => (d.ledger.withheld ? "warn" : "")],
    ["Waiting", (d) => count(d.ledger.queued)],
    ["Waiting bytes", (d) => bytes(d.ledger.queued_bytes)],
    ["Expired", (d) => count(d.ledger.expired)],
    [
      "Dropped",
      (d) =>
        Object.entries(d.ledger.dropped)
          .map(([reason, n]) => `${count(n)} ${reason.replaceAll("_", " ")}`)
          .join(", ") || "0",
      (d) => (Object.keys(d.ledger.dropped).length ? "bad" : ""),
    ],
    ["Last large one took", (d) => seconds(d.withholding.passage?.last_seconds)],
    ["Small ones waited for large", (d) => seconds(d.withholding.small_waits?.mean_seconds)],
    ["Waits for", (d) => (d.ledger.queued || d.ledger.withheld ? d.ledger.waits_for.split(":")[0] : "nothing")],
  ]);
  const connection = figures([
    ["User", (d) => (d.username ? shown(d.username) : null)],
    ["From", (d) => (d.row?.address ? shown(d.row.address) : null)],
    ["Listener", (d) => (d.listener ? shown(d.listener) : null)],
    ...(page.has("nodes") ? [["Node", (d) => (d.node ? shown(d.node) : null)]] : []),
    ["MQTT", (d) => d.row?.version],
    ["Connected for", (d) => (d.is_connected ? seconds(d.row?.connected_seconds) : "not connected")],
    ["Subscriptions", (d) => count(d.subscriptions?.total)],
  ]);
  const filters = el("ul.lines");
  const lately = new Table(
    [
      text("When", (r) => clock(Date.now() / 1000 - r.seconds_ago)),
      text("What", (r) => r.kind.replaceAll("_", " ")),
      text("From", (r) => (r.address ? shown(r.address, 60) : NONE)),
      text("Why", (r) => (r.reason ? shown(r.reason, 500) : NONE), { kind: "wrap" }),
    ],
    (r) => `${r.kind} ${Math.round(Date.now() / 1000 - r.seconds_ago)} ${r.address}`,
    "Nothing has happened since the start.",
    { caption: "Lately" },
  );
  async function load(signal) {
    const data = await get(path`clients/${clientId}`, signal);
    page.row = data.row;
    actions.update(data);
    const [kind, word] =
      data.gone_seconds !== null
        ? ["", `gone for ${seconds(data.gone_seconds)}`]
        : state({ is_connected: data.is_connected, withheld: data.withholding.withheld, rtt: data.link.rtt_latest });
    replace(head, () => [tone(kind, word), data.why_away ? ` ${shown(data.why_away, 300)}` : ""], [
      kind,
      word,
      data.why_away,
    ]);
    const lines = data.why.slice(1); // the first says what stands above
    replace(why, () => lines.map(reason), lines);
    holding.update(data.withholding.recent, data.withholding.last_decision);
    for (const part of [link, messages, connection]) part.update(data);
    const found = data.subscriptions?.filters ?? [];
    replace(
      filters,
      () => (found.length ? found.map((filter) => el("li.id", shown(filter, 500))) : [el("li.quiet", "It has none.")]),
      found,
    );
    lately.update(data.lately ?? []);
  }
  const heading = title(shown(clientId, 300), "", ...actions.nodes);
  heading.querySelector("h1").classList.add("id");
  heading.querySelector("p").replaceWith(head);
  return {
    node: [
      heading,
      panel("Why", why),
      panel("Held lately", holding.node),
      el(
        "div.thirds",
        panel("Link", link.node),
        panel("Messages", messages.node),
        panel("Connection", connection.node),
      ),
      el(
        "div.halves",
        panel("Lately", lately.node),
        panel(
          "Subscribed to",
          filters,
          el("a", { href: `#/tail?client=${encodeURIComponent(clientId)}`, class: "small" }, "Watch this client live"),
        ),
      ),
    ],
    sources: [load],
  };
}
