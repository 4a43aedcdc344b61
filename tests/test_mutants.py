"""The sample of planted mistakes is spread over the areas, and changes elsewhere leave it as it is."""

from pathlib import Path

import pytest
from scripts import mutants

MODULES = 6
FUNCTIONS = 8


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package of two areas; every function has a border, a comparison, a sort and an `and`."""
    package = tmp_path / mutants.PACKAGE
    for area in ("near", "far"):
        (package / area).mkdir(parents=True)
        for number in range(MODULES):
            (package / area / f"module_{number}.py").write_text(_module(range(FUNCTIONS)))
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "AREAS", {"near": (["near"], []), "far": (["far"], [])})
    return package


def _module(functions: range) -> str:
    return "\n".join(
        f"def function_{number}(items, least):\n"
        f"    kept = [item for item in sorted(items) if item < least]\n"
        f"    return kept and least == {number}\n"
        for number in functions
    )


def test_a_sample_has_as_many_mistakes_of_each_area(source: Path) -> None:
    chosen = mutants.sample(20, seed=1)
    assert [one.area for one in chosen] == ["near", "far"] * 10
    assert {one.kind for one in chosen} == {"boundary", "comparison", "sort order", "logic"}


def test_another_seed_chooses_other_mistakes(source: Path) -> None:
    first, second = ({(one.module, one.identity) for one in mutants.sample(20, seed)} for seed in (1, 2))
    assert len(first & second) < 10


def test_code_that_moves_leaves_the_sample_as_it_is(source: Path) -> None:
    before = [(one.module, one.identity) for one in mutants.sample(20, seed=1)]
    for path in source.rglob("*.py"):
        path.write_text(f'"""Longer now."""\n\nNAME = "words"\n\n\n{_module(range(FUNCTIONS - 1, -1, -1))}')
    assert [(one.module, one.identity) for one in mutants.sample(20, seed=1)] == before


def test_new_code_moves_the_sample_by_no_more_than_its_own_mistakes(source: Path) -> None:
    before = {(one.module, one.identity) for one in mutants.sample(20, seed=1)}
    added = source / "near" / "module_0.py"
    added.write_text("def first(items):\n    return not items\n\n\n" + added.read_text())
    after = {(one.module, one.identity) for one in mutants.sample(20, seed=1)}
    assert len(after - before) <= 1
    assert all("first" in identity for _, identity in after - before)


def test_a_function_with_the_same_mistake_twice_has_two(source: Path) -> None:
    (source / "near" / "module_0.py").write_text("def twice(a, b):\n    return [not a, not a]\n")
    mistakes = [one for one in mutants.mutants_of("near") if "twice" in one.identity]
    assert len({one.identity for one in mistakes}) == 2
