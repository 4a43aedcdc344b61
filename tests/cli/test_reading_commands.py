"""metrics, profile, query, show and validate as people call them: stdout, stderr, exit codes."""

from __future__ import annotations

import errno
import json
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from rollforge.cli import main
from tests.builders import make_rollout, write_rows


class Called:
    """One call of the command line."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: object) -> None:
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        self.code = stopped.value.code
        captured = capsys.readouterr()
        self.out, self.err = captured.out, captured.err

    @property
    def json(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.out)
        return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [
        make_rollout(t, n, float(n < t), accuracy=n < t, extracted_answer=str(n < t))
        for t in range(4)
        for n in range(3)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    return tmp_path / "run"


def test_metrics_prints_the_documented_shape(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Called(capsys, "metrics", run, "--json")
    assert found.code == 0
    assert {"run", "counts", "fields", "agents", "at_k", "histogram", "throughput", "flags"} <= set(
        found.json
    )
    counts = found.json["counts"]
    assert isinstance(counts, dict)
    assert {"expected", "finished", "judged", "unjudged", "failed", "rejected_lines"} <= set(counts)
    plain = Called(capsys, "metrics", run)
    assert "pass@k" in plain.out and "reward" in plain.out and plain.code == 0


def test_metrics_in_a_pipe_leave_nothing_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "a_field_whose_name_is_longer_than_any_narrow_column"
    rows = [make_rollout(task, 0, float(task), **({name: 1234.5} if task else {})) for task in range(3)]
    write_rows(tmp_path / "rollouts.jsonl", rows)
    lines = [line.split() for line in Called(capsys, "metrics", tmp_path).out.splitlines()]
    assert ["field", "mean", "95", "%", "interval", "std", "min", "median", "max", "n", "missing"] in lines
    [output] = [line for line in lines if line[:1] == [name]]
    assert output[-5:] == ["1,234", "1,234", "1,234", "2", "1"]


def test_metrics_under_a_condition_say_so_and_claim_no_pace(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [make_rollout(0, n, float(n), _rf={"started": 100.0 + n, "seconds": 1.0}) for n in range(2)]
    timed = write_rows(run.parent / "timed" / "rollouts.jsonl", rows)
    assert "throughput" in Called(capsys, "metrics", timed).out
    plain = Called(capsys, "metrics", timed, "--where", "reward > 0")
    assert "only rollouts where reward > 0" in plain.out
    assert "throughput" not in plain.out
    found = Called(capsys, "metrics", timed, "--where", "reward > 0", "--json").json
    assert found["where"] == "reward > 0"
    assert found["throughput"] == {"rollouts_per_s": None, "tokens_per_s": None, "active_s": None}


def test_names_of_fields_get_what_the_numbers_leave_of_the_line(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollforge.cli.render.metrics.terminal_width", lambda: 80)
    name = "a_field_with_a_rather_long_name_of_its_own"
    rows = [make_rollout(task, 0, 1.0, **{name: float(task)}) for task in range(3)]
    path = write_rows(run.parent / "named" / "rollouts.jsonl", rows)
    line = next(line for line in Called(capsys, "metrics", path).out.splitlines() if line.startswith("a_fi"))
    assert len(line) == 80
    assert len(line.split()[0]) > 30
    compared = Called(capsys, "metrics", path, "--against", path).out
    assert "difference" in compared and "tasks" in compared


def test_strict_makes_a_bad_line_exit_2(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(b"{bad\n")
    assert Called(capsys, "metrics", run).code == 0
    strict = Called(capsys, "metrics", run, "--strict", "--json")
    assert strict.code == 2 and strict.json["counts"]["rejected_lines"] == 1  # type: ignore[index]
    assert "rollouts.jsonl:13" in strict.err
    assert Called(capsys, "profile", run, "--strict").code == 2


def test_metrics_against_another_run_and_in_the_peers_words(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "too few tasks to tell" in Called(capsys, "metrics", run, "--against", run).out
    assert "pass@1/accuracy" in Called(capsys, "metrics", run, "--compat", "nemo-gym").out
    assert "eval/rollouts/reward/best@2" in Called(capsys, "metrics", run, "--compat", "trinity").out


def test_profile_writes_its_files(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Called(capsys, "profile", run, "--json")
    assert found.code == 0 and found.json["tasks"] == 4
    assert len((run / "rollouts_reward_profiling.jsonl").read_text().splitlines()) == 4
    [agent] = json.loads((run / "rollouts_agent_metrics.json").read_text())
    assert agent["agent_ref"] == {"name": "model_call"} and agent["mean/reward"] == 0.5
    elsewhere = Called(capsys, "profile", run, "--out", run / "elsewhere")
    assert (
        "never solved" in elsewhere.out and (run / "elsewhere" / "rollouts_reward_profiling.jsonl").exists()
    )


def test_profile_ends_in_a_command_that_works_when_pasted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = write_rows(tmp_path / "more [of] it" / "rollouts.jsonl", [make_rollout(1, 3, 1.0)])
    output = Called(capsys, "profile", run, more, "--out", tmp_path).out.splitlines()[-1]
    words = shlex.split(output.removeprefix("read them: rollforge "))
    assert words == ["show", str(run / "rollouts.jsonl"), str(more), "--task", "2"]
    assert Called(capsys, *words).code == 0


@pytest.mark.parametrize(("format", "start"), [("csv", '"task"'), ("json", "{"), ("table", "task")])
def test_query_prints_tables(run: Path, capsys: pytest.CaptureFixture[str], format: str, start: str) -> None:
    found = Called(
        capsys,
        "query",
        run,
        "select task, avg(reward) m from rollouts group by 1 order by 1",
        "--format",
        format,
    )
    assert found.code == 0 and found.out.startswith(start)


def test_query_answers_and_refuses(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = Called(
        capsys, "query", run, "select task, sum(reward) from rollouts group by 1 order by 1", "--json"
    )
    assert found.json == {
        "columns": ["task", "sum(reward)"],
        "rows": [[0, 0.0], [1, 1.0], [2, 2.0], [3, 3.0]],
    }
    wrong = Called(capsys, "query", run, "select rewrd from rollouts")
    assert wrong.code == 2 and "did you mean 'reward'" in wrong.err and not wrong.out
    assert Called(capsys, "query", run, "drop view rollouts").code == 2
    assert Called(capsys, "query", run, "select * from tasks", "--out", tmp_path / "t.parquet").code == 0


def test_show_lays_rollouts_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Called(capsys, "show", run, "--task", 2, "--best", "--limit", 1)
    assert found.code == 0 and found.out.startswith("task 2 · rollout ") and "· reward 1 " in found.out
    raw = Called(capsys, "show", run, "--where", "task = 3 and rollout = 1", "--raw")
    assert json.loads(raw.out)["_ng_rollout_index"] == 1
    one, two = (Called(capsys, "show", run, "--sample", 2, "--seed", 5, "--raw").out for _ in range(2))
    assert one == two and len(one.splitlines()) == 2
    assert json.loads(Called(capsys, "show", run, "--line", 5, "--raw").out)["_ng_task_index"] == 1
    suspicious = Called(capsys, "show", run, "--suspicious")
    assert "the same answer earned another reward" in suspicious.out
    assert Called(capsys, "show", run, "--where", "nope = 1").code == 2


def test_show_prints_a_bad_line_by_its_number(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(b"{bad\n")
    found = Called(capsys, "show", run, "--line", 13)
    assert found.code == 0 and "{bad" in found.out and "rollouts.jsonl:13" in found.out


def test_validate_exits_2_when_anything_is_wrong(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert Called(capsys, "validate", run / "rollouts.jsonl").code == 0
    bad = write_rows(tmp_path / "bad.jsonl", [{"responses_create_params": {"input": [{}]}}])
    found = Called(capsys, "validate", bad, "--json", "--verifier", "exact")
    assert found.code == 2 and found.json["ok"] is False
    assert [problem["path"] for problem in found.json["files"][0]["bad"]] == [  # type: ignore[index]
        "responses_create_params.input[0]", "expected_answer",
    ]  # fmt: skip
    assert "bad.jsonl:1" in Called(capsys, "validate", bad).out


@pytest.mark.parametrize("verb", ["metrics", "profile", "query", "show", "validate", "index"])
def test_every_command_ends_its_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = Called(capsys, verb, "--help")
    assert found.code == 0 and f"rollforge {verb} " in found.out.split("Example")[1]


@pytest.mark.parametrize("verb", ["metrics", "profile", "show", "validate", "index"])
def test_a_missing_run_is_told_without_a_traceback(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = Called(capsys, verb, "nowhere.jsonl")
    assert found.code == 2 and "no such file" in found.err


def test_show_finds_the_rollout_behind_a_training_row(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = Called(capsys, "prepare", "sft", run, "-o", tmp_path / "sft", "--to", "trl", "--force")
    assert made.code == 0, made.err
    found = Called(capsys, "show", "--example", f"{tmp_path / 'sft' / 'train.jsonl'}:1", "--raw")
    assert json.loads(found.out)["reward"] == 1
    assert Called(capsys, "show").code == 2


@pytest.mark.parametrize("words", [("metrics",), ("profile",), ("query", "select 1"), ("show",)])
def test_every_reading_command_counts_bad_lines_and_exits_2_under_strict(
    run: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(b"{bad\n" + json.dumps(make_rollout(0, 0)).encode() + b"\n")
    verb, *rest = words
    plain = Called(capsys, verb, run, *rest)
    assert plain.code == 0 and "1 line rejected" in plain.err and "1 duplicate" in plain.err
    assert "rollouts.jsonl:13: " in plain.err and "rollouts.jsonl:1: " in plain.err
    assert Called(capsys, verb, run, *rest, "--strict").code == 2


def test_a_query_answers_in_numbers_whatever_the_database_calls_them(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sql = "select sum(turns) as a, 1.5::decimal(9, 2) as b, [1, 2] as c, 'nan'::double as d, interval 1 day as e from rollouts"
    assert Called(capsys, "query", run, sql, "--json").json["rows"] == [[12, 1.5, [1, 2], None, [0, 1, 0]]]
    assert Called(capsys, "query", run, sql, "-f", "csv").out.splitlines()[1].startswith('12,1.50,"[1,2]"')
    assert Called(capsys, "query", run, sql).code == 0
    refused = Called(capsys, "query", run, sql, "--out", tmp_path / "x.parquet")
    assert refused.code == 2 and "cast" in refused.err


def test_show_prints_and_lays_out_a_row_that_is_not_quite_json(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = json.dumps(make_rollout(9, 0, text="half \ud800 a character")).replace("1.0", "NaN")
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(line.encode() + b"\n")
    assert Called(capsys, "show", run, "--task", 9, "--raw").out == line + "\n"
    assert "half ⟨U+D800⟩ a character" in Called(capsys, "show", run, "--task", 9).out
    shown = Called(capsys, "show", run, "--task", 9, "--json").json["rollouts"]
    assert isinstance(shown, list) and shown[0]["raw"] == line


def test_the_peers_numbers_are_written_too(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for peer in ("nemo-gym", "trinity"):
        printed = Called(capsys, "metrics", run, "--compat", peer, "--out", tmp_path / "o.json")
        assert json.loads((tmp_path / "o.json").read_text()) == json.loads(printed.out)


def test_a_place_that_cannot_be_written_is_told_without_a_traceback(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for words in (("profile", run), ("metrics", run), ("query", run, "select 1", "-f", "csv")):
        output = Called(capsys, *words, "--out", tmp_path / "file" / "x")
        assert output.code == 2 and f"error: {tmp_path}" in output.err and "--out" in output.err


@pytest.mark.parametrize("peer", ["nemo-gym", "trinity"])
def test_a_peers_numbers_are_of_one_run_and_a_second_one_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], peer: str
) -> None:
    called = Called(capsys, "metrics", run, "--against", run, "--compat", peer)
    assert called.code == 2 and not called.out
    assert "cannot compare" in called.err and "leave out --compat" in called.err


def test_a_file_that_cannot_be_read_is_not_told_to_write_elsewhere(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *asked: False)
    monkeypatch.setattr("rollforge.index.open_index", partial(_refuse, run / "rollouts.jsonl"))
    output = Called(capsys, "metrics", run)
    assert output.code == 2
    assert "get permission to read it" in output.err


def _refuse(path: Path, *asked: object, **options: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_a_run_that_is_not_there_is_answered_with_the_nearest_one(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_rows(tmp_path / "other" / "rollouts.jsonl", [make_rollout()])
    for verb in ("metrics", "status"):
        output = Called(capsys, verb, tmp_path / "rum")
        assert output.code == 2
        assert f"did you mean '{run}'?" in output.err
    assert (
        f"did you mean '{run / 'rollouts.jsonl'}'?" in Called(capsys, "validate", run / "rolouts.jsonl").err
    )
    assert f"{tmp_path / 'other'}, {run}" in Called(capsys, "profile", tmp_path).err


def test_validate_tells_a_folder_from_a_file_that_is_not_there(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Called(capsys, "validate", run).code == 0, "a folder means the run in it"
    output = Called(capsys, "validate", run.parent)
    assert output.code == 2
    assert "a folder, not a file" in output.err
    assert f"give the files in it: {run}" in output.err


def test_show_tells_a_data_set_that_is_not_there_from_a_line_that_is_not(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "no such file" in Called(capsys, "show", "--example", f"{tmp_path / 'trian.jsonl'}:1").err
    assert "train.jsonl:1" in Called(capsys, "show", "--example", tmp_path / "train.jsonl").err


def test_list_without_a_family_names_the_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert "verifiers\n" in Called(capsys, "list").out
    assert Called(capsys, "list", "--json").json["families"]


def test_profile_writes_elsewhere_whatever_the_file_is_called(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    odd = (run / "rollouts.jsonl").rename(run / "math.ndjson")
    output = Called(capsys, "profile", odd, "--out", tmp_path / "out", "--where", "reward > 0")
    assert output.code == 0
    assert "only rollouts where reward > 0" in output.out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"math.ndjson_reward_profiling.jsonl", "math.ndjson_agent_metrics.json"}


def test_metrics_of_a_task_file_ask_whether_it_is_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "tasks.jsonl", [{"prompt": "what is 6 × 7?", "expected_answer": "42"}])
    assert "is this a file of tasks?" in Called(capsys, "metrics", path).out


def test_show_in_a_pipe_leaves_the_lines_of_an_answer_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    long = " ".join(f"word{n}" for n in range(40))
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(text=f"{long}\nend")])
    lines = Called(capsys, "show", path, "--full").out.splitlines()
    assert lines[lines.index("assistant") + 1 :][:2] == [f"  {long}", "  end"]


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "--threshold", "nan"),
        ("profile", "--tolerance", "-1"),
        ("profile", "--tolerance", "nan"),
        ("profile", "--look", "-1"),
        ("metrics", "--threshold", "nan"),
    ],
)
def test_a_bound_that_no_number_can_meet_is_refused(
    run: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    called = Called(capsys, *words, run)
    assert (called.code, called.out) == (2, "") and "error: the" in called.err


def test_control_characters_of_a_rollout_never_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J\x1b]0;title\x07 \x9b31m red"
    path = write_rows(
        tmp_path / "rollouts.jsonl",
        [make_rollout(text=evil, prompt=evil, agent=evil, note=evil, **{evil: 1})],
    )
    printed = [
        Called(capsys, "show", path).out,
        Called(capsys, "query", path, f'select agent as "{evil}", note from rollouts').out,
        Called(capsys, "validate", path).out,
        Called(capsys, "metrics", path).out,
        Called(capsys, "query", path, "select nothing from rollouts").err,
    ]
    assert not [text for text in printed if set(text) & {"\x1b", "\x9b", "\x07"}]
    assert "␛[2J" in printed[0] and "red" in printed[0]
    assert json.loads(Called(capsys, "query", path, "select note from rollouts", "--json").out)["rows"] == [
        [evil]
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["metrics"],
        ["profile"],
        ["index"],
        ["check"],
        ["show"],
        ["prepare", "sft", "--to", "trl", "--out", "data"],
    ],
    ids=lambda words: words[0],
)
def test_a_task_file_given_as_a_run_is_questioned_and_gets_no_index(words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [
        {"responses_create_params": {"input": f"question {n}"}, "expected_answer": str(n)} for n in range(30)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words, str(path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert "is this a file of tasks?" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "words",
    [
        ["metrics"],
        ["profile"],
        ["check", "--for", "sft"],
        ["prepare", "sft", "--to", "trl", "--force", "--out", "data"],
    ],
)
def test_a_run_of_one_rollout_is_counted_in_the_singular(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    called = Called(capsys, *words, path)
    card = tmp_path / "data" / "README.md"
    text = called.out + called.err + (card.read_text() if card.exists() else "")
    assert re.search(r"\b1 (rollout|task)\b", text)
    assert not re.search(r"(?<![\d.,])1 (rollouts|tasks|examples|rows|answers)\b", text), text
