"""Top of a run's report: trust in the rewards, fitness for training, next steps, and evidence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from rollforge.statistics.counts import count_of
from rollforge.steps.report.exemplars import Exemplars
from rollforge.steps.report.figures import LEFT_OUT, MOST_ROWS, MOST_SENTENCE, between, cut
from rollforge.steps.report.inputs import CheckFacts, FindingFacts, FindingLocation, MetricsFacts
from rollforge.steps.report.page import command
from rollforge.text_safety.markup import Html, join, table, tag

TRUST_AREAS = ("verification", "confounds")
"""Areas of findings about the rewards themselves."""

LEVELS = {"error": ("✗ error", "bad"), "warning": ("! warning", "doubt"), "note": ("· note", "soft")}
VERDICTS = {"ready": ("✓ ready", "good"), "not yet": ("… not yet", "doubt"), "no": ("✗ no", "bad")}
BY_LEVEL = ("error", "warning", "note")

MOST_READ = 100
"""Rollouts that the command below a finding prints."""


class Trust(Struct, frozen=True):
    """Conclusion on whether the rewards can be trusted."""

    grade: Literal["good", "doubt", "bad"]
    title: str
    text: str


def trust(check: CheckFacts, metrics: MetricsFacts) -> Trust:
    """Conclude from the checks whether the rewards can be trusted."""
    judged = metrics.counts.judged
    if not judged:
        return Trust("bad", "No rollout has a reward yet.", "Judge them first: rollforge verify.")
    about = [finding for finding in check.findings if finding.area in TRUST_AREAS]
    errors = [finding for finding in about if finding.level == "error"]
    if errors:
        return Trust("bad", "Do not trust these rewards.", _why(errors))
    others = [finding for finding in check.findings if finding.level == "error"]
    warnings = [finding for finding in about if finding.level == "warning"]
    if warnings or others:
        return Trust("doubt", "The rewards need a second look.", _why([*others, *warnings]))
    looked = f"{len(check.thresholds)} checks" if check.thresholds else "the checks"
    return Trust(
        "good",
        "Nothing speaks against these rewards.",
        f"{looked} over {judged:,} judged rollouts found no sign of a broken verifier.",
    )


def _why(findings: Sequence[FindingFacts]) -> str:
    more = f" ({len(findings) - 1} more below)" if len(findings) > 1 else ""
    return f"{findings[0].id}: {cut(findings[0].text, MOST_SENTENCE)}{more}"


def top(title: str, subtitle: str, check: CheckFacts, metrics: MetricsFacts, run: str) -> Html:
    """The top section of the page."""
    verdict = trust(check, metrics)
    box = tag("div", tag("strong", verdict.title), verdict.text, css=f"verdict {verdict.grade}")
    return join(
        [tag("h1", title), tag("p", subtitle, css="soft"), box, recipes(check), next_steps(check, run)]
    )


def recipes(check: CheckFacts) -> Html:
    """Fitness for each recipe."""
    items = []
    for name, one in check.recipes.items():
        words, css = VERDICTS[one.verdict]
        items.append(
            tag(
                "li",
                tag("b", name),
                tag("span", words, css=f"word {css}"),
                tag("div", cut(one.reason, MOST_SENTENCE), css="soft"),
            )
        )
    return tag("ul", *items, css="recipes", aria_label="fitness for each algorithm")


def next_steps(check: CheckFacts, run: str) -> Html:
    """Next steps, the most urgent first; for fit data, only a `prepare` command."""
    urgent = [
        finding
        for level in BY_LEVEL[:2]
        for finding in check.findings
        if finding.level == level and finding.next
    ]
    steps = list(dict.fromkeys(finding.next for finding in urgent))[:5]
    ready = [name for name, one in check.recipes.items() if one.verdict == "ready"]
    if not steps and ready:
        best = "grpo" if "grpo" in ready else ready[0]
        steps = [f"make a dataset: rollforge prepare {best} {shlex.quote(run)} -o data/{best} --to trl"]
    if not steps:
        return join([])
    return join(
        [
            tag("p", tag("b", "What to do next")),
            tag("ol", *(tag("li", _with_command(step)) for step in steps)),
        ]
    )


def _with_command(step: str) -> Html:
    words, program, line = cut(step, MOST_SENTENCE).partition("rollforge ")
    return join([words, command(f"rollforge {line}")]) if program else join([step])


def finding_list(check: CheckFacts, exemplars: Exemplars, run: str) -> Html:
    """All findings, errors first, each with up to five folded rollouts and a command that shows the rest."""
    ordered = sorted(check.findings, key=lambda finding: BY_LEVEL.index(finding.level))
    if not ordered:
        return tag("p", "The checks found nothing to report.")
    return join(_finding(finding, exemplars, run) for finding in ordered)


def _finding(finding: FindingFacts, exemplars: Exemplars, run: str) -> Html:
    words, css = LEVELS[finding.level]
    about = [
        f"n = {finding.n:,}" if finding.n is not None else "",
        f"interval {between(finding.interval)}" if finding.interval else "",
    ]
    head = tag("h3", tag("span", words, css=f"word {css}"), " ", finding.id)
    facts = ", ".join(fact for fact in about if fact)
    text = tag("p", cut(finding.text, MOST_SENTENCE))
    parts = [head, text, tag("p", facts, css="soft") if facts else None]
    parts += [tag("p", _with_command(finding.next))] if finding.next else []
    return tag("div", *parts, _evidence(finding, exemplars, run), css="finding", id=f"finding-{finding.id}")


def _evidence(finding: FindingFacts, exemplars: Exemplars, run: str) -> Html | None:
    shown = exemplars.of(finding)
    if not shown:
        return None
    selected = condition_of(finding.where)
    rest = f"rollforge show {shlex.quote(run)} --where {shlex.quote(selected)} --limit {MOST_READ}"
    label = f"{count_of(len(shown), 'rollout')} of those it points at"
    return tag("details", tag("summary", label), *shown, tag("p", "read them: ", command(rest)))


def condition_of(where: Sequence[FindingLocation]) -> str:
    """SQL condition for the rollouts that a finding points at: single ones, those of whole tasks, and stretches."""
    single, tasks, stretches = [], [], []
    for one in where:
        if one.first_line is not None and one.last_line is not None:
            stretches.append(f"line BETWEEN {one.first_line} AND {one.last_line}")
        elif one.first_at is not None and one.last_at is not None:
            first, last = one.first_at - 0.001, one.last_at + 0.001  # the clock of a row has milliseconds
            stretches.append(f"started + seconds BETWEEN {first:.3f} AND {last:.3f}")
        elif one.task is not None and one.rollout is not None:
            single.append(f"({one.task}, {one.rollout})")
        elif one.task is not None:
            tasks.append(str(one.task))
    parts = [f"(task, rollout) IN ({', '.join(single)})"] if single else []
    parts += [f"task IN ({', '.join(tasks)})"] if tasks else []
    return " OR ".join([*parts, *stretches])


def without_quotes(check: CheckFacts) -> CheckFacts:
    """The result of the checks without the words of prompts and answers that findings quote."""
    quotes = sorted(
        {quote for finding in check.findings for quote in finding.quotes if quote}, key=len, reverse=True
    )
    if not quotes:
        return check
    words = re.compile("|".join(rf"(?<!\w){re.escape(quote)}(?!\w)" for quote in quotes))

    def clean(finding: FindingFacts) -> FindingFacts:
        if not finding.quotes:
            return finding
        return msgspec.structs.replace(finding, text=words.sub(LEFT_OUT, finding.text), quotes=[])

    reasons = {finding.text: clean(finding).text for finding in check.findings}
    recipes = {
        name: msgspec.structs.replace(one, reason=_reworded(one.reason, reasons))
        for name, one in check.recipes.items()
    }
    return msgspec.structs.replace(check, findings=[clean(one) for one in check.findings], recipes=recipes)


def _reworded(reason: str, reasons: dict[str, str]) -> str:
    for before, after in reasons.items():
        reason = reason.replace(before, after)
    return reason


def manifest_table(facts: Sequence[tuple[str, str]]) -> Html:
    """Table of how the run was made."""
    rows = [(cut(name), cut(value, MOST_SENTENCE)) for name, value in facts[:MOST_ROWS]]
    return table(("setting", "value"), rows, numeric=False)
