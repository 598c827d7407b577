// Tables whose rows keep their place and their focus while the figures change, and lists by pages.

import { get, query } from "./api.js";
import { button, el, field, replace, setText, shown, title } from "./dom.js";
import { count, NOTHING } from "./format.js";

const MANY_COLUMNS = 9;

/** Columns: of words, of numbers, and of names that strangers chose; `more` as in `Table`. */
export const text = (label, of, more) => ({ label, text: of, ...more });
export const number = (label, of, more) => text(label, of, { kind: "number", ...more });
export const name = (label, of, more) =>
  text(label, (row) => shown(of(row)), { kind: "wide", full: (row) => shown(of(row), 1000), ...more });
export const acts = (...buttons) => text("", null, { kind: "acts", act: buttons });

/**
 * A table. A column is {label, text(row), href(row), tone(row), draw(row), kind, sort, act}: `kind` is
 * a class of its cells such as "number", `draw` makes an element in place of a text, `sort` is the
 * server's name of the order, `act` a list of {words, run(row), named(row), kind}.
 */
export class Table {
  #rows = new Map();
  #body = el("tbody");
  #columns;
  #key;
  #empty;
  #headings = new Map();

  constructor(columns, key, empty, { onSort, caption } = {}) {
    this.#columns = columns;
    this.#key = key;
    this.#empty = el("p", { class: "empty", hidden: true }, empty);
    const heads = columns.map((column) => {
      const words = column.sort && onSort ? button(column.label, () => onSort(column.sort)) : column.label;
      const head = el(
        "th",
        { scope: "col", class: column.kind },
        (column.head?.() ?? words) || el("span.hidden-text", "Actions"),
      );
      if (column.sort) this.#headings.set(column.sort, head);
      return head;
    });
    this.table = el(
      "table",
      { class: columns.length > MANY_COLUMNS ? "many" : null },
      caption ? el("caption.hidden-text", caption) : null,
      el("thead", el("tr", heads)),
      this.#body,
    );
    this.node = el("div.scroll", this.table, this.#empty);
  }

  /** Marks the column that the server has sorted by. */
  sorted(name, order) {
    for (const [sort, head] of this.#headings) {
      if (sort === name) head.setAttribute("aria-sort", order === "asc" ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
  }

  update(rows) {
    const kept = new Map();
    for (const row of rows) {
      const key = this.#key(row);
      const line = this.#rows.get(key) ?? this.#line();
      line.row = row;
      for (const cell of line.cells) cell(row);
      kept.set(key, line);
    }
    for (const [key, line] of this.#rows) if (kept.get(key) !== line) line.node.remove();
    let at = this.#body.firstChild;
    for (const { node } of kept.values()) {
      if (node === at) at = at.nextSibling;
      else this.#body.insertBefore(node, at);
    }
    this.#rows = kept;
    this.#empty.hidden = kept.size > 0;
    this.table.hidden = kept.size === 0;
  }

  #line() {
    const line = { node: el("tr"), cells: [], row: null };
    for (const column of this.#columns) {
      const cell = el("td", { class: column.kind, "data-label": column.label });
      line.node.append(cell);
      if (column.act) line.cells.push(actions(cell, column.act, () => line.row));
      else line.cells.push(value(cell, column));
    }
    return line;
  }
}

function value(cell, column) {
  if (column.draw) return (row) => replace(cell, () => [column.draw(row)], row);
  const place = column.href ? el("a.id") : column.tone && !column.kind ? el("span.tone") : cell;
  if (place !== cell) cell.append(place);
  return (row) => {
    const text = column.text(row);
    setText(place, text, column.tone ? (column.tone(row) ?? "") : null);
    cell.classList.toggle("nothing", NOTHING.has(text));
    const to = column.href?.(row);
    if (to) place.setAttribute("href", to);
    else place.removeAttribute("href");
    if (column.full) cell.title = column.full(row) ?? "";
  };
}

function actions(cell, acts, row) {
  const buttons = acts.map(({ words, run, kind, named }) => {
    const node = button(words, () => run(row()), kind);
    cell.append(node, " ");
    return (now) => {
      if (named) node.setAttribute("aria-label", `${words} ${named(now)}`);
    };
  });
  return (now) => buttons.forEach((update) => update(now));
}

const PAGE_ROWS = 100;

/**
 * A view of a list that the server searches, sorts and gives by pages.
 *
 * @param {object} page what the view is opened with.
 * @param {object} about {title, about, list, columns, key, empty, search, filters, sort, ascending, changed}:
 *   `list` is the resource and the answer's key of the rows, `search` [parameter, label, hint],
 *   `filters` more of these, `sort` the order of a page that names none, `ascending` orders that rise.
 */
export function listView(page, about) {
  const earlier = [];
  const inputs = [about.search, ...(about.filters ?? [])].map(([name, label, hint], at) => {
    const input = el("input", {
      type: "search",
      name,
      placeholder: hint,
      value: page.params[name] ?? "",
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 1000,
    });
    return { name, input, node: field(label, input, at ? "" : "search") };
  });
  const words = el("span", { role: "status" }, "Loading…");
  const back = button("Previous", () => page.change(earlier.pop() ?? { after: "", from: "" }));
  const first = button("First page", () => (earlier.splice(0), page.change({ after: "", from: "" })));
  const next = button("Next", () => {
    earlier.push({ after: page.params.after ?? "", from: page.params.from ?? "" });
    page.change({ after: following, from: start() + nRows });
  });
  let following = null;
  let nRows = 0;
  const start = () => Number(page.params.from) || 0;
  const firstOrder = (sort) => (about.ascending?.includes(sort) ? "asc" : "desc");
  const order = () => {
    const sort = page.params.sort ?? about.sort;
    return [sort, page.params.order ?? firstOrder(sort)];
  };
  const table = new Table(about.columns, about.key, about.empty, {
    caption: about.title,
    onSort: about.sort
      ? (name) => {
          const [sorted, direction] = order();
          const other = direction === "desc" ? "asc" : "desc";
          const turned = sorted === name ? other : firstOrder(name);
          earlier.splice(0);
          page.change({ sort: name, order: turned, after: "", from: "" });
        }
      : null,
  });
  let typing;
  const search = () => {
    clearTimeout(typing);
    earlier.splice(0);
    page.change(
      { ...Object.fromEntries(inputs.map(({ name, input }) => [name, input.value])), after: "", from: "" },
      { replaces: true },
    );
  };
  const form = el(
    "form",
    { class: "tools", role: "search", onsubmit: (event) => (event.preventDefault(), search()) },
    inputs.map(({ node }) => node),
  );
  form.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(search, 300);
  });
  const node = [
    title(about.title, about.about),
    el("section.panel", form, table.node, el("div.pages", words, el("div.buttons", first, back, next))),
  ];
  async function load(signal) {
    const [sort, direction] = order();
    const { after } = page.params;
    const asked = {
      limit: PAGE_ROWS,
      after,
      ...Object.fromEntries(inputs.map(({ name }) => [name, page.params[name]])),
      ...(about.sort ? { sort, order: direction } : {}),
    };
    const answer = await get(`${about.list}${query(asked)}`, signal);
    const rows = answer[about.list];
    table.update(rows);
    if (about.sort) table.sorted(sort, direction);
    following = answer.next;
    nRows = rows.length;
    const shownRows = `${count(start() + 1)} to ${count(start() + nRows)} of ${count(answer.total)}`;
    setText(words, nRows ? shownRows : "Nothing to show");
    next.disabled = following === null;
    first.disabled = back.disabled = !page.params.after;
  }
  return { node, sources: [load], changed: () => about.changed?.() };
}
