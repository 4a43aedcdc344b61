"""Golden output: what commands print on a small made run, byte for byte. `make golden` rewrites the files."""

from __future__ import annotations

import gc
import os
import re
import shlex
from pathlib import Path

import pytest

from rollforge.cli import main, run
from rollforge.cli.render import console
from rollforge.testing import Shape, healthy_run, sick_run

GOLDEN = Path(__file__).parents[1] / "golden" / "cli"
WIDTH = "100"

COMMANDS = {
    "metrics": "metrics run",
    "metrics-against": "metrics run --against sick",
    "profile": "profile run",
    "check": "check run --for grpo",
    "check-sick": "check sick",
    "check-markdown": "check sick --markdown",
    "verify": "verify unjudged --verifier exact --verify-workers 0 --progress none",
    "verify-diff": "verify judged --diff exact recorded",
    "verify-probe": "verify run --verifier exact --probe -n 12 --verify-workers 0",
    "prepare": "prepare dpo run -o data --to trl --force --progress none",
    "prepare-dry-run": "prepare sft run --to chat --dry-run --force",
    "status": "status run",
    "show": "show run --task 1 --rollout 0",
    "show-line": "show run --line 3",
    "query": 'query run "select reward, count(*) as n, avg(answer_chars) as chars from rollouts group by 1 order by 1"',
    "index": "index first",
    "list": "list recipes",
    "list-families": "list",
    "validate": "validate run/rollouts.jsonl bad.jsonl",
    "collect-dry-run": "collect -i run/rollouts_tasks.jsonl -o new -m simulated --verifier exact -k 2 --dry-run",
    "help": "--help",
    "help-collect": "collect -h",
    "help-all-collect": "collect --help-all",
    "help-prepare": "prepare -h",
    "error": "check run --for gpro",
}
"""Golden file → the words; each reads files of its own, or files that no other writes."""

VOLATILE = (
    (re.compile(r"\d[\d,.]* (s|ms|µs)\b"), "<time>"),
    (re.compile(r"^  (limit|bottleneck) +\S.*", re.MULTILINE), r"  \1 <bottleneck>"),
    (re.compile(r"\([0-9a-f]{16}"), "(<fingerprint>"),
)
"""Text that differs from one run to the next."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("golden")
    shape = Shape(tasks=12, samples=4, unjudged=0.02, failed=0.0)
    for name in ("run", "unjudged", "judged", "first"):
        healthy_run(shape, seed=7).write(place / name)
    run(
        [
            "verify",
            str(place / "judged"),
            "--verifier",
            "exact",
            "--verify-workers",
            "0",
            "--progress",
            "none",
        ]
    )
    sick_run("always-zero", seed=7, shape=shape).write(place / "sick")
    (place / "bad.jsonl").write_text('{"responses_create_params": {"input": "hi"}}\n{"input": 3}\n{\n')
    return place


@pytest.mark.parametrize("name", COMMANDS)
def test_output_is_as_recorded(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    console.out.cache_clear()  # a console takes its width when it is made
    console.err.cache_clear()
    monkeypatch.setenv("COLUMNS", WIDTH)
    monkeypatch.setenv("TERM", "dumb")
    gc.collect()  # what other tests left open is reported now, not into this output
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(COMMANDS[name]))
    printed = capsys.readouterr()
    text = f"$ rollforge {COMMANDS[name]}\n{printed.out}"
    text += f"--- stderr\n{printed.err}" if printed.err else ""
    text += f"--- exit code {ended.value.code}\n"
    for pattern, instead in VOLATILE:
        text = pattern.sub(instead, text)
    text = "".join(line.rstrip() + "\n" for line in text.replace(str(folder), "<folder>").splitlines())
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("ROLLFORGE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_every_golden_file_has_a_command() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(COMMANDS)
