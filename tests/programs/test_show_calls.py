"""`show --calls`: what programs had asked and been answered in attempts that are no rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollforge.errors import UsageError
from rollforge.steps.show_calls import show_calls
from tests.programs.running import collected

PROGRAM = """
kind = json.load(open(os.environ["ROLLFORGE_TASK"]))["kind"]
talk = user("first question")
talk.append(ask(talk))
ask([*talk, *user("second question")])
if kind == "dies":
    sys.exit(3)
"""


async def test_attempts_without_a_rollout_are_shown_with_every_answered_call(tmp_path: Path) -> None:
    ran = await collected(
        tmp_path,
        PROGRAM,
        tasks=[{"kind": "dies"}, {"kind": "fine"}],
        sandbox="off",
        attempts=2,
        max_failures="100%",
    )
    assert [row["_ng_task_index"] for row in ran.rows] == [1]
    with (ran.out / "rollouts_calls.jsonl").open("ab") as file:
        file.write(b'{"session": "torn')  # a kill in the middle of a line: that call was never answered
    seen = show_calls([ran.out])
    assert (seen.unfinished, seen.unfinished_calls) == (2, 4)
    assert [(one.task, one.calls, one.is_finished) for one in seen.attempts] == [(0, 2, False)] * 2
    for one in seen.attempts:
        said = [(turn.kind, turn.text) for turn in one.turns]
        assert said[0] == ("user", "first question") and said[2] == ("user", "second question")
        assert [kind for kind, _ in said] == ["user", "assistant", "user", "assistant"]
    (fine,) = show_calls([ran.out], tasks=[1]).attempts
    assert fine.is_finished and fine.calls == 2
    assert len(show_calls([ran.out], limit=1).attempts) == 1


async def test_a_run_of_which_nothing_is_finished_can_be_read(tmp_path: Path) -> None:
    ran = await collected(tmp_path, PROGRAM, tasks=[{"kind": "dies"}], sandbox="off", max_failures="100%")
    (ran.out / "rollouts.jsonl").unlink(missing_ok=True)
    assert show_calls([ran.out]).unfinished == 1


def test_a_run_without_recorded_calls_says_so(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_text("")
    with pytest.raises(UsageError, match="no recorded calls"):
        show_calls([tmp_path])
