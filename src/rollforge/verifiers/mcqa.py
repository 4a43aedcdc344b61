"""Rewards the right letter of a multiple-choice question.

Needs `options` (a list of one-key objects, letter → text; a null text means the option is not there) and `expected_answer` (the
letter). Where the row has `template_metadata.output_regex`, that is tried first; then the row's `grading_mode`, which the
`grading_mode` option overrides. All answer text of the rollout is judged.

It reads letters, not reasoning: an answer that argues for B and boxes C is C. A row's own regex runs in a worker; an answer on which
it backtracks for seconds gets reward 0 with `timed_out`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import msgspec

from rollforge.records import Response, Task
from rollforge.verifiers.building_blocks.answer_limit import (
    ANSWER_SECONDS,
    TIMED_OUT,
    AnswerTooSlow,
    answer_limit,
)
from rollforge.verifiers.building_blocks.gym_version import NEWEST, GymVersion
from rollforge.verifiers.building_blocks.verdict_fields import AnswerVerdictJson
from rollforge.verifiers.exact import last_boxed

needs = ("options", "expected_answer")

GradingMode = Literal[
    "strict_single_letter_boxed", "lenient_boxed", "lenient_answer_colon", "lenient_answer_colon_md"
]
DEFAULT_MODE: GradingMode = "strict_single_letter_boxed"

_LETTER_ALONE = re.compile(r"[^A-Za-z]*([A-Z])[^A-Za-z]*")
_LETTER_LABEL = re.compile(r"\s*([A-Z])\s*[:).\-]")
_ANSWER_LINE = re.compile(r"answer\s*:\s*(.+)", re.IGNORECASE)
_ANSWER_LINE_MARKDOWN = re.compile(r"[*_]{0,2}Answer[*_]{0,2}\s*:[*_\s]{0,2}(.+)", re.IGNORECASE)
_ANY_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_FIRST_LETTER = re.compile(r"([a-zA-Z])(?![a-zA-Z0-9])")
_CAPITAL_WORD = re.compile(r"\b[A-Z]\b")
_LIST_SEPARATOR = re.compile(r"\s*[/|&,;]\s*|\s+(?:or|and)\s+|\s+", re.IGNORECASE)

_LATIN_BY_LETTER = str.maketrans(
    {
        **dict(zip("أبجد", (" A", " B", " C", " D"), strict=True)),
        **dict(zip("অবডঢ", (" A", " B", " C", " D"), strict=True)),
        **dict(zip("ＡＢＣＤ", (" A", " B", " C", " D"), strict=True)),
    }
)


class McqaOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for extracting letters."""

    grading_mode: GradingMode | None = None
    """Used for every row instead of the row's own `grading_mode`; None leaves it to the row."""
    gym: GymVersion = NEWEST
    """The release of NeMo Gym to agree with: 0.7 normalises to NFKC (Ⓑ, "Answer：B") and reads the row's `answer_prefix`."""


class Mcqa:
    """Judges the letter that an answer settles on."""

    options_type = McqaOptions
    is_cheap = True

    @staticmethod
    def is_cheap_for(task: Task) -> bool:
        """Whether the row has no regular expression of its own; such an expression may backtrack for ever, so its row is judged
        in a worker.
        """
        return not _row_patterns(task)

    def __init__(self, options: McqaOptions | None = None) -> None:
        self._options = options or McqaOptions()

    def verify(self, task: Task, response: Response) -> AnswerVerdictJson:
        gold = str(task.get("expected_answer") or "").strip().upper()
        if not gold:
            raise ValueError("the task has no expected_answer")
        text = response.text.strip()
        try:
            with answer_limit(ANSWER_SECONDS if _row_patterns(task) else 0.0):
                letter = self._read(task, text) if text else None
        except AnswerTooSlow:
            return {"reward": 0.0, "expected_answer": gold, "extracted_answer": None, TIMED_OUT: True}
        return {"reward": float(letter == gold), "expected_answer": gold, "extracted_answer": letter}

    def _read(self, task: Task, text: str) -> str | None:
        return read_letter(task, text, self._options.grading_mode, is_old=self._options.gym == "0.5")


class _Choices:
    """Options of one row: allowed letters, and their texts normalised for comparison."""

    def __init__(self, options: Any) -> None:
        entries = [
            (key, text)
            for entry in options or []
            for key, text in entry.items()
            if text is not None and isinstance(key, str)
        ]
        self.letters = {key.upper() for key, _ in entries if len(key) == 1 and key.isalpha()}
        self._entries = entries

    def texts(self) -> Iterator[tuple[str, str]]:
        for key, text in self._entries:
            if key.upper() in self.letters:
                yield key.upper(), _plain(str(text))

    def allowed(self, letter: str) -> str | None:
        return letter.upper() if letter.upper() in self.letters else None

    def with_text(self, text: str) -> str | None:
        """The first option with exactly this text."""
        wanted = _plain(text)
        return next((letter for letter, option in self.texts() if option == wanted), None)


def read_letter(
    task: Task, text: str, mode: GradingMode | None = None, *, is_old: bool = False
) -> str | None:
    """The letter that `text` selects for this row, or None.

    Args:
        is_old: Read as NeMo Gym before 0.7, without NFKC and `answer_prefix`.
    """
    choices = _Choices(task.get("options"))
    for pattern in _row_patterns(task):
        letter = _by_regex(pattern, text, choices, is_old=is_old)
        if letter is not None:
            return letter
    mode = mode or task.get("grading_mode") or DEFAULT_MODE
    match mode:
        case "strict_single_letter_boxed":
            return _boxed_letter(text, choices)
        case "lenient_boxed":
            return _boxed_letter(text, choices) or _boxed_option(text, choices)
        case "lenient_answer_colon":
            return _answer_line(text, choices)
        case "lenient_answer_colon_md":
            return _answer_line_markdown(text, choices, None if is_old else _row_prefix(task), is_old=is_old)
    raise ValueError(f"unknown grading_mode {mode!r}")


def _row_patterns(task: Task) -> list[str]:
    metadata = task.get("template_metadata")
    patterns = metadata.get("output_regex") if isinstance(metadata, dict) else None
    return [patterns] if isinstance(patterns, str) else patterns or []


def _row_prefix(task: Task) -> str | None:
    """The row's phrase before the answer, such as "Die Antwort ist"."""
    metadata = task.get("template_metadata")
    prefix = metadata.get("answer_prefix") if isinstance(metadata, dict) else None
    return prefix if isinstance(prefix, str) and prefix else None


def _by_regex(pattern: str, text: str, choices: _Choices, *, is_old: bool) -> str | None:
    compiled = _compiled(pattern)
    matches = compiled.findall(text) if compiled else []
    if not matches:
        return None
    last = matches[-1]
    if isinstance(last, tuple):  # several groups: the first that caught something
        last = next((group for group in last if group.strip()), "")
    caught = _latin(last.strip(), is_old=is_old).upper()
    if len(caught) == 1 and caught.isalpha():
        return caught
    return choices.with_text(caught)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error:
        return None


def _boxed_letter(text: str, choices: _Choices) -> str | None:
    inner = last_boxed(text)
    if inner is None:
        return None
    inner = _unwrapped(inner.strip())
    match = _LETTER_ALONE.fullmatch(inner) or _LETTER_LABEL.match(inner)
    return choices.allowed(match.group(1)) if match else None


def _boxed_option(text: str, choices: _Choices) -> str | None:
    """The single option whose text is in the box."""
    inner = last_boxed(text)
    if inner is None:
        return None
    shapes = {_plain(inner.strip()), _plain(_unwrapped(inner.strip()))}
    letters = {
        letter for letter, option in choices.texts() if option and any(option in shape for shape in shapes)
    }
    return letters.pop() if len(letters) == 1 else None


def _answer_line(text: str, choices: _Choices) -> str | None:
    match = _ANSWER_LINE.search(text)
    if not match:
        return None
    candidate = _unwrapped(match.group(1)).strip()
    letter = choices.allowed(candidate) if len(candidate) == 1 and candidate.isalpha() else None
    return letter or choices.with_text(candidate)


def _answer_line_markdown(text: str, choices: _Choices, prefix: str | None, *, is_old: bool) -> str | None:
    """The letter in the last line after "Answer:" (or the row's prefix) that selects one option; with a prefix, a box is accepted
    too.
    """
    normal = text if is_old else unicodedata.normalize("NFKC", text)
    payloads = [(match.start(), match.group(1)) for match in _ANSWER_LINE_MARKDOWN.finditer(normal)]
    if prefix is not None:
        words = re.compile(re.escape(unicodedata.normalize("NFKC", prefix)) + r"\s*", re.IGNORECASE)
        payloads += [
            (match.start(), normal[match.end() :].partition("\n")[0]) for match in words.finditer(normal)
        ]
    for _, payload in sorted(payloads, key=lambda match: -match[0]):
        letter = _single_choice(payload, choices, is_old=is_old)
        if letter is not None:
            return letter
    return _boxed_letter(text, choices) if prefix is not None else None


def _single_choice(payload: str, choices: _Choices, *, is_old: bool) -> str | None:
    candidate = _latin(payload, is_old=is_old).strip("*_` \t\n\r.,;:")
    if _is_list_of_choices(candidate, choices):
        return None
    if len(candidate) == 1:
        return choices.allowed(candidate)
    leading = _FIRST_LETTER.match(candidate)
    if leading:
        return choices.allowed(leading.group(1))
    capitals = _CAPITAL_WORD.findall(candidate)
    return choices.allowed(capitals[-1]) if capitals else None


def _is_list_of_choices(text: str, choices: _Choices) -> bool:
    """Whether two different options are named side by side, as in "A or B", which is no answer."""
    named = [letter for letter in _ANY_LETTER.finditer(text) if choices.allowed(letter.group())]
    return any(
        left.group().upper() != right.group().upper()
        and _LIST_SEPARATOR.fullmatch(text, left.end(), right.start()) is not None
        for left, right in pairwise(named)
    )


def _unwrapped(text: str) -> str:
    """The text without any enclosing `\\text{...}`."""
    while text.startswith("\\text{") and text.endswith("}"):
        text = text[len("\\text{") : -1].strip()
    return text


def _latin(text: str, *, is_old: bool = False) -> str:
    """Arabic, Bengali and full-width option letters as A to D; since 0.7 also all NFKC-compatible forms (Ⓑ, 𝐁)."""
    text = text if is_old else unicodedata.normalize("NFKC", text)
    return text.translate(_LATIN_BY_LETTER).strip()


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
