"""Reads and formats the rollouts that findings refer to, within a text budget for the whole page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from rollforge.conversations.turns import Turn, turns_of
from rollforge.index import Index
from rollforge.steps.report.figures import cut, number
from rollforge.steps.report.inputs import FindingFacts, FindingLocation
from rollforge.store.reading import read_row
from rollforge.text_safety.markup import Html, join, tag

MOST = 5
"""Rollouts shown per finding."""

TEXT_BYTES = 16 << 10
"""Limit of one rollout's texts in bytes of markup."""

ALL_TEXT_BYTES = 1 << 20
"""Limit of all rollouts' texts in bytes of markup, which keeps a report below 2 MB."""

LEAST_BYTES = 512


class Exemplars:
    """Rollouts of findings; each is read once, even if several findings refer to it."""

    def __init__(self, index: Index, findings: Sequence[FindingFacts], *, with_texts: bool) -> None:
        self._with_texts = with_texts
        self._row_by_location = _rows(
            index, [location for finding in findings for location in finding.where[:MOST]]
        )
        rows = sorted(set(self._row_by_location.values()))
        self._share = max(LEAST_BYTES, min(TEXT_BYTES, ALL_TEXT_BYTES // max(1, len(rows))))
        self._facts = _facts(index, rows)
        self._html: dict[int, Html] = {}
        for row, line in zip(rows, index.read(rows) if with_texts else [b""] * len(rows), strict=True):
            self._html[row] = self._lay_out(row, line)
        self._shown: set[int] = set()

    def of(self, finding: FindingFacts) -> list[Html]:
        """The rollouts of a finding; a rollout already shown under another finding is only referenced."""
        rows = [self._row_by_location.get(_key(location)) for location in finding.where[:MOST]]
        blocks = []
        for row in dict.fromkeys(row for row in rows if row is not None):
            if row in self._shown:
                blocks.append(tag("div", self._head(row), tag("p", "shown above", css="soft"), css="rollout"))
            else:
                blocks.append(self._html[row])
                self._shown.add(row)
        return blocks

    def _head(self, row: int) -> Html:
        task, rollout, line, reward = self._facts[row]
        words = f"task {task}, sample {rollout}, line {line}: "
        return tag("p", tag("b", words), f"reward {number(reward)}" if reward is not None else "unjudged")

    def _lay_out(self, row: int, line: bytes) -> Html:
        if not self._with_texts:
            return tag("div", self._head(row), css="rollout")
        return tag("div", self._head(row), turns(turns_of(read_row(line)), self._share), css="rollout")


def turns(many: Sequence[Turn], budget: int) -> Html:
    """Turns as text, cut off at about `budget` bytes of markup with a count of the omitted bytes of text."""
    parts, left = [], budget
    for position, turn in enumerate(many):
        if left <= 0:
            skipped = sum(map(_bytes, (one.text for one in many[position:])))
            parts.append(tag("p", f"{skipped:,} more bytes are left out", css="soft"))
            break
        label = f"{turn.kind} {turn.title}".strip() if turn.kind != "other" or not turn.title else turn.title
        shown = _beginning(turn.text, left)
        part = tag("div", tag("b", cut(label)), tag("div", tag("bdi", shown), css="text"), css="turn")
        if len(shown) < len(turn.text):
            skipped = _bytes(turn.text[len(shown) :]) + sum(
                map(_bytes, (one.text for one in many[position + 1 :]))
            )
            parts += [part, tag("p", f"{skipped:,} more bytes are left out", css="soft")]
            break
        parts.append(part)
        left -= _bytes(part)
    return join(parts)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _beginning(text: str, room: int) -> str:
    """The longest beginning whose markup has at most `room` bytes: `<` takes four, an invisible character more."""
    lengths = range(1, min(len(text), room) + 1)
    return text[: bisect_right(lengths, room, key=lambda length: _bytes(join([text[:length]])))]


def _key(example: FindingLocation) -> tuple[int | None, int | None, int | None]:
    return example.line or example.first_line, example.task, example.rollout


def _rows(
    index: Index, locations: Sequence[FindingLocation]
) -> dict[tuple[int | None, int | None, int | None], int]:
    """The row of each location: by task and sample, by task (its first sample), else by line."""
    tasks = sorted({example.task for example in locations if example.task is not None})
    lines = sorted({example.line or example.first_line or 0 for example in locations if example.task is None})
    if not tasks and not any(lines):
        return {}
    chosen = [f"task IN ({', '.join(map(str, tasks))})"] if tasks else []
    chosen += [f"line IN ({', '.join(map(str, lines))})"] if lines else []
    table = index.select(
        f"SELECT row, line, task, rollout FROM rollouts WHERE {' OR '.join(chosen)} ORDER BY row"
    )
    by_sample: dict[tuple[int, int], int] = {}
    by_task: dict[int, int] = {}
    by_line: dict[int, int] = {}
    for one in table.to_pylist():
        by_sample[one["task"], one["rollout"]] = one["row"]
        by_task.setdefault(one["task"], one["row"])
        by_line.setdefault(one["line"], one["row"])
    row_by_key = {}
    for example in locations:
        if example.task is not None and example.rollout is not None:
            row = by_sample.get((example.task, example.rollout))
        elif example.task is not None:
            row = by_task.get(example.task)
        else:
            row = by_line.get(example.line or example.first_line or 0)
        if row is not None:
            row_by_key[_key(example)] = row
    return row_by_key


def _facts(index: Index, rows: Sequence[int]) -> dict[int, tuple[int, int, int, float | None]]:
    if not rows:
        return {}
    names = ", ".join(map(str, rows))
    table = index.select(f"SELECT row, task, rollout, line, reward FROM rollouts WHERE row IN ({names})")
    return {
        one["row"]: (one["task"], one["rollout"], one["line"], one["reward"]) for one in table.to_pylist()
    }
