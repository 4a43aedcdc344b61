"""The grammar of metric names, and names made safe per sink and back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.metrics import MetricName, build_name, original_name, parse_name, safe_name, validate_name
from rollforge.metrics.names import split_suffix


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("rollout/accuracy/mean", MetricName(category="rollout", metric="accuracy", statistic="mean")),
        (
            "eval/gsm8k-eval/accuracy/mean@4",
            MetricName(category="eval", taskset="gsm8k-eval", metric="accuracy", statistic="mean@4"),
        ),
        (
            "bench/gsm8k-eval/accuracy/best@4/std",
            MetricName(
                category="bench", taskset="gsm8k-eval", metric="accuracy", statistic="best@4", detail="std"
            ),
        ),
        ("time/eval", MetricName(category="time", metric="eval")),
        (
            "rollout/time/run_execution/max",
            MetricName(category="rollout", metric="time/run_execution", statistic="max"),
        ),
        (
            "experience_pipeline/group_advantages/reward_mean/mean",
            MetricName(
                category="experience_pipeline", metric="group_advantages/reward_mean", statistic="mean"
            ),
        ),
        (
            "eval/x/time/task_execution",
            MetricName(category="eval", taskset="x", metric="time/task_execution"),
        ),
        ("rollout/mean", MetricName(category="rollout", metric="mean")),
    ],
)
def test_a_name_is_taken_apart_and_put_together_again(name, parts):
    assert parse_name(name) == parts
    assert str(parts) == name


@pytest.mark.parametrize(
    "name", ["", "accuracy", "rollout//mean", "rollout/ a/mean", "eval/gsm8k", "rollout/a\n/b"]
)
def test_what_is_no_name_is_refused_with_a_reason(name):
    with pytest.raises(ValueError, match="name"):
        parse_name(name)


def test_a_taskset_belongs_to_evaluations_only():
    with pytest.raises(ValueError, match="needs taskset"):
        build_name("eval", "accuracy", "mean@4")
    with pytest.raises(ValueError, match="takes no taskset"):
        build_name("rollout", "accuracy", "mean", taskset="gsm8k")
    with pytest.raises(ValueError, match="slash"):
        build_name("eval", "accuracy", "mean@4", taskset="a/b")


def test_only_known_suffixes_are_taken_off():
    assert split_suffix("tokens:sum") == ("tokens", "sum")
    assert split_suffix("a:b") == ("a:b", None)
    assert split_suffix(":sum") == (":sum", None)


LEGAL = {
    "mlflow": r"[A-Za-z0-9_\-. /:]+",
    "prometheus": r"[A-Za-z0-9_:]+",
    "otel": r"[A-Za-z0-9_\-./]+",
    "wandb": r".+",
    "jsonl": r".+",
}


@pytest.mark.parametrize("sink", sorted(LEGAL))
@given(name=st.text(alphabet="at_x0f@/<1é-.:", min_size=1, max_size=24))
def test_a_safe_name_is_legal_and_turns_back_into_the_very_same_name(sink, name):
    safe = safe_name(name, sink)
    assert re.fullmatch(LEGAL[sink], safe)
    assert original_name(safe, sink) == name


def test_mlflow_sees_the_spelling_its_users_know():
    assert safe_name("eval/gsm8k/accuracy/mean@4", "mlflow") == "eval/gsm8k/accuracy/mean_at_4"
    assert safe_name("selection/<1_ratio", "mlflow") == "selection/_x3c_1_ratio"


@given(st.text(min_size=1, max_size=12), st.sampled_from(["mean", "best@8", None]))
def test_every_valid_name_survives_the_round_trip_through_its_parts(metric, statistic):
    name = "/".join(filter(None, ["rollout", metric, statistic]))
    try:
        validate_name(name)
    except ValueError:
        return
    assert str(parse_name(name)) == name


def test_counts_are_told_from_shares_by_their_names() -> None:
    from rollforge.metrics.names import is_amount

    counts = ("num_turns", "sequences", "api_requests", "usage.messages", "model_calls", "output_tokens")
    assert all(is_amount(name) for name in counts)
    assert not any(is_amount(name) for name in ("reward", "set_overlap", "consequences", "is_correct"))
