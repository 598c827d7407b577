// The page's frame: who one is, which view is shown, and how often the server is asked.
//
// A view is what stands behind the hash, such as #/clients?sort=rtt. It is a function of the page and
// the parts of its path, and answers {node, sources, changed, close}: elements, functions that ask
// the server and show what it says, and what to do when the parameters change or the view ends. The
// sources are asked in turn while the tab is seen, one every two seconds at most, and less often the
// longer the server needs: looking must not cost it more than a fiftieth of its time.

import { logIn, logOut, me, meet, missing, Refused, Unreachable } from "./api.js";
import { client, clients } from "./clients.js";
import { el, field, notice, panel, setText, shown } from "./dom.js";
import { clock, seconds } from "./format.js";
import { retained, retainedMessage, subscriptions, topics, uplinks, upstreams } from "./lists.js";
import { overview } from "./overview.js";
import { queue, queues } from "./queues.js";
import { system } from "./system.js";
import { tail } from "./tail.js";

const TURN_MILLISECONDS = 2_000;
const SHARE = 50;
const CLOCKS_SECONDS = 1; // two answers may differ so much about the same start
const REFUSED_MILLISECONDS = 10_000;

/** [path, name, the part of the server that it needs, view, view of one]. */
const VIEWS = [
  ["", "Overview", null, overview],
  ["clients", "Clients", "clients", clients, client],
  ["topics", "Topics", "topics", topics],
  ["subscriptions", "Subscriptions", "subscriptions", subscriptions],
  ["retained", "Retained", "retained", retained, retainedMessage],
  ["queues", "Queues", "queues", queues, queue],
  ["uplinks", "Uplinks", "uplinks", uplinks],
  ["brokers", "Brokers", "proxy", upstreams],
  ["tail", "Live tail", "tail", tail],
  ["system", "System", null, system],
];

const $ = (id) => document.getElementById(id);
const has = (part) => part === null || (me?.has ?? []).includes(part);

let shownView = null;
let turn = new AbortController();
let wake = () => {};

// --- Routes ------------------------------------------------------------------------------------

function route() {
  const [way, rest] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [name, ...parts] = way.split("/");
  let decoded;
  try {
    decoded = parts.map(decodeURIComponent);
  } catch {
    decoded = parts;
  }
  return { way, name, one: decoded[0], params: Object.fromEntries(new URLSearchParams(rest ?? "")) };
}

function link(changed) {
  const { way, params } = route();
  const filled = Object.entries({ ...params, ...changed }).filter(([, value]) => value !== "" && value !== null);
  return `#/${way}${filled.length ? `?${new URLSearchParams(filled)}` : ""}`;
}

function go(hash, { replaces = false } = {}) {
  if (!replaces) location.hash = hash;
  else {
    history.replaceState(null, "", hash);
    show();
  }
}

function makePage() {
  return {
    params: route().params,
    isAdmin: me.role === "admin",
    has,
    link,
    go,
    change: (changed, how) => go(link(changed), how),
    refresh: () => restart(),
    /** Wraps what a button does, so that a refusal is told. */
    acts:
      (act) =>
      async (...given) => {
        try {
          await act(...given.filter((one) => !(one instanceof Event)));
        } catch (error) {
          if (error instanceof Refused && error.status === 401) return start();
          notice(error.message, "bad");
          if (!(error instanceof Refused || error instanceof Unreachable)) throw error;
        }
      },
  };
}

function show() {
  const { way, name, one, params } = route();
  if (!me?.role || name === "login") return showLogin();
  if (shownView?.way === way) {
    shownView.page.params = params;
    shownView.view.changed?.();
    return restart();
  }
  const found = VIEWS.find(([where]) => where === name);
  const make = found?.[one === undefined ? 3 : 4];
  const page = makePage();
  const view = make && has(found[2]) ? make(page, one) : nothing(found?.[1] ?? way);
  present(view, page, way);
  for (const item of $("views").querySelectorAll("a")) {
    if (found && item.dataset.view === found[0]) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
}

function nothing(name) {
  return {
    node: [
      panel(
        el("h1", "There is nothing here"),
        el("p.empty", `This program has no view "${name.slice(0, 80)}". The menu has those that there are.`),
      ),
    ],
    sources: [],
  };
}

function present(view, page, way) {
  const isFirst = shownView === null;
  shownView?.view.close?.();
  const error = el("p", { class: "error", role: "alert", hidden: true });
  shownView = { view, page, way, error };
  $("main").classList.toggle("opening", view.sources.length > 0);
  const [first, ...others] = [view.node].flat().filter(Boolean);
  $("main").replaceChildren(first, error, ...others);
  const heading = $("main").querySelector("h1");
  document.title = `${heading?.textContent ?? "Penstock"} · Penstock`;
  if (!isFirst) {
    scrollTo(0, 0);
    $("main").focus({ preventScroll: true });
  }
  restart();
}

// --- Asking in turn ----------------------------------------------------------------------------

const pause = (milliseconds, signal) =>
  new Promise((done) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end); // a view may be looked at for a day
      done();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener("abort", end);
    wake = end;
  });

/** Waits until the tab is seen. */
async function seen() {
  while (document.hidden)
    await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

function restart() {
  turn.abort();
  turn = new AbortController();
  follow(shownView, turn.signal);
}

/** Asks each source once, then one a turn, until the view has gone. */
async function follow(shown, signal) {
  const { sources } = shown.view;
  const refused = new Map();
  const tellRefused = () => {
    setText(shown.error, [...refused.values()][0] ?? "");
    shown.error.hidden = refused.size === 0;
  };
  for (let n = 0; sources.length && !signal.aborted; n++) {
    await seen();
    const began = performance.now();
    let wait = TURN_MILLISECONDS;
    try {
      await sources[n % sources.length](signal);
      if (signal.aborted) return;
      answered();
      refused.delete(n % sources.length);
      // A node that does not answer costs the server nothing but this time.
      if (!Object.keys(missing).length) wait = Math.max(wait, (performance.now() - began) * SHARE);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Unreachable) silent();
      else if (error instanceof Refused && error.status === 401) return start();
      else {
        answered();
        refused.set(n % sources.length, error.message);
        wait = REFUSED_MILLISECONDS;
        if (!(error instanceof Refused)) console.error(error);
      }
    }
    tellRefused();
    if (n >= sources.length - 1 || silentSince !== null) {
      $("main").classList.remove("opening");
      await pause(wait, signal);
    }
  }
}

let silentSince = null;

function tell(words, tone = "") {
  const state = $("state");
  if (state.dataset.words === words) return;
  state.dataset.words = words;
  state.dataset.tone = tone;
  state.replaceChildren(el("span", tone ? words : el("span.tone.ok", words)));
}

function live() {
  const without = Object.entries(missing).map(([node, why]) => `node ${shown(node, 80)}: ${shown(why, 200)}`);
  if (!without.length) return tell("Live");
  tell(`Live, without what is at ${without.join(", ")}.`, "bad");
}

function silent() {
  silentSince ??= Date.now() / 1000;
  tell(`The broker does not answer since ${clock(silentSince)}. Trying again every 2 s; what is shown is old.`, "bad");
}

function answered() {
  if (silentSince === null) return live();
  silentSince = null;
  start();
}

// --- Who one is --------------------------------------------------------------------------------

/** Asks who one is and shows the view, or the login where reading needs one. */
async function start(
  farewell = "Your login has ended, as after a restart of the broker or an hour without a request.",
) {
  const before = me;
  turn.abort();
  for (;;) {
    try {
      await meet();
      break;
    } catch (error) {
      if (error instanceof Unreachable) silent();
      else tell(error.message, "bad");
      await new Promise((done) => setTimeout(done, TURN_MILLISECONDS));
    }
  }
  silentSince = null;
  live();
  if (before?.version && me.version && before.version !== me.version) return location.reload();
  if (me.startedAt > before?.startedAt + CLOCKS_SECONDS)
    notice(`The broker has restarted ${seconds(me.started_seconds)} ago.`);
  if (before?.user && !me.user) notice(farewell);
  frame();
  shownView?.view.close?.();
  shownView = shownView && { ...shownView, way: null };
  show();
}

function frame() {
  $("side").hidden = !me.role;
  document.body.classList.toggle("alone", !me.role);
  if (!me.role) return;
  $("views").replaceChildren(
    ...VIEWS.filter(([, , part]) => has(part)).map(([where, name]) =>
      el(
        "li",
        { class: where === "system" ? "apart" : null },
        el("a", { href: `#/${where}`, data: { view: where } }, name),
      ),
    ),
  );
  setText($("name"), me.name || "Penstock");
  setText(
    $("user"),
    me.user ? `${me.user}, ${me.role}` : me.role === "admin" ? "Without login, admin" : "Without login: reading only",
  );
  setText($("version"), `Penstock ${me.version}, ${me.kind}`);
  $("log-out").hidden = !me.csrf;
  $("log-in").hidden = Boolean(me.csrf) || !me.logins?.length;
}

function showLogin() {
  $("side").hidden = true;
  document.body.classList.add("alone");
  const name = el("input", {
    name: "username",
    autocomplete: "username",
    required: true,
    spellcheck: "false",
    autocapitalize: "none",
  });
  const password = el("input", {
    name: "password",
    type: "password",
    autocomplete: "current-password",
    required: true,
  });
  const error = el("p", { class: "error", role: "alert", hidden: true });
  const submit = el("button", { type: "submit", class: "primary" }, "Log in");
  const hasPasswords = me?.logins?.includes("password");
  const tokenField = field(
    "Token",
    el("input", { name: "token", type: "password", autocomplete: "off", required: !hasPasswords }),
  );
  const token = !me?.logins?.includes("token")
    ? null
    : hasPasswords
      ? el("details", el("summary", "Use a token"), tokenField)
      : tokenField;
  if (token && hasPasswords) name.required = password.required = false;
  const wrong = () =>
    form.elements.token?.value ? "The token is wrong." : "The user name or password is wrong.";
  const form = el(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        submit.disabled = true;
        try {
          const given = Object.fromEntries(new FormData(form));
          await logIn(given.token ? { token: given.token } : { username: given.username, password: given.password });
          if (route().name === "login") history.replaceState(null, "", "#/");
          frame();
          show();
        } catch (failure) {
          setText(error, failure.status === 401 ? wrong() : failure.message);
          error.hidden = false;
          password.value = "";
          (hasPasswords ? password : form.elements.token)?.focus();
        } finally {
          submit.disabled = false;
        }
      },
    },
    hasPasswords ? [field("User", name), field("Password", password)] : null,
    token,
    error,
    submit,
  );
  const told = me?.logins?.length
    ? form
    : el(
        "p.empty",
        "Nobody can log in here: the policy file names neither users nor tokens for the console. docs/how-to/console.md says how.",
      );
  present(
    {
      node: el(
        "section.panel.login",
        el("img", { src: "assets/mark.svg", alt: "", width: 32, height: 32 }),
        el("h1", "Penstock console"),
        told,
      ),
      sources: [],
    },
    makePage(),
    "login",
  );
  (hasPasswords ? name : form.elements.token)?.focus();
}

// --- The frame's own buttons -------------------------------------------------------------------

const THEMES = { auto: "light", light: "dark", dark: "auto" };

function showTheme() {
  const { theme } = document.documentElement.dataset;
  setText($("theme"), { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[theme]);
}

$("theme").addEventListener("click", () => {
  const next = THEMES[document.documentElement.dataset.theme];
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
  showTheme();
});
$("log-out").addEventListener("click", async () => {
  await logOut().catch((error) => notice(error.message, "bad"));
  location.hash = "#/";
  start("You have logged out.");
});
$("menu").addEventListener("click", () => menu(!$("nav").classList.contains("open")));
function menu(isOpen) {
  $("nav").classList.toggle("open", isOpen);
  $("menu").setAttribute("aria-expanded", String(isOpen));
}
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
addEventListener("hashchange", () => {
  menu(false);
  show();
});
document.addEventListener("visibilitychange", () => document.hidden || wake());
showTheme();
start();
