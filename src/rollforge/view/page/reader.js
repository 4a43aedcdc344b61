// One rollout to read: turns, verdicts, numbers, raw line; long texts arrive in pieces.

import { ask, tell } from "./api.js";
import { table } from "./charts.js";
import { el, number, reward, say, show } from "./dom.js";
import { link, read } from "./state.js";

const FOLDED = new Set(["reasoning", "tool output", "system"]);
const LINES = 100;

/** The reader of a page: `open(row)` shows a rollout. */
export class Reader {
  constructor({ run, blind = false }) {
    this.run = run;
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
    show(this.node, this.head(), this.isRaw ? this.raw() : [this.turns(), this.tokens(), this.facts()]);
    this.node.scrollTop = 0;
  }

  raw_(isRaw) {
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
      why.length ? el("p", { class: "why" }, why.join("; ")) : null,
      el("p", { class: "siblings" }, "siblings ", others),
    );
  }

  turns() {
    return this.one.turns.map((turn, place) => {
      const body = el("div", { class: "text" });
      pieces(body, turn.text);
      if (turn.chars > turn.text.length) body.append(this.more(body, place, turn.text.length, turn.chars));
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
          const next = start + 65536;
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
      const { text } = await ask("raw", { run: this.run, row: this.one.row, start });
      pieces(body, text);
      const next = start + 65536;
      if (next < this.one.raw_bytes) {
        const button = el("button", { onclick: () => (button.remove(), load(next)) }, `show more (${number(this.one.raw_bytes - next)} bytes left)`);
        body.append(button);
      }
    };
    load(0).catch((error) => say(error.message));
    return body;
  }

  tokens() {
    const { tokens } = this.one;
    if (!tokens.length) return null;
    const least = Math.min(...tokens.map(([, value]) => value ?? 0), -0.001);
    const made = tokens.map(([text, value]) =>
      el("span", { class: `token p${Math.min(7, Math.floor(((value ?? 0) / least) * 7.99))}`, title: `logprob ${number(value)}` }, text),
    );
    return el("details", { class: "turn" }, el("summary", {}, `tokens by logprob (${tokens.length})`), el("div", { class: "text" }, made));
  }

  facts() {
    const hidden = this.blind ? new Set(["reward"]) : new Set();
    const rows = (record) => Object.entries(record).filter(([name]) => !hidden.has(name)).map(([name, value]) => [name, typeof value === "number" ? number(value) : String(value)]);
    return [
      el("details", { class: "turn", open: !this.blind }, el("summary", {}, `verdicts (${this.one.verdicts.length})`), this.blind ? null : this.one.verdicts.map((one) => table(["verdict", ""], rows(one)))),
      el("details", { class: "turn" }, el("summary", {}, "numbers"), table(["field", "value"], rows(this.one.facts))),
      Object.keys(this.one.task).length ? el("details", { class: "turn" }, el("summary", {}, "task"), table(["field", "value"], this.blind ? [] : rows(this.one.task))) : null,
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

/** Text in blocks that the browser lays out only when they are seen. */
export function pieces(node, text) {
  const lines = text.split("\n");
  for (let start = 0; start < lines.length; start += LINES) {
    const last = start + LINES < lines.length ? "\n" : "";
    node.append(el("bdi", { class: "block" }, lines.slice(start, start + LINES).join("\n") + last));
  }
}
