"""Splits text into words and sentences as the instruction checkers count them.

There are two sentence splitters, because the checkers use two: `split_sentences` is a chain of substitutions in which every `.`,
`?` and `!` ends a sentence unless a rule protects it, and `punkt_sentences` decides each full stop from the words around it, as
NLTK's Punkt model for English does. The trained model cannot be bundled; its decisions about abbreviations, initials, numbers and
ellipses are approximated with short word lists, so that rare abbreviations may be judged differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TITLE = re.compile(r"(Mr|St|Mrs|Ms|Dr)[.]")
_SITE = re.compile(r"[.](com|net|org|io|gov|edu|me)")
_DECIMAL = re.compile(r"([0-9])[.]([0-9])")
_DOTS = re.compile(r"\.{2,}")
_SINGLE = re.compile(r"\s([A-Za-z])[.] ")
_OPENERS = (
    r"(Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|He\s|She\s|It\s|They\s|Their\s|Our\s|We\s|But\s|However\s|That\s|This\s"
    r"|Wherever)"
)
_ACRONYM_THEN_OPENER = re.compile(rf"([A-Z][.][A-Z][.](?:[A-Z][.])?) {_OPENERS}")
_THREE_LETTERS = re.compile(r"([A-Za-z])[.]([A-Za-z])[.]([A-Za-z])[.]")
_TWO_LETTERS = re.compile(r"([A-Za-z])[.]([A-Za-z])[.]")
_COMPANY_THEN_OPENER = re.compile(rf" (Inc|Ltd|Jr|Sr|Co)[.] {_OPENERS}")
_COMPANY = re.compile(r" (Inc|Ltd|Jr|Sr|Co)[.]")
_INITIAL = re.compile(r" ([A-Za-z])[.]")


def split_sentences(text: str) -> list[str]:
    """Split sentences by substitution: protected full stops become `<prd>`, ends of sentences `<stop>`."""
    text = f" {text}  ".replace("\n", " ")
    text = _TITLE.sub(r"\1<prd>", text)
    text = _SITE.sub(r"<prd>\1", text)
    text = _DECIMAL.sub(r"\1<prd>\2", text)
    text = _DOTS.sub(lambda dots: "<prd>" * len(dots.group()) + "<stop>", text)
    text = text.replace("Ph.D.", "Ph<prd>D<prd>")
    text = _SINGLE.sub(r" \1<prd> ", text)
    text = _ACRONYM_THEN_OPENER.sub(r"\1<stop> \2", text)
    text = _THREE_LETTERS.sub(r"\1<prd>\2<prd>\3<prd>", text)
    text = _TWO_LETTERS.sub(r"\1<prd>\2<prd>", text)
    text = _COMPANY_THEN_OPENER.sub(r" \1<stop> \2", text)
    text = _COMPANY.sub(r" \1<prd>", text)
    text = _INITIAL.sub(r" \1<prd>", text)
    for inside, outside in ((".”", "”."), ('."', '".'), ('!"', '"!'), ('?"', '"?')):
        text = text.replace(inside, outside)
    for end in ".?!":
        text = text.replace(end, f"{end}<stop>")
    sentences = [sentence.strip() for sentence in text.replace("<prd>", ".").split("<stop>")]
    return sentences if sentences[-1] else sentences[:-1]


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_POSSIBLE_END = re.compile(r"[.?!](?=[)\";}\]*:@'({\[?!]|\s+(?P<next>\S+))")
_OUTSIDE_WORDS = re.compile(r"[)\";}\]*:@'({\[?!]")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.\-]*")
_MARK_WITHIN = re.compile(r"[?!].|\.[)\";}\]*:@'({\[?!]")
_CLOSERS = re.compile(r"[\"')\]}]+?(?:\s+|(?=--)|$)")

_ABBREVIATIONS = _word_set(
    """
    a.m p.m u.s u.k u.n u.s.a u.s.s.r d.c n.y n.j n.c s.c n.h n.d n.m l.a r.i ph.d m.b.a b.v n.v s.a
    s.p.a c.v w.va mr mrs ms dr prof st jr sr gen col lt maj adm sen rep reps messrs inc co corp ltd
    bros cos cie jan feb aug sep sept oct nov dec tues wed fri ave ct ft mg yr vs v ill calif colo
    conn ariz fla ga kan ky mich minn nev okla ok ore pa tenn va vt wash wis c d e f g h k l m n p r
    s t w
    """
)
_STARTERS = _word_set(
    """
    the he it they this these there here in without under among since so both most many some if when
    while which but yet nor although though despite however instead indeed moreover nevertheless
    nonetheless meanwhile similarly thus therefore even according her your i such above along
    between beyond through still finally yesterday tomorrow were does please thank thanks yes note
    remember try consider
    """
)
"""Words that start a sentence when capitalised after an abbreviation or an ellipsis."""

_COMMON_WORDS = (_STARTERS - {"i"}) | _word_set(
    """
    a an she we you that those on at by for from with as all any each every few where why how what
    who whose and or because after before during until his its their our my one two three no not
    then now also another other about across around over once only just perhaps maybe first second
    third next last today is are was be been do did have has had can could will would should may
    might must let new good great use make see read write
    """
)
"""Words that start a sentence when capitalised after a single letter, unlike names."""


def punkt_sentences(text: str) -> list[str]:
    """Split sentences by the words around each full stop, question mark and exclamation mark."""
    sentences: list[str] = []
    for piece in _pieces(text):
        closers = _CLOSERS.match(piece) if sentences else None
        if closers:  # a bracket or quotation mark after the full stop belongs to the sentence it closes
            sentences[-1] += closers.group().strip()
            piece = piece[closers.end() :]
        if piece.strip():
            sentences.append(piece)
    return sentences


def _pieces(text: str) -> Iterator[str]:
    start = 0
    for end in _last_end_of_each_word(text):
        if _ends_sentence(text, end):
            yield text[start : end.end()]
            start = end.start("next") if end.group("next") else end.end()
    yield text[start:].rstrip()


def _last_end_of_each_word(text: str) -> Iterator[re.Match[str]]:
    """Among several marks within one word, keep only the last as a possible end of sentence."""
    previous: re.Match[str] | None = None
    for end in _POSSIBLE_END.finditer(text):
        if previous is not None and any(map(str.isspace, text[previous.end() : end.start()])):
            yield previous
        previous = end
    if previous is not None:
        yield previous


def _ends_sentence(text: str, end: re.Match[str]) -> bool:
    if end.group() != "." or _MARK_WITHIN.search(end.group("next") or ""):
        return True
    word = _word_before(text, end.start())
    following = _word_after(text, end)
    opens = following[:1].isupper() and following.lower() in _STARTERS
    if word.endswith("."):  # an ellipsis
        return opens
    is_abbreviation = word.lower() in _ABBREVIATIONS or word.lower().rpartition("-")[2] in _ABBREVIATIONS
    if len(word) == 1 and word.isalpha():
        is_name = following[:1].isupper() and following.lower() not in _COMMON_WORDS
        return not (is_abbreviation or is_name or _continues(following))
    if _NUMBER.fullmatch(word):
        return not _continues(following)
    return opens if is_abbreviation else True


def _continues(following: str) -> bool:
    return following[:1].islower() or following[:1] in (",", ";", ":", ".", "!", "?")


def _word_before(text: str, position: int) -> str:
    start = position
    while start and not text[start - 1].isspace():
        start -= 1
    return _OUTSIDE_WORDS.split(text[start:position])[-1].lstrip("`#&-,")


def _word_after(text: str, end: re.Match[str]) -> str:
    following = end.group("next")
    if following is None:
        return text[end.end()]
    if _OUTSIDE_WORDS.match(following):
        return following[0]
    return _OUTSIDE_WORDS.split(following)[0].rstrip(".,")


_OPENING = (
    (re.compile(r"([«“‘„]|`+)"), r" \1 "),
    (re.compile(r'^"'), "``"),
    (re.compile(r"(``)"), r" \1 "),
    (re.compile(r"([ (\[{<])(\"|'{2})"), r"\1 `` "),
    (re.compile(r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", re.IGNORECASE), "' "),
)
_MARKS = (
    (re.compile(r"([^.])\.([\])}>\"'»”’ ]*)\s*$"), r"\1 . \2 "),
    (re.compile(r"([:,])([^\d])"), r" \1 \2"),
    (re.compile(r"([:,])$"), r" \1 "),
    (re.compile(r"\.{2,}|[;@#$%&\u2012-\u2015]"), r" \g<0> "),
    (re.compile(r"([^.])\.([\])}>\"']*)\s*$"), r"\1 .\2 "),
    (re.compile(r"[?!]"), r" \g<0> "),
    (re.compile(r"([^'])' "), r"\1 ' "),
    (re.compile(r"[*\]\[(){}<>]|--"), r" \g<0> "),
)
_CLOSING = (
    (re.compile(r"[»”’]|''"), r" \g<0> "),
    (re.compile(r'"'), " '' "),
    (re.compile(r"\s+"), " "),
    (re.compile(r"([^' ])('[sSmMdD]|') "), r"\1 \2 "),
    (re.compile(r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) "), r"\1 \2 "),
    (
        re.compile(
            r"\b(can)(not)\b|\b(d)('ye)\b|\b(gim)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b|\b(lem)(me)\b", re.I
        ),
        None,
    ),
    (re.compile(r"\b(more)('n)\b|\b(wan)(na)(?=\s)|(?<= )('t)(is)\b|(?<= )('t)(was)\b", re.I), None),
)


def tokens(text: str) -> list[str]:
    """Words and marks as separate tokens, sentence by sentence, in Penn Treebank style."""
    return [token for sentence in punkt_sentences(text) for token in sentence_tokens(sentence)]


def sentence_tokens(sentence: str) -> list[str]:
    """Tokens of one sentence; a full stop is separated only at its end."""
    for pattern, replacement in (*_OPENING, *_MARKS):
        sentence = pattern.sub(replacement, sentence)
    sentence = f" {sentence} "
    for pattern, closing in _CLOSING:
        sentence = pattern.sub(_two_parts if closing is None else closing, sentence)
    return sentence.split()


def _two_parts(contraction: re.Match[str]) -> str:
    first, second = (part for part in contraction.groups() if part)
    return f" {first} {second} "


def words(text: str) -> list[str]:
    """Sequences of letters, digits and underscores."""
    return re.findall(r"\w+", text)
