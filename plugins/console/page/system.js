// The program itself: readiness, log, reload, drain, backup and bans.

import { call, get, me, path } from "./api.js";
import { ban } from "./clients.js";
import { ask, button, el, field, figures, notice, panel, replace, select, shown, title, tone } from "./dom.js";
import { NONE, seconds } from "./format.js";
import { Table } from "./table.js";

const LEVELS = [["debug", "debug: connects, held messages"], ["info", "info: what is refused or dropped"], ["warning", "warning"], ["error", "error"]];

/** Returns lines of an answer whose form is the server's own: lists and objects as words. */
function lines(answer) {
  return Object.entries(answer).flatMap(([name, value]) => {
    const values = Array.isArray(value) ? value : value && typeof value === "object" ? Object.entries(value).map(([key, one]) => `${key}: ${one}`) : [value];
    return values.length ? values.map((one) => `${name.replaceAll("_", " ")}: ${one}`) : [];
  });
}

export function system(page) {
  const ready = el("ul", { class: "attention" });
  const about = figures([
    ["Program", () => me.kind],
    ["Version", () => me.version],
    ["Machine", () => shown(me.name)],
    ["Running for", (d) => seconds(me.started_seconds + (performance.now() - d.since) / 1000)],
    ["Log level", (d) => d.level ?? NONE],
  ]);
  const said = el("div", { role: "status" });
  const bans = new Table(
    [
      { label: "Who", kind: "wide", text: (b) => shown(b.value), full: (b) => shown(b.value, 1000) },
      { label: "By", text: (b) => b.kind.replaceAll("_", " ") },
      { label: "Left", kind: "number", text: (b) => seconds(b.seconds) },
      { label: "Reason", kind: "wrap", text: (b) => shown(b.reason || NONE) },
      { label: "Ordered by", text: (b) => shown(b.by || NONE) },
      ...(page.isAdmin
        ? [{ label: "", kind: "acts", act: [{ words: "Lift", named: (b) => shown(b.value, 80), run: page.acts(async (b) => {
            await call("DELETE", path`bans/${b.kind}/${b.value}`);
            notice(`Lifted the ban of ${shown(b.value, 80)}.`);
            page.refresh();
          }) }] }]
        : []),
    ],
    (b) => `${b.kind} ${b.value}`,
    "Nobody is banned.",
    { caption: "Bans" },
  );
  const opened = performance.now();
  let level = null;

  const reload = async () => {
    if (!(await ask("Reload the policy file?", "What can change while it runs is changed; what needs a restart is named. A wrong file changes nothing.", "Reload", [], ""))) return;
    said.replaceChildren(el("p", { class: "quiet" }, "Reloading…"));
    try {
      const answer = lines(await call("POST", "reload"));
      said.replaceChildren(el("ul", { class: "lines" }, (answer.length ? answer : ["Read again; nothing has changed."]).map((line) => el("li", {}, shown(line, 2000)))));
    } catch (error) {
      said.replaceChildren(el("p", { class: "error" }, "Nothing was changed. ", shown(error.message, 4000)));
      if (error.status !== 409) throw error;
    }
  };
  const drain = async () => {
    const answer = await ask("Drain this program?", "It takes no new clients, and those that it has are disconnected within this time. /readyz says that it is not ready. There is no way back but a restart.", "Drain", [
      field("Within", select("seconds", [["30", "30 seconds"], ["300", "5 minutes"], ["1800", "half an hour"]], "300")),
    ]);
    if (!answer) return;
    await call("POST", "drain", { seconds: Number(answer.seconds) });
    notice(`Draining; clients leave within ${seconds(Number(answer.seconds))}.`);
    page.refresh();
  };
  const setLevel = async () => {
    const answer = await ask("Change the log level?", "It holds until it is changed again, or until a restart.", "Change", [field("Level", select("level", LEVELS, level ?? "info"))], "");
    if (!answer) return;
    await call("PUT", "log", { level: answer.level });
    notice(`The log level is ${answer.level}.`);
    page.refresh();
  };
  const backup = async () => {
    const answer = await ask("Back up everything?", "A copy of the database is written while the broker runs, to a new file on its machine.", "Back up", [
      field("File", el("input", { name: "path", required: true, placeholder: "/var/backups/penstock.db", spellcheck: "false" })),
    ], "");
    if (!answer) return;
    const { bytes } = await call("POST", "backup", { path: answer.path });
    notice(`Backed up ${bytes.toLocaleString("en")} bytes to ${shown(answer.path)}.`);
  };

  async function load(signal) {
    const data = await get("overview", signal);
    const problems = Object.entries(data.problems ?? {});
    replace(
      ready,
      () => (problems.length ? problems.map(([name, why]) => el("li", {}, tone("bad", "Not ready"), el("span", {}, `${name}: ${shown(why, 500)}`))) : [el("li", {}, tone("ok", "Ready"), el("span", {}, "Listeners are open, the database writes, the queue's engine answers."))]),
      problems,
    );
  }
  async function loadLog(signal) {
    level = (await get("log", signal)).level;
    about.update({ level, since: opened });
  }
  async function loadBans(signal) {
    bans.update((await get("bans", signal)).bans);
  }

  return {
    node: [
      title("System", "Whether the program is ready, and what it is to do."),
      el("div", { class: "halves" }, panel("Readiness", ready), panel("Program", about.node)),
      ...(page.isAdmin
        ? [panel("Actions", el("div", { class: "buttons" }, button("Reload the policy file", page.acts(reload)), button("Log level…", page.acts(setLevel)), button("Back up…", page.acts(backup)), button("Drain…", page.acts(drain), "danger")), said)]
        : []),
      panel(
        el("h2", {}, "Bans"),
        bans.node,
        ...(page.isAdmin ? [el("div", { class: "buttons" }, button("Ban…", page.acts(() => ban([["client_id", "client id", ""], ["username", "user", ""], ["address", "address", ""]], page.refresh)), "danger"))] : []),
      ),
    ],
    sources: [load, loadLog, ...(page.has("clients") ? [loadBans] : [])],
  };
}
