"""Prepare chooses again without what cannot be expressed: nothing good is passed over for the sake of what is not written."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforge.errors import UsageError
from rollforge.steps.prepare import DatasetManifest, prepare
from tests.builders import Row, make_rollout, write_rows
from tests.prepare_runs import call, read_lines, result, text, with_output

SEARCH = {"type": "web_search_call"}
LOST = "cannot be expressed: item type web_search_call"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Six tasks, each with two right answers and two wrong ones; no message can say the first right one."""
    rows = []
    for task in range(6):
        rows += [with_output(make_rollout(task, 0, 1.0), SEARCH, text(f"found {task}"))]
        rows += [make_rollout(task, k, float(k == 1), text=f"answer {task}.{k}") for k in (1, 2, 3)]
    return run_of(tmp_path / "run", *rows)


def run_of(folder: Path, *rows: Row) -> Path:
    return write_rows(folder / "rollouts.jsonl", rows).parent


def make(recipe: str, run: Path, **options: Any) -> tuple[DatasetManifest, list[Row]]:
    """The data set, every rollout and every example of its plan counted once."""
    out = run.parent / "data"
    made = prepare(recipe, run, to="trl", out=out, **options)
    rollouts, examples = made.counts["rollouts"], made.counts["examples"]
    assert rollouts["in"] == sum(n for fate, n in rollouts.items() if fate != "in")
    assert examples["planned"] == sum(n for fate, n in examples.items() if fate != "planned")
    return made, read_lines(out / "train.jsonl")


def test_the_best_of_a_task_is_the_best_that_can_be_written(run: Path) -> None:
    made, rows = make("sft", run, per_task=1)
    assert [row["completion"][-1]["content"] for row in rows] == [f"answer {task}.1" for task in range(6)]
    counts = dict(made.counts["rollouts"])
    others = counts.pop(LOST, 0) + counts.pop("beyond the best of its task", 0)  # by ties either is met first
    assert counts == {"in": 24, "kept": 6, "below threshold": 12} and others == 6


@pytest.mark.parametrize(
    ("options", "pairs"),
    [({"strategy": "best"}, 12), ({"strategy": "all", "max_pairs": 1}, 6), ({"strategy": "inwards"}, 6)],
)
def test_a_partner_that_can_be_written_is_found(options: dict[str, Any], pairs: int, run: Path) -> None:
    made, rows = make("dpo", run, **options)
    assert len(rows) == pairs and {row["chosen"][0]["content"][-2:] for row in rows} == {".1"}
    assert (
        sum(n for fate, n in made.counts["rollouts"].items() if fate not in ("in", "kept"))
        == 24 - (made.counts["rollouts"]["kept"])
    )


def test_labels_are_balanced_over_what_is_written(run: Path) -> None:
    made, _ = make("kto", run, balance="label")
    assert (made.statistics["desirable"], made.statistics["undesirable"]) == (6, 6)


@pytest.mark.parametrize("recipe", ["sft", "kto"])
def test_a_limit_is_filled(recipe: str, run: Path) -> None:
    assert len(make(recipe, run, limit=5)[1]) == 5


def test_a_limit_of_tasks_is_filled_with_tasks_that_ask_something(tmp_path: Path) -> None:
    rows = [make_rollout(task, k, float(k)) for task in range(8) for k in range(2)]
    for row in rows[::4] + rows[1::4]:
        row["responses_create_params"]["input"] = " "
    made, written = make("grpo", run_of(tmp_path / "run", *rows), limit=4)
    assert len(written) == 4 and made.counts["rollouts"]["kept"] == 8


def test_the_next_pair_is_tried_where_two_answers_say_the_same(tmp_path: Path) -> None:
    answers = ["the answer", "the  answer", "another answer"]
    rows = [make_rollout(0, k, 1.0 - k / 2, text=answers[k]) for k in (0, 2, 1)]
    rows[1]["reward"], rows[2]["reward"] = 0.5, 0.0
    made, written = make("dpo", run_of(tmp_path / "run", *rows), strategy="all", max_pairs=1)
    assert [row["rejected"][0]["content"] for row in written] == ["another answer"]
    assert made.counts["rollouts"] == {
        "in": 3,
        "kept": 2,
        "cannot be expressed: same answer after normalisation": 1,
    }


@pytest.mark.parametrize("strategy", ["inwards", "all"])
def test_a_task_whose_only_pair_says_the_same_is_left_out_with_the_reason(
    strategy: str, tmp_path: Path
) -> None:
    rows = [make_rollout(0, 0, 1.0, text="the answer"), make_rollout(0, 1, 0.0, text="the  answer")]
    run = run_of(tmp_path / "run", *rows)
    with pytest.raises(UsageError, match="1 same answer after normalisation"):
        make("dpo", run, strategy=strategy)


def test_a_change_of_form_is_told_when_the_rows_are_written_again(tmp_path: Path) -> None:
    lost = with_output(make_rollout(0, 0, 1.0), SEARCH, text("found"))
    rows = [make_rollout(0, 1, 1.0, text="plain")]
    for task, arguments in ((1, '{"at": 0.3}'), (2, '{"at": {"lat": 1}}')):
        rows.append(with_output(make_rollout(task, 0, 1.0), call(0, arguments), result(0), text("done")))
    again, _ = make("sft", run_of(tmp_path / "run", lost, *rows), per_task=1)
    once, _ = make("sft", run_of(tmp_path / "clean", *rows), per_task=1)
    assert again.form["changes"] == once.form["changes"] != []


ANSWERS: dict[str, list[Row]] = {
    "said": [text("the answer")],
    "said with other spaces": [text("the  answer")],
    "said otherwise": [text("another answer")],
    "searched": [SEARCH, text("found")],
    "empty": [],
    "called": [call(0), result(0), text("the answer")],
    "called wrongly": [call(0, "no JSON"), result(0), text("the answer")],
}
rollouts = st.tuples(
    st.integers(0, 2), st.sampled_from([0.0, 0.5, 1.0, None]), st.sampled_from(list(ANSWERS))
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(rollouts, min_size=2, max_size=14),
    recipe=st.sampled_from(["sft", "dpo", "kto", "grpo"]),
    strategy=st.sampled_from(["inwards", "all", "best", "hardest"]),
    most=st.sampled_from(["max_pairs", "max_uses", "per_task", "limit"]),
    dedupe=st.sampled_from(["none", "exact"]),
)
def test_whatever_is_lost_every_rollout_and_every_example_is_counted_once(
    rows: list[tuple[int, float | None, str]], recipe: str, strategy: str, most: str, dedupe: str
) -> None:
    with TemporaryDirectory() as place:
        made = [
            with_output(make_rollout(task, number, reward), *ANSWERS[answer])
            for number, (task, reward, answer) in enumerate(rows)
        ]
        run = run_of(Path(place) / "run", *made)
        with suppress(UsageError):  # no example may be left
            make(recipe, run, strategy=strategy, dedupe=dedupe, min_reward=0.5, **{most: 1})
