"""The simulated model as a judge: it compares two answers in a judge's prompt, and replies in the requested form.

It recognises the prompts of `judge` and `equivalence_judge` (sections with a nonce, a fenced verdict), and prompts with NeMo
Gym's labels `[[A=B]]` and `[[A!=B]]`. Two answers are equal when their boxed parts, their last numbers or their words are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rollforge.records import to_json
from rollforge.simulate.conversation import Ask, SimulatedMessage, SimulatedTurn

_FENCE = re.compile(r"verdict-(\w+)")
_LABELS = re.compile(r"LABEL is (\S+) if the answers are equivalent and (\S+?) if")
_SCALE = re.compile(r"score from (-?[\d.]+) \(worst\) to (-?[\d.]+) \(best\)")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_REFERENCE = re.compile(r"(?im)^\W*(?:gold|expected|reference|target|answer a|first)[^:\n]*:\s*(.+)$")
_CANDIDATE = re.compile(r"(?im)^\W*(?:candidate|generated|response|answer b|second|model)[^:\n]*:\s*(.+)$")
_EQUAL, _DIFFERENT = "[[A=B]]", "[[A!=B]]"


class _Pair(NamedTuple):
    reference: str
    candidate: str

    @property
    def is_equal(self) -> bool:
        return bool(self.candidate.strip()) and _core(self.reference) == _core(self.candidate)


def judge(ask: Ask) -> SimulatedTurn | None:
    """The judge's turn; None if the conversation is not a judge's prompt."""
    text = "\n".join(item.text for item in ask.items if isinstance(item, SimulatedMessage))
    fence = _FENCE.search(text)
    if fence:
        return _fenced_verdict(text, fence.group(1))
    if _EQUAL in text and _DIFFERENT in text:
        pair = _Pair(_last(_REFERENCE, text), _last(_CANDIDATE, text))
        return SimulatedTurn(text=f"{_reason(pair)} {_EQUAL if pair.is_equal else _DIFFERENT}")
    return None


def _fenced_verdict(text: str, nonce: str) -> SimulatedTurn | None:
    sections: dict[str, str] = dict(re.findall(rf"(?s)<([\w-]+) {nonce}>\n(.*?)\n</\1 {nonce}>", text))
    labels, scale = _LABELS.search(text), _SCALE.search(text)
    if labels and "answer-A" in sections:
        pair = _Pair(sections["answer-A"], sections.get("answer-B", ""))
        verdict = labels.group(1) if pair.is_equal else labels.group(2)
    elif scale and "answer" in sections:
        pair = _Pair(sections.get("reference") or sections["answer"], sections["answer"])
        score = float(scale.group(2 if pair.is_equal else 1))
        verdict = to_json({"reason": _reason(pair), "score": score}).decode()
    else:
        return None
    return SimulatedTurn(text=f"{_reason(pair)}\n\n```verdict-{nonce}\n{verdict}\n```")


def _reason(pair: _Pair) -> str:
    return "Both give the same result." if pair.is_equal else "The results differ."


def _last(pattern: re.Pattern[str], text: str) -> str:
    matches = pattern.findall(text)
    return str(matches[-1]) if matches else ""


def _core(text: str) -> str:
    """The part of an answer that is compared: its last box, else its last number, else its words."""
    boxed = _BOXED.findall(text)
    if boxed:
        return _core(boxed[-1]) if boxed[-1].strip() else ""
    numbers = _NUMBER.findall(text)
    if numbers:
        return str(numbers[-1]).replace(",", "")
    return " ".join(re.findall(r"\w+", text.lower()))
