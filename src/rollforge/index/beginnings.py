"""This module tells refusals and error messages by how they begin.

It is loaded when an answer is first looked at: compiling its patterns takes as long as reading ten megabytes, and most answers are
too long to be either.
"""

from __future__ import annotations

import re

from rollforge.index.compiled import LONG_STARTS, LOOKED_AT
from rollforge.index.spelling import unescaped

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
"""Follows the key `error` of an object that tells of one; many that tell of none have the key too."""
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

_LONG_START_SET = frozenset(LONG_STARTS[place : place + 4] for place in range(0, len(LONG_STARTS), 4))
_FOLD = 0x20
"""The bit that makes letters small; a backslash becomes a bar by it."""
_FOLDED = bytes(byte | _FOLD for byte in range(256))
LOOKED_INTO = 1200
"""Characters of a longer answer in which a stack trace or a server's error page must show itself."""


def look_at_text(text: bytes) -> tuple[bool, bool, bool]:
    """Whether a short answer, as it is escaped, is blank, refuses, is an error message."""
    plain = unescaped(text)
    is_blank = not plain or plain.isspace()
    return is_blank, _REFUSAL.match(plain) is not None, _ERROR.match(plain) is not None


def begins_like_error(answer: str) -> bool:
    """Whether an answer of any length begins as error messages do: too weak a sign to tell one by, unless many have it."""
    return _BEGINNING.match(answer[:LOOKED_AT]) is not None


def is_long_error(text: bytes) -> bool:
    """Whether a longer answer, as it is escaped, is a stack trace, an error page or a provider's error object."""
    if text[:4].translate(_FOLDED) not in _LONG_START_SET:
        return False
    head = text[: 4 * LOOKED_INTO].decode("utf-8", "ignore")[:LOOKED_INTO]
    return _LONG_ERROR.match(head.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')) is not None
