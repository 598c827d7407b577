// The live tail: what happens this moment, by client, topic or address. Payloads are never shown.

import { get, query } from "./api.js";
import { clientLink } from "./clients.js";
import { button, el, field, setText, shown, title } from "./dom.js";
import { bytes, count, many, NONE } from "./format.js";
import { name, number, Table, text } from "./table.js";

const MOST_LINES = 300;
const PATIENCE_MILLISECONDS = 5_000;
const DRAWN_MILLISECONDS = 250;
const TONES = { dropped: "bad", held: "warn", released: "ok" };

export function tail(page) {
  const inputs = [
    ["filter", "Topic filter", "sensors/#"],
    ["client", "Client", "a client id"],
    ["address", "Address", "10.0.0.7"],
  ].map(([parameter, label, hint]) => {
    const input = el("input", {
      name: parameter,
      value: page.params[parameter] ?? "",
      placeholder: hint,
      autocomplete: "off",
      spellcheck: "false",
    });
    return { parameter, input, node: field(label, input, "search") };
  });
  const asked = () => Object.fromEntries(inputs.map(({ parameter, input }) => [parameter, input.value]));
  const table = new Table(
    [
      text("When", (r) => new Date(r.at * 1000).toISOString().slice(11, 23)),
      text("What", (r) => r.kind, { tone: (r) => TONES[r.kind] ?? "" }),
      name("Client", (r) => r.client_id, { href: (r) => clientLink(r.client_id) }),
      name("Topic", (r) => r.topic || NONE),
      number("Size", (r) => bytes(r.bytes)),
      number("QoS", (r) => count(r.qos)),
      text("From", (r) => shown(r.address || NONE, 60), { kind: "clip" }),
      text("Why", (r) => shown(r.reason || NONE, 300), { kind: "wrap" }),
    ],
    (r) => r.number,
    "Nothing yet. Lines appear here as messages pass; connects and disconnects as well.",
    { caption: "Live tail" },
  );
  table.update([]);
  const words = el("span", { role: "status" });
  let source = null;
  let lines = [];
  let arrived = 0;
  let missed = 0;
  let drawing = 0;

  const told = () =>
    setText(
      words,
      `${source ? "Watching" : "Stopped"}${missed ? `; ${many(missed, "line")} left out, as they came too fast` : ""}`,
    );
  const draw = () => {
    drawing = 0;
    table.update(lines);
    told();
  };
  const toggle = button("Stop", () => (source ? stop() : start()));
  const stop = () => {
    source?.close();
    source = null;
    setText(toggle, "Watch");
    told();
  };
  /** Asks once more for what was refused, as a stream of events does not tell the reason. */
  const explain = page.acts(async (target) => {
    const patience = AbortSignal.timeout(PATIENCE_MILLISECONDS);
    try {
      await get(target, patience);
    } catch (error) {
      if (error.status === 401) throw error;
      setText(words, patience.aborted ? "Stopped" : `Stopped: ${error.message}`);
    }
  });
  const start = () => {
    stop();
    missed = 0;
    const target = `tail${query(asked())}`;
    source = new EventSource(`api/${target}`);
    source.addEventListener("record", (event) => {
      lines.unshift({ ...JSON.parse(event.data), number: ++arrived });
      lines.length = Math.min(lines.length, MOST_LINES);
      drawing ||= setTimeout(draw, DRAWN_MILLISECONDS);
    });
    source.addEventListener("lost", (event) => {
      missed += JSON.parse(event.data).records ?? 0;
      told();
    });
    source.addEventListener("open", told);
    source.addEventListener("error", () => {
      if (source?.readyState !== EventSource.CLOSED) return setText(words, "The broker does not answer; trying again.");
      stop();
      explain(target);
    });
    setText(toggle, "Stop");
    told();
  };
  const form = el(
    "form",
    {
      class: "tools",
      onsubmit: (event) => {
        event.preventDefault();
        page.change(asked(), { replaces: true });
        lines = [];
        draw();
        start();
      },
    },
    inputs.map(({ node }) => node),
    el(
      "div.buttons",
      el("button", { type: "submit", class: "primary" }, "Watch this"),
      toggle,
      button("Clear", () => ((lines = []), draw())),
    ),
  );
  const hide = () => (document.hidden ? source?.close() : source && start());
  document.addEventListener("visibilitychange", hide);
  table.node.classList.replace("scroll", "tail");
  start();
  return {
    node: [
      title("Live tail", "What passes this moment, newest first. It costs the broker nothing while nobody looks."),
      el("section.panel", form, el("div.pages", words), table.node),
    ],
    sources: [],
    close() {
      clearTimeout(drawing);
      document.removeEventListener("visibilitychange", hide);
      source?.close();
    },
  };
}
