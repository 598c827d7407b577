// Small graphs in SVG, without axes of their own: the words beside them say the values.

import { el, shown, svg } from "./dom.js";
import { bytes, seconds } from "./format.js";

export const GRAPH_SECONDS = 600;

const BIN_SECONDS = 5;
const GAP_SECONDS = 20;

/** Returns the means of some seconds each, in runs between which nobody has looked. */
function runs(points) {
  const bins = Map.groupBy(points, ([when]) => Math.floor(when / BIN_SECONDS));
  const found = [];
  let before = -Infinity;
  for (const some of bins.values()) {
    const when = some.at(-1)[0];
    if (when - before > GAP_SECONDS) found.push([]);
    found.at(-1).push([when, some.reduce((sum, [, value]) => sum + value, 0) / some.length]);
    before = when;
  }
  return found;
}

/** A graph of the last 10 minutes. `update` takes [[seconds, value], …], the newest last. */
export function graph(name, format) {
  const area = svg("path.area");
  const line = svg("path.line");
  const node = svg(
    "svg.graph",
    { viewBox: "0 0 600 40", preserveAspectRatio: "none", role: "img", "aria-label": name },
    svg("line.base", { x1: 0, y1: 39.5, x2: 600, y2: 39.5 }),
    area,
    line,
  );
  return {
    node,
    update(points) {
      const known = points.filter(([, value]) => typeof value === "number");
      if (!known.length) return;
      const [end, newest] = known.at(-1);
      const drawn = runs(known);
      const most = Math.max(...drawn.flat().map(([, value]) => value)) || 1;
      const x = ([when]) => (GRAPH_SECONDS - (end - when)).toFixed(1);
      const path = (run) => run.map((point) => `${x(point)} ${(38 - (point[1] / most) * 36).toFixed(1)}`).join("L");
      line.setAttribute("d", drawn.map((run) => `M${path(run)}`).join(""));
      area.setAttribute("d", drawn.map((run) => `M${x(run[0])} 40L${path(run)}L${x(run.at(-1))} 40Z`).join(""));
      const peak = Math.max(...known.map(([, value]) => value));
      node.setAttribute("aria-label", `${name}: ${format(newest)}; most in the last 10 minutes: ${format(peak)}`);
    },
  };
}

const LEAST_SECONDS = 0.001;
const DECADES = 5; // to 100 s

/** Where a time stands between 1 ms and 100 s, each decade as wide as the next, 0 to 100. */
function place(value) {
  const decades = Math.log10(Math.max(value, LEAST_SECONDS) / LEAST_SECONDS);
  return (Math.min(decades, DECADES) / DECADES) * 100;
}

/** A bar from the median to the 99th percentile, on a scale that all such bars share. */
export function range(p50, p99, kind) {
  const marks = [...Array(DECADES + 1).keys()].map((n) => `${(n / DECADES) * 100}%`);
  return svg(
    "svg.range",
    { role: "img", "aria-label": p50 === null ? "nothing yet" : `${seconds(p50)} to ${seconds(p99)}` },
    svg("line.rail", { x1: "0%", x2: "100%", y1: 10, y2: 10 }),
    marks.map((x) => svg("line.tick", { x1: x, x2: x, y1: 7, y2: 13 })),
    p50 === null
      ? null
      : svg("line", { class: `span ${kind}`, x1: `${place(p50)}%`, x2: `${place(p99) + 0.1}%`, y1: 10, y2: 10 }),
  );
}

export function rangeEnds() {
  return el(
    "div",
    { class: "ends", "aria-hidden": "true" },
    ["1 ms", "10 ms", "0.1 s", "1 s", "10 s", "100 s"].map((words) => el("span", words)),
  );
}

/** A bar of a share from 0 to 1; from `warnAt` on in the colour of warnings. */
export function bar(share, warnAt = 0.8) {
  const filled = el("i");
  filled.style.setProperty("width", `${Math.min(1, Math.max(0, share)) * 100}%`);
  return el(
    "span",
    { class: `bar ${share >= 1 ? "bad" : share >= warnAt ? "warn" : ""}`, "aria-hidden": "true" },
    filled,
  );
}

/** The times for which large messages were held, as bars of the last minutes, with words beside them. */
export function holds() {
  const list = el("ul.meters");
  const node = el("div", list);
  return {
    node,
    update(recent, last) {
      const held = recent
        .filter((one) => one.outcome === "sent")
        .map((one) => [one.age_seconds + one.withheld_seconds, one.age_seconds, one]);
      if (last?.outcome === "held") held.push([last.withheld_seconds, 0, last]);
      const longest = Math.max(60, ...held.map(([from]) => from));
      list.replaceChildren(
        ...(held.length
          ? held.map(([from, until, one]) => {
              const at = (age) => `${100 - (age / longest) * 100}%`;
              return el(
                "li",
                el(
                  "span.words",
                  el(
                    "span",
                    until
                      ? `held for ${seconds(one.withheld_seconds)}, until ${seconds(until)} ago`
                      : `held now, for ${seconds(one.withheld_seconds)}`,
                  ),
                  el("span.quiet", `${bytes(one.payload_bytes)} on ${shown(one.topic, 80)} (${shown(one.cause, 40)})`),
                ),
                svg(
                  "svg.range",
                  { "aria-hidden": "true" },
                  svg("line.rail", { x1: "0%", x2: "100%", y1: 10, y2: 10 }),
                  svg("rect", {
                    class: until ? "held" : "now",
                    x: at(from),
                    y: 6,
                    width: `${Math.max(0.4, ((from - until) / longest) * 100)}%`,
                    height: 8,
                    rx: 2,
                  }),
                ),
              );
            })
          : [el("li.quiet", "No large message was held lately.")]),
        ...(held.length ? [el("li", el("div.ends", el("span", `${seconds(longest)} ago`), el("span", "now")))] : []),
      );
    },
  };
}
