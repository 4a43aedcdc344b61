"""Instructions about form: paragraphs, sections, markers, quotation, language and case."""

from __future__ import annotations

import json
import re

from rollforge.verifiers.instruction_following.arguments import (
    Arguments,
    Checker,
    count_of,
    holds,
    text_of,
)
from rollforge.verifiers.instruction_following.text import punkt_sentences, split_sentences, tokens

_RULE = re.compile(r"\s?\*\*\*\s?")
_CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def number_sentences(text: str, arguments: Arguments) -> bool:
    """The number of sentences is below, or at least, `num_sentences`."""
    return holds(len(punkt_sentences(text)), arguments, "num_sentences", "relation")


def _paragraphs(parts: list[str]) -> int | None:
    """Number of non-empty paragraphs; None if an empty one lies between others."""
    if any(not part.strip() for part in parts[1:-1]):
        return None
    return sum(bool(part.strip()) for part in parts)


def number_paragraphs(text: str, arguments: Arguments) -> bool:
    """Paragraphs separated by `***` number exactly `num_paragraphs`."""
    return _paragraphs(_RULE.split(text)) == count_of(arguments, "num_paragraphs")


def two_paragraphs_by_rule(text: str, arguments: Arguments) -> bool:
    """Two paragraphs, separated by `***`."""
    return _paragraphs(_RULE.split(text)) == 2


def two_paragraphs_by_blank_line(text: str, arguments: Arguments) -> bool:
    """Two paragraphs, separated by blank lines."""
    return _paragraphs(text.split("\n\n")) == 2


def nth_paragraph_first_word(text: str, arguments: Arguments) -> bool:
    """There are `num_paragraphs` paragraphs, and the one numbered `nth_paragraph` starts with `first_word`."""
    wanted, nth = count_of(arguments, "num_paragraphs"), count_of(arguments, "nth_paragraph")
    first_word = text_of(arguments, "first_word").lower()
    if not 1 <= nth <= wanted:
        raise ValueError(f"nth_paragraph = {nth} is not one of {wanted} paragraphs")
    parts = text.split("\n\n")
    count = sum(bool(part.strip()) for part in parts)
    if nth > count or not parts[nth - 1].strip():
        return False
    word = parts[nth - 1].split()[0].lstrip("'").lstrip('"')
    return count == wanted and re.split(r"[.,?!'\"]", word)[0].lower() == first_word


def number_placeholders(text: str, arguments: Arguments) -> bool:
    """At least `num_placeholders` placeholders in square brackets."""
    return len(re.findall(r"\[.*?\]", text)) >= count_of(arguments, "num_placeholders")


def postscript(text: str, arguments: Arguments) -> bool:
    """The text contains the postscript marker."""
    marker = text_of(arguments, "postscript_marker").strip()
    pattern = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}.get(marker, marker.lower())
    return re.search(pattern, text.lower()) is not None


def number_bullet_lists(text: str, arguments: Arguments) -> bool:
    """Exactly `num_bullets` lines that start with `*` or `-`."""
    stars = re.findall(r"^\s*\*[^\*].*$", text, re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", text, re.MULTILINE)
    return len(stars) + len(dashes) == count_of(arguments, "num_bullets")


def constrained_response(text: str, arguments: Arguments) -> bool:
    """The text contains one of the three allowed answers."""
    return any(answer in text for answer in _CONSTRAINED)


def number_highlighted_sections(text: str, arguments: Arguments) -> bool:
    """At least `num_highlights` parts between asterisks."""
    single = [marked for marked in re.findall(r"\*[^\n\*]*\*", text) if marked.strip("*").strip()]
    double = [marked for marked in re.findall(r"\*\*[^\n\*]*\*\*", text) if marked[2:-2].strip()]
    return len(single) + len(double) >= count_of(arguments, "num_highlights")


def multiple_sections(text: str, arguments: Arguments) -> bool:
    """At least `num_sections` numbered section headings."""
    splitter = text_of(arguments, "section_spliter").strip()
    sections = len(re.split(rf"\s?{splitter}\s?\d+\s?", text)) - 1
    return sections >= count_of(arguments, "num_sections")


def json_format(text: str, arguments: Arguments) -> bool:
    """The text is JSON, optionally inside a code fence."""
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str, arguments: Arguments) -> bool:
    """The text contains a title in double angle brackets."""
    return any(marked.lstrip("<").rstrip(">").strip() for marked in re.findall(r"<<[^\n]+>>", text))


def sentence_hyphens(text: str, arguments: Arguments) -> bool:
    """Sentences are joined by hyphens without spaces."""
    sentences = split_sentences(text.replace("-", " "))
    return all(part == part.strip() == right for part, right in zip(text.split("-"), sentences, strict=False))


def square_brackets(text: str, arguments: Arguments) -> bool:
    """Every word is in square brackets."""
    return all(word.startswith("[") and word.endswith("]") for word in text.split())


def bigram_wrapping(text: str, arguments: Arguments) -> bool:
    """Every pair of words is in double angle brackets."""
    tokens = text.split()
    return all(
        left.startswith("<<") and right.endswith(">>")
        for left, right in zip(tokens[::2], tokens[1::2], strict=False)
    )


def two_responses(text: str, arguments: Arguments) -> bool:
    """Two different answers, separated by `******`."""
    parts = [part.strip() for part in text.split("******")]
    responses = [part for part in parts if part]
    return all(parts[1:-1]) and len(responses) == 2 and responses[0] != responses[1]


def quotation(text: str, arguments: Arguments) -> bool:
    """The whole text is in double quotation marks."""
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def end_checker(text: str, arguments: Arguments) -> bool:
    """The text ends with `end_phrase`."""
    return text.strip().strip('"').lower().endswith(text_of(arguments, "end_phrase").strip().lower())


def counting_composition(text: str, arguments: Arguments) -> bool:
    """Three paragraphs, each of `n_sent` sentences with `n_words` words."""
    sentences, length = count_of(arguments, "n_sent"), count_of(arguments, "n_words")
    parts = _RULE.split(text)
    for part in parts:
        written = split_sentences(part)
        if len(written) != sentences or any(len(tokens(sentence)) != length for sentence in written):
            return False
    return _paragraphs(parts) == 3


def no_comma(text: str, arguments: Arguments) -> bool:
    return "," not in text


def no_dot(text: str, arguments: Arguments) -> bool:
    return "." not in text


def no_exclamation(text: str, arguments: Arguments) -> bool:
    return "!" not in text


def response_language(text: str, arguments: Arguments) -> bool:
    return _is_language(text, text_of(arguments, "language"))


def english_capital(text: str, arguments: Arguments) -> bool:
    return text.isupper() and _is_language(text, "en")


def english_lowercase(text: str, arguments: Arguments) -> bool:
    return text.islower() and _is_language(text, "en")


def _is_language(text: str, code: str) -> bool:
    """Whether the detected language matches; a text without a detectable language counts as a match."""
    import langdetect

    langdetect.DetectorFactory.seed = (
        0  # the detector samples: unseeded, the same text may be judged both ways
    )
    try:
        return bool(langdetect.detect(text) == code)
    except langdetect.LangDetectException:
        return True


CHECKERS: dict[str, Checker] = {
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "detectable_format:sentence_hyphens": sentence_hyphens,
    "detectable_format:square_brackets": square_brackets,
    "detectable_format:bigram_wrapping": bigram_wrapping,
    "combination:two_responses": two_responses,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
    "punctuation:punctuation_dot": no_dot,
    "punctuation:punctuation_exclamation": no_exclamation,
    "paragraphs:paragraphs": two_paragraphs_by_rule,
    "paragraphs:paragraphs2": two_paragraphs_by_blank_line,
    "count:counting_composition": counting_composition,
}
"""Instruction id → checker."""
