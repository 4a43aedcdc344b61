// The page: which part is open, and the keyboard.

import { ask } from "./api.js";
import { el, say, show } from "./dom.js";
import * as pages from "./pages.js";
import { go, link, read } from "./state.js";

const PAGES = ["overview", "rollouts", "suspicious", "groups", "findings", "compare", "dataset", "label", "live"];
const KEYS = [
  ["j / k", "next / previous"],
  ["J / K", "next / previous sibling"],
  ["g", "the group of this rollout"],
  ["/", "filter"],
  [".", "raw line / turns"],
  ["f", "fold or unfold"],
  ["x", "mark; on a second rollout, show the difference"],
  ["a / d / u", "agree / disagree / unsure"],
  ["1 … 9", PAGES.join(", ")],
  ["?", "this help"],
];

let known = { runs: [], datasets: [] };
let open = {};

async function render() {
  const state = read();
  const page = PAGES.includes(state.page) ? state.page : "overview";
  const run = Number(state.run || 0);
  document.title = `${page}: ${known.runs[run]?.name ?? "rollforge view"}`;
  show(
    document.getElementById("bar"),
    el("strong", {}, known.runs.length > 1
      ? el("select", { "aria-label": "run", onchange: (event) => go({ run: event.target.value, row: "", where: "" }) }, known.runs.map((one, place) => el("option", { value: place, selected: place === run }, one.name)))
      : known.runs[run]?.name ?? ""),
    el("nav", { "aria-label": "pages" }, PAGES.map((name) => el("a", { href: link({ run: state.run, page: name }), class: name === page ? "here" : "", "aria-current": name === page ? "page" : undefined }, name))),
    el("button", { onclick: help, "aria-label": "keyboard help" }, "?"),
  );
  const box = el("div", { class: "page" }); // a page that is left goes on writing into its own box, which nobody sees
  show(document.getElementById("main"), box);
  say("");
  open = {};
  try {
    const made = await pages[page](box, state, known);
    if (box.isConnected) open = made;
  } catch (error) {
    show(box, el("p", { class: "why" }, error.message));
    if (box.isConnected) say(error.message);
  }
}

function help() {
  const dialog = el("dialog", { "aria-label": "keys" }, el("h2", {}, "Keys"), el("dl", {}, KEYS.map(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)])), el("form", { method: "dialog" }, el("button", {}, "close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function sibling(by) {
  const one = open.reader?.one;
  if (!one) return;
  const rows = one.siblings.map(([row]) => row);
  const next = rows[(rows.indexOf(one.row) + by + rows.length) % rows.length];
  go({ row: next }, { replace: true });
  open.reader.open(next).catch((error) => say(error.message));
}

let marked = null;

function mark() {
  const one = open.reader?.one;
  if (!one) return;
  if (marked && marked.row !== one.row) {
    open.reader.compare(marked);
    say(`${name(marked)} against ${name(one)}`);
    marked = null;
    return;
  }
  marked = marked ? null : one;
  say(marked ? `marked ${name(one)}: press x on another rollout to compare` : "no mark");
}

const name = (one) => `task ${one.facts.task}, sample ${one.facts.rollout}`;

const ACTIONS = {
  j: () => open.list?.move(1),
  k: () => open.list?.move(-1),
  J: () => sibling(1),
  K: () => sibling(-1),
  g: () => open.reader?.one && go({ page: "rollouts", where: `task = ${open.reader.one.facts.task}`, row: open.reader.one.row }),
  "/": () => open.filter?.select(), // what is typed next replaces the filter
  ".": () => open.reader?.raw_(!open.reader.isRaw),
  f: () => open.reader?.fold(),
  x: mark,
  a: () => label("agree"),
  d: () => label("disagree"),
  u: () => label("unsure"),
  "?": help,
};

function label(opinion) {
  const done = open.act ? open.act(opinion) : open.reader?.label(opinion);
  done?.catch((error) => say(error.message));
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const page = PAGES[Number(event.key) - 1];
  const action = page ? () => go({ page, row: "", where: "", sort: "" }) : ACTIONS[event.key];
  if (!action || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  action();
});

let lastPath = "";
window.addEventListener("hashchange", () => {
  const { row, task: _, ...rest } = read();
  const path = JSON.stringify(rest);
  if (path === lastPath && open.reader && row) {
    if (open.reader.one?.row !== Number(row)) open.reader.open(Number(row)).catch((error) => say(error.message));
    return; // only another rollout of the same list
  }
  lastPath = path;
  render();
});

async function watch() {
  if (!document.hidden) {
    for (let run = 0; run < known.runs.length; run += 1) {
      const one = known.runs[run];
      const found = await ask("live", { run }, { headers: { "If-None-Match": one.state ?? "" } }).catch(() => null);
      const hasGrown = found && (one.state === undefined ? found.rollouts !== one.rollouts : found.state !== one.state);
      if (hasGrown) {
        say(`${one.name} has grown: ${found.rollouts.toLocaleString("en")} rollouts`);
        open.list?.reset();
        open.refresh?.();
      }
      if (found) one.state = found.state;
    }
  }
  setTimeout(watch, 2000);
}

known = await ask("runs");
const { row: _, task: __, ...rest } = read();
lastPath = JSON.stringify(rest);
await render();
watch();
