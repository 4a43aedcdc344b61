"""Instructions about words: required and forbidden ones, their counts and positions."""

from __future__ import annotations

import re
from itertools import pairwise

from rollforge.verifiers.instruction_following.arguments import (
    Arguments,
    Checker,
    count_of,
    holds,
    text_of,
    texts_of,
)
from rollforge.verifiers.instruction_following.text import split_sentences, tokens, words


def _matches(keyword: str, text: str) -> int:
    return len(re.findall(keyword, text, re.IGNORECASE))


def existence(text: str, arguments: Arguments) -> bool:
    """Every keyword occurs."""
    return all(re.search(keyword, text, re.IGNORECASE) for keyword in texts_of(arguments, "keywords"))


def frequency(text: str, arguments: Arguments) -> bool:
    """The keyword occurs fewer than, or at least, `frequency` times."""
    return holds(_matches(text_of(arguments, "keyword").strip(), text), arguments, "frequency", "relation")


def forbidden_words(text: str, arguments: Arguments) -> bool:
    forbidden = texts_of(arguments, "forbidden_words")
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in forbidden)


def letter_frequency(text: str, arguments: Arguments) -> bool:
    """The letter occurs fewer than, or at least, `let_frequency` times."""
    letter = text_of(arguments, "letter").strip().lower()
    if len(letter) != 1:
        raise ValueError(f"letter = {letter!r} is no single letter")
    return holds(text.lower().count(letter), arguments, "let_frequency", "let_relation")


def word_once(text: str, arguments: Arguments) -> bool:
    """The keyword occurs exactly once."""
    return _matches(text_of(arguments, "keyword").strip(), text) == 1


def exclude_word_harder(text: str, arguments: Arguments) -> bool:
    """The keyword does not occur between spaces."""
    return f" {text_of(arguments, 'keyword').strip()} " not in text


def no_adjacent_consecutive(text: str, arguments: Arguments) -> bool:
    """No two adjacent words start with consecutive letters of the alphabet."""
    firsts = [word[0].lower() for word in text.split()]
    return not any(
        len(left) != 1 or len(right) != 1 or ord(right) - ord(left) == 1 for left, right in pairwise(firsts)
    )


def palindrome(text: str, arguments: Arguments) -> bool:
    """Some word is a palindrome."""
    return any(word == word[::-1] for word in text.split())


def keyword_specific_position(text: str, arguments: Arguments) -> bool:
    """The keyword is word `m` of sentence `n`, both counted from 1."""
    keyword = text_of(arguments, "keyword").strip()
    sentence, word = count_of(arguments, "n"), count_of(arguments, "m")
    if sentence < 1 or word < 1:
        raise ValueError("sentences and words are counted from 1")
    sentences = split_sentences(text)
    if len(sentences) < sentence:
        return False
    words = tokens(sentences[sentence - 1])
    return len(words) >= word and words[word - 1] == keyword


def start_end(text: str, arguments: Arguments) -> bool:
    """The first and the last token are the same word."""
    words = tokens(text)
    return len(words) >= 2 and words[0].lower() == words[-1].lower()


def first_word_of_sentences(text: str, arguments: Arguments) -> bool:
    """Every sentence starts with `first_word`."""
    wanted = text_of(arguments, "first_word").strip().lower()
    return all(
        sentence and sentence.split()[0].lower() == wanted
        for sentence in map(str.strip, split_sentences(text))
    )


def first_word_of_answer(text: str, arguments: Arguments) -> bool:
    """The text starts with `first_word`."""
    wanted = text_of(arguments, "first_word").strip().lower()
    return bool(text.split()) and text.split()[0].lower() == wanted


def last_word_of_sentences(text: str, arguments: Arguments) -> bool:
    """Every sentence ends with `last_word`."""
    wanted = text_of(arguments, "last_word").strip().lower()
    return all(
        sentence and _bare(sentence.split()[-1]) == wanted
        for sentence in map(str.strip, split_sentences(text))
    )


def last_word_of_answer(text: str, arguments: Arguments) -> bool:
    """The text ends with `last_word`."""
    wanted = text_of(arguments, "last_word").strip().lower()
    return bool(text.split()) and _bare(text.split()[-1]) == wanted


def _bare(word: str) -> str:
    return re.sub(r"[^\w\s]", "", word).lower()


def lowercase_counting(text: str, arguments: Arguments) -> bool:
    """At most `N` words are in lower case."""
    return len(re.findall(r"\b[a-z]+\b", text)) <= count_of(arguments, "N")


def letter_counting(text: str, arguments: Arguments) -> bool:
    """The number of letters is below, or at least, `N`."""
    return holds(len(re.findall(r"[a-zA-Z]", text)), arguments, "N", "relation")


def count_unique(text: str, arguments: Arguments) -> bool:
    """No token occurs twice."""
    words = tokens(text)
    return len(words) == len(set(words))


def count_increment_word(text: str, arguments: Arguments) -> bool:
    """`keyword1` occurs once and `keyword2` twice."""
    once, twice = (text_of(arguments, name).strip() for name in ("keyword1", "keyword2"))
    return _matches(once, text) == 1 and _matches(twice, text) == 2


def capital_word_frequency(text: str, arguments: Arguments) -> bool:
    """The number of words in capitals is below, or at least, `capital_frequency`."""
    capitals = sum(token.isupper() for token in tokens(text))
    return holds(capitals, arguments, "capital_frequency", "capital_relation")


def number_words(text: str, arguments: Arguments) -> bool:
    """The number of words is below, or at least, `num_words`."""
    return holds(len(words(text)), arguments, "num_words", "relation")


CHECKERS: dict[str, Checker] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:word_count_different_numbers": frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "letters:letter_counting2": letter_frequency,
    "keywords:word_once": word_once,
    "keywords:exclude_word_harder": exclude_word_harder,
    "keywords:no_adjacent_consecutive": no_adjacent_consecutive,
    "keywords:palindrome": palindrome,
    "keywords:keyword_specific_position": keyword_specific_position,
    "keywords:start_end": start_end,
    "first_word:first_word_sent": first_word_of_sentences,
    "first_word:first_word_answer": first_word_of_answer,
    "last_word:last_word_sent": last_word_of_sentences,
    "last_word:last_word_answer": last_word_of_answer,
    "count:lowercase_counting": lowercase_counting,
    "letters:letter_counting": letter_counting,
    "count:count_unique": count_unique,
    "count:count_increment_word": count_increment_word,
    "change_case:capital_word_frequency": capital_word_frequency,
    "length_constraints:number_words": number_words,
}
"""Instruction id → checker."""
