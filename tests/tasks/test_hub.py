"""Datasets on the Hub are task files: found by split, config, path or pattern, at a commit that is resolved once."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from rollforge.errors import DataError, UsageError
from rollforge.tasks import HubSplit, open_tasks
from rollforge.tasks import hub_client as client_module
from tests.fake_hub import TOKEN, FakeHub

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: [main/test-00000.jsonl]
- config_name: socratic
  data_files: socratic/*.jsonl
---
# gsm8k
"""


def lines(prefix: str, count: int) -> bytes:
    rows = [{"question": f"{prefix} {n}?", "answer": f"think\n#### {n}"} for n in range(count)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parquet_bytes(count: int) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"prompt": [f"p{n}" for n in range(count)]}), file)
    return file.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with FakeHub(large=4000) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(client_module, "WAIT_S", 0.0)
        server.add(
            "org/gsm8k",
            {
                "README.md": CARD.encode(),
                "main/train-00000.jsonl": lines("train a", 3),
                "main/train-00001.jsonl": lines("train b", 200),
                "main/test-00000.jsonl": lines("test", 2),
                "socratic/x.jsonl": lines("s", 1),
            },
        )
        yield server


def questions(name: str, **part: str) -> list[str]:
    rows = [json.loads(line.data) for line in open_tasks(name, part=HubSplit(**part)).lines()]
    return [row.get("question") or row["prompt"] for row in rows]


def test_a_split_of_a_config_is_read_as_the_card_says(hub: FakeHub) -> None:
    name = "hf://datasets/org/gsm8k"
    assert questions(name, split="test", config="main") == ["test 0?", "test 1?"]
    assert len(questions(name, split="train", config="main")) == 203
    assert questions(name, config="socratic") == ["s 0?"]


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({}, "several configs: main, socratic"),
        ({"config": "main"}, "several splits: train, test"),
        ({"config": "main", "split": "tset"}, "did you mean 'test'"),
        ({"config": "mian"}, "no config 'mian'"),
    ],
)
def test_nothing_is_guessed_among_several(hub: FakeHub, part: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        questions("hf://datasets/org/gsm8k", **part)


def test_a_path_and_a_pattern_name_files(hub: FakeHub) -> None:
    assert questions("hf://datasets/org/gsm8k/socratic/x.jsonl") == ["s 0?"]
    assert len(questions("hf://datasets/org/gsm8k/main/*.jsonl")) == 205
    assert len(questions("hf://datasets/org/gsm8k/**/t*-00000.jsonl")) == 5
    with pytest.raises(UsageError, match="no file 'main/tset"):
        questions("hf://datasets/org/gsm8k/main/tset.jsonl")


def test_splits_are_known_by_file_names_where_no_card_says(hub: FakeHub) -> None:
    hub.add("org/plain", {"data/train.csv": b"prompt\nhello\n", "data/dev.jsonl": b'{"prompt": "v"}\n'})
    assert questions("hf://datasets/org/plain", split="train") == ["hello"]
    assert questions("hf://datasets/org/plain", split="validation") == ["v"]


def test_the_hubs_own_parquet_branch_serves_where_the_files_hold_no_rows(hub: FakeHub) -> None:
    hub.add("org/script", {"script.py": b"..."})
    converted = {
        "default/train/0000.parquet": parquet_bytes(2),
        "default/test/0000.parquet": parquet_bytes(1),
    }
    commit = hub.add("org/script", converted, branch="refs/convert/parquet")
    assert questions("hf://datasets/org/script", split="train") == ["p0", "p1"]
    assert questions("hf://datasets/org/script@~parquet", split="test") == ["p0"]
    choice = open_tasks("hf://datasets/org/script", part=HubSplit("train")).choice
    assert choice is not None and choice.commit == commit


def test_a_revision_is_a_commit_from_then_on(hub: FakeHub) -> None:
    source = open_tasks("hf://datasets/org/gsm8k", part=HubSplit(config="socratic"))
    assert source.choice is not None
    hub.add("org/gsm8k", {"socratic/x.jsonl": lines("changed", 1)})
    assert b"s 0?" in next(iter(source.lines())).data
    again = open_tasks("hf://datasets/org/gsm8k", earlier_choice=source.choice)
    assert again.digest == source.digest and b"s 0?" in next(iter(again.lines())).data
    now = open_tasks("hf://datasets/org/gsm8k/socratic/x.jsonl")
    assert now.digest != source.digest and b"changed" in next(iter(now.lines())).data
    old = f"hf://datasets/org/gsm8k@{source.choice.commit}"
    assert questions(old, config="socratic") == ["s 0?"]


def test_a_file_at_a_commit_is_downloaded_once_and_only_when_its_rows_are_read(hub: FakeHub) -> None:
    source = open_tasks("hf://datasets/org/gsm8k", part=HubSplit("train", "main"))
    for _ in range(2):
        assert next(iter(source.lines())).number == 1
    asked = [request.path for request in hub.requests if "/resolve/" in request.path]
    assert len(asked) == 1 and asked[0].endswith("train-00000.jsonl")


def test_the_token_goes_to_the_hub_and_never_to_a_storage_server(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.add("org/secret", {"train.jsonl": lines("x", 200)}, private=True)
    with pytest.raises(UsageError, match="private"):
        questions("hf://datasets/org/secret")
    (tmp_path / "hf").mkdir(exist_ok=True)
    (tmp_path / "hf" / "token").write_text(TOKEN + "\n")
    assert len(questions("hf://datasets/org/secret")) == 200
    stored = [request for request in hub.requests if request.server == "storage"]
    assert stored and not any(request.authorization for request in stored)
    assert any(request.authorization == f"Bearer {TOKEN}" for request in hub.requests)
    monkeypatch.setenv("HF_TOKEN", "another")
    assert client_module.read_token() == "another"


def test_a_hub_that_fails_for_a_moment_is_asked_again(hub: FakeHub) -> None:
    hub.failures_left, hub.cut_downloads = 2, 1
    assert len(questions("hf://datasets/org/gsm8k/main/train-00001.jsonl")) == 200


def test_a_hub_that_stays_away_is_an_error_with_a_next_step(hub: FakeHub) -> None:
    hub.failures_left = 99
    with pytest.raises(client_module.HubUnreachable, match="503") as caught:
        questions("hf://datasets/org/gsm8k/main/test-00000.jsonl")
    assert caught.value.hint


def test_a_file_that_is_not_what_the_hub_says_is_refused(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_tasks("hf://datasets/org/gsm8k/main/train-00001.jsonl")
    assert source.choice is not None
    files = hub.datasets["org/gsm8k"].commits[source.choice.commit]
    files["main/train-00001.jsonl"] = files["main/train-00001.jsonl"].replace(b"1", b"7")
    with pytest.raises(DataError, match="not what the Hub says"):
        list(source.lines())


@pytest.mark.parametrize(
    "name", ["hf://gsm8k", "hf://datasets/gsm8k", "hf://models/a/b", "hf://datasets/a/b@"]
)
def test_a_name_that_means_nothing_says_how_to_write_one(hub: FakeHub, name: str) -> None:
    with pytest.raises(UsageError, match="not a dataset on the Hub"):
        open_tasks(name)


def test_a_revision_or_dataset_that_does_not_exist_is_named(hub: FakeHub) -> None:
    with pytest.raises(UsageError, match="no revision 'v9'"):
        open_tasks("hf://datasets/org/gsm8k@v9/main/x.jsonl")
    with pytest.raises(UsageError, match="no such dataset"):
        open_tasks("hf://datasets/org/nothing")


def test_a_split_of_a_local_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(UsageError, match="--split"):
        open_tasks(str(tmp_path / "t.jsonl"), part=HubSplit("train"))


def test_a_file_name_that_leads_out_of_the_dataset_is_refused(hub: FakeHub) -> None:
    hub.add("org/evil", {"data/../../../evil.jsonl": b'{"prompt": "x"}\n'})
    with pytest.raises(DataError, match="leads out"):
        questions("hf://datasets/org/evil")
