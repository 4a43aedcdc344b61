"""Step-by-step arithmetic: one step per operation, and an estimate of the effort.

The parser accepts only integers, `+ - × ÷` and brackets, because the text is untrusted.
"""

from __future__ import annotations

import ast
import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

# Starts at a digit, which is quick to find in a long prompt; `_BEFORE` then looks at the characters before it.
_EXPRESSION = re.compile(r"\d[\d\s()+\-−–*×x·/÷]*\d\s*\)*")
_BEFORE = re.compile(r"(?:\(\s*)*-?$")
_REACH = 12
_SIGNS = str.maketrans({"×": "*", "·": "*", "x": "*", "÷": "/", "−": "-", "–": "-"})
_SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "×", ast.Div: "÷"}
_LONGEST = 160


class Solution(NamedTuple):
    """Value of an expression, the steps to it, and an effort estimate."""

    value: str
    steps: tuple[str, ...]
    effort: float
    """Roughly the number of digit operations a person would do by hand."""


@lru_cache(maxsize=4096)
def work_out(expression: str) -> Solution | None:
    """Solve an expression; None if the text is not an expression or divides by zero."""
    if len(expression) > _LONGEST:
        return None
    try:
        tree = ast.parse(expression.translate(_SIGNS).strip(), mode="eval").body
        steps: list[str] = []
        efforts: list[float] = []
        value = _evaluate(tree, steps, efforts)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return Solution(show(value), tuple(steps), sum(efforts)) if steps else None


def find_expression(text: str) -> str | None:
    """The longest part of the text that is an expression with an operation."""
    pieces: list[str] = [
        (_BEFORE.findall(text[max(0, match.start() - _REACH) : match.start()])[0] + match.group()).strip()
        for match in _EXPRESSION.finditer(text)
    ]
    for piece in sorted(pieces, key=len, reverse=True):
        if work_out(piece) is not None:
            return piece
    return None


def show(value: Fraction) -> str:
    """Format a value: `7`, or `3/4` for a fraction."""
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def _evaluate(node: ast.AST, steps: list[str], efforts: list[float]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, steps, efforts)
    if not isinstance(node, ast.BinOp) or type(node.op) not in _SYMBOLS:
        raise ValueError("not arithmetic")
    left = _evaluate(node.left, steps, efforts)
    right = _evaluate(node.right, steps, efforts)
    value = _apply(node.op, left, right)
    steps.append(f"{show(left)} {_SYMBOLS[type(node.op)]} {show(right)} = {show(value)}")
    efforts.append(_effort(node.op, left, right))
    return value


def _apply(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    return left * right if isinstance(operator, ast.Mult) else left / right


def _effort(operator: ast.operator, left: Fraction, right: Fraction) -> float:
    digits = [len(str(abs(side.numerator))) for side in (left, right)]
    if isinstance(operator, ast.Mult | ast.Div):
        return float(digits[0] * digits[1])
    return 0.5 * max(digits)
