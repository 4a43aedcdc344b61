"""What a user's SQL may be and may reach: one expression, a list of order terms, one SELECT over the run's tables."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollforge.errors import UsageError
from rollforge.index import Index, open_index
from rollforge.steps.show import ShowOptions, show_rollouts
from tests.builders import make_rollout, write_rows


@pytest.fixture
def index(tmp_path: Path) -> Index:
    details = {"output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 7}}
    rows = [
        make_rollout(
            t, n, float(n), usage=details, accuracy=n > 0, level=t, reward_components={"format": 0.5}
        )
        for t in range(4)
        for n in range(2)
    ]
    return open_index(write_rows(tmp_path / "rollouts.jsonl", rows))


@pytest.mark.parametrize(
    "where",
    [
        "reward > 5) or (1=1", "reward > 5) or (1=1 --", "reward > 5, true", "true limit 1", "true from rollouts", "true as x",
        "true union select true", "true; select 1", "true;", "select true", "true /* open", "'open", "x: true", "", "--",
        "true) group by (1", "true)", "(true", "true order by 1", "distinct true", "task = 1 where true", "$$", "true \x00",
        "true -- \n) or (true",
    ],
)  # fmt: skip
def test_a_where_that_is_not_one_expression_is_refused(index: Index, where: str) -> None:
    with pytest.raises(UsageError) as refused:
        index.table(["task"], where=where)
    assert "--where" in str(refused.value) and refused.value.hint


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("reward >= 0.5 and task in (1, 2)", 2), ("(reward > 0) or (task = 0)", 5), ('"reward_components.format" = 0.5', 8),
        ("agent like 'model%' -- the only one", 8), ("case when task = 0 then reward > 0 else false end", 1), ("not accuracy", 4),
        ("reward == 1.0 and accuracy >= 0.9", 4), ("/* all */ reward is not null", 8), ("agent = 'a) or (b'", 0), ("true", 8),
        ("task between 1 and 2 and not (rollout = 1)", 2), ("{'a': reward}.a = 1", 4), ("'x' || ')--' = 'x)--'", 8),
        ("task in (select task from rollouts where reward = 1)", 8), ("regexp_matches(agent, '^m')", 8), ("task % 2 = 0", 4),
        ("exists (with best as (select max(reward) as top from rollouts) select * from best where top = reward)", 4),
        ("task in (select unnest([1, 2]))", 4), ("\n reward\n > 0 \n", 4), ("list_contains([1, 2], task)", 4), ("-1 < reward", 8),
    ],
)  # fmt: skip
def test_a_where_may_be_any_one_expression(index: Index, where: str, count: int) -> None:
    assert index.table(["task"], where=where).num_rows == count


@pytest.mark.parametrize(
    "sort",
    [
        "reward desc limit 1 --", "reward limit 1", "reward offset 2", "", "reward) --", "reward; select 1", "reward /*",
        "reward using sample 1", "reward union select 1", "all", "reward desc limit 1 /*", "reward,", "reward limit (1",
    ],
)  # fmt: skip
def test_a_sort_that_is_more_than_order_terms_is_refused(index: Index, sort: str) -> None:
    with pytest.raises(UsageError) as refused:
        show_rollouts(index, ShowOptions(sort=sort))
    assert "--sort" in str(refused.value) and refused.value.hint


@pytest.mark.parametrize(
    "sort",
    [
        "reward desc", "answer_chars desc nulls last, task", "abs(reward - 0.5), task desc", '"reward_components.format" -- by form',
        "case when reward = 1 then 0 else 1 end", "suspicion desc", "(task)", "agent collate nocase",
    ],
)  # fmt: skip
def test_a_sort_may_be_any_list_of_order_terms(index: Index, sort: str) -> None:
    assert len(show_rollouts(index, ShowOptions(sort=sort, limit=100))) == 8


def test_a_where_never_cancels_the_other_choices(index: Index) -> None:
    with pytest.raises(UsageError, match="--where"):
        show_rollouts(index, ShowOptions(tasks=[3], where="reward > 5) or (1=1"))
    shown = show_rollouts(index, ShowOptions(tasks=[3], where="reward > 5 or 1 = 1"))
    assert {one.task for one in shown} == {3}


FILES = (
    "glob('{folder}/**')", "read_text('{folder}/rollouts/state.json')", "read_parquet('{folder}/**/*.parquet')", "'{part}'",
    '"{part}"', "read_blob('{part}')", "parquet_schema('{part}')", "parquet_scan('{part}')", "query_table('{part}')",
    "query('select * from ''{part}''')", "system.main.glob('{folder}/**')", "READ_TEXT('{part}')", "(describe '{part}')",
    "(summarize from '{part}')", "(values (1)) v, lateral (select * from glob('{folder}/*'))", "histogram('{part}', task)",
    '"{stem}"."parquet"', "sniff_csv('{part}')", "duckdb_settings()", "base_rollouts", "read_csv(['{part}'])", "sqlite_master",
    '(with "{part}" as (select * from "{part}") select * from "{part}")', "(pivot '{part}' on task in (1) using count(*))",
)  # fmt: skip


def filled(index: Index, text: str) -> str:
    folder = index.runs[0].index
    part = next(folder.rglob("*.parquet"))
    return text.format(folder=folder, part=part, stem=str(part).removesuffix(".parquet"))


@pytest.mark.parametrize("source", FILES)
def test_no_sql_reads_a_file_even_of_the_index(index: Index, source: str) -> None:
    inner = filled(index, f"select * from {source}")
    for sql in (
        inner,
        f"with a as materialized ({inner}) select * from a",
        f"select 1 union all (select 2 from ({inner}) s)",
        f"select count(*) filter (where exists ({inner})) from rollouts",
        f"select * from rollouts order by (select count(*) from ({inner}) s)",
    ):
        with pytest.raises(UsageError, match=r"cannot be used here|no table"):
            index.select(sql)


@pytest.mark.parametrize("source", FILES)
def test_no_where_and_no_sort_reads_a_file(index: Index, source: str) -> None:
    inner = filled(index, f"select 1 from {source}")
    with pytest.raises(UsageError, match=r"--where.*(cannot be used here|no table)"):
        index.table(["task"], where=f"exists ({inner})")
    with pytest.raises(UsageError, match=r"--sort.*(cannot be used here|no table)"):
        show_rollouts(index, ShowOptions(sort=f"(select count(*) from ({inner}))"))


@pytest.mark.parametrize("call", ["getenv('HOME')", "read_text('x')", "json_serialize_plan('select 1')"])
def test_no_function_of_a_value_reaches_outside(index: Index, call: str) -> None:
    with pytest.raises(UsageError, match="cannot be used here"):
        index.select(f"select {call} from rollouts")


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("select * from range(3)", 3), ("select unnest([1, 2])", 2), ("from rollouts", 8), ("values (1), (2)", 2),
        ("with recursive a as (select 1 x union all select x + 1 from a where x < 3) select * from a", 3),
        ("with Best as (select * from rollouts where reward = 1) select * from best b join tasks t on b.task = t.task", 4),
        ("select * from main.rollouts", 8), ("select * from Rollouts r, unnest([1, 2]) u(x)", 16), ("show tables", None),
        ("describe rollouts", None), ("summarize rollouts", None), ("select * from failures", 0), ("table tasks", 4),
        ("select column_name from information_schema.columns where table_name = 'rollouts'", None),
        ("select count(*) from test_all_types()", 1), ("pivot rollouts on task in (1, 2) using sum(reward)", None),
        ("select task, rank() over (partition by task order by reward) from rollouts qualify rank() over () = 1", 8),
        ("select * from json_each('{\"a\": 1}')", 1), ("select 1 -- the end", 1), ("select 1;", 1),
    ],
)  # fmt: skip
def test_a_query_may_ask_anything_of_the_tables(index: Index, sql: str, count: int | None) -> None:
    found = index.select(sql).num_rows
    assert found == count if count is not None else found > 0


@pytest.mark.parametrize(
    ("sql", "expected", "hint"),
    [
        ("select r.rewrd from rollouts r", "no column 'rewrd'; did you mean 'reward'", "columns of rollouts: "),
        ("select rollouts.rewrd from rollouts", "no column 'rewrd'; did you mean 'reward'", "columns of rollouts: "),
        ("select rewrd from rollouts", "no column 'rewrd'; did you mean 'reward'", "columns of rollouts: "),
        ("select * exclude (rewrd) from rollouts", "no column 'rewrd'; did you mean 'reward'", "columns of rollouts: "),
        ("select t.rewrd from tasks t", "no column 'rewrd' in tasks; 'rollouts' has 'reward'", "columns of tasks: task"),
        ("select reward from tasks", "tasks has no column 'reward'; it is a column of 'rollouts'", "columns of tasks: task"),
        ("select t.reward from tasks t", "tasks has no column 'reward'; it is a column of 'rollouts'", "columns of tasks: task"),
        ("select x.reward from rollouts r", "no table is called 'x' here", "tables of this query: r;"),
        ("from (select task from rollouts) where reward > 0", "no column 'reward' where it is used", "passes on only what it selects"),
        ("select * from rollout", "no table 'rollout'; did you mean 'rollouts'", "tables: rollouts"),
        ("select coun(*) from rollouts", 'Did you mean "count"', ""),
    ],
)  # fmt: skip
def test_a_wrong_name_in_a_query_is_told_with_the_right_one(
    index: Index, sql: str, expected: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        index.select(sql)
    assert expected in str(refused.value) and hint in (refused.value.hint or "")


def test_a_dotted_column_without_quotes_is_answered_with_the_quoted_spelling(index: Index) -> None:
    for start in ("", "r.", "R."):
        with pytest.raises(UsageError) as refused:
            index.select(f"select {start}output_tokens_details.reasoning_tokens from rollouts r")
        assert refused.value.hint == f'write it as {start}"output_tokens_details.reasoning_tokens"'
    with pytest.raises(UsageError) as refused:
        index.table(["task"], where="reward_components.format > 0.2")
    assert refused.value.hint == 'write it as "reward_components.format"'
    with pytest.raises(UsageError, match=r"did you mean 'reward_components.format'"):
        index.table(["task"], where="reward_components.formt > 0.2")
    assert index.select('select r."reward_components.format" from rollouts r').num_rows == 8


def test_a_wrong_column_in_a_where_never_names_one_of_another_table(index: Index) -> None:
    with pytest.raises(
        UsageError, match="rollouts has no column 'is_terminal'; it is a column of 'failures'"
    ) as refused:
        index.table(["task"], where="is_terminal")
    assert "boundary" not in str(refused.value.hint)


def test_sql_that_is_wrong_in_itself_is_answered_with_an_example(index: Index) -> None:
    with pytest.raises(UsageError, match="Could not convert") as refused:
        index.table(["task"], where="reward = 'high'")
    assert refused.value.hint == 'for example --where "reward >= 0.5 and not is_truncated"'
    with pytest.raises(UsageError, match="syntax error") as refused:
        index.select("selct reward from rollouts")
    assert "select reward, count(*) from rollouts group by 1" in (refused.value.hint or "")


def test_half_a_character_and_endless_nesting_are_told_without_a_traceback(index: Index) -> None:
    for odd, output in (
        ("'\ud800' = agent", "not a text in UTF-8"),
        ("0 < " + "1+" * 600 + "1", "nested too deeply"),
    ):
        with pytest.raises(UsageError, match=output):
            index.table(["task"], where=odd)
        with pytest.raises(UsageError, match=output):
            index.select(f"select * from rollouts where {odd}")
        with pytest.raises(UsageError, match=output):
            show_rollouts(index, ShowOptions(sort=odd))


_ENDLESS = """
import sys
from rollforge.index import open_index
index = open_index(sys.argv[1])
index.select("select 1")
print("ready", flush=True)
index.select("with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t")
"""


def test_an_endless_query_ends_with_ctrl_c(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout()])
    process = subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.5)  # the query has to be under way; it would never end
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert said.rstrip().endswith("KeyboardInterrupt")
