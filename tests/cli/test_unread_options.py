"""An option that nothing would read is refused, with what it needs: over the whole table of all commands."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rollforge.cli import main
from rollforge.cli.app import COMMANDS, build_app
from rollforge.errors import UsageError
from rollforge.recipes import RECIPES
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.program_options import PRESETS
from rollforge.unread_options import NEEDS, OWN_RECIPES, READS, refuse_unread

ROWS = [
    (command, flag, need)
    for command, table in NEEDS.items()
    for flag, needs in table.items()
    for need in needs
]


def flags_of(command: str) -> set[str]:
    """Every flag and argument of a command, as the table names them."""
    arguments = build_app(command)[command].assemble_argument_collection()
    return {one.name if one.name.startswith("--") else one.name.upper() for one in arguments}


@pytest.mark.parametrize("command", sorted({*NEEDS, *READS}))
def test_the_tables_name_commands_and_options_that_exist(command: str) -> None:
    assert command in COMMANDS
    known = flags_of(command)
    named = {flag for flag, _ in NEEDS.get(command, {}).items()}
    named |= {need.partition(" ")[0] for needs in NEEDS.get(command, {}).values() for need in needs}
    named |= set(itertools.chain(*READS.get(command, {}).values(), READS.get(command, {})))
    assert named <= known, named - known


@pytest.mark.parametrize(("command", "flag", "need"), ROWS)
def test_an_option_is_refused_alone_and_accepted_with_each_that_reads_it(
    command: str, flag: str, need: str
) -> None:
    name, _, beginning = need.partition(" ")
    other = {"RECIPE": next(one for one in OWN_RECIPES if f"RECIPE {one}" not in NEEDS[command][flag])}
    with pytest.raises(UsageError, match=f"{flag} is read only with") as caught:
        refuse_unread(command, [flag], other if name == "RECIPE" else {})
    assert (beginning or name).rstrip(":=") in str(caught.value) and flag in str(caught.value.hint)
    refuse_unread(command, [flag], {name: beginning + "5" if beginning.endswith("=") else beginning or "x"})


@pytest.mark.parametrize(
    ("command", "mode"), [(command, mode) for command, modes in READS.items() for mode in modes]
)
def test_beside_a_mode_only_its_own_options_are_accepted(command: str, mode: str) -> None:
    values = {mode: "given"}
    needs = NEEDS.get(command, {})
    for flag in sorted(one for one in flags_of(command) - {mode} if one.startswith("--")):
        if flag in READS[command][mode]:
            refuse_unread(
                command, [flag], values | {need.partition(" ")[0]: "x" for need in needs.get(flag, ())}
            )
        else:
            with pytest.raises(UsageError, match=f"{flag} is"):
                refuse_unread(command, [flag], values)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prepare", "sft", "run", "--to", "trl", "-o", "d", "--min-gap", "0.5"], "--min-gap is read only with dpo or rm"),
        (["prepare", "dpo", "run", "--to", "trl", "-o", "d", "--ngram=9"], "--ngram is read only with --decontaminate"),
        (["prepare", "dpo", "run", "--to", "trl", "-o", "d", "--public"], "--public is read only with --push"),
        (["validate", "tasks.jsonl", "-o", "clean"], "--out is read only with --fix"),
        (["verify", "run", "--verifier", "exact", "-n", "5"], "--limit is read only with --probe"),
        (["verify", "run", "--diff", "a", "b", "--where", "true"], "--where is not read beside --diff"),
        (["query", "run", "select 1", "-n", "3", "-o", "q.csv"], "--limit is not read beside --out"),
        (["simulate", "--kv-speed", "9"], "--kv-speed is read only with --kv-tokens"),
        (["simulate", "--write-tasks", "t.jsonl", "--latency", "1"], "--latency is not read beside --write-tasks"),
        (["show", "run", "--seed", "4"], "--seed is read only with --sample or --label"),
        (["rewards", "--path", "verl", "--on-unjudged", "none"], "--on-unjudged is not read beside --path"),
        (["collect", "-i", "t.jsonl", "-o", "r", "-m", "simulated", "--mount", "/x"], "--mount is read only with --agent program"),
        (["collect", "-i", "t.jsonl", "-o", "r", "-m", "simulated", "--fan-out", "a=b,c"], "--fan-out is read only with --gym-head"),
    ],
)  # fmt: skip
def test_a_typed_option_that_nothing_reads_ends_the_command_before_it_begins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and said in printed and "next: leave out" in printed
    assert list(tmp_path.iterdir()) == []


def test_python_refuses_the_same_options_and_takes_defaults() -> None:
    CollectOptions(input="t.jsonl", out="run", model="simulated", min_gap=0.2, batch_size=50_000).check()
    with pytest.raises(UsageError, match="--batch-size is read only with --batch or --write-batch"):
        CollectOptions(input="t.jsonl", out="run", model="simulated", batch_size=5).check()
    with pytest.raises(UsageError, match="--workdir is read only with"):
        CollectOptions(input="t.jsonl", out="run", model="simulated", workdir="w").check()


def test_the_tables_know_all_recipes_and_presets() -> None:
    assert set(OWN_RECIPES) == set(RECIPES.names())
    assert {f"--agent {preset}" for preset in PRESETS} <= set(NEEDS["collect"]["--mount"])
    refuse_unread("prepare", ["--min-gap"], {"RECIPE": "another-package's"})
