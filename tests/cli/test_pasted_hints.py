"""Every command that a command prints as the next step works when it is pasted, and so do the ones which that one prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from tests.hints import commands_in

SEEDS = (
    "simulate --write-tasks tasks.jsonl -n 12",
    "collect -i tasks.jsonl -o runs/a -m simulated --verifier exact -k 4 --progress none",
    "collect -i tasks.jsonl -o runs/bare -m simulated -k 2 --no-verify --progress none",
    "collect -i tasks.jsonl -o runs/failing -m simulated --verifier failing.py:verify -k 2 --progress none",
    "collect -i tasks.jsonl -o runs/constant -m simulated --verifier constant.py:verify -k 4 --progress none",
    "collect -i tasks.jsonl -o runs/pilot -m simulated --verifier exact -k 4 --pilot 4 --progress none",
    "status runs/a", "metrics runs/a", "profile runs/a", "show runs/a -n 1", "check runs/a", "check runs/bare",
    "check runs/constant --for grpo", "check runs/failing", "metrics runs/bare", "verify runs/a --verifier math --progress none",
    "verify runs/a --diff recorded math", "prepare sft runs/a -o data/sft --to trl", "prepare dpo runs/bare -o data/dpo --to trl",
    "prepare dpo runs/constant -o data/dpo --to trl", "prepare sft runs/nothing -o data/x --to trl",
    "validate tasks.jsonl", "list verifiers",
    "validate broken.jsonl", "show runs/a --task 99999", "show runs/nothing", "metrics tasks.jsonl", "query runs/a nonsense",
    "collect -i tasks.jsonl -o runs/a -m simulated --verifier exact -k 4 --temperature 0.5 --progress none",
    "collect -i missing.jsonl -o runs/b -m simulated", "verify runs/a --verifier exakt", "prepare sfd runs/a -o x", "shwo runs/a",
    "init verifier mine.py", "test-verifier mine.py", "report runs/a -o report.html", "experiences runs/a --buffer buffer.db",
)  # fmt: skip
REFUSED = 2
PLACEHOLDER = re.compile(r"(^|[^A-Z_])([A-Z]{3,}|N)([^A-Z_]|$)|…|<")
"""RUN, FILE, NAME and the like: to be filled in, not to be pasted."""
LASTING = {"simulate", "serve-verifier", "view", "demo"}
"""Commands that do not end by themselves, or take a minute."""
MOST = 120


def paste(words: list[str], folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout + "\n" + done.stderr


def is_whole(words: list[str]) -> bool:
    return not any(PLACEHOLDER.search(word) for word in words) and words[0] not in LASTING


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_printed_command_works_when_pasted(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text("def verify(task, response):\n    return 1 / 0\n")
    (tmp_path / "constant.py").write_text("def verify(task, response):\n    return 0.0\n")
    (tmp_path / "broken.jsonl").write_text('{"prompt": 3}\nnot json\n')
    waiting: deque[tuple[str, list[str]]] = deque()
    for line in SEEDS:
        code, said = paste(shlex.split(line), tmp_path)
        assert code != 1 and "Traceback" not in said, f"{line}: {said}"
        waiting += [(line, words) for words in commands_in(said)]
    seen: set[tuple[str, ...]] = {tuple(shlex.split(line)) for line in SEEDS}
    wrong: list[str] = []
    while waiting and len(seen) < MOST:
        origin, words = waiting.popleft()
        if tuple(words) in seen or not is_whole(words):
            continue
        seen.add(tuple(words))
        code, said = paste(words, tmp_path)
        if code in (1, REFUSED) or "Traceback" in said:
            wrong.append(
                f"`rollforge {origin}` prints `rollforge {shlex.join(words)}`, which exits {code}:\n{said[-600:]}"
            )
        waiting += [(shlex.join(words), more) for more in commands_in(said)]
    print(f"pasted {len(seen) - len(SEEDS)} commands")
    assert len(seen) > len(SEEDS) + 10, "too few next steps were printed to mean anything"
    assert not wrong, "\n\n".join(wrong)
