"""Classifies an answer by how it begins: blank, refusal, or error message instead of an answer.

Only the beginning is tested. A long text that merely mentions one is neither.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SHORT = 400
"""Longest answer in characters that can be a refusal or any kind of error message."""

LONG_HEAD = 1200
"""For longer answers: characters at the start that are searched for a stack trace or an error page."""

_REFUSAL = re.compile(
    r"\s*(?:(?:i['’]?m|i am) (?:really |very |so )?sorry,?|sorry,?|unfortunately,?)? ?(?:but )?(?:as an ai[^,]*, )?"
    r"i(?: can['’]?t|can['’]?t| cannot| won['’]?t| am (?:unable|not able) to|['’]m (?:unable|not able) to| must decline)"
    r" ?(?:to )?(?:help|assist|comply|provide|fulfil|answer|continue|do that|discuss|create|share)",
    re.IGNORECASE,
)
_BEGINNINGS = r"""
        \{\s*["'](?:type|object)["']\s*:\s*["']error["']                     # errors of Anthropic and vLLM
      | \[?(?:fatal|critical|error|exception)\]?\s*[:\]]
      | [a-z_.]+\.[a-z]*(?:error|exception)\b                               # a class of a library
      | (?:panic|fatal\ error|segmentation\ fault|cuda\ error)\b
      | (?:the\ )?(?:request|connection|operation|generation)\ (?:timed\ out|failed|error|aborted|was\ cancelled)\b
      | [^\n]{0,200}\n\s+at\ [\w.$<>]+\ ?\(                                  # a stack of Java or JavaScript
"""
_SAYS_SOMETHING = r"""(?!\s*(?:null|none|false|0|""|''|\[\]|\{\})\s*[,}])"""
"""Required after the key `error` of an object that reports an error, since objects without an error often have the key too."""
_BEGINNING = re.compile(rf"\s*(?:{_BEGINNINGS})", re.IGNORECASE | re.VERBOSE)
_ERROR = re.compile(
    rf"""\s*(?:(?:[^\n]{{0,100}}\n\s*)?traceback\ \(most\ recent\ call\ last\) | <!doctype\ html | <html | <\?xml[^>]*>\s*<error>
      | [\[{{\s]*["'](?:error|detail)["']\s*: {_SAYS_SOMETHING}
      | \{{[^{{}}]{{0,80}}["']error["']\s*:\s*(?:["'](?!["'])|\{{(?!\}}))
      | \{{[^{{}}]{{0,80}}["']message["']\s*:\s*["'](?:internal|bad\ gateway|service|gateway|too\ many|rate\ limit)
      | (?:http\ |error\ )*[45]\d\d[:\ ]+(?:internal|bad|service|gateway|too\ many|not\ found|unauthorized|forbidden)
      | (?:http|error)\ ?[45]\d\d\b
      | internal\ server\ error | bad\ gateway | service\ unavailable | gateway\ time-?out | too\ many\ requests
      | error\ code:\ \d | (?:error|exception|failed)(?::\ |\ -\ ) | connection\ (?:refused|error|reset) | rate\ limit
      | an\ (?:internal\ |unexpected\ )?error\ (?:has\ )?occurred | failed\ to\ (?:generate|process|fetch|connect|get\ a)
      | [a-z_]*(?:error|exception):\s | upstream\ connect\ error | \[errno\ -?\d
      | (?:error|failed|failure)[.!]*\s*$
      | {_BEGINNINGS}
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_LONG_ERROR = re.compile(
    r"""(?:traceback\ \(most\ recent\ call\ last\)
      | \{\s*"error"\s*:\s*\{\s*"(?:message|type|code|status)"
      | \{\s*["'](?:type|object)["']\s*:\s*["']error["']
      | (?:<!doctype\ html|<html)[^<]*(?:<(?!title|h1)[^<]*){0,40}<(?:title|h1)[^>]*>[^<]{0,100}
        (?:\b[45]\d\d\b|(?:>\s*|server\ |gateway\ |application\ )error\b|bad\ gateway|unavailable|too\ many\ requests|access\ denied
        |just\ a\ moment)
      | (?:exception\ in\ thread|(?:[a-z]+\.)*[a-z]*(?:error|exception):)[^\n]{0,300}\n\s+at\ [\w.$<>]+\ ?\(
    )""",
    re.IGNORECASE | re.VERBOSE,
)

LONG_STARTS = (
    "trac", '{"e', '{"t', '{"o', "{\n ", '{ "', "<!do", "<htm", "exce", "java", "type", "refe", "rang", "erro",
)  # fmt: skip
"""Lower-case prefixes with which `_LONG_ERROR` can begin: a cheap test that nearly every answer fails."""


class AnswerKind(NamedTuple):
    """Kinds of unusual answers."""

    is_blank: bool = False
    is_refusal: bool = False
    is_error: bool = False


ORDINARY = AnswerKind()


def answer_kind(answer: str) -> AnswerKind:
    """Classify the text of an answer."""
    if len(answer) > SHORT:
        return AnswerKind(is_error=True) if is_long_error(answer[:LONG_HEAD]) else ORDINARY
    is_blank = not answer or answer.isspace()
    return AnswerKind(is_blank, _REFUSAL.match(answer) is not None, _ERROR.match(answer) is not None)


def is_long_error(head: str) -> bool:
    """Whether a long answer that begins like this is a stack trace, an error page or a provider's error object."""
    return head[:4].lower().startswith(LONG_STARTS) and _LONG_ERROR.match(head) is not None


def begins_like_error(answer: str) -> bool:
    """Whether an answer begins like an error message, at any length. A weak sign: meaningful only if many answers show it."""
    return _BEGINNING.match(answer[:SHORT]) is not None
