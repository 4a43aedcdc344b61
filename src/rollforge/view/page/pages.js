// The pages: overview, rollouts, suspicious, groups, findings, compare, label.

import { ask } from "./api.js";
import { figure, table } from "./charts.js";
import { completed } from "./complete.js";
import { el, number, reward, rewardCell, say, show } from "./dom.js";
import { List } from "./list.js";
import { Reader, differences, pieces } from "./reader.js";
import { go, link, read } from "./state.js";

const WORDS = { ready: "✓ ready", "not yet": "… not yet", no: "✗ no" };
const GRADES = { ready: "good", "not yet": "doubt", no: "bad" };
const SQL = ["and", "or", "not", "is null", "is not null", "between", "in (", "like", "true", "false"];
const NARROW = ["task", "rollout", "reward", "output_tokens", "seconds"]; // columns of a phone, unless others are chosen
const MOST_FLIPS = 500; // that the server lists
const LEVELS = { error: "✗ error", warning: "! warning", note: "· note" };

/** The overview: verdict, fitness, charts. */
export async function overview(main, state) {
  show(main, el("p", { class: "soft" }, "computing…"));
  const found = await ask("overview", { run: state.run });
  show(
    main,
    el("p", { class: "soft" }, found.subtitle),
    el("div", { class: `verdict ${found.trust.grade}` }, el("strong", {}, found.trust.title), found.trust.text),
    el("ul", { class: "recipes" }, Object.entries(found.recipes).map(([name, one]) => el("li", {}, el("b", {}, name), el("span", { class: `word ${GRADES[one.verdict]}` }, WORDS[one.verdict]), el("div", { class: "soft" }, one.reason)))),
    found.sections.filter((section) => section.figures.length).map((section) => [el("h2", { id: section.name }, section.heading), el("div", { class: "figures" }, section.figures.map((one) => withFlips(figure(one), one.name, state)))]),
    el("h2", {}, "How it was made"),
    table(["setting", "value"], found.manifest),
  );
  return {};
}

/** A figure about two verifiers leads to the page that lists where they differ: its bars are no condition on columns. */
function withFlips(node, name, { run }) {
  if (name.startsWith("flips-")) node.append(el("a", { href: link({ run, page: "compare" }) }, "read the rollouts on which they differ"));
  return node;
}

/** The findings of check, each with a link to what it points at. */
export async function findings(main, state) {
  show(main, el("p", { class: "soft" }, "computing…"));
  const found = await ask("overview", { run: state.run });
  const places = (one) => one.condition && el("p", {}, el("a", { href: link({ run: state.run, page: "rollouts", where: one.condition }) }, "read the rollouts it points at"));
  show(
    main,
    found.findings.length ? null : el("p", { class: "soft" }, "The checks found nothing to report."),
    found.findings.map((one) => el("section", { class: "finding" }, el("h3", {}, el("span", { class: `word ${one.level}` }, LEVELS[one.level]), " ", one.id), el("p", {}, one.text), one.next ? el("p", {}, step(one.next)) : null, places(one))),
  );
  return {};
}

/** A next step: its words, and its command as one to paste. */
function step(text) {
  const start = text.indexOf("rollforge ");
  return start < 0 ? text : [text.slice(0, start), el("code", {}, text.slice(start))];
}

/** A list beside a reader. */
function split(main, list, reader, ...above) {
  if (!reader.node.firstChild) show(reader.node, el("p", { class: "empty" }, "Choose a row, or press ", el("kbd", {}, "j"), "."));
  show(main, ...above, el("div", { class: "split" }, list.pane, reader.node));
}

/** Tracks for columns with these titles: long names get more room. */
function tracks(names) {
  return names.map((name) => (name === "reward" ? "64px" : `minmax(0, ${Math.max(7, name.length)}fr)`)).join(" ");
}

/** The rollouts: filter, order, columns, list, reader. */
export async function rollouts(main, state, { runs }) {
  const run = Number(state.run || 0);
  const columns = (state.columns || "").split(",").filter(Boolean);
  const reader = new Reader({ run });
  const all = runs[run].columns;
  const few = matchMedia("(max-width: 800px)").matches ? NARROW.filter((name) => all.includes(name)) : [];
  const quoted = all.map((name) => (/^\w+$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`));
  const list = new List({
    label: "rollouts",
    fetchPage: async (start, count) => {
      const page = await ask("rollouts", { run, where: state.where, sort: state.sort, columns: (columns.length ? columns : few).join(","), start, count });
      head = page.columns;
      return page;
    },
    draw: ([, ...values]) => values.map((value, place) => (head[place] === "reward" ? rewardCell(value) : { text: typeof value === "number" ? number(value) : String(value ?? "") })),
    choose: ([row]) => {
      go({ row }, { replace: true });
      reader.open(row).catch((error) => say(error.message));
    },
  });
  let head = [];
  const filter = el("input", { type: "search", id: "filter", value: state.where || "", placeholder: "filter: reward = 0 and output_tokens > 500", "aria-label": "filter", spellcheck: "false" });
  const order = el("input", { id: "sort", value: state.sort || "", placeholder: "sort: reward desc", "aria-label": "sort", spellcheck: "false" });
  const shown = el("input", { id: "columns", value: columns.join(","), placeholder: "columns", "aria-label": "columns", spellcheck: "false" });
  const form = el("form", { class: "filters", onsubmit: (event) => {
    event.preventDefault();
    go({ where: filter.value, sort: order.value, columns: shown.value, row: "" });
  } }, completed(filter, [...quoted, ...SQL]), completed(order, [...quoted, "desc", "asc"]), completed(shown, all), el("button", {}, "apply"));
  const command = el("code", {});
  const titles = el("div", { class: "row titles" });
  list.pane.prepend(titles);
  split(main, list, reader, form, el("p", { class: "soft" }, command));
  try {
    const first = await list.reset();
    command.textContent = first.command;
    list.setColumns(tracks(head));
    show(titles, head.map((name) => el("button", { class: "cell", type: "button", title: `sort by ${name}`, onclick: () => go({ sort: state.sort === name ? `${name} desc` : name }) }, name, arrow(name, state.sort))));
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

/** The direction in which a column is sorted. */
function arrow(name, sort) {
  return { [name]: " ↑", [`${name} asc`]: " ↑", [`${name} desc`]: " ↓" }[sort] ?? "";
}

/** Most suspicious first. */
export async function suspicious(main, state) {
  const run = Number(state.run || 0);
  const reader = new Reader({ run });
  const list = new List({
    label: "suspicious rollouts",
    columns: "11.5em 5.5em minmax(0, 1fr)",
    fetchPage: (start, count) => ask("suspicious", { run, start, count }),
    draw: (one) => [{ text: `task ${one.task}, sample ${one.rollout}` }, rewardCell(one.reward), { text: one.why.join("; ") }],
    choose: (one) => {
      go({ row: one.row }, { replace: true });
      reader.open(one.row).catch((error) => say(error.message));
    },
  });
  split(main, list, reader);
  const draw = async () => {
    const page = await list.reset();
    say(page.total ? `${page.total.toLocaleString("en")} suspicious rollouts` : "nothing looks suspicious");
    if (!page.total) show(list.rows, el("p", { class: "empty" }, page.has_findings ? "Nothing looks suspicious: no check points at a rollout, and none is rewarded though empty, cut off or an error message." : "Nothing so far; the checks are still running."));
    return page;
  };
  const first = await draw();
  // The checks take a while the first time; what they point at joins the list when they are done.
  if (!first.has_findings) ask("overview", { run }).then(draw).catch((error) => say(error.message));
  if (state.row) await reader.open(Number(state.row));
  return { list, reader };
}

/** The shade of a reward in a strip: by its place in 0 … 1, or in the group's own range where that is wider. */
function shade(value, samples) {
  if (value === null) return "none";
  const known = samples.map(([, , one]) => one).filter((one) => one !== null);
  const [least, most] = [Math.min(0, ...known), Math.max(1, ...known)];
  return `q${Math.round(((value - least) / (most - least)) * 7)}`;
}

/** The two samples of a group to show first: one answer with two rewards where there is one, else the best and the worst. */
function pair(group) {
  if (group.twins) return group.twins;
  const rows = group.samples.filter(([, , value]) => value !== null);
  const best = rows.reduce((a, b) => (b[2] > a[2] ? b : a), rows[0] || group.samples[0]);
  const worst = rows.reduce((a, b) => (b[2] < a[2] ? b : a), rows[0] || group.samples[0]);
  return best[0] === worst[0] ? [best[0]] : [best[0], worst[0]];
}

/** Groups: the strip of a task's samples, siblings side by side, the diff of two. */
export async function groups(main, state) {
  const run = Number(state.run || 0);
  const side = el("article", { class: "reader", "aria-label": "group", tabindex: -1 });
  let chosen = [];
  const compare = async (group) => {
    go({ task: group.task, row: chosen.join(",") }, { replace: true });
    const samples = await Promise.all(chosen.map((row) => ask("rollout", { run, row })));
    show(
      side,
      el("h2", {}, `task ${group.task}`),
      el("p", { class: "siblings" }, group.samples.map(([row, sample, value]) => el("button", { class: chosen.includes(row) ? "sibling here" : "sibling", title: `sample ${sample}`, onclick: () => {
        chosen = [...chosen.slice(-1), row];
        compare(group).catch((error) => say(error.message));
      } }, value === null ? "?" : number(value)))),
      differences(samples),
      el("p", {}, el("a", { href: link({ run, page: "rollouts", where: `task = ${group.task}`, row: chosen[0] }) }, "open in the reader")),
    );
  };
  const list = new List({
    label: "groups",
    columns: "6.5em 4em minmax(5em, 1fr) minmax(0, max-content)",
    fetchPage: async (start, count) => {
      const { total, groups: rows } = await ask("groups", { run, sort: state.sort || "contradictions", start, count });
      return { total, rows };
    },
    draw: (group) => [
      { text: `task ${group.task}` },
      { text: number(group.mean) },
      { css: "strip", nodes: group.samples.slice(0, 64).map(([, , value]) => el("i", { class: shade(value, group.samples), title: value === null ? "unjudged" : number(value) })) },
      { css: "why", text: group.contradictions ? "one answer, two rewards" : "" },
    ],
    choose: (group) => {
      chosen = pair(group);
      compare(group).catch((error) => say(error.message));
    },
  });
  const sorts = ["contradictions", "hardest", "easiest", "mixed", "task"];
  const picker = el("select", { "aria-label": "order of the groups", onchange: (event) => go({ sort: event.target.value }) }, sorts.map((name) => el("option", { value: name, selected: name === (state.sort || "contradictions") }, name)));
  split(main, list, { node: side }, el("p", {}, "order ", picker));
  const { total } = await list.reset();
  say(`${total.toLocaleString("en")} groups`);
  if (state.task) {
    const { group, place } = await ask("group", { run, task: state.task, sort: state.sort || "contradictions" });
    const rows = new Set(group.samples.map(([row]) => row));
    chosen = (state.row || "").split(",").map(Number).filter((row) => rows.has(row)).slice(0, 2);
    if (!chosen.length) chosen = pair(group);
    list.reveal(place);
    await compare(group);
  }
  return { list };
}

/** Run against run, verifier against verifier. */
export async function compare(main, state, { runs }) {
  const run = Number(state.run || 0);
  const parts = [];
  show(main, el("p", { class: "soft" }, "computing…"));
  const { flips } = await ask("compare", { run });
  parts.push(el("h2", {}, "Verifiers"), flips.length
    ? [
        flips.map((one) => el("p", { class: "verdict" }, one.verdict)),
        table(["A", "B", "both judged", "agree", "A fails, B passes", "A passes, B fails", "other reward, same side"], flips.map((one) => [one.a, one.b, number(one.n), number(one.agree), flip(run, one, "0→1", one.up), flip(run, one, "1→0", one.down), flip(run, one, "changed", one.changed)])),
      ]
    : el("p", { class: "soft" }, "Fewer than two verifiers judged this run."));
  for (let other = 0; other < runs.length; other += 1) {
    if (other === run) continue;
    parts.push(el("h2", {}, `${runs[run].name} against ${runs[other].name}`));
    const found = await ask("compare", { run, with: other }).catch((error) => error);
    if (found instanceof Error) { // such as no task in common; the other runs may have some
      parts.push(el("p", { class: "soft" }, found.message));
      continue;
    }
    parts.push(
      el("p", { class: "verdict" }, found.verdict),
      table(["field", runs[run].name, runs[other].name, "difference", "95 % interval", "tasks"], Object.entries(found.fields).map(([name, one]) => [name, number(one.value), number(one.against), number(one.difference), one.ci ? `${number(one.ci[0])} … ${number(one.ci[1])}` : "–", one.tasks])),
      el("h3", {}, found.differing.length ? "Tasks whose mean reward differs, most first" : "No task's mean reward differs"),
      found.differing.length ? table(["task", runs[run].name, runs[other].name, "difference"], found.differing.map((one) => [`task ${one.task}`, samples(run, one.task, one.value), samples(other, one.against_task, one.against), number(one.value - one.against)])) : null,
    );
  }
  if (runs.length === 1) parts.push(el("p", { class: "soft" }, "To compare runs, open both: rollforge view A B"));
  show(main, parts);
  return {};
}

/** The mean reward of a task in a run, which opens its rollouts. */
function samples(run, task, value) {
  return el("a", { href: link({ run, page: "rollouts", where: `task = ${task}` }) }, number(value));
}

/** A count of flips that opens the rollouts behind it. */
function flip(run, one, kind, count) {
  if (!count) return "0";
  return el("button", { onclick: async () => {
    const { condition } = await ask("flips", { run, a: one.a, b: one.b, kind });
    go({ page: "rollouts", where: condition });
  } }, count > MOST_FLIPS ? `${number(count)} – read the first ${MOST_FLIPS}` : `${number(count)} – read them`);
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
  const open = async (place) => {
    const found = await ask("dataset-row", { dataset: number_, row: place });
    show(
      side,
      el("h2", {}, `${found.row.file}, line ${found.row.line}`),
      found.row.origins.map((origin, place) => el("p", {}, found.row.origins.length > 1 ? (place ? "rejected: " : "chosen: ") : "from: ", `${origin.run}, task ${origin.task}, sample ${origin.rollout} `, reward(origin.reward))),
      found.turns.map((turn) => {
        const body = el("div", { class: "text" });
        pieces(body, turn.text);
        return el("details", { class: "turn", open: true }, el("summary", {}, `${turn.kind} ${turn.title}`), body);
      }),
      found.siblings.length ? [el("h3", {}, "Samples of the same task"), el("ul", {}, found.siblings.map((sample) => el("li", {}, el("a", { href: link({ run: sample.run, page: "rollouts", where: `task = ${found.row.origins[0].task}`, row: sample.row }) }, `sample ${sample.rollout}`), " ", reward(sample.reward), " ", sample.used_in.length ? ["in ", sample.used_in.map(([row, name], number) => [number ? ", " : "", el("a", { href: link({ page: "dataset", run: state.run, dataset: number_ || "", row }) }, name)])] : sample.fate ? `left out: ${sample.fate}` : "in no row")))] : el("p", { class: "soft" }, runs.length ? "Its run is not open here." : ""),
    );
  };
  const list = new List({
    label: "rows of the dataset",
    columns: "repeat(3, minmax(0, 1fr))",
    fetchPage: (start, count) => ask("dataset", { dataset: number_, start, count }),
    draw: (row) => [{ text: `${row.file}:${row.line}` }, ...row.origins.map((origin) => ({ nodes: [`task ${origin.task}/${origin.rollout} `, reward(origin.reward)] }))],
    choose: (row) => {
      go({ row: row.place }, { replace: true });
      open(row.place).catch((error) => say(error.message));
    },
  });
  const picker = datasets.length > 1 ? el("select", { "aria-label": "dataset", onchange: (event) => go({ dataset: event.target.value, row: "" }) }, datasets.map((other, place) => el("option", { value: place, selected: place === number_ }, other.name))) : one.name;
  split(main, list, { node: side }, el("p", {}, el("strong", {}, `${one.recipe} for ${one.to} `), picker), el("details", {}, el("summary", {}, "what became of the rollouts"), table(["fate", "rollouts"], fates)));
  const { total } = await list.reset();
  say(`${total.toLocaleString("en")} rows`);
  if (state.row) {
    list.reveal(Number(state.row));
    await open(Number(state.row));
  }
  return { list };
}

/** A run that is being collected: progress and its newest rollouts, refreshed while the page is open. */
export async function live(main, state) {
  const run = Number(state.run || 0);
  const facts = el("div", {});
  const newest = el("div", {});
  show(main, facts, el("h2", {}, "Newest rollouts"), newest);
  const draw = async () => {
    const [status, page] = await Promise.all([
      ask("status", { run }).catch((error) => error),
      ask("rollouts", { run, sort: "started desc", columns: "task,rollout,reward,answer_chars,seconds", count: 20 }),
    ]);
    show(facts, status instanceof Error ? el("p", { class: "soft" }, status.message) : progress(status));
    const cell = (row, name, value) => (name === "reward" ? reward(value) : name === "task" ? el("a", { href: link({ run, page: "rollouts", sort: "started desc", row }) }, number(value)) : number(value));
    show(newest, table(page.columns, page.rows.map(([row, ...values]) => values.map((value, place) => cell(row, page.columns[place], value)))));
  };
  await draw();
  return { refresh: draw };
}

/** How far a run is, in words and as a bar. */
function progress(status) {
  const failed = Object.values(status.failed).reduce((sum, count) => sum + count, 0);
  const rows = [
    ["judged", number(status.judged)],
    ["unjudged", number(status.unjudged)],
    ["failed", number(failed)],
    ["in flight", status.limit === null ? number(status.in_flight) : `${number(status.in_flight)} of at most ${number(status.limit)}`],
    status.rate === null ? null : ["speed", `${number(status.rate)} rollouts/s`],
    status.tokens_per_s === null ? null : ["tokens", `${number(status.tokens_per_s)} per second`],
    status.eta_s === null ? null : ["left", `about ${span(status.eta_s)}`],
    status.slowest_s === null ? null : ["slowest in flight", span(status.slowest_s)],
    ["last change", `${span(status.updated_s_ago)} ago`],
  ].filter(Boolean);
  return [
    el("h2", {}, `${status.state}: ${number(status.finished)} of ${number(status.expected)} rollouts`),
    el("progress", { max: Math.max(1, status.expected), value: status.finished, "aria-label": "finished rollouts" }),
    status.is_stale ? el("p", { class: "why" }, "It should be running, but has not said so for a while.") : null,
    table(["", ""], rows),
  ];
}

/** Seconds for people. */
function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

const QUEUES = {
  random: "Drawn at random: precision, recall and error rates are computed from these.",
  stratified: "As many passes as fails, drawn at random within each: rates weight them by their shares of the run.",
  suspicious: "What looks wrong: for finding bugs, in no rate.",
};

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** Label rollouts: a queue, the reader, and three keys. */
export async function label(main, state) {
  const run = Number(state.run || 0);
  const queue = QUEUES[state.queue] ? state.queue : "random";
  const seed = Number(state.seed || 0);
  const reader = new Reader({ run, blind: state.blind === "yes", isLabelling: true });
  const left = el("p", { class: "soft" });
  let rows = [];
  let drawn = null; // the row that the queue asks about; a person may look at its siblings
  const next = async () => {
    if (!rows.length) ({ rows } = await ask("queue", { run, kind: queue, seed }));
    if (!rows.length) {
      reader.one = drawn = null;
      show(reader.node, el("p", {}, "The queue is empty: everything in it is labelled."));
      return;
    }
    [drawn] = rows.shift();
    await reader.open(drawn);
  };
  const tally = async () => {
    const { rates } = await ask("labels", { run });
    const { error } = rates;
    const said = (name, one) => (one.ci ? `${name} ${percent(one.value)} (${percent(one.ci[0])} … ${percent(one.ci[1])})` : null);
    const known = [said("error rate", error), said("precision", rates.precision), said("recall", rates.recall)].filter(Boolean);
    const measured = known.length ? `the verifier's ${known.join(", ")}; 95 % intervals, clustered by task` : `rates come with ${rates.random ? "more" : "the first 20"} labels drawn at random`;
    show(left, `${number(rates.labels)} ${rates.labels === 1 ? "label" : "labels"}, ${number(rates.random)} drawn at random: ${measured}`);
  };
  const act = async (opinion) => {
    if (!reader.one) return;
    const isDrawn = reader.one.row === drawn;
    await reader.label(opinion, isDrawn ? { queue, seed } : {}); // a sibling was chosen by hand, not drawn
    await Promise.all([isDrawn ? next() : reader.open(drawn), tally()]);
  };
  const button = (key, text, opinion) => el("button", { onclick: () => act(opinion).catch((error) => say(error.message)) }, el("kbd", {}, key), ` ${text}`);
  show(
    main,
    el("p", {}, "queue ", Object.keys(QUEUES).map((name) => [el("a", { href: link({ ...state, queue: name }), class: name === queue ? "here" : "" }, name), " "]),
      " · ", el("a", { href: link({ ...state, blind: reader.blind ? "" : "yes" }) }, reader.blind ? "show verdicts" : "hide verdicts until labelled")),
    el("p", { class: "soft" }, QUEUES[queue]),
    el("p", { class: "actions" }, button("a", reader.blind ? "the answer is right" : "the verdict is right", "agree"), button("d", reader.blind ? "the answer is wrong" : "it is wrong", "disagree"), button("u", "unsure", "unsure")),
    left,
    reader.node,
  );
  await Promise.all([next(), tally()]);
  return { reader, act };
}
