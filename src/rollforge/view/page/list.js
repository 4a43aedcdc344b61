// A list of any length: fixed row height, only the rows on the screen exist, pages fetched as they come into view.

import { el } from "./dom.js";

export const ROW = 26;
const LIMIT = 8_000_000; // browsers clamp taller elements; beyond it the scroller is stretched
const PAGE = 100;

/** A virtual list. `fetchPage(start, count)` gives {total, rows}; `draw(row, place)` gives the cells. */
export class List {
  constructor({ fetchPage, draw, choose, label }) {
    this.fetchPage = fetchPage;
    this.draw = draw;
    this.choose = choose;
    this.total = 0;
    this.chosen = -1;
    this.pages = new Map();
    this.spacer = el("div", { class: "spacer" });
    this.rows = el("div", { class: "rows", role: "rowgroup" });
    this.node = el(
      "div",
      { class: "list", tabindex: 0, role: "grid", "aria-label": label, onscroll: () => this.schedule() },
      this.spacer,
      this.rows,
    );
    new ResizeObserver(() => this.schedule()).observe(this.node);
  }

  /** Begin anew. */
  async reset() {
    this.pages.clear();
    const first = await this.page(0);
    this.total = first.total;
    this.spacer.style.height = `${Math.min(LIMIT, this.total * ROW)}px`;
    this.node.setAttribute("aria-rowcount", String(this.total));
    this.paint();
    return first;
  }

  /** Scroll so that a place can be seen, and mark it. */
  reveal(place) {
    this.chosen = place;
    const visible = Math.floor(this.node.clientHeight / ROW);
    const top = this.top();
    if (place < top || place >= top + visible) {
      const wanted = Math.max(0, place - Math.floor(visible / 2));
      this.node.scrollTop = (wanted / Math.max(1, this.total - visible)) * this.range();
    }
    this.schedule();
  }

  /** Move by some rows. */
  move(by) {
    if (!this.total) return;
    const place = Math.min(this.total - 1, Math.max(0, this.chosen + by));
    this.reveal(place);
    this.page(Math.floor(place / PAGE)).then((page) => this.choose(page.rows[place % PAGE], place));
  }

  range() {
    return Math.max(1, this.spacer.offsetHeight - this.node.clientHeight);
  }

  top() {
    const visible = Math.floor(this.node.clientHeight / ROW);
    const hidden = Math.max(0, this.total - visible);
    return Math.round(Math.min(1, this.node.scrollTop / this.range()) * hidden);
  }

  page(number) {
    if (!this.pages.has(number)) {
      const asked = this.fetchPage(number * PAGE, PAGE);
      this.pages.set(number, asked);
      if (this.pages.size > 40) this.pages.delete(this.pages.keys().next().value);
      asked.catch(() => this.pages.delete(number));
    }
    return this.pages.get(number);
  }

  schedule() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.paint();
    });
  }

  /** Draw the rows in view from pages that are here; ask for the others. */
  async paint() {
    const first = this.top();
    const count = Math.min(this.total - first, Math.ceil(this.node.clientHeight / ROW) + 1);
    const round = (this.round = (this.round || 0) + 1);
    const numbers = new Set();
    for (let place = first; place < first + count; place += 1) numbers.add(Math.floor(place / PAGE));
    const pages = new Map();
    await Promise.all([...numbers].map(async (number) => pages.set(number, await this.page(number))));
    if (round !== this.round) return; // scrolled on while waiting
    const made = [];
    for (let place = first; place < first + count; place += 1) {
      const row = pages.get(Math.floor(place / PAGE)).rows[place % PAGE];
      if (!row) continue;
      const isChosen = place === this.chosen;
      made.push(
        el(
          "div",
          {
            class: isChosen ? "row chosen" : "row",
            role: "row",
            "aria-rowindex": place + 1,
            "aria-selected": String(isChosen),
            onclick: () => {
              this.chosen = place;
              this.schedule();
              this.choose(row, place);
            },
          },
          this.draw(row, place),
        ),
      );
    }
    this.rows.replaceChildren(...made);
    this.rows.style.transform = `translateY(${this.node.scrollTop}px)`;
  }
}
