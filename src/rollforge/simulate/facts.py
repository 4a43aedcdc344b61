"""General knowledge of the simulated model: small tables of facts, well-known ones first."""

from __future__ import annotations

import re
from typing import NamedTuple


class Topic(NamedTuple):
    """Facts of one kind, with a question template."""

    question: str
    """Question with `{}` for the subject."""
    facts: tuple[tuple[str, str], ...]
    """Subject and object, in order from common to obscure."""


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((left, right) for left, _, right in (line.partition("=") for line in text.split(", ")))


TOPICS = (
    Topic(
        "What is the capital of {}?",
        _pairs(
            "France=Paris, Italy=Rome, Japan=Tokyo, Spain=Madrid, Egypt=Cairo, Germany=Berlin, "
            "Greece=Athens, Kenya=Nairobi, "
            "Peru=Lima, Norway=Oslo, Cuba=Havana, Poland=Warsaw, Canada=Ottawa, Australia=Canberra, "
            "Turkey=Ankara, "
            "Vietnam=Hanoi, Morocco=Rabat, Hungary=Budapest, Ghana=Accra, Nepal=Kathmandu, "
            "Uruguay=Montevideo, "
            "Mongolia=Ulaanbaatar, Senegal=Dakar, Slovenia=Ljubljana, Laos=Vientiane, Zambia=Lusaka, "
            "Malawi=Lilongwe, "
            "Eritrea=Asmara, Bhutan=Thimphu, Tajikistan=Dushanbe, Suriname=Paramaribo, Palau=Ngerulmud"
        ),
    ),
    Topic(
        "Which chemical symbol stands for {}?",
        _pairs(
            "oxygen=O, hydrogen=H, carbon=C, nitrogen=N, helium=He, iron=Fe, gold=Au, silver=Ag, "
            "copper=Cu, sodium=Na, "
            "calcium=Ca, lead=Pb, potassium=K, tin=Sn, mercury=Hg, zinc=Zn, tungsten=W, antimony=Sb, "
            "cadmium=Cd, "
            "palladium=Pd, yttrium=Y, ruthenium=Ru, hafnium=Hf, praseodymium=Pr, ytterbium=Yb, "
            "protactinium=Pa"
        ),
    ),
    Topic(
        "What does one call a young {}?",
        _pairs(
            "dog=puppy, cat=kitten, cow=calf, sheep=lamb, horse=foal, goat=kid, bear=cub, deer=fawn, "
            "goose=gosling, "
            "swan=cygnet, kangaroo=joey, owl=owlet, hare=leveret, seal=pup, eel=elver, pigeon=squab, "
            "oyster=spat, cod=codling"
        ),
    ),
)
_PATTERNS = tuple(
    (re.compile(re.escape(topic.question).replace(r"\{\}", r"([\w ]+?)")), topic, dict(topic.facts))
    for topic in TOPICS
)


def recall(text: str) -> tuple[str, float] | None:
    """The fact that the text asks for and its obscurity from 0 to 1; None if the tables lack it."""
    for pattern, topic, fact_by_subject in _PATTERNS:
        match = pattern.search(text)
        if match and match.group(1) in fact_by_subject:
            subject = match.group(1)
            return fact_by_subject[subject], round(
                list(fact_by_subject).index(subject) / (len(topic.facts) - 1), 3
            )
    return None
