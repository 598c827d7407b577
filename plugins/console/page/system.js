// The program itself: readiness, log, reload, drain, backup and bans.

import { call, get, me, path } from "./api.js";
import { ban } from "./clients.js";
import { ask, button, el, field, figures, notice, panel, replace, select, shown, title, tone } from "./dom.js";
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
    const answer = await ask(
      "Drain this program?",
      "It takes no new clients, and those that it has are disconnected within this time. /readyz says that it is not ready. There is no way back but a restart.",
      "Drain",
      [
        field(
          "Within",
          select(
            "seconds",
            [
              ["30", "30 seconds"],
              ["300", "5 minutes"],
              ["1800", "half an hour"],
            ],
            "300",
          ),
        ),
      ],
    );
    if (!answer) return;
    await call("POST", "drain", { seconds: Number(answer.seconds) });
    notice(`Draining; clients leave within ${seconds(Number(answer.seconds))}.`);
    page.refresh();
  };
  const setLevel = async () => {
    const answer = await ask(
      "Change the log level?",
      "It holds until it is changed again, or until a restart.",
      "Change",
      [field("Level", select("level", LEVELS, level ?? "info"))],
      "",
    );
    if (!answer) return;
    await call("PUT", "log", { level: answer.level });
    notice(`The log level is ${answer.level}.`);
    page.refresh();
  };
  const backup = async () => {
    const answer = await ask(
      "Back up everything?",
      "A copy of the database is written while the broker runs, to a new file on its machine.",
      "Back up",
      [
        field(
          "File",
          el("input", { name: "path", required: true, placeholder: "/var/backups/penstock.db", spellcheck: "false" }),
        ),
      ],
      "",
    );
    if (!answer) return;
    const { bytes } = await call("POST", "backup", { path: answer.path });
    notice(`Backed up ${bytes.toLocaleString("en")} bytes to ${shown(answer.path)}.`);
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
