"""`rollforge demo`: the whole pipeline on the embedded model."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rollforge.cli.app import COMMANDS
from rollforge.cli.render.console import say
from rollforge.errors import Exit, UsageError

EXAMPLE = "rollforge demo"

_STEPS = (
    (
        "Example tasks: arithmetic, with a difficulty that varies",
        "simulate --write-tasks {tasks} -n 300 --seed 1",
    ),
    (
        "Collect 8 rollouts per task from the embedded model, judged as they come in",
        "collect -i {tasks} -o {run} -m simulated --verifier exact -k 8 --progress plain",
    ),
    ("How far is it? (works from any other shell, also while it runs)", "status {run}"),
    ("Ask the verifier what it must know", "verify {run} --verifier exact --probe"),
    ("Profile rewards per task", "profile {run}"),
    (
        "Any question, in SQL",
        'query {run} "select reward, count(*) as rollouts, avg(output_tokens) as tokens from rollouts group by 1 order by 1"',
    ),
    ("Is it fit for GRPO?", "check {run} --for grpo"),
    ("Make a preference dataset that TRL loads", "prepare dpo {run} -o {data} --to trl"),
    ("One file to look at, and to send", "report {run} -o {report}"),
)
"""Heading and command of every step; commands that are not installed are skipped."""


def demo(out: Path | None = None, /, *, keep_going: Annotated[bool, Parameter(negative=())] = False) -> Exit:
    """Run the whole pipeline on the embedded model: no key, no GPU, under a minute.

    Parameters
    ----------
    out
        Directory for the demo's files; by default `demo`, or the first free `demo-2`, `demo-3`, …
    keep_going
        Go on after a step that does not end with exit code 0.
    """
    out = out or _free_directory()
    if (out / "run").exists():
        raise UsageError(f"{out / 'run'} exists", hint="name a folder that does not")
    out.mkdir(parents=True, exist_ok=True)
    paths = {
        "tasks": out / "tasks.jsonl",
        "run": out / "run",
        "data": out / "dpo",
        "report": out / "report.html",
    }
    for title, template in _STEPS:
        words = shlex.split(template.format(**{name: shlex.quote(str(path)) for name, path in paths.items()}))
        if words[0] not in COMMANDS:
            continue
        say(f"\n── {title}\n$ rollforge {shlex.join(words)}\n")
        code = subprocess.run([sys.executable, "-P", "-m", "rollforge", *words], check=False).returncode
        if code and not (keep_going or words[0] == "check"):
            say(f"error: rollforge {words[0]} ended with exit code {code}")
            return Exit.UNEXPECTED
    say(
        f"\nEverything is in {out}/; open {paths['report']} in a browser. The answers were simulated: point collect at "
        "your own server with --base-url."
    )
    return Exit.DONE


def _free_directory() -> Path:
    candidates = itertools.chain(["demo"], (f"demo-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, candidates) if not path.exists())
