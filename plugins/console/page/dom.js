// Elements, dialogs and notices. All text reaches the page as text nodes or attributes: client ids,
// topics and payloads are written by strangers.

/** Characters that hide, or turn round, what stands beside them: controls and marks of direction. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Returns a stranger's text as it can be shown on one line: nothing in it hides, long ones end early. */
export function shown(text, most = 160) {
  if (text === null || text === undefined) return "";
  if (text === "") return "(empty)";
  const begun = text.length > most ? `${text.slice(0, most)}…` : text;
  return begun.replace(UNSEEN, (c) => {
    const code = c.charCodeAt(0).toString(16);
    return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
  });
}

/**
 * Makes an element: `el("li.quiet", {id: "a"}, "text", child)`. Attributes may be left out; of them,
 * `on…` are listeners and `data` is the data set. What is null, undefined or false is left out.
 */
export function el(tag, ...parts) {
  return fill((name) => document.createElement(name), tag, parts);
}

/** Makes an element of SVG, as `el` does. */
export function svg(tag, ...parts) {
  return fill((name) => document.createElementNS("http://www.w3.org/2000/svg", name), tag, parts);
}

const isThere = (part) => part !== null && part !== undefined && part !== false;
const isAttributes = (part) => part?.constructor === Object;

function fill(make, tag, parts) {
  const [name, ...classes] = tag.split(".");
  const node = make(name);
  node.classList.add(...classes);
  for (const [key, value] of Object.entries(isAttributes(parts[0]) ? parts.shift() : {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(node.dataset, value);
    else if (isThere(value)) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...parts.flat(Infinity).filter(isThere));
  return node;
}

/** Changes an element's text and tone only where they differ, so that a screen is not read again. */
export function setText(node, text, tone = null) {
  if (node.textContent !== text) node.textContent = text;
  if (tone !== null && node.dataset.tone !== tone) {
    node.classList.remove("ok", "warn", "bad");
    if (tone) node.classList.add(tone);
    node.dataset.tone = tone;
  }
}

/** A word with a shape before it. */
export function tone(kind, words) {
  return el("span", { class: `tone ${kind}` }, words);
}

/** The head of a view: its title, what it answers, and what can be done. */
export function title(name, about, ...actions) {
  const given = actions.filter(isThere);
  return el("div.title", el("div", el("h1", name), el("p", about)), given.length > 0 && el("div.buttons", given));
}

export function panel(name, ...children) {
  const heading = name instanceof Node ? name : el("h2", name);
  return el("section.panel", el("div.head", heading), ...children);
}

/** A button that asks first where `question` is given. */
export function button(words, onclick, kind = "") {
  return el("button", { type: "button", class: kind, onclick }, words);
}

/** A list of names and values; each value is a function of what the server has answered. */
export function figures(rows) {
  const values = rows.map(([, text, toneOf]) => ({ node: el("dd"), text, toneOf }));
  const node = el(
    "dl.figures",
    rows.map(([name], at) => el("div", el("dt", name), values[at].node)),
  );
  return {
    node,
    update(data) {
      for (const { node: value, text, toneOf } of values)
        setText(value, text(data) ?? "–", toneOf ? (toneOf(data) ?? "") : null);
    },
  };
}

/** Replaces an element's children, unless what they are made of has stayed the same. */
export function replace(node, made, key) {
  const written = JSON.stringify(key);
  if (node.dataset.made === written) return;
  node.dataset.made = written;
  node.replaceChildren(...made().flat(Infinity));
}

let numbers = 0;
/** A field with its label. */
export function field(words, input, kind = "") {
  input.id ||= `field-${++numbers}`;
  return el("label", { for: input.id, class: kind }, words, input);
}

export function select(name, choices, chosen) {
  return el(
    "select",
    { name },
    choices.map(([value, words]) => el("option", { value, selected: value === chosen }, words)),
  );
}

/**
 * Asks before something is done, in a dialog that Escape closes. Answers the fields' values, or null.
 *
 * @param {string} question what is about to happen.
 * @param {string} told what it means, in words.
 * @param {string} verb the button's word.
 * @param {Node[]} fields more that is asked for.
 */
export function ask(question, told, verb, fields = [], kind = "danger") {
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "question" }, question),
    el("p.quiet", told),
    fields,
    el(
      "div.buttons",
      el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      el("button", { type: "submit", value: "yes", class: `primary ${kind}` }, verb),
    ),
  );
  const dialog = el("dialog", { "aria-labelledby": "question" }, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((answer) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(form)) : null);
    });
  });
}

/** Asks (see `ask`), has `order` done with the answer, and says `done` of its result; returns whether it was. */
export async function askAndDo(asked, order, done) {
  const answer = await ask(...asked);
  if (answer) notice(done(await order(answer), answer));
  return Boolean(answer);
}

/** Says what has happened, at the corner and to screen readers; it goes by itself. */
export function notice(words, kind = "") {
  const line = el("p", { class: kind }, words);
  const notices = document.getElementById("notices");
  notices.append(line);
  while (notices.children.length > 4) notices.firstChild.remove();
  setTimeout(() => line.remove(), 10_000);
}
