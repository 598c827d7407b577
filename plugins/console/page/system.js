// The program itself: readiness, log, reload, drain, backup and bans.

import { call, get, me, path } from "./api.js";
import { ban } from "./clients.js";
import { ask, askAndDo, button, el, field, figures, notice, panel, replace, select, shown, title, tone } from "./dom.js";
import { NONE, seconds } from "./format.js";
import { acts, name, number, Table, text } from "./table.js";

const LEVELS = [
  ["debug", "debug: connects, held messages"],
  ["info", "info: what is refused or dropped"],
  ["warning", "warning"],
  ["error", "error"],
];

/** What a reload has done: [the answer's key, how the page says it]. */
const OUTCOMES = [
  ["failed", "could not be used, and is as before"],
  ["changed", "changed"],
  ["needs_restart", "counts from the next start on"],
  ["read", "read again"],
];

function outcome(answer) {
  const failed = Object.entries(answer.failed ?? {}).map(([what, why]) => `${what}: ${why}`);
  const lines = OUTCOMES.flatMap(([key, words]) =>
    (key === "failed" ? failed : (answer[key] ?? [])).map((what) => [key, `${what}: ${words}`]),
  );
  if (!lines.length) lines.push(["", "Read again; nothing has changed."]);
  return el(
    "ul.lines",
    lines.map(([key, words]) => el("li", { class: key === "failed" ? "error" : null }, shown(words, 4000))),
  );
}

const DRAINS = [
  ["30", "30 seconds"],
  ["300", "5 minutes"],
  ["1800", "half an hour"],
];

const WHOM = [
  ["client_id", "client id", ""],
  ["username", "user", ""],
  ["address", "address", ""],
];

export function system(page) {
  const ready = el("ul.attention");
  const about = figures([
    ["Program", () => me.kind],
    ["Version", () => me.version],
    ["Machine", () => shown(me.name)],
    ["Running for", () => seconds(performance.now() / 1000 - me.startedAt)],
    ["Log level", () => level ?? NONE],
  ]);
  const said = el("div", { role: "status" });
  const liftOne = {
    words: "Lift",
    named: (b) => shown(b.value, 80),
    run: page.acts(async (b) => {
      await call("DELETE", path`bans/${b.kind}/${b.value}`);
      notice(`Lifted the ban of ${shown(b.value, 80)}.`);
      page.refresh();
    }),
  };
  const bans = new Table(
    [
      name("Who", (b) => b.value),
      text("By", (b) => b.kind.replaceAll("_", " ")),
      number("Left", (b) => seconds(b.seconds)),
      text("Reason", (b) => shown(b.reason || NONE), { kind: "wrap" }),
      text("Ordered by", (b) => shown(b.by || NONE)),
      ...(page.isAdmin ? [acts(liftOne)] : []),
    ],
    (b) => `${b.kind} ${b.value}`,
    "Nobody is banned.",
    { caption: "Bans" },
  );
  let level = null;

  const reload = async () => {
    if (
      !(await ask(
        "Reload the policy file?",
        "What can change while it runs is changed; what needs a restart is named. A wrong file changes nothing.",
        "Reload",
        [],
        "",
      ))
    )
      return;
    said.replaceChildren(el("p.quiet", "Reloading…"));
    try {
      said.replaceChildren(outcome(await call("POST", "reload")));
    } catch (error) {
      said.replaceChildren(error.answer?.failed ? outcome(error.answer) : el("p.error", shown(error.message, 4000)));
    }
  };
  const drain = async () => {
    const told =
      "It takes no new clients, and those that it has are disconnected within this time. /readyz says that it is not ready. There is no way back but a restart.";
    const isDone = await askAndDo(
      ["Drain this program?", told, "Drain", [field("Within", select("seconds", DRAINS, "300"))]],
      (asked) => call("POST", "drain", { seconds: Number(asked.seconds) }),
      (_, asked) => `Draining; clients leave within ${seconds(Number(asked.seconds))}.`,
    );
    if (isDone) page.refresh();
  };
  const setLevel = async () => {
    const told = "It holds until it is changed again, by a reload too, or until a restart.";
    const isDone = await askAndDo(
      ["Change the log level?", told, "Change", [field("Level", select("level", LEVELS, level ?? "info"))], ""],
      (asked) => call("PUT", "log", asked),
      (found) => `The log level is ${found.level}.`,
    );
    if (isDone) page.refresh();
  };
  const backup = () => {
    const to = el("input", { name: "path", required: true, placeholder: "backup-1", spellcheck: "false" });
    const told = "All that is durable is copied while the broker runs, to a new directory on its machine.";
    return askAndDo(
      ["Back up everything?", told, "Back up", [field("Directory", to)], ""],
      (asked) => call("POST", "backup", asked),
      ({ bytes }, asked) => `Backed up ${bytes.toLocaleString("en")} bytes to ${shown(asked.path)}.`,
    );
  };

  async function load(signal) {
    const data = await get("overview", signal);
    about.update({});
    const problems = Object.entries(data.problems ?? {});
    replace(
      ready,
      () =>
        problems.length
          ? problems.map(([name, why]) => el("li", tone("bad", "Not ready"), el("span", `${name}: ${shown(why, 500)}`)))
          : [
              el(
                "li",
                tone("ok", "Ready"),
                el("span", "Listeners are open, the database writes, the queue's engine answers."),
              ),
            ],
      problems,
    );
  }
  async function loadLog(signal) {
    level = (await get("log", signal)).level;
    about.update({});
  }
  async function loadBans(signal) {
    bans.update((await get("bans", signal)).bans);
  }

  return {
    node: [
      title("System", "Whether the program is ready, and what it is to do."),
      el("div.halves", panel("Readiness", ready), panel("Program", about.node)),
      page.isAdmin &&
        page.has("clients") &&
        panel(
          "Actions",
          el(
            "div.buttons",
            button("Reload the policy file", page.acts(reload)),
            button("Log level…", page.acts(setLevel)),
            page.has("backup") && button("Back up…", page.acts(backup)),
            page.has("drain") && button("Drain…", page.acts(drain), "danger"),
          ),
          said,
        ),
      page.has("bans") &&
        panel(
          "Bans",
          bans.node,
          page.isAdmin &&
            el(
              "div.buttons",
              button(
                "Ban…",
                page.acts(() => ban(WHOM, page.refresh)),
                "danger",
              ),
            ),
        ),
    ],
    sources: page.has("clients") ? [load, loadLog, loadBans] : [load],
  };
}
