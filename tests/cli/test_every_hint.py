"""Every command that the source can print is run: all hints, next steps and examples, with real values in place of their gaps.

The list comes from the source itself, so that a new hint is run too. A gap that nobody has filled before fails the test: give it a
value in `VALUES`.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollforge.review.labels import Label, LabelFile
from rollforge.store import RunFiles
from tests.hints import commands_in, complaint

SOURCE = Path(__file__).parents[2] / "src" / "rollforge"
RUN = "runs/first"
VALUES = (
    # the same words mean other things in some places
    ("verify/verdicts", ".*@.*earlier.*", "exact"), ("verify/verdicts", ".*@.*fingerprint.*", "math"),
    ("checks/opinions", r"shlex\.quote\(name\)", "math"), ("checks/missed", "other", "math"),
    (".*", r".*counting_verifier.*", "recorded"), ("checks/consistency", "name", "reward"), ("cli/commands/metrics", "name", RUN),
    ("commands/init", "name", "my_verifier"), ("rewards/adapter_files", "words", "exact"), ("rewards/adapter_files", "name", "exact"),
    ("commands/simulate", r"JUDGED_BY.*", "--verifier exact"), ("status|reading_flags|index/index", "tasks", "tasks.jsonl"),
    ("reports", "name", "tasks.jsonl"), ("commands/simulate", "path", "tasks.jsonl"), ("verify/verdicts|run_page", "name", "exact"),
    ("verify/verdicts", "versions", "exact math"),
    ("commands/collect", "name", "exact"), ("commands/verify", r"shlex\.quote\(previous\)", "recorded"),
    ("render/prepare", "out", "data/dpo"), ("render/prepare", r"manifest\.files.*", "train.jsonl"),
    # numbers and conditions
    (".*", r".*run\.line\[.*|number|passed", "3"), (".*", r"int\(run\.task.*|first\.task|.*_some_tasks.*", "1"),
    (".*", r".*range\.low|low|.*\.min\(\)", "0"), (".*", r"high|.*\.max\(\)|_success\(run\)|size", "1"),
    (".*", "column", "is_truncated"), (".*", r".*suspect_condition.*|among", "reward = 0"), (".*", ".*answer_hash.*", "17"),
    ("report/findings", r"shlex\.quote\(selected\)", "'(task, rollout) IN ((0, 1), (2, 3))'"), ("report/findings", "MOST_READ", "100"),
    # names
    (".*", r".*[vV]erifier.*|shlex\.quote\(name\)", "exact"),
    (".*", r"recipe|best|manifest\.recipe", "dpo"), (".*", r"self\.family", "verifiers"), (".*", r"EXAMPLES\[0\]", "improve"),
    (".*", "instead", "--limit 5"), (".*", "words", "--fresh"), (".*", r"server\.url", "http://127.0.0.1:9"),
    # runs and files
    (".*", r".*next\(iter\(files.*", "data/dpo/train.jsonl"), (".*", "where", "data/dpo/train.jsonl:1"),
    (".*", r"taskset\.path|options\.input|file", "tasks.jsonl"), (".*", r"paths\[0\]", "my_verifier.py"),
    (".*", r".*\b(run|runs|self|files|out|path|parent|_path|rollouts)\b.*", RUN),
)  # fmt: skip
"""What stands in a gap, by the place and the expression in the source; the first rule that fits."""
PLACEHOLDERS = {
    "RUN": RUN, "RUN…": RUN, "FILE": "tasks.jsonl", "NAME": "exact", "VERIFIER": "math", "OTHER": "math", "DIR": "new",
    "NEW.db": "new.db", "MODEL": "simulated", "MANIFEST": "data/dpo/manifest.json",
    "RECIPE": "sft", "EXPORTER": "trl", "FILE:LINE": "data/dpo/train.jsonl:1",
    "…": "exact",
}  # fmt: skip
"""Words in capitals that a user fills in."""
PROSE = re.compile(
    r"\w[\w-]*\.?|(experiences|init verifier|import) .*(does so|writes some|Response).*|prepare dpo|view printed"
    r"|prepare --from manifest.json|verify exact -S tolerance=0.01|collect -i tasks.jsonl -o runs/example"
)
"""Words about a command, not a command to paste: a verb alone, a sentence that goes on, a beginning that other words follow."""
LASTING = {"simulate", "serve-verifier", "view"}
"""Commands that do not end by themselves: they must still run after a few seconds."""
SLOW = {"demo"}
"""It takes a minute and has tests of its own."""
NEEDS_MORE = (
    f"show {RUN} --label",
    f"verify {RUN} --verifier code --fresh",
    "import inspect logs/math.eval",
    "collect -i tasks.jsonl -o runs/served -m simulated --gym-resources",
)
"""Needs a terminal, tasks with programs, another tool's log, or the server that prints it."""
GOES_ON_S, DEADLINE_S = 4.0, 120.0


def templates() -> Iterator[tuple[str, str]]:
    """Every string of the source that names a command, gaps as {expression}, with its place."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        docstrings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if node in parts or node in docstrings:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(map(_part, node.values))
            else:
                continue
            if "rollforge " in text:
                yield text, f"{path.relative_to(SOURCE)}:{node.lineno}"


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return "{" + ast.unparse(part.value) + "}"
    return str(part.value) if isinstance(part, ast.Constant) else ""


def filled(template: str, place: str) -> str:
    """The text with a value in every gap."""

    def value(gap: re.Match[str]) -> str:
        for where, rule, text in VALUES:
            if re.search(where, place) and re.fullmatch(rule, gap[1]):
                return text
        return f"{{{gap[1]}}}"

    return re.sub(r"\{((?:[^{}]|\{[^{}]*\})*)\}", value, template)


def printed_commands() -> dict[tuple[str, ...], str]:
    """Every distinct command that can be printed, with the place that prints it."""
    found: dict[tuple[str, ...], str] = {}
    for template, place in templates():
        for words in commands_in(filled(template, place)):
            words = [PLACEHOLDERS.get(word, word) for word in words]
            if not PROSE.fullmatch(" ".join(words)):
                found.setdefault(tuple(words), place)
    return found


COMMANDS = printed_commands()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the documentation's commands have made by then: tasks, a run with verdicts and labels, a dataset, a verifier."""
    whole = tmp_path_factory.mktemp("hints") / "whole"
    whole.mkdir()
    for line in (
        "simulate --write-tasks tasks.jsonl -n 12",
        "collect -i tasks.jsonl -o runs/first -m simulated --verifier exact -k 8 --progress none",
        "verify runs/first --verifier math --progress none",
        "prepare dpo runs/first -o data/dpo --to trl --force",
        "init verifier my_verifier",
    ):
        done = subprocess.run(
            [sys.executable, "-m", "rollforge", *shlex.split(line)],
            cwd=whole,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
    labels = LabelFile(RunFiles(whole / RUN))
    for task in range(12):
        labels.add(Label(task=task, rollout=0, label="agree", reward=1.0, who="a", queue="random", seed=0))
    return whole


def test_the_source_is_searched() -> None:
    assert len(COMMANDS) > 80
    gaps = {
        f"{place}: {shlex.join(words)}"
        for words, place in COMMANDS.items()
        if any("{" in word for word in words)
    }
    assert not gaps, "say in VALUES what stands there:\n" + "\n".join(sorted(gaps))


def tidy(words: tuple[str, ...]) -> list[str]:
    """The words for `main`; a shell would have taken the redirection, and a port may be taken."""
    kept = list(words[: words.index(">")] if ">" in words else words)
    return [
        re.sub(r"^\d{4}$", "0", word) if before == "--port" else word
        for before, word in zip(["", *kept], kept, strict=False)
    ]


def pasted_into_a_shell(words: list[str], folder: Path, *, seconds: float) -> tuple[int, bool, str, str]:
    """Run the command; its exit code, whether it still ran after the time, and what it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rollforge", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return process.returncode, True, out, err
    return process.returncode, False, out, err


@pytest.mark.slow
@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_a_printed_command_runs_when_pasted(words: tuple[str, ...], whole: Path, tmp_path: Path) -> None:
    pasted = tidy(words)
    assert complaint(pasted) is None, COMMANDS[words]
    if pasted[0] in SLOW or " ".join(pasted).startswith(NEEDS_MORE):
        return
    goes_on = pasted[0] in LASTING and not any(word.startswith("--write") for word in pasted)
    work = tmp_path / "work"
    shutil.copytree(whole, work)
    if pasted[0] == "init":
        for made in work.glob("*my_verifier*"):
            made.unlink()
    folder = work / "data" / "dpo" if "--dataset" in pasted else work
    code, is_hung, out, err = pasted_into_a_shell(
        pasted, folder, seconds=GOES_ON_S if goes_on else DEADLINE_S
    )
    assert is_hung is goes_on, out + err
    is_fine = (
        is_hung or code not in (1, 2) or "no rollout fits" in err
    )  # a healthy run has none of those it speaks of
    assert is_fine, f"{COMMANDS[words]} prints it; exit code {code}\n{out[-500:]}\n{err[-1500:]}"
    assert "Traceback" not in err
