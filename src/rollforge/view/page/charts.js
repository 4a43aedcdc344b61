// Scenes from the server as SVG. A mark that stands for rollouts is a link to them.

import { el, svg } from "./dom.js";
import { link, read } from "./state.js";

const SHAPES = {
  rect: ({ x, y, width, height }) => ["rect", { x, y, width, height }],
  line: ({ x1, y1, x2, y2 }) => ["line", { x1, y1, x2, y2 }],
  path: ({ d }) => ["path", { d }],
  dot: ({ x, y, radius }) => ["circle", { cx: x, cy: y, r: radius }],
};

/** A figure: heading, chart, caption, numbers. */
export function figure(one) {
  return el(
    "figure",
    {},
    el("h3", {}, one.heading),
    el("div", { class: "chart", tabindex: 0, role: "group", "aria-label": one.heading }, scene(one.scene, one.name)),
    el("figcaption", {}, one.caption),
    el("details", {}, el("summary", {}, `the numbers (${one.rows.length === 1 ? "1 row" : `${one.rows.length} rows`})`), table(one.headers, one.rows)),
  );
}

/** A table of texts. */
export function table(headers, rows) {
  return el(
    "div",
    { class: "scroll", tabindex: 0 },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, headers.map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell instanceof Node ? cell : String(cell)))))),
    ),
  );
}

/** A chart. */
export function scene(one, name) {
  const ids = [`${name}-t`, `${name}-d`];
  return svg(
    "svg",
    { viewBox: `0 0 ${one.width} ${one.height}`, role: one.marks.some((mark) => mark.where) ? "group" : "img", "aria-labelledby": ids.join(" ") },
    svg("title", { id: ids[0] }, one.title),
    svg("desc", { id: ids[1] }, one.description),
    one.marks.map(mark),
  );
}

function mark(one) {
  if (one.type === "label") {
    return svg("text", { x: one.x, y: one.y, class: one.css, "text-anchor": one.anchor }, one.text);
  }
  const [shape, geometry] = SHAPES[one.type](one);
  const made = svg(shape, { ...geometry, class: one.css }, one.title ? svg("title", {}, one.title) : null);
  if (!one.where) return made;
  const target = link({ run: read().run, page: "rollouts", where: one.where });
  // Clear columns over a line or a strip are many: the pointer finds them, the keyboard has the groups and the numbers.
  return svg("a", { href: target, "aria-label": `read them: ${one.title}`, tabindex: one.css === "hover" ? -1 : undefined }, made);
}
