"""From the Hub and to it, with the commands a user types and the Hub's own clients, against a small Hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollforge.cli import _take_config
from tests.fake_hub import TOKEN, FakeHub

GSM = b"".join(
    json.dumps({"question": f"What is {n} + 1?", "answer": f"Add.\n#### {n + 1}"}).encode() + b"\n"
    for n in range(6)
)
CARD = b"---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/*.jsonl\n---\n"
MAP = 'prompt=question,expected_answer="answer|after:####"'


class Place:
    """A working folder, and a Hub that its commands know."""

    def __init__(self, folder: Path, hub: FakeHub) -> None:
        self.folder, self.hub = folder, hub
        own = {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_XET": "1",
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        self.environment = {
            **kept,
            **own,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HF_DATASETS_OFFLINE": "0",
        }

    def run(self, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def rollforge(self, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "rollforge", *words, code=code, **environment)

    def manifest(self, run: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / run / "rollouts_run.json").read_text())
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with FakeHub() as hub:
        hub.add("org/gsm", {"README.md": CARD, "main/a.jsonl": GSM})
        yield Place(tmp_path, hub)


WORDS = (
    "-i",
    "hf://datasets/org/gsm",
    "-m",
    "simulated",
    "--verifier",
    "exact",
    "--map",
    MAP,
    "--progress",
    "none",
)


@pytest.mark.slow
def test_a_dataset_is_collected_and_resumed_at_the_commit_of_its_first_day(place: Place) -> None:
    words = ("collect", *WORDS, "--split", "train", "--config", "main", "-o", "run", "-k", "2")
    first = place.hub.datasets["org/gsm"].branches["main"]
    place.rollforge(*words, "-n", "3")
    manifest = place.manifest("run")
    assert isinstance(manifest["input"], dict) and isinstance(manifest["fingerprint"], dict)
    assert manifest["input"]["commit"] == manifest["fingerprint"]["input_commit"] == first
    rows = [json.loads(line) for line in (place.folder / "run/rollouts_tasks.jsonl").read_text().splitlines()]
    assert [row["expected_answer"] for row in rows] == ["1", "2", "3"]
    place.hub.add("org/gsm", {"README.md": CARD, "main/a.jsonl": GSM.replace(b"What", b"Say what")})
    before = len(place.hub.requests)
    place.rollforge(*words)  # all six, of the old commit, without asking the Hub
    assert len(place.hub.requests) == before
    assert place.manifest("run")["finished"] == 12 and place.manifest("run")["input"]["commit"] == first  # type: ignore[index]
    output = place.rollforge(
        *words[:2],
        f"hf://datasets/org/gsm@{place.hub.datasets['org/gsm'].branches['main']}",
        *words[3:],
        code=7,
    )
    assert "input_commit" in output.stderr


@pytest.mark.slow
def test_validate_takes_what_collect_takes_and_says_the_same(place: Place) -> None:
    words = ("hf://datasets/org/gsm", "--config", "main", "--map", MAP, "--verifier", "exact")
    report = json.loads(place.rollforge("validate", *words, "--json").stdout)
    assert report["ok"] and report["files"][0]["rows"] == 6
    assert report["files"][0]["path"].startswith("hf://datasets/org/gsm@")
    wrong = MAP.replace("question", "qestion")
    for verb, more in (("validate", ("hf://datasets/org/gsm",)), ("collect", (*WORDS[:6], "-o", "x"))):
        output = place.rollforge(verb, *more, "--map", wrong, code=2)
        assert "did you mean 'question'" in output.stderr + output.stdout, verb
    output = place.rollforge("validate", "hf://datasets/org/gsm", "--split", "tset", code=2)
    assert "no split 'tset'" in output.stderr and "Traceback" not in output.stderr


def test_a_config_file_is_still_a_config_file(place: Place) -> None:
    (place.folder / "run.toml").write_text('[collect]\nsamples = 3\nsplit = "train"\n')
    words = ("--config", "run.toml", "--config", "main")
    plan = place.rollforge("collect", *WORDS, "-o", "run", *words, "--dry-run", "--json").stdout
    config = json.loads(plan)["config"]
    assert (config["samples"], config["hub_config"], config["split"]) == (3, "main", "train")
    for words in (
        ["-i", "hf://datasets/o/n"],
        ["-i=gsm=hf://datasets/o/n"],
        ["--input", "gsm=hf://datasets/o/n"],
    ):
        assert _take_config(["eval", *words, "--config", "main"])[0][-2:] == ["--hub-config", "main"]
    output = place.rollforge("collect", *WORDS, "-o", "run", "--config", "nothing.toml", code=2)
    assert "nothing.toml" in output.stderr


LOAD = """
import sys, datasets
found = datasets.load_dataset(sys.argv[1])
print({name: (part.num_rows, sorted(part.column_names)) for name, part in found.items()})
streamed = datasets.load_dataset(sys.argv[1], split="train", streaming=True)
print(next(iter(streamed))["prompt"][0]["role"])
"""


@pytest.mark.slow
def test_a_pushed_dataset_is_found_by_load_dataset_with_its_splits(place: Place) -> None:
    pytest.importorskip("huggingface_hub")
    pytest.importorskip("datasets")
    place.rollforge("simulate", "--write-tasks", "t.jsonl", "-n", "40", "--seed", "1")
    place.rollforge(
        "collect",
        "-i",
        "t.jsonl",
        "-o",
        "run",
        "-m",
        "simulated",
        "--verifier",
        "exact",
        "-k",
        "4",
        "--progress",
        "none",
    )
    words = ("prepare", "sft", "run", "-o", "data", "--to", "trl", "--split", "0.8/0.2", "--push", "org/made")
    output = place.rollforge(*words)
    made = place.hub.datasets["org/made"]
    manifest = json.loads((place.folder / "data/manifest.json").read_text())
    assert made.private and manifest["push"]["private"] is True
    assert manifest["push"]["commit"] == made.branches["main"] and manifest["push"]["repo"] == "org/made"
    assert made.branches["main"] in output.stderr + output.stdout
    assert TOKEN not in output.stderr + output.stdout + (place.folder / "data/manifest.json").read_text()
    files = made.commits[made.branches["main"]]
    assert {"README.md", "manifest.json", "train.jsonl", "validation.jsonl", "lineage.parquet"} <= set(files)
    loaded = place.run("-c", LOAD, "org/made").stdout
    assert (
        f"'train': ({manifest['splits']['train']}" in loaded
        and "'validation': (" in loaded
        and "user" in loaded
    )
    # The dataset that was pushed is a task file for the next run, too.
    again = json.loads(
        place.rollforge("validate", "hf://datasets/org/made", "--split", "train", "--json").stdout
    )
    assert again["files"][0]["kind"] == "dataset" and again["files"][0]["rows"] == manifest["splits"]["train"]
    # Made again from its manifest, the bytes are the same, whatever was pushed.
    place.rollforge("prepare", "--from", "data/manifest.json", "-o", "again")
    assert (place.folder / "again/train.jsonl").read_bytes() == files["train.jsonl"]


@pytest.mark.slow
def test_nothing_is_pushed_unasked_or_to_where_everybody_reads(place: Place) -> None:
    pytest.importorskip("huggingface_hub")
    place.rollforge("simulate", "--write-tasks", "t.jsonl", "-n", "30", "--seed", "1")
    place.rollforge(
        "collect",
        "-i",
        "t.jsonl",
        "-o",
        "run",
        "-m",
        "simulated",
        "--verifier",
        "exact",
        "-k",
        "4",
        "--progress",
        "none",
    )
    words = ("prepare", "sft", "run", "-o", "data", "--to", "trl")
    place.rollforge(*words)
    place.rollforge(*words, "--dry-run", "--push", "org/new")
    assert not place.hub.requests
    output = place.rollforge(*words, "--push", "org/gsm", code=2)
    assert (
        "everybody can read it" in output.stderr
        and "main/a.jsonl"
        in place.hub.datasets["org/gsm"].commits[place.hub.datasets["org/gsm"].branches["main"]]
    )
    assert "read only with --push" in place.rollforge(*words, "--public", code=2).stderr
    assert "not a name" in place.rollforge(*words, "--push", "gsm", code=2).stderr
    assert "HF_TOKEN" in place.rollforge(*words, "--push", "org/x", code=2, HF_TOKEN="").stderr
    place.rollforge(*words, "--push", "org/open", "--public")
    assert not place.hub.datasets["org/open"].private


@pytest.mark.slow
def test_an_evaluation_takes_a_task_set_from_the_hub(place: Place) -> None:
    rows = b"".join(
        json.dumps({"prompt": f"What is {n} + 1? Use \\boxed{{}}.", "expected_answer": str(n + 1)}).encode()
        + b"\n"
        for n in range(4)
    )
    place.hub.add("org/sums", {"test.jsonl": rows})
    words = ("eval", "-i", "sums=hf://datasets/org/sums/test.jsonl", "-m", "simulated", "--verifier", "exact")
    shown = json.loads(place.rollforge(*words, "-o", "run", "--json", "--progress", "none").stdout)
    assert shown["tasksets"]["sums"]["tasks"] == 4


EVALUATED = (
    "-i",
    "gsm=hf://datasets/org/gsm",
    "-m",
    "simulated",
    "--map",
    MAP,
    "--json",
    "--progress",
    "none",
)
TWO_SPLITS = CARD.replace(b"main/*.jsonl\n", b"main/a.jsonl\n  - split: test\n    path: main/b.jsonl\n")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["eval", "bench"])
def test_an_evaluation_of_a_split_stays_at_its_commit(place: Place, verb: str) -> None:
    first = place.hub.add(
        "org/gsm", {"README.md": TWO_SPLITS, "main/a.jsonl": GSM, "main/b.jsonl": GSM[:140]}
    )
    words = (verb, *EVALUATED, "-o", "out", "--config", "main")
    run = "out/simulated" if verb == "bench" else "out"
    output = place.rollforge(*words, code=2)
    assert "several splits: train, test" in output.stderr
    place.rollforge(*words, "--split", "train")
    manifest: Any = place.manifest(run)
    chosen = manifest["input"]["tasksets"]["gsm"]
    assert (chosen["commit"], chosen["split"], chosen["config"]) == (first, "train", "main")
    assert manifest["fingerprint"]["tasksets.gsm.commit"] == first
    assert manifest["fingerprint"]["tasksets.gsm.split"] == "train"
    newest = place.hub.add("org/gsm", {"README.md": TWO_SPLITS, "main/a.jsonl": GSM * 2, "main/b.jsonl": GSM})
    before = len(place.hub.requests)
    place.rollforge(*words, "--split", "train")
    if verb == "bench":  # a model that comes later is asked the same tasks
        place.rollforge(*words, "--split", "train", "-m", "later=simulated")
        assert place.manifest("out/later")["tasks"] == 6
    assert len(place.hub.requests) == before
    assert "tasksets.gsm.split" in place.rollforge(*words, "--split", "test", code=7).stderr
    at_newest = [word.replace("org/gsm", f"org/gsm@{newest}") for word in words]
    assert "tasksets.gsm.commit" in place.rollforge(*at_newest, "--split", "train", code=7).stderr
    place.rollforge(*words, "--split", "train", "--fresh")
    again: Any = place.manifest(run)
    assert again["tasks"] == 12 and again["input"]["tasksets"]["gsm"]["commit"] == newest


EVALUATE = """
import rollforge as rf
options = dict(split="train", config="main", map={"prompt": "question", "expected_answer": "answer|after:####"},
               progress="none")
done = rf.evaluate("hf://datasets/org/gsm", model="simulated", out="eval", **options)
print(done["gsm"].tasks)
done = rf.bench({"one": "hf://datasets/org/gsm", "two": "hf://datasets/org/gsm"}, models=["a=simulated", "b=simulated"],
                out="bench", **options)
print(done["b"]["two"].tasks)
try:
    rf.evaluate("hf://datasets/org/gsm", model="simulated", out="eval", **{**options, "map": "prompt=question"},
                verifier="exact")
except rf.RollforgeError as error:
    print(error.exit_code)
"""


@pytest.mark.slow
def test_python_evaluates_a_dataset_on_the_hub(place: Place) -> None:
    assert place.run("-c", EVALUATE).stdout.split() == ["6", "6", "7"]


PYTHON = """
import rollforge as rf
run = rf.collect("hf://datasets/org/gsm", split="train", hub_config="main",
                 map=['prompt=question,expected_answer="answer|after:####"'],
                 model="simulated", verifier="exact", k=4, out="run", progress="none", stop_on="never")
print(run.prepare("sft", to="trl", out="data", push="org/python", force=True).push.commit)
"""


@pytest.mark.slow
def test_python_reads_from_the_hub_and_pushes_to_it(place: Place) -> None:
    pytest.importorskip("huggingface_hub")
    commit = place.run("-c", PYTHON).stdout.split()[-1]
    made = place.hub.datasets["org/python"]
    assert made.private and made.branches["main"] == commit
