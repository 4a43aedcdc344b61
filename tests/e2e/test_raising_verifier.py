"""A verifier that raises on everything: the run stops early, every command says why, and resuming it changes nothing quietly."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

from rollforge.simulate.tasks import example_tasks

RAISING = "def verify(task, response):\n    return float(task['no such field'])\n"
SOUND = "def verify(task, response):\n    return float(str(task['expected_answer']) in response.text)\n"


def rollforge(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollforge", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )


def prepared(folder: Path, tasks: int = 60) -> list[str]:
    rows = example_tasks(tasks, 0, "math")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.py").write_text(RAISING)
    return [
        *("collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "mine.py:verify"),
        *("-c", "4", "-k", "2", "--progress", "plain"),
    ]


def test_a_verifier_that_raises_on_everything_stops_the_run_and_is_quoted_everywhere(tmp_path: Path) -> None:
    words = prepared(tmp_path, tasks=300)
    first = rollforge(*words, folder=tmp_path)
    assert first.returncode == 5, first.stderr
    text = "KeyError: 'no such field' (mine.py:2 in verify)"
    assert text in first.stderr
    assert "the verifier failed on 20 of 20 rollouts" in first.stderr
    lines = (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()
    assert 20 <= len(lines) < 300  # of 600: those in flight while the disk commits are recorded too
    for command in ("status", "profile", "check"):
        done = rollforge(command, "run", folder=tmp_path)
        assert text in " ".join((done.stdout + done.stderr).split()), command
    again = rollforge(*words, folder=tmp_path)
    assert again.returncode == 5
    other = rollforge("verify", "run", "--verifier", "exact", "--failed-only", folder=tmp_path)
    assert "to judge all: rollforge verify run --verifier exact" in other.stderr


def test_resuming_a_stopped_run_is_not_done_while_nothing_has_changed(tmp_path: Path) -> None:
    words = prepared(tmp_path, tasks=12)
    first = rollforge(*words, folder=tmp_path)
    assert first.returncode == 5
    assert "mend the verifier first" in first.stderr
    state = rollforge("status", "run", folder=tmp_path).stdout
    assert "until then these verdicts stay suspect" in state
    for _ in range(3):  # few are left: too few to trip again
        again = rollforge(*words, folder=tmp_path)
        assert again.returncode == 5, again.stderr
    assert "nothing has changed since" in again.stderr
    assert "suspect" in again.stderr


def test_a_mended_verifier_may_go_on_with_the_run_it_stopped(tmp_path: Path) -> None:
    words = prepared(tmp_path)
    assert rollforge(*words, folder=tmp_path).returncode == 5
    (tmp_path / "mine.py").write_text(SOUND)
    done = rollforge(*words, folder=tmp_path)
    assert done.returncode in (0, 3), done.stderr
    assert "the verifier has changed since the run stopped" in done.stderr
    assert (
        rollforge("verify", "run", "--verifier", "mine.py:verify", "--fresh", folder=tmp_path).returncode == 0
    )
    assert "suspect" not in rollforge("status", "run", folder=tmp_path).stdout


def test_failures_with_many_texts_are_counted_in_full(tmp_path: Path) -> None:
    words = prepared(tmp_path, tasks=8)
    (tmp_path / "mine.py").write_text(
        "def verify(task, response):\n"
        "    if int(task['expected_answer']) % 4 == 0:\n        return 1.0\n"
        "    raise ValueError(f'cannot read {response.text[:40]}')\n"
    )
    done = rollforge(*words, "--json", folder=tmp_path)
    result = json.loads(done.stdout)
    assert result["unjudged"] > 5
    assert sum(result["verifier_failures"].values()) == result["unjudged"]
    status = rollforge("status", "run", folder=tmp_path)
    assert f"the verifier failed {result['unjudged']:,} times" in status.stdout + status.stderr


def test_a_verifier_that_never_gives_a_reward_ends_with_exit_3_and_the_reason(tmp_path: Path) -> None:
    words = prepared(tmp_path, tasks=4)
    (tmp_path / "mine.py").write_text("def verify(task, response):\n    return None\n")
    done = rollforge(*words, folder=tmp_path)
    assert done.returncode == 3
    assert "not one rollout of this session has a verdict: the verifier" in done.stderr


def test_a_constant_verifier_stops_the_run(tmp_path: Path) -> None:
    words = prepared(tmp_path, tasks=700)
    for reward in ("0.0", "0.37", "1.0"):
        (tmp_path / "mine.py").write_text(f"def verify(task, response):\n    return {reward}\n")
        done = rollforge(*words, "--fresh", "--json", folder=tmp_path)
        result = json.loads(done.stdout)
        assert (done.returncode, result["ending"]) == (5, "broken"), done.stderr
        assert result["finished"] < 1400


def test_verdicts_stay_suspect_over_sessions_until_they_are_judged_again(tmp_path: Path) -> None:
    words = [*prepared(tmp_path, tasks=700), "--json"]
    (tmp_path / "mine.py").write_text("def verify(task, response):\n    return 1.0\n")
    first = json.loads(rollforge(*words, folder=tmp_path).stdout)
    assert first["ending"] == "broken" and first["owed"] > 0
    ended = rollforge(*words, folder=tmp_path)
    while (result := json.loads(ended.stdout))["owed"]:
        ended = rollforge(*words, folder=tmp_path)
    assert ended.returncode == 5
    assert result["finished"] == 1400 > first["finished"]
    suspect = result["suspect"]
    assert suspect["rollouts"] > first["suspect"]["rollouts"], "those of the earlier sessions too"
    assert suspect["first_at"] == first["suspect"]["first_at"]
    rows = map(json.loads, (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines())
    ends = [row["_rf"]["started"] + row["_rf"]["seconds"] for row in rows]
    inside = sum(suspect["first_at"] <= end <= suspect["last_at"] for end in ends)
    assert inside > 1300 > first["finished"], "all but a few at the ends, which were judged out of order"

    (tmp_path / "mine.py").write_text(SOUND)
    mended = rollforge(*words, folder=tmp_path)
    assert mended.returncode == 5 and "was not judged again" in json.loads(mended.stdout)["message"]
    assert "suspect-window" in rollforge("check", "run", folder=tmp_path).stdout
    judged = rollforge("verify", "run", "--verifier", "mine.py:verify", "--json", folder=tmp_path)
    (note,) = json.loads(judged.stdout)["notes"]
    assert "another version of mine.py:verify had judged" in note
    compared = note.partition("to compare: rollforge ")[2]
    assert rollforge(*shlex.split(compared), folder=tmp_path).returncode == 0
    mean = json.loads(rollforge("metrics", "run", "--json", folder=tmp_path).stdout)["fields"]["reward"][
        "mean"
    ]
    assert mean == json.loads(judged.stdout)["reward"]["mean"] < 1
    assert rollforge(*words, folder=tmp_path).returncode == 0
    assert "suspect-window" not in rollforge("check", "run", folder=tmp_path).stdout


def test_a_run_in_shards_stays_suspect_too(tmp_path: Path) -> None:
    words = [*prepared(tmp_path, tasks=700), "--workers", "1", "--json"]
    (tmp_path / "mine.py").write_text("def verify(task, response):\n    return 1.0\n")
    first = json.loads(rollforge(*words, folder=tmp_path).stdout)
    assert first["ending"] == "broken" and first["owed"] > 0
    ended = rollforge(*words, folder=tmp_path)
    while json.loads(ended.stdout)["owed"]:
        ended = rollforge(*words, folder=tmp_path)
    assert ended.returncode == 5 and "stay suspect" in json.loads(ended.stdout)["message"]


def test_a_verifier_that_could_not_start_binds_no_run(tmp_path: Path) -> None:
    words = prepared(tmp_path, tasks=3)
    (tmp_path / "mine.py").write_text(
        "class verify:\n    def setup(self):\n        raise OSError('no judge there')\n"
        "    def verify(self, task, response):\n        return 1\n"
    )
    first = rollforge(*words, folder=tmp_path)
    assert first.returncode == 2 and "could not start" in first.stderr
    words[words.index("mine.py:verify")] = "exact"
    done = rollforge(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    words[words.index("exact")] = "math"
    assert rollforge(*words, folder=tmp_path).returncode == 7, "a run with rollouts binds its settings"
