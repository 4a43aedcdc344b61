// Elements made from data. Text always becomes a text node: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: attributes by name, `on…` as listeners, children as nodes or text. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Make an SVG element. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Replace what a node holds. */
export function show(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter(Boolean));
  return node;
}

const WHOLE = new Intl.NumberFormat("en"); // toLocaleString would look up its locale in every cell

/** A number for people: 0.498, 1,234, – when there is none. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return WHOLE.format(value);
  const size = Math.abs(value);
  if (size < 0.001) return value.toPrecision(2);
  return value.toFixed(size < 10 ? 3 : size < 100 ? 2 : 1);
}

/** A reward as a chip: its number, or "unjudged" as a mark of its own. */
export function reward(value) {
  const { mark, text } = rewardCell(value);
  return el("span", { class: mark }, text);
}

/** A reward as a cell of a list. */
export function rewardCell(value) {
  if (value === null || value === undefined) return { mark: "chip unjudged-chip", text: "unjudged" };
  return { mark: `chip ${value > 0 ? "high" : "low"}`, text: number(value) };
}

/** Say something to everybody, screen readers included. */
export function say(text) {
  document.getElementById("say").textContent = text;
}
