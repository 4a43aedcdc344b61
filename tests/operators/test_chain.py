"""The pipeline: ledgers under their own names, from a file or from Python."""

import pytest

from rollforge.errors import DataError, UsageError
from rollforge.experience import Experience
from rollforge.metrics import parse_name
from rollforge.operators.base import Outcome
from rollforge.operators.chain import Pipeline, pipeline_from_config, read_pipeline
from rollforge.operators.group_advantages import GroupAdvantages
from rollforge.operators.reward_filter import RewardFilter


def step(*rewards):
    return [Experience(id=f"e{i}", task=f"t{i // 4}", run=f"r{i}", reward=r) for i, r in enumerate(rewards)]


def test_no_operator_overwrites_a_neighbours_count():
    pipeline = Pipeline([("reward_filter", RewardFilter(min=0.1)), ("group_advantages", GroupAdvantages())])
    kept, metrics = pipeline.run(step(0, 0, 0, 1, 1, 0.5, 1, 1))
    assert len(kept) == 5
    assert metrics["experience_pipeline/reward_filter/dropped"] == 3
    assert metrics["experience_pipeline/group_advantages/dropped"] == 0
    assert metrics["experience_pipeline/reward_filter/dropped/below_min"] == 3
    assert metrics["experience_pipeline/input_count"] == 8
    assert metrics["experience_pipeline/experience_count"] == 5
    assert metrics["experience_pipeline/group_advantages/reward_mean/mean"] == pytest.approx(3.5 / 4)
    assert {name for name in metrics if name.startswith("time/")} == {
        "time/experience_pipeline/reward_filter",
        "time/experience_pipeline/group_advantages",
        "time/experience_pipeline/total",
    }
    assert all(str(parse_name(name)) == name for name in metrics)


def test_ledgers_add_up_over_steps_and_twins_have_two_names():
    pipeline = pipeline_from_config(
        [{"use": "reward_filter", "min": 0.5}, {"use": "reward_filter", "max": 0.7}]
    )
    for _ in range(2):
        pipeline.run(step(0, 0.6, 1))
    rows = [ledger.to_row() | {"seconds": 0} for ledger in pipeline.ledgers]
    assert rows == [
        {"operator": "reward_filter", "in": 6, "out": 4, "dropped": {"below_min": 2}, "seconds": 0},
        {"operator": "reward_filter_2", "in": 4, "out": 2, "dropped": {"above_max": 2}, "seconds": 0},
    ]


def test_names_never_collide_with_each_other_nor_with_the_pipelines_own():
    twins = [{"use": "dedupe"}, {"use": "dedupe"}, {"use": "dedupe", "name": "dedupe_2"}]
    assert [ledger.name for ledger in pipeline_from_config(twins).ledgers] == [
        "dedupe",
        "dedupe_3",
        "dedupe_2",
    ]
    with pytest.raises(UsageError, match="'total'"):
        pipeline_from_config([{"use": "dedupe", "name": "total"}])
    with pytest.raises(UsageError, match="metric's name"):
        pipeline_from_config([{"use": "dedupe", "name": "mine "}])

    class Boastful:
        def apply(self, experiences):
            return Outcome(experiences=[], metrics={"in": 99.0})

    metrics = Pipeline([("boastful", Boastful())]).run(step(0, 1))[1]
    assert metrics["experience_pipeline/boastful/in"] == 2


def test_a_pipeline_is_read_from_toml_with_a_users_function(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def keep_first(experiences, count=1):\n    return experiences[:count]\n"
    )
    path = tmp_path / "p.toml"
    path.write_text(
        '[[operator]]\nuse = "zero_signal_filter"\n'
        f'\n[[operator]]\nuse = "{tmp_path}/mine.py:keep_first"\ncount = 2\n'
        '\n[[operator]]\nuse = "group_advantages"\nname = "advantages"\nmethod = "rloo"\n'
    )
    kept, metrics = read_pipeline(path).run(step(0, 1, 0, 1))
    assert [e.advantage for e in kept] == [-1.0, 1.0]
    assert metrics["experience_pipeline/keep_first/dropped/function"] == 2
    assert "experience_pipeline/advantages/reward_mean/mean" in metrics


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[operator]]\nuse = "reward_filte"', "did you mean 'reward_filter'"),
        ('[[operator]]\nuse = "reward_filter"\nminimum = 1', "minimum"),
        ('[[operator]]\nuse = "reward_filter"\nmn = 1', r"operator 1 \(reward_filter\) has no option 'mn'"),
        ('[[operator]]\nuse = "group_advantages"\nmethod = "magic"', "magic"),
        ("[[operator]]\nmin = 1", "has no 'use'"),
        ('[[operators]]\nuse = "dedupe"', "unknown key 'operators'"),
        ("[[operator]", "p.toml"),
        ("operator = [1, 2]", "no \\[\\[operator"),
    ],
)
def test_a_wrong_pipeline_file_says_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_pipeline(path)


def test_a_pipeline_file_that_cannot_be_read_says_so(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b'[[operator]]\nuse = "d\xe9dupe"\n')
    with pytest.raises(DataError, match=r"latin\.toml") as refused:
        read_pipeline(tmp_path / "latin.toml")
    assert "docs/commands/experiences.md" in (refused.value.hint or "")
    with pytest.raises(UsageError, match="directory"):
        read_pipeline(tmp_path)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def mine(experiences, count): return experiences", "missing a required argument: 'count'"),
        ("def mine(experiences): return 5", "no list of experiences"),
        ("def mine(experiences): experiences.clear()", "no list of experiences"),
        ("mine = 5", "5 is not a callable"),
        ("class mine:\n    def __init__(self, count): pass", "missing a required argument: 'count'"),
        ("class mine: pass", "no apply"),
        ("class mine:\n    def apply(self, experiences): return experiences", "not an Outcome"),
    ],
)
def test_a_users_operator_that_cannot_work_is_named(tmp_path, code, message):
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(UsageError, match=message):
        pipeline_from_config([{"use": f"{tmp_path}/own.py:mine"}]).run(step(0, 1))


def test_an_operator_is_anything_with_apply():
    pipeline = Pipeline([("mine", GroupAdvantages())])
    assert pipeline.run([])[0] == []

    class Half:
        def apply(self, experiences):
            return Outcome(experiences=list(experiences)[::2])

    assert len(Pipeline([("half", Half())]).run(step(0, 1, 0, 1))[0]) == 2


@pytest.mark.parametrize(
    ("entry", "given", "takes"),
    [
        ({"use": "reward_filter", "max": 1, "min": "high"}, 'min = "high"', "min is a number"),
        ({"use": "length_filter", "min": 1.5}, "min = 1.5", "min is a whole number"),
        ({"use": "dedupe", "scope": "step"}, 'scope = "step"', 'scope is "run" or "task"'),
        (
            {"use": "group_advantages", "divide_by_turns": 1},
            "divide_by_turns = 1",
            "divide_by_turns is true or false",
        ),
        (
            {"use": "reward_shaping", "weights": {"a": "x"}},
            'weights = {"a": "x"}',
            "weights is a table, each value a number",
        ),
    ],
)
def test_an_option_of_another_type_is_refused_with_what_it_takes(entry, given, takes):
    with pytest.raises(UsageError, match="operator 1") as refused:
        pipeline_from_config([entry])
    assert f"{given} is not understood" in str(refused.value)
    assert refused.value.hint == takes
