// The pages: overview, rollouts, suspicious, groups, findings, compare, label.

import { ask } from "./api.js";
import { figure, table } from "./charts.js";
import { diff } from "./diff.js";
import { el, number, reward, say, show } from "./dom.js";
import { List } from "./list.js";
import { Reader, pieces } from "./reader.js";
import { go, link, read } from "./state.js";

const WORDS = { ready: "✓ ready", "not yet": "… not yet", no: "✗ no" };
const LEVELS = { error: "✗ error", warning: "! warning", note: "· note" };

/** The overview: verdict, fitness, charts. */
export async function overview(main, state) {
  show(main, el("p", { class: "soft" }, "computing…"));
  const found = await ask("overview", { run: state.run });
  show(
    main,
    el("p", { class: "soft" }, found.subtitle),
    el("div", { class: `verdict ${found.trust.grade}` }, el("strong", {}, found.trust.title), found.trust.text),
    el("ul", { class: "recipes" }, Object.entries(found.recipes).map(([name, one]) => el("li", {}, el("b", {}, name), el("span", { class: "word" }, WORDS[one.verdict]), el("div", { class: "soft" }, one.reason)))),
    found.sections.filter((section) => section.figures.length).map((section) => [el("h2", { id: section.name }, section.heading), el("div", { class: "figures" }, section.figures.map(figure))]),
    el("h2", {}, "How it was made"),
    table(["setting", "value"], found.manifest),
  );
  return {};
}

/** The findings of check, each with a link to what it points at. */
export async function findings(main, state) {
  const found = await ask("overview", { run: state.run });
  const places = (one) => {
    const tasks = [...new Set(one.where.map((place) => place.task).filter((task) => task !== null && task !== undefined))];
    if (!tasks.length) return null;
    return el("p", {}, el("a", { href: link({ run: state.run, page: "rollouts", where: `task IN (${tasks.slice(0, 200).join(", ")})` }) }, `read the rollouts of ${tasks.length} tasks`));
  };
  show(
    main,
    found.findings.map((one) => el("section", { class: "finding" }, el("h3", {}, el("span", { class: `word ${one.level}` }, LEVELS[one.level]), " ", one.id), el("p", {}, one.text), one.next ? el("p", {}, el("code", {}, one.next)) : null, places(one))),
  );
  return {};
}

/** A list beside a reader. */
function split(main, list, reader, ...above) {
  show(main, ...above, el("div", { class: "split" }, list.node, reader.node));
}

/** The rollouts: filter, order, columns, list, reader. */
export async function rollouts(main, state, { runs }) {
  const run = Number(state.run || 0);
  const columns = (state.columns || "").split(",").filter(Boolean);
  const reader = new Reader({ run });
  const all = runs[run].columns;
  const list = new List({
    label: "rollouts",
    fetchPage: (start, count) => ask("rollouts", { run, where: state.where, sort: state.sort, columns: columns.join(","), start, count }),
    draw: ([, ...values], _) => values.map((value, place) => el("span", { class: "cell", role: "gridcell" }, head[place] === "reward" ? reward(value) : typeof value === "number" ? number(value) : String(value ?? ""))),
    choose: ([row]) => {
      go({ row }, { replace: true });
      reader.open(row).catch((error) => say(error.message));
    },
  });
  let head = [];
  const filter = el("input", { type: "search", id: "filter", value: state.where || "", placeholder: "filter: reward = 0 and output_tokens > 500", list: "names", "aria-label": "filter", spellcheck: "false" });
  const order = el("input", { id: "sort", value: state.sort || "", placeholder: "sort: reward desc", list: "names", "aria-label": "sort", spellcheck: "false" });
  const shown = el("input", { id: "columns", value: columns.join(","), placeholder: "columns", list: "names", "aria-label": "columns", spellcheck: "false" });
  const form = el("form", { class: "filters", onsubmit: (event) => {
    event.preventDefault();
    go({ where: filter.value, sort: order.value, columns: shown.value, row: "" });
  } }, filter, order, shown, el("button", {}, "apply"), el("datalist", { id: "names" }, all.map((name) => el("option", { value: name }))));
  const command = el("code", {});
  const titles = el("div", { class: "row titles" });
  split(main, list, reader, form, el("p", { class: "soft" }, command), titles);
  try {
    const first = await list.reset();
    head = first.columns;
    list.paint();
    command.textContent = first.command;
    show(titles, head.map((name) => el("button", { class: "cell", type: "button", onclick: () => go({ sort: state.sort === name ? `${name} desc` : name }) }, name)));
    say(`${first.total.toLocaleString("en")} rollouts`);
    if (state.row) {
      await reader.open(Number(state.row));
      const { place } = await ask("place", { run, row: state.row, where: state.where, sort: state.sort });
      if (place !== null) list.reveal(place);
    }
  } catch (error) {
    say(error.message);
    show(list.rows, el("p", { class: "why" }, error.message));
  }
  return { list, reader, filter };
}

/** Most suspicious first. */
export async function suspicious(main, state) {
  const run = Number(state.run || 0);
  const reader = new Reader({ run });
  const list = new List({
    label: "suspicious rollouts",
    fetchPage: (start, count) => ask("suspicious", { run, start, count }),
    draw: (one) => [el("span", { class: "cell", role: "gridcell" }, `task ${one.task}, sample ${one.rollout}`), el("span", { class: "cell", role: "gridcell" }, reward(one.reward)), el("span", { class: "cell wide", role: "gridcell" }, one.why.join("; "))],
    choose: (one) => {
      go({ row: one.row }, { replace: true });
      reader.open(one.row).catch((error) => say(error.message));
    },
  });
  split(main, list, reader);
  const { total } = await list.reset();
  say(total ? `${total.toLocaleString("en")} suspicious rollouts` : "nothing looks suspicious");
  if (!total) show(list.rows, el("p", {}, "Nothing looks suspicious."));
  if (state.row) await reader.open(Number(state.row));
  return { list, reader };
}

/** Groups: the strip of a task's samples, siblings side by side, the diff of two. */
export async function groups(main, state) {
  const run = Number(state.run || 0);
  const side = el("article", { class: "reader", "aria-label": "group", tabindex: -1 });
  let chosen = [];
  const compare = async (group) => {
    const texts = await Promise.all(chosen.map((row) => ask("rollout", { run, row })));
    const said = texts.map((one) => one.turns.filter((turn) => turn.kind === "assistant").map((turn) => turn.text).join("\n"));
    const titles = texts.map((one) => el("h3", {}, `sample ${one.facts.rollout} `, reward(one.facts.reward)));
    show(
      side,
      el("h2", {}, `task ${group.task}`),
      el("p", { class: "siblings" }, group.samples.map(([row, sample, value]) => el("button", { class: chosen.includes(row) ? "sibling here" : "sibling", title: `sample ${sample}`, onclick: () => {
        chosen = [...chosen.slice(-1), row];
        compare(group).catch((error) => say(error.message));
      } }, value === null ? "?" : number(value)))),
      texts.length === 2
        ? [el("div", { class: "pair" }, titles), el("div", { class: "text" }, diff(said[0], said[1]).map((part) => (part.kind === "same" ? part.text : el(part.kind === "left" ? "del" : "ins", {}, part.text))))]
        : [titles, el("div", { class: "text" }, said[0])],
      el("p", {}, el("a", { href: link({ run, page: "rollouts", where: `task = ${group.task}`, row: chosen[0] }) }, "open in the reader")),
    );
  };
  const list = new List({
    label: "groups",
    fetchPage: async (start, count) => {
      const { total, groups: rows } = await ask("groups", { run, sort: state.sort || "contradictions", start, count });
      return { total, rows };
    },
    draw: (group) => [el("span", { class: "cell", role: "gridcell" }, `task ${group.task}`), el("span", { class: "cell", role: "gridcell" }, number(group.mean)), el("span", { class: "cell wide strip", role: "gridcell" }, group.samples.slice(0, 64).map(([, , value]) => el("i", { class: value === null ? "none" : value > 0 ? "high" : "low" }))), group.contradictions ? el("span", { class: "cell why", role: "gridcell" }, "one answer, two rewards") : null],
    choose: (group) => {
      const rows = group.samples.filter(([, , value]) => value !== null);
      const best = rows.reduce((a, b) => (b[2] > a[2] ? b : a), rows[0] || group.samples[0]);
      const worst = rows.reduce((a, b) => (b[2] < a[2] ? b : a), rows[0] || group.samples[0]);
      chosen = best[0] === worst[0] ? [best[0]] : [best[0], worst[0]];
      compare(group).catch((error) => say(error.message));
    },
  });
  const sorts = ["contradictions", "hardest", "easiest", "mixed", "task"];
  const picker = el("select", { "aria-label": "order of the groups", onchange: (event) => go({ sort: event.target.value }) }, sorts.map((name) => el("option", { value: name, selected: name === (state.sort || "contradictions") }, name)));
  split(main, list, { node: side }, el("p", {}, "order ", picker));
  const { total } = await list.reset();
  say(`${total.toLocaleString("en")} groups`);
  return { list };
}

/** Run against run, verifier against verifier. */
export async function compare(main, state, { runs }) {
  const run = Number(state.run || 0);
  const parts = [];
  const { flips } = await ask("compare", { run });
  parts.push(el("h2", {}, "Verifiers"), flips.length
    ? table(["A", "B", "both judged", "agree", "A fails, B passes", "A passes, B fails"], flips.map((one) => [one.a, one.b, one.n, one.agree, flip(run, one, "0→1", one.up), flip(run, one, "1→0", one.down)]))
    : el("p", { class: "soft" }, "One verifier judged this run."));
  for (let other = 0; other < runs.length; other += 1) {
    if (other === run) continue;
    const found = await ask("compare", { run, with: other });
    parts.push(
      el("h2", {}, `${runs[run].name} against ${runs[other].name}`),
      el("p", { class: "verdict" }, found.verdict),
      table(["field", runs[run].name, runs[other].name, "difference", "95 % interval", "tasks"], Object.entries(found.fields).map(([name, one]) => [name, number(one.value), number(one.against), number(one.difference), one.ci ? `${number(one.ci[0])} … ${number(one.ci[1])}` : "–", one.tasks])),
    );
  }
  if (runs.length === 1) parts.push(el("p", { class: "soft" }, "To compare runs, open both: rollforge view A B"));
  show(main, parts);
  return {};
}

/** A count of flips that opens the rollouts behind it. */
function flip(run, one, kind, count) {
  if (!count) return "0";
  return el("button", { onclick: async () => {
    const { keys } = await ask("flips", { run, a: one.a, b: one.b, kind });
    go({ page: "rollouts", where: keys.map(([task, sample]) => `(task = ${task} AND rollout = ${sample})`).join(" OR ") });
  } }, `${count} – read them`);
}

/** Rows of a dataset: their rollouts, and what became of the siblings. */
export async function dataset(main, state, { runs, datasets }) {
  if (!datasets.length) {
    show(main, el("p", {}, "No dataset is open. Open one beside its run: ", el("code", {}, "rollforge view RUN DATASET")));
    return {};
  }
  const number_ = Number(state.dataset || 0);
  const one = datasets[number_];
  const side = el("article", { class: "reader", "aria-label": "row", tabindex: -1 });
  const fates = Object.entries(one.counts.rollouts || {}).map(([name, count]) => [name, number(count)]);
  const open = async (row) => {
    const found = await ask("dataset-row", { dataset: number_, row: row.place });
    show(
      side,
      el("h2", {}, `${row.file}, line ${row.line}`),
      found.row.origins.map((origin, place) => el("p", {}, found.row.origins.length > 1 ? (place ? "rejected: " : "chosen: ") : "from: ", `${origin.run}, task ${origin.task}, sample ${origin.rollout} `, reward(origin.reward))),
      found.turns.map((turn) => {
        const body = el("div", { class: "text" });
        pieces(body, turn.text);
        return el("details", { class: "turn", open: true }, el("summary", {}, `${turn.kind} ${turn.title}`), body);
      }),
      found.siblings.length ? [el("h3", {}, "Samples of the same task"), el("ul", {}, found.siblings.map((sample) => el("li", {}, el("a", { href: link({ run: sample.run, page: "rollouts", where: `task = ${found.row.origins[0].task}`, row: sample.row }) }, `sample ${sample.rollout}`), " ", reward(sample.reward), " ", sample.used_in.length ? `in rows ${sample.used_in.join(", ")}` : "in no row")))] : el("p", { class: "soft" }, runs.length ? "Its run is not open here." : ""),
    );
  };
  const list = new List({
    label: "rows of the dataset",
    fetchPage: (start, count) => ask("dataset", { dataset: number_, start, count }),
    draw: (row) => [el("span", { class: "cell", role: "gridcell" }, `${row.file}:${row.line}`), row.origins.map((origin) => el("span", { class: "cell", role: "gridcell" }, `task ${origin.task}/${origin.rollout} `, reward(origin.reward)))],
    choose: (row) => open(row).catch((error) => say(error.message)),
  });
  split(main, list, { node: side }, el("p", {}, el("strong", {}, `${one.recipe} for ${one.to} `), one.name), el("details", {}, el("summary", {}, "what became of the rollouts"), table(["fate", "rollouts"], fates)));
  const { total } = await list.reset();
  say(`${total.toLocaleString("en")} rows`);
  return { list };
}

/** A run that is being collected: progress and its newest rollouts, refreshed while the page is open. */
export async function live(main, state) {
  const run = Number(state.run || 0);
  const facts = el("div", {});
  const newest = el("div", {});
  show(main, facts, el("h2", {}, "Newest rollouts"), newest);
  const draw = async () => {
    const found = await ask("status", { run });
    const rows = Object.entries(found).filter(([, value]) => value !== null && typeof value !== "object").map(([name, value]) => [name, typeof value === "number" ? number(value) : String(value)]);
    show(facts, table(["", ""], rows));
    const page = await ask("rollouts", { run, sort: "started desc", columns: "task,rollout,reward,answer_chars,seconds", count: 20 });
    show(newest, table(page.columns, page.rows.map(([, ...values]) => values.map((value) => (value === null ? "unjudged" : number(value))))));
  };
  await draw();
  return { refresh: draw };
}

/** Label rollouts: a queue, the reader, and three keys. */
export async function label(main, state) {
  const run = Number(state.run || 0);
  const queue = state.queue || "random";
  const seed = Number(state.seed || 0);
  const reader = new Reader({ run, blind: state.blind === "yes" });
  const left = el("p", { class: "soft" });
  let rows = [];
  const next = async () => {
    if (!rows.length) ({ rows } = await ask("queue", { run, kind: queue, seed }));
    if (!rows.length) {
      show(reader.node, el("p", {}, "The queue is empty: everything in it is labelled."));
      return;
    }
    const [row] = rows.shift();
    await reader.open(row);
  };
  const act = async (opinion) => {
    if (!reader.one) return;
    await reader.label(opinion, { queue, seed });
    await next();
  };
  const button = (key, text, opinion) => el("button", { onclick: () => act(opinion).catch((error) => say(error.message)) }, el("kbd", {}, key), ` ${text}`);
  show(
    main,
    el("p", {}, "queue ", ["random", "suspicious"].map((name) => [el("a", { href: link({ ...state, queue: name }), class: name === queue ? "here" : "" }, name), " "]),
      " · ", el("a", { href: link({ ...state, blind: reader.blind ? "" : "yes" }) }, reader.blind ? "show verdicts" : "hide verdicts until labelled")),
    el("p", { class: "soft" }, queue === "random" ? "Drawn at random: precision, recall and error rates are computed from these." : "Pointed at by checks: for finding bugs, in no rate."),
    el("p", { class: "actions" }, button("a", reader.blind ? "the answer is right" : "the verdict is right", "agree"), button("d", reader.blind ? "the answer is wrong" : "it is wrong", "disagree"), button("u", "unsure", "unsure")),
    left,
    reader.node,
  );
  await next();
  return { reader, act };
}
