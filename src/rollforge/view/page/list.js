// A list of any length: fixed row height, only the rows on the screen exist, pages fetched as they come into view.

import { el, say } from "./dom.js";

export const ROW = 26;
const LIMIT = 8_000_000; // browsers clamp taller elements; beyond it the scroller is stretched
const PAGE = 100;
const KEPT = 60; // pages
const AT_ONCE = 2; // questions on their way: who scrolls fast skips pages instead of queueing for them

/**
 * A virtual list. `fetchPage(start, count)` gives {total, rows}; `draw(row)` gives its cells as {text, css, mark, nodes}:
 * a text or nodes, more classes of the cell, classes of what is in it.
 */
export class List {
  constructor({ fetchPage, draw, choose, label, columns = "" }) {
    this.fetchPage = fetchPage;
    this.draw = draw;
    this.choose = choose;
    this.total = 0;
    this.chosen = -1;
    this.pages = new Map();
    this.asked = new Map();
    this.shown = []; // the rows on the screen, from above: {node, place, row, isChosen}
    this.spacer = el("div", { class: "spacer" });
    this.rows = el("div", { class: "rows", role: "rowgroup", onclick: (event) => this.click(event) });
    this.node = el(
      "div",
      { class: "list", tabindex: 0, role: "grid", "aria-label": label, onscroll: () => this.schedule() },
      this.rows,
      this.spacer,
    );
    this.pane = el("div", { class: "pane" }, this.node); // with room for titles above the rows
    this.setColumns(columns);
    new ResizeObserver(() => this.measure()).observe(this.node);
  }

  /** Widths of the columns, as CSS grid tracks. */
  setColumns(tracks) {
    this.pane.style.setProperty("--columns", tracks);
  }

  /** Begin anew; what is on the screen stays until its successor is here. */
  async reset() {
    this.asked.clear();
    const numbers = this.height ? [0, ...this.inView()] : [0];
    const fresh = new Map(await Promise.all([...new Set(numbers)].map(async (number) => [number, await this.fetchPage(number * PAGE, PAGE)])));
    const first = fresh.get(0);
    this.pages = fresh;
    this.shown = [];
    this.rows.replaceChildren();
    this.total = first.total;
    this.spacer.style.height = `${Math.min(LIMIT, this.total * ROW)}px`;
    this.node.setAttribute("aria-rowcount", String(this.total));
    this.measure();
    this.paint();
    return first;
  }

  /** Scroll so that a place can be seen, and mark it. */
  reveal(place) {
    this.chosen = place;
    const visible = Math.floor(this.height / ROW);
    const top = this.top();
    if (place < top || place >= top + visible) {
      const wanted = Math.max(0, place - Math.floor(visible / 2));
      this.node.scrollTop = (wanted / Math.max(1, this.total - visible)) * this.range;
    }
    this.schedule();
  }

  /** Move by some rows. */
  move(by) {
    if (!this.total) return;
    const place = Math.min(this.total - 1, Math.max(0, this.chosen + by));
    this.reveal(place);
    this.page(Math.floor(place / PAGE)).then((page) => place === this.chosen && this.choose(page.rows[place % PAGE], place));
  }

  /** Sizes are read when they change, not in every frame: asking for them makes the browser lay out the page. */
  measure() {
    this.height = this.node.clientHeight;
    this.range = Math.max(1, Math.min(LIMIT, this.total * ROW) - this.height);
    this.schedule();
  }

  top() {
    const visible = Math.floor(this.height / ROW);
    const hidden = Math.max(0, this.total - visible);
    return Math.round(Math.min(1, this.node.scrollTop / this.range) * hidden);
  }

  /** The numbers of the pages that are on the screen. */
  inView(first = this.top()) {
    const last = Math.min(this.total, first + Math.ceil(this.height / ROW) + 1) - 1;
    const numbers = [];
    for (let number = Math.floor(first / PAGE); number <= Math.floor(last / PAGE); number += 1) numbers.push(number);
    return numbers;
  }

  /** A page, from here or from the server. */
  async page(number) {
    if (this.pages.has(number)) return this.pages.get(number);
    if (!this.asked.has(number)) {
      const { asked, pages } = this;
      const question = this.fetchPage(number * PAGE, PAGE).finally(() => asked.delete(number));
      asked.set(number, question);
      const page = await question;
      pages.set(number, page);
      if (pages.size > KEPT) pages.delete(pages.keys().next().value);
      return page;
    }
    return this.asked.get(number);
  }

  schedule() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.paint();
    });
  }

  /** Ask for what is on the screen and not here, and then for its neighbours; paint again when it comes. */
  fetchMissing(first) {
    const seen = this.inView(first);
    const pages = Math.ceil(this.total / PAGE);
    const near = [seen.at(-1) + 1, seen[0] - 1].filter((number) => number >= 0 && number < pages);
    for (const number of [...seen, ...near]) {
      if (this.pages.has(number) || this.asked.has(number) || this.asked.size >= AT_ONCE) continue;
      this.page(number).then(() => this.schedule(), (error) => say(error.message));
    }
  }

  /** Draw the rows in view from pages that are here; rows whose page is on its way are blank. */
  paint() {
    if (!this.total) return; // a page may say here why the list is empty
    const first = this.top();
    this.turn(first, Math.min(this.total - first, Math.ceil(this.height / ROW) + 1));
    this.shown.forEach((line, number) => this.fill(line, first + number));
    this.fetchMissing(first); // not asking where the list is: after these changes that makes the browser lay it out
  }

  /** Rows that left the screen on one side come back on the other: only those are drawn anew, and no element is made. */
  turn(first, count) {
    while (this.shown.length > count) this.shown.pop().node.remove();
    while (this.shown.length < count) {
      const node = el("div", { class: "row", role: "row" });
      this.shown.push({ node });
      this.rows.append(node);
    }
    const by = first - (this.shown[0]?.place ?? first);
    if (by > 0 && by < count) {
      const left = this.shown.splice(0, by);
      this.shown.push(...left);
      this.rows.append(...left.map(({ node }) => node));
    } else if (by < 0 && -by < count) {
      const left = this.shown.splice(count + by);
      this.shown.unshift(...left);
      this.rows.prepend(...left.map(({ node }) => node));
    }
  }

  fill(line, place) {
    const row = this.pages.get(Math.floor(place / PAGE))?.rows[place % PAGE];
    const isChosen = place === this.chosen;
    if (line.place === place && line.row === row && line.isChosen === isChosen) return;
    const { node } = line;
    if (line.place !== place) node.setAttribute("aria-rowindex", String(place + 1));
    if (line.isChosen !== isChosen) node.setAttribute("aria-selected", String(isChosen));
    const name = `row${isChosen ? " chosen" : ""}${row ? "" : " waiting"}`;
    if (node.className !== name) node.className = name;
    if (line.row !== row || !node.firstChild) cells(node, row ? this.draw(row) : [{ text: "…" }]);
    Object.assign(line, { place, row, isChosen });
  }

  click(event) {
    const node = event.target.closest(".row");
    const line = this.shown.find((one) => one.node === node);
    if (!line?.row) return;
    this.chosen = line.place;
    this.schedule();
    this.choose(line.row, line.place);
  }
}

/** Fill a row. Texts are changed in place: new elements cost a frame several times as much. */
function cells(node, many) {
  while (node.children.length > many.length) node.lastChild.remove();
  many.forEach(({ text, css = "", mark = "", nodes }, number) => {
    if (number >= node.children.length) node.append(el("span", { role: "gridcell" }, el("span")));
    const cell = node.children[number];
    const inner = cell.firstChild;
    const name = css ? `cell ${css}` : "cell";
    if (cell.className !== name) cell.className = name;
    if (inner.className !== mark) inner.className = mark;
    const old = inner.firstChild;
    if (nodes) inner.replaceChildren(...nodes);
    else if (old === inner.lastChild && old instanceof Text) old.data = text;
    else inner.textContent = text;
  });
}
