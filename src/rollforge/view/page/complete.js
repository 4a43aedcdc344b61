// Completion of the word at the cursor: column names and the few words of the filter language.

import { el, show } from "./dom.js";

const WORD = /[A-Za-z_][\w.]*$/;
const MOST = 8;
let count = 0;

/** Give an input a list of completions; returns the node that holds both. */
export function completed(input, words) {
  const list = el("ul", { class: "completions", role: "listbox", id: `completions-${(count += 1)}`, "aria-label": "completions", hidden: true });
  let place = -1;
  for (const [name, value] of Object.entries({ role: "combobox", autocomplete: "off", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id })) input.setAttribute(name, value);

  const word = () => WORD.exec(input.value.slice(0, input.selectionStart))?.[0] ?? "";
  const close = () => {
    list.hidden = true;
    place = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const take = (text) => {
    const end = input.selectionStart;
    const start = end - word().length;
    input.value = input.value.slice(0, start) + text + input.value.slice(end);
    input.setSelectionRange(start + text.length, start + text.length);
    close();
  };
  const mark = (next) => {
    place = (next + list.children.length) % list.children.length;
    [...list.children].forEach((one, number) => one.setAttribute("aria-selected", String(number === place)));
    input.setAttribute("aria-activedescendant", list.children[place].id);
  };
  const offer = () => {
    const begun = word().toLowerCase();
    const fitting = begun ? words.filter((one) => one.toLowerCase().replace(/^"/, "").startsWith(begun) && one.toLowerCase() !== begun).slice(0, MOST) : [];
    if (!fitting.length) return close();
    show(list, fitting.map((text, number) => el("li", { role: "option", id: `${list.id}-${number}`, "aria-selected": "false", onmousedown: (event) => {
      event.preventDefault(); // the input keeps the focus
      take(text);
    } }, text)));
    list.hidden = false;
    place = -1;
    input.setAttribute("aria-expanded", "true");
    return undefined;
  };
  input.addEventListener("input", offer);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    if (event.key === "ArrowDown") mark(place + 1);
    else if (event.key === "ArrowUp") mark(place < 0 ? -1 : place - 1);
    else if (event.key === "Tab" || (event.key === "Enter" && place >= 0)) take(list.children[Math.max(0, place)].textContent);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return el("span", { class: "completed" }, input, list);
}
