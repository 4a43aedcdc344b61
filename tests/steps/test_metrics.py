"""Metrics: what the numbers are over, and that they are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.errors import UsageError
from rollforge.index import open_index
from rollforge.steps.metrics import (
    MetricsOptions,
    compare_runs,
    nemo_gym_metrics,
    summarize_run,
    trinity_metrics,
)
from tests.builders import make_rollout, write_rows


def run_of(path: Path, rewards: list[list[float | None]], **fields: object) -> Path:
    return write_rows(
        path,
        [
            make_rollout(task, n, reward, **fields)
            for task, group in enumerate(rewards)
            for n, reward in enumerate(group)
        ],
    )


def test_unjudged_and_failed_rollouts_never_lower_the_mean(tmp_path: Path) -> None:
    path = run_of(tmp_path / "rollouts.jsonl", [[1.0, None], [1.0, 0.0]])
    write_rows(
        tmp_path / "rollouts_failures.jsonl",
        [{"_ng_task_index": 2, "_ng_rollout_index": n // 2, "class": "timeout"} for n in range(4)]
        + [{"_ng_task_index": 0, "_ng_rollout_index": 0, "class": "transient"}],
    )
    (tmp_path / "rollouts_run.json").write_text(json.dumps({"expected": 6, "tasks": 3, "samples": 2}))
    found = summarize_run(path)
    counts = found.counts
    assert (counts.expected, counts.finished, counts.judged, counts.unjudged, counts.failed) == (
        6,
        4,
        3,
        1,
        2,
    )
    assert found.fields["reward"].mean == pytest.approx(2 / 3) and found.fields["reward"].missing == 1
    assert found.failures_as_zero is not None and found.failures_as_zero.mean == pytest.approx(2 / 5)
    assert found.failures == {"timeout": 2} and found.coverage == 0.5
    assert {flag.id for flag in found.flags} >= {"unjudged", "failed"}


def test_rollouts_without_an_agent_are_listed_beside_those_that_have_one(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 1.0, agent="a"), make_rollout(0, 1, 0.5, agent="a"), make_rollout(0, 2, 0.0)]
    del rows[2]["agent_ref"]
    found = summarize_run(write_rows(tmp_path / "rollouts.jsonl", rows))
    assert {name: agent.n for name, agent in found.agents.items()} == {"(none)": 1, "a": 2}
    assert found.agents["(none)"].fields["reward"].mean == 0.0
    nobody = summarize_run(write_rows(tmp_path / "other.jsonl", rows[2:]))
    assert nobody.agents == {}


def test_every_number_field_is_summarised_per_agent_too(tmp_path: Path) -> None:
    rows = [
        make_rollout(t, 0, t / 4, agent=f"a{t % 2}", accuracy=t > 1, odd="x" if t else 3) for t in range(4)
    ]
    found = summarize_run(write_rows(tmp_path / "r.jsonl", rows))
    assert found.fields["accuracy"].mean == 0.5 and found.fields["output_tokens"].mean == 20
    assert found.agents["a1"].fields["reward"].mean == pytest.approx(0.5) and found.agents["a0"].n == 2
    assert found.fields["odd"].n == 1 and found.mixed_types == {"odd": 3}


def test_at_k_counts_the_tasks_it_is_over(tmp_path: Path) -> None:
    found = summarize_run(run_of(tmp_path / "r.jsonl", [[1.0, 0.0, 0.0, 0.0], [0.5, 0.0], [None, 1.0]]))
    assert (
        found.at_k["pass@1"].value == pytest.approx((0.25 + 0.5 + 1) / 3) and found.at_k["pass@1"].tasks == 3
    )
    assert found.at_k["pass@2"].value == pytest.approx((0.5 + 1) / 2) and found.at_k["pass@2"].tasks == 2
    assert found.at_k["pass@4"].value == 1 and found.at_k["pass@4"].tasks == 1
    assert found.at_k["best@2"].value == pytest.approx((0.5 + 0.5) / 2)
    assert found.at_k["worst@4"].value == 0 and found.at_k["pass^4"].value == 0


def test_a_rare_success_does_not_make_the_interval_narrower_than_none_does(tmp_path: Path) -> None:
    never = [[0.0] * 8 for _ in range(50)]
    once = [[1.0] * 4 + [0.0] * 4, *never[1:]]
    highs = []
    for name, rewards in (("never", never), ("once", once)):
        found = summarize_run(run_of(tmp_path / name / "rollouts.jsonl", rewards)).at_k
        assert found["pass^4"].ci == found["worst@4"].ci is not None
        highs.append((found["pass^4"].ci or [0, 0])[1])
    assert highs[1] > highs[0] / 2  # of 100 groups of four instead of 50 tasks


def test_majority_votes_on_the_extracted_answer(tmp_path: Path) -> None:
    rows = [make_rollout(0, n, float(a == "7"), extracted_answer=a) for n, a in enumerate(["7", "7", "8"])]
    found = summarize_run(write_rows(tmp_path / "r.jsonl", rows))
    assert found.answer_field == "extracted_answer" and found.at_k["majority@3"].value == 1
    assert found.at_k["majority@1"].value == pytest.approx(2 / 3)


def voting_run(path: Path, right: list[object], wrong: list[object]) -> Path:
    """One task: these answers are judged right, those wrong."""
    judged = [(answer, 1.0) for answer in right] + [(answer, 0.0) for answer in wrong]
    rows = [make_rollout(0, n, reward, extracted_answer=answer) for n, (answer, reward) in enumerate(judged)]
    return write_rows(path, rows)


def test_majority_is_told_for_every_k_up_to_the_samples_taken(tmp_path: Path) -> None:
    rows = [make_rollout(0, n, float(n % 5 < 2), extracted_answer="ABCCD"[n % 5]) for n in range(60)]
    found = summarize_run(write_rows(tmp_path / "rollouts.jsonl", rows)).at_k
    output = [found[f"majority@{k}"].value for k in range(1, 61)]
    assert output[0] == pytest.approx(0.4) and output[-1] == 0  # C is given twice as often as A, B and D
    assert output[1:] == sorted(output[1:], reverse=True)


@pytest.mark.parametrize("pair", [(0, 1), (-1, -2), (2, 3), (False, True), ("0", "1"), (2**53, 2**53 + 2)])
def test_answers_that_differ_never_vote_together(tmp_path: Path, pair: tuple[object, object]) -> None:
    right, wrong = pair
    found = summarize_run(voting_run(tmp_path / "r.jsonl", [right] * 2, [wrong] * 3)).at_k
    assert (found["majority@1"].value, found["majority@5"].value) == (pytest.approx(0.4), 0)
    assert found["majority@3"].value == pytest.approx(
        0.3
    )  # both right ones and one of three wrong: 3 of 10 draws


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (["B"] * 2, ["L" * 300] * 3),
        (["B", "C"], ["é" * 2000] * 2),
        ([7, 8], ["A"] * 2),
        (["A", None], [["a", {"b": 1, "c": 2}], ["a", {"c": 2, "b": 1}]]),
        ([4, 6.5], [5, "5"]),
    ],
)
def test_no_answer_loses_its_vote_for_being_long_or_of_another_type(
    tmp_path: Path, right: list[object], wrong: list[object]
) -> None:
    found = summarize_run(voting_run(tmp_path / "r.jsonl", right, wrong))
    assert found.answer_field == "extracted_answer"
    assert found.at_k[f"majority@{len(right) + len(wrong)}"].value == 0


def test_a_run_that_was_judged_again_keeps_the_votes_of_its_long_answers(tmp_path: Path) -> None:
    path = voting_run(tmp_path / "r.jsonl", ["B"] * 2, ["L" * 300] * 3)
    again = [
        {"_ng_task_index": 0, "_ng_rollout_index": n, "verifier": "exact", "at": 1.0, "reward": float(n < 2)}
        | {"extracted_answer": "B" if n < 2 else "L" * 300}
        for n in range(5)
    ]
    before = summarize_run(path).at_k
    write_rows(tmp_path / "r_verdicts.jsonl", again)
    assert before["majority@5"].value == 0
    assert summarize_run(path).at_k == before


def test_an_answer_with_half_a_character_votes(tmp_path: Path) -> None:
    path = voting_run(tmp_path / "r.jsonl", ["A", "B"], ["HALF", "HALF"])
    path.write_bytes(path.read_bytes().replace(b"HALF", rb"\ud800"))
    assert summarize_run(path).at_k["majority@4"].value == 0


def test_long_answers_that_differ_only_at_their_end_are_two_answers(tmp_path: Path) -> None:
    long = "x" * 1000
    path = voting_run(tmp_path / "r.jsonl", ["B"] * 2, [f"{long}1", f"{long}2", f"{long}3"])
    assert summarize_run(path).at_k["majority@5"].value == 1


def test_the_histogram_holds_the_best_rewards(tmp_path: Path) -> None:
    found = summarize_run(run_of(tmp_path / "r.jsonl", [[1.0, 1.0, 0.0, 0.35]]))
    assert found.histogram.counts[-1] == 2 and sum(found.histogram.counts) == 4


@pytest.mark.parametrize(
    ("rewards", "flag"),
    [
        ([[1.0, 1.0]], "identical-rewards"),
        ([[0.1, 0.0]], "low-mean"),
        ([[None]], "none-judged"),
        ([], "empty-run"),
        ([[50.0, 1.0]], "outlier-rewards"),
    ],
)
def test_red_flags_are_raised(tmp_path: Path, rewards: list[list[float | None]], flag: str) -> None:
    assert flag in {found.id for found in summarize_run(run_of(tmp_path / "r.jsonl", rewards)).flags}


def test_where_and_threshold_choose(tmp_path: Path) -> None:
    path = run_of(tmp_path / "r.jsonl", [[0.2, 0.4, 0.9]])
    found = summarize_run(path, options=MetricsOptions(where="reward > 0.3", threshold=0.4))
    assert found.counts.finished == 2 and found.success.value == 1


def test_throughput_leaves_out_pauses(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, n, 1.0, _rf={"started": start, "seconds": 10.0})
        for n, start in enumerate([0.0, 5.0, 1000.0])
    ]
    found = summarize_run(write_rows(tmp_path / "r.jsonl", rows)).throughput
    assert (
        found.active_s == 25
        and found.rollouts_per_s == pytest.approx(3 / 25)
        and found.tokens_per_s == pytest.approx(60 / 25)
    )


def test_paired_differences_see_what_two_intervals_do_not(tmp_path: Path) -> None:
    hard = [[t / 50, t / 50] for t in range(50)]
    better = [[v + 0.02 + 0.001 * (t % 2) for v in group] for t, group in enumerate(hard)]
    one, two = run_of(tmp_path / "one.jsonl", better), run_of(tmp_path / "two.jsonl", hard)
    with open_index(one) as first, open_index(two) as second:
        found = compare_runs(first, second)
        assert found.verdict.startswith("better") and found.shared_tasks == 50
        assert found.fields["reward"].difference == pytest.approx(0.0205)
        assert compare_runs(second, first).verdict.startswith("worse")
        assert compare_runs(first, first).verdict.startswith("the same")


def test_tasks_in_the_words_of_another_template_are_paired_by_number_and_that_is_said(tmp_path: Path) -> None:
    def asked(words: str, reward: float, tasks: range) -> Path:
        rows = [make_rollout(task, 0, reward, prompt=f"{words} {task}") for task in tasks]
        return write_rows(tmp_path / f"{words}.jsonl", rows)

    one, two = asked("please", 1.0, range(20)), asked("now", 0.0, range(4, 24))
    with (
        open_index(one) as first,
        open_index(two) as second,
        open_index(asked("far", 1.0, range(90, 99))) as far,
    ):
        found = compare_runs(first, second)
        with pytest.raises(UsageError, match="share no task"):
            compare_runs(first, far)
    assert (found.paired_by, found.shared_tasks, found.only_run, found.only_against) == (
        "task number",
        16,
        4,
        4,
    )
    assert found.verdict.startswith("better") and "no prompt is in both runs" in found.verdict


@pytest.mark.parametrize(("tasks", "words"), [(1, "too few"), (2, "too few"), (5, "too few"), (20, "better")])
def test_a_verdict_needs_enough_tasks(tmp_path: Path, tasks: int, words: str) -> None:
    one, two = run_of(tmp_path / "a.jsonl", [[1.0]] * tasks), run_of(tmp_path / "b.jsonl", [[0.0]] * tasks)
    with open_index(one) as first, open_index(two) as second:
        found, same = compare_runs(first, second), compare_runs(first, first)
    reward = found.fields["reward"]
    assert (
        found.verdict.startswith(words) and reward.differing == tasks and same.fields["reward"].differing == 0
    )
    assert reward.ci is None or reward.ci[0] < 1
    assert same.verdict.startswith("the same" if tasks > 5 else "too few")


def test_nemo_gym_numbers_are_its_own(tmp_path: Path) -> None:
    groups: list[list[float | None]] = [[1.0, 0, 0, 0], [0.5, 0.2, 0.9, 0.1], [1.0]]
    with open_index(run_of(tmp_path / "r.jsonl", groups)) as index:
        [entry] = nemo_gym_metrics(index)
    found = entry["agent_metrics"]
    assert entry["agent_ref"] == {"name": "model_call"} and found["mean/output_tokens"] == 20
    assert found["pass@1/accuracy"] == pytest.approx(58.3333, abs=1e-3)
    assert found["pass@1[avg-of-1]/accuracy"] == pytest.approx(83.3333, abs=1e-3)
    assert found["pass@2/accuracy"] == pytest.approx(50.0)


def test_an_unjudged_rollout_takes_no_part_in_nemo_gyms_vote(tmp_path: Path) -> None:
    judged: list[tuple[int, float | None, str | None]] = [
        (0, None, "A"), (0, 1.0, "B"), (0, 1.0, "B"), (0, 0.0, "A"), (1, None, "A"), (2, 0.0, "x" * 300), (2, 1.0, None),
    ]  # fmt: skip
    rows = [
        make_rollout(task, n, reward, extracted_answer=answer)
        for n, (task, reward, answer) in enumerate(judged)
    ]
    with open_index(write_rows(tmp_path / "r.jsonl", rows)) as index:
        found = nemo_gym_metrics(index)[0]["agent_metrics"]
    assert [found[f"majority@{k}/accuracy"] for k in (1, 2, 3, 4)] == [50.0] * 4
    assert found["pass@1/no_answer"] == pytest.approx(100 / 6)  # long answers are answers


def test_a_dot_in_a_fields_name_does_not_hide_it_from_the_peers(tmp_path: Path) -> None:
    usage = {"output_tokens": 20, "input_tokens_details": {"cached_tokens": 2}, "more": {"cost": 1}}
    fields = {"a.b": 10, "reward_components": {"format": 0.5}}
    rows = [make_rollout(0, 0), make_rollout(0, 1, usage=usage, **fields), make_rollout(0, 2, usage=usage)]
    with open_index(write_rows(tmp_path / "r.jsonl", rows)) as index:
        assert {"a.b", "reward_components.format", "input_tokens_details.cached_tokens"} <= set(index.numbers)
        found = nemo_gym_metrics(index)[0]["agent_metrics"]
        means = {name for name in found if name.startswith("mean/")}
        assert found["mean/a.b"] == 10 and "rollout/a.b/mean" in trinity_metrics(index)
    assert {name for name in means if "." in name} == {"mean/a.b"}


def test_trinity_numbers_are_its_own(tmp_path: Path) -> None:
    rows = [
        make_rollout(t, n, 0.0, accuracy=v)
        for t, g in enumerate([(0.8, 0.9), (0.6, 0.9), (0.95, 0.85)])
        for n, v in enumerate(g)
    ]
    with open_index(write_rows(tmp_path / "dummy.jsonl", rows)) as index:
        found = trinity_metrics(index)
    expected = {
        "rollout/accuracy/mean": 0.833333, "rollout/accuracy/max": 0.9, "rollout/accuracy/min": 0.75,
        "eval/dummy/accuracy/mean@2": 0.833333, "eval/dummy/accuracy/std@2": 0.083333,
        "eval/dummy/accuracy/best@2": 0.8762, "eval/dummy/accuracy/worst@2": 0.788867,
    }  # fmt: skip
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name


def test_a_run_without_verdicts_still_has_a_reward_that_is_missing_everywhere(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", [make_rollout(0, n, None) for n in range(2)])
    field = summarize_run(path).fields["reward"]
    assert (field.n, field.missing, field.mean) == (0, 2, None)


def test_fields_and_differences_keep_the_names_the_rows_give_them(tmp_path: Path) -> None:
    one, two = (
        write_rows(
            tmp_path / f"{name}.jsonl", [make_rollout(task, 0, turns=task + name) for task in range(3)]
        )
        for name in (0, 1)
    )
    assert summarize_run(one).fields["turns"].mean == 1.0
    with open_index(one) as first, open_index(two) as second:
        assert compare_runs(first, second).fields["turns"].difference == -1.0
        assert nemo_gym_metrics(first)[0]["agent_metrics"]["mean/turns"] == 1.0


def test_a_condition_may_end_in_a_comment_for_the_peers_too(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", [make_rollout(0, n, float(n)) for n in range(3)])
    with open_index(path) as index:
        assert (
            nemo_gym_metrics(index, "reward > 0 -- the good ones")[0]["agent_metrics"]["mean/reward"] == 1.5
        )


def test_bad_lines_are_listed_with_their_place(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", [make_rollout(0, 0), b'{"torn', make_rollout(0.5, 1, prompt="x")])  # type: ignore[arg-type]
    found = [(bad.line, bad.is_kept) for bad in summarize_run(path).bad_lines]
    assert found == [(2, False), (3, True)]


def test_the_mean_with_failures_as_zero_is_told_when_everything_failed(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", [])
    write_rows(
        tmp_path / "r_failures.jsonl", [{"_ng_task_index": 0, "_ng_rollout_index": 0, "class": "timeout"}]
    )
    zero = summarize_run(path).failures_as_zero
    assert zero is not None and (zero.mean, zero.n) == (0.0, 1)


def masked_run(folder: Path) -> Path:
    rows = [make_rollout(task, n, float(n < 2)) for task in range(20) for n in range(4)]
    for row in rows[3::4]:
        row |= {"reward": 0.0, "mask_sample": True, "accuracy": 0.0}
    return write_rows(folder / "rollouts.jsonl", rows)


def test_masked_samples_are_unjudged_in_metrics_and_named_as_coverage(tmp_path: Path) -> None:
    path = masked_run(tmp_path)
    found = summarize_run(path)
    assert (found.counts.judged, found.counts.unjudged, found.counts.masked) == (60, 20, 20)
    assert found.fields["reward"].mean == pytest.approx(40 / 60) and found.coverage == 0.75
    assert "mask_sample" not in found.fields and "masked" in {flag.id for flag in found.flags}
    with open_index(path) as index:
        [entry] = nemo_gym_metrics(index)
    assert entry["agent_metrics"]["coverage/masked_rollouts"] == 20
    assert entry["agent_metrics"]["mean/reward"] == pytest.approx(40 / 60)
    assert not [name for name in entry["agent_metrics"] if name.endswith("/mask_sample")]


def test_masked_samples_are_unjudged_in_check_and_profile(tmp_path: Path) -> None:
    from rollforge.steps.check import check_run
    from rollforge.steps.profile import profile_run

    path = masked_run(tmp_path)
    report = check_run(path)
    assert (report.counts.judged, report.counts.unjudged) == (60, 20)
    assert report.counts.reward is not None and report.counts.reward.mean == pytest.approx(40 / 60)
    tasks = profile_run(path).tasks
    assert set(tasks.column("num_judged").to_pylist()) == {3}
    assert tasks.column("pass_rate").to_pylist() == pytest.approx([2 / 3] * 20)


def test_a_constant_count_is_no_share_and_an_all_zero_reward_is(tmp_path: Path) -> None:
    path = run_of(tmp_path / "r.jsonl", [[0.0] * 4] * 18, num_steps=1, solved=1)
    found = summarize_run(path)
    assert found.fields["num_steps"].ci == [1.0, 1.0]
    assert found.facts["turns"].ci == [1.0, 1.0]
    assert found.fields["solved"].ci is not None and found.fields["solved"].ci[0] < 0.9
    reward = found.fields["reward"].ci
    assert reward is not None and reward[0] == 0.0 and 0.1 < reward[1] < 0.3


def test_intervals_of_seconds_stay_above_zero(tmp_path: Path) -> None:
    rows = [
        make_rollout(task, 0, 1.0, _rf={"started": 1.0 + task, "seconds": 0.01 if task else 90.0})
        for task in range(4)
    ]
    seconds = summarize_run(write_rows(tmp_path / "r.jsonl", rows)).facts["seconds"]
    assert seconds.ci is not None and seconds.mean is not None
    assert seconds.ci[0] == 0.0 <= seconds.mean <= seconds.ci[1]


@pytest.mark.parametrize(
    ("text", "groups", "is_flagged"), [("x" * 60, 12, True), ("x" * 60, 3, False), ("42", 12, False)]
)
def test_equal_samples_are_flagged_where_that_is_no_coincidence(
    text: str, groups: int, is_flagged: bool, tmp_path: Path
) -> None:
    rows = [
        make_rollout(task, n, float(n % 2), text=text + str(task) * (len(text) > 2))
        for task in range(groups)
        for n in range(4)
    ]
    found = summarize_run(write_rows(tmp_path / "r.jsonl", rows))
    assert ("identical-samples" in {flag.id for flag in found.flags}) == is_flagged


def test_few_rewards_are_not_called_broken_verification(tmp_path: Path) -> None:
    few = summarize_run(run_of(tmp_path / "few.jsonl", [[1.0] * 4]))
    many = summarize_run(run_of(tmp_path / "many.jsonl", [[1.0] * 4] * 10))
    texts = [
        next(flag.text for flag in found.flags if flag.id == "identical-rewards") for found in (few, many)
    ]
    assert "broken" not in texts[0] and "broken" in texts[1]


@pytest.mark.parametrize("ask", [nemo_gym_metrics, trinity_metrics])
def test_a_condition_that_nothing_meets_says_so(tmp_path: Path, ask) -> None:  # type: ignore[no-untyped-def]
    path = run_of(tmp_path / "r.jsonl", [[1.0, 0.0]])
    found = summarize_run(path, options=MetricsOptions(where="reward > 5"))
    assert [flag.text for flag in found.flags] == ["no rollout matches --where 'reward > 5'"]
    with open_index(path) as index:
        with pytest.raises(UsageError, match="no rollout matches"):
            ask(index, "reward > 5")
        with pytest.raises(UsageError, match="no rollout matches"):
            compare_runs(index, index, where="reward > 5")


def test_flags_count_one_thing_in_the_singular(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "rollouts.jsonl", [make_rollout(n, 0, 1.0, mask_sample=n == 0) for n in range(9)]
    )
    with path.open("a") as file:
        file.write("no row\n")
    texts = {flag.id: flag.text for flag in summarize_run(path).flags}
    assert texts["rejected-lines"] == "1 line cannot be read: left out"
    assert texts["masked"].startswith("1 rollout is masked")


def test_an_answer_field_that_no_rollout_has_is_named_with_its_flag(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 1.0, extracted_answer="4")])
    with pytest.raises(
        UsageError, match=r"--answer-field 'extracted_anwser': no rollout has it; did you mean"
    ):
        summarize_run(path, options=MetricsOptions(answer_field="extracted_anwser"))
