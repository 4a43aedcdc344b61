// One rollout to read: turns, verdicts, numbers, raw line; long texts arrive in pieces.

import { ask, tell } from "./api.js";
import { table } from "./charts.js";
import { diff } from "./diff.js";
import { el, number, reward, say, show } from "./dom.js";
import { link, read } from "./state.js";

const FOLDED = new Set(["reasoning", "tool output", "system", "program"]);
const LINES = 100;
const PIECE = 65536; // characters that the server sends at a time

/** The reader of a page: `open(row)` shows a rollout. */
export class Reader {
  constructor({ run, blind = false, isLabelling = false }) {
    this.run = run;
    this.isLabelling = isLabelling; // the task's own fields, such as the expected answer, are what a person judges by
    this.blind = blind;
    this.isRaw = false;
    this.isFolded = false;
    this.node = el("article", { class: "reader", "aria-label": "rollout", tabindex: -1 });
  }

  async open(row) {
    const wanted = (this.wanted = row);
    const one = await ask("rollout", { run: this.run, row });
    if (wanted !== this.wanted) return null;
    this.one = one;
    this.draw();
    return one;
  }

  draw() {
    if (!this.one) return;
    show(this.node, this.head(), this.isRaw ? this.raw() : [this.turns(), this.images(), this.tokens(), this.facts()]);
    this.node.scrollTop = 0;
  }

  /** The difference between a rollout marked before and the one that is open. */
  compare(marked) {
    show(this.node, el("h2", {}, "Two rollouts"), differences([marked, this.one]));
  }

  raw_(isRaw) {
    if (this.blind) {
      say("the raw line holds the verdict, which is hidden");
      return;
    }
    this.isRaw = isRaw;
    this.draw();
  }

  fold() {
    this.isFolded = !this.isFolded;
    for (const one of this.node.querySelectorAll("details.turn")) one.open = !this.isFolded;
  }

  head() {
    const { facts, why, siblings } = this.one;
    const others = siblings.map(([row, sample, value]) =>
      el(
        "a",
        {
          href: link({ ...read(), row }),
          class: row === this.one.row ? "sibling here" : "sibling",
          title: `sample ${sample}`,
          "aria-current": row === this.one.row ? "true" : undefined,
        },
        this.blind ? "·" : value === null ? "?" : number(value),
      ),
    );
    return el(
      "header",
      {},
      el("h2", {}, `task ${facts.task}, sample ${facts.rollout} `, this.blind ? el("span", { class: "chip" }, "verdict hidden") : reward(facts.reward)),
      why.length && !this.blind ? el("p", { class: "why" }, why.join("; ")) : null,
      el("p", { class: "siblings" }, "siblings ", others),
    );
  }

  turns() {
    return this.one.turns.map((turn, place) => {
      if (turn.kind === "sequence") return el("h3", { class: "sequence" }, `sequence ${turn.title}`);
      const body = el("div", { class: "text" });
      pieces(body, turn.text);
      if (turn.chars > turn.shown) body.append(this.more(body, place, turn.shown, turn.chars));
      const isOpen = !this.isFolded && !(FOLDED.has(turn.kind) && turn.chars > 4000);
      return el("details", { class: `turn ${turn.kind.replace(" ", "-")}`, open: isOpen }, el("summary", {}, `${turn.kind} ${turn.title}`), body);
    });
  }

  more(body, turn, start, chars) {
    const button = el(
      "button",
      {
        onclick: async () => {
          const { text } = await ask("piece", { run: this.run, row: this.one.row, turn, start });
          button.remove();
          pieces(body, text);
          const next = start + PIECE;
          if (next < chars) body.append(this.more(body, turn, next, chars));
        },
      },
      `show more (${number(chars - start)} characters left)`,
    );
    return button;
  }

  raw() {
    const body = el("div", { class: "text" });
    const load = async (start) => {
      const { text, next } = await ask("raw", { run: this.run, row: this.one.row, start });
      pieces(body, text);
      if (next < this.one.raw_bytes) {
        const button = el("button", { onclick: () => (button.remove(), load(next)) }, `show more (${number(this.one.raw_bytes - next)} bytes left)`);
        body.append(button);
      }
    };
    load(0).catch((error) => say(error.message));
    return body;
  }

  /** Tokens coloured by logprob, by the rollout's advantage, or by whether a trainer learns from them. */
  tokens() {
    const { tokens, advantage } = this.one;
    if (!tokens.length) return null;
    const body = el("div", { class: "text" });
    const least = Math.min(...tokens.map(([, value]) => value ?? 0), -0.001);
    const sign = advantage === null || Math.abs(advantage) < 1e-9 ? "flat" : advantage > 0 ? "up" : "down";
    const classes = {
      logprob: ([, value]) => (value === null ? "" : `p${Math.min(7, Math.floor((value / least) * 7.99))}`),
      advantage: ([, , isTrained]) => (isTrained ? `advantage-${sign}` : "untrained"),
      mask: ([, , isTrained]) => (isTrained ? "trained" : "untrained"),
    };
    const paint = (name) => show(body, tokens.map((token) => el("span", { class: `token ${classes[name](token)}`, title: token[1] === null ? "no logprob" : `logprob ${number(token[1])}` }, token[0])));
    const picker = el("select", { "aria-label": "colour tokens by", onchange: (event) => paint(event.target.value) }, Object.keys(classes).filter((name) => !this.blind || name !== "advantage").map((name) => el("option", { value: name }, name)));
    paint("logprob");
    const trained = tokens.filter(([, , isTrained]) => isTrained).length;
    return el("details", { class: "turn tokens" }, el("summary", {}, `tokens (${tokens.length})`), el("p", {}, "colour by ", picker, ` · advantage ${this.blind ? "hidden" : number(advantage)} · a trainer learns from ${trained} of ${tokens.length}`), body);
  }

  /** Images, each fetched when somebody asks for it. */
  images() {
    return this.one.images.map((type, place) => {
      const box = el("div", {});
      box.append(el("button", { onclick: () => show(box, el("img", { src: `api/image?${new URLSearchParams({ run: this.run, row: this.one.row, number: place })}`, alt: `image ${place + 1} of the rollout` })) }, `show image ${place + 1} (${type})`));
      return box;
    });
  }

  facts() {
    if (this.blind) return []; // verdicts, a verifier's other numbers among the rollout's, and what the task expects
    const rows = (record) => Object.entries(record).map(([name, value]) => [name, typeof value === "number" ? number(value) : String(value)]);
    return [
      el("details", { class: "turn", open: true }, el("summary", {}, `verdicts (${this.one.verdicts.length})`), this.one.verdicts.map((one) => table(["verdict", ""], rows(one)))),
      el("details", { class: "turn" }, el("summary", {}, "numbers"), table(["field", "value"], rows(this.one.facts))),
      Object.keys(this.one.task).length ? el("details", { class: "turn", open: this.isLabelling }, el("summary", {}, "task"), table(["field", "value"], rows(this.one.task))) : null,
    ];
  }

  /** Label the rollout that is open; the verdict shows afterwards when it was hidden. */
  async label(opinion, { queue = "free", seed } = {}) {
    if (!this.one) return;
    const { facts } = this.one;
    // Blind, a person says whether the answer is right; what that means for the verdict follows.
    const isPass = (facts.reward ?? 0) >= 0.5;
    const meant = { agree: isPass ? "agree" : "disagree", disagree: isPass ? "disagree" : "agree", unsure: "unsure" };
    if (this.blind) opinion = meant[opinion];
    await tell("label", { run: this.run }, {
      task: facts.task, rollout: facts.rollout, label: opinion, reward: facts.reward ?? null, verifier: facts.verifier ?? null,
      queue, seed: seed ?? null, blind: this.blind,
    });
    say(`${opinion} with ${number(facts.reward)}: task ${facts.task}, sample ${facts.rollout}`);
  }
}

/** The turns of the main sequence. */
function main(turns) {
  const others = turns.findIndex((turn) => turn.kind === "sequence");
  return others < 0 ? turns : turns.slice(0, others);
}

/** What the model said in one rollout, or the difference between what it said in two. */
export function differences(rollouts) {
  const said = rollouts.map((one) => main(one.turns).filter((turn) => turn.kind === "assistant").map((turn) => turn.text).join("\n"));
  const titles = rollouts.map((one, place) => el("h3", { class: rollouts.length > 1 ? ["left", "right"][place] : "" }, `task ${one.facts.task}, sample ${one.facts.rollout} `, reward(one.facts.reward)));
  if (rollouts.length < 2) return [titles, el("div", { class: "text" }, said[0])];
  const parts = diff(said[0], said[1]);
  const isSame = said[0] === said[1];
  const verdict = rollouts[0].facts.reward === rollouts[1].facts.reward ? "The same answer." : "One answer, two rewards.";
  const side = (kind, tag) => el("bdi", {}, parts.filter((part) => part.kind === "same" || part.kind === kind).map((part) => (part.kind === "same" ? part.text : el(tag, {}, part.text))));
  return [
    isSame ? el("p", { class: "why" }, verdict) : null,
    el("div", { class: "pair" }, [side("left", "del"), side("right", "ins")].map((text, place) => el("section", {}, titles[place], el("div", { class: "text" }, text)))),
  ];
}

/** Text in blocks that the browser lays out only when they are seen. */
export function pieces(node, text) {
  const lines = text.split("\n");
  for (let start = 0; start < lines.length; start += LINES) {
    const last = start + LINES < lines.length ? "\n" : "";
    node.append(el("bdi", { class: "block" }, lines.slice(start, start + LINES).join("\n") + last));
  }
}
