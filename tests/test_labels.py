"""Labels: durable, drawn at random, and rates that keep their promises."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

from rollforge.cli.render.labels import ask_labels
from rollforge.index import open_index
from rollforge.review.labels import FEWEST, Label, LabelFile, label_queue, label_rates, labelled, run_rates
from rollforge.steps.check import check_run
from rollforge.steps.show import ShowOptions, show_rollouts
from rollforge.steps.verify import compare
from rollforge.store import RunFiles
from tests.builders import make_rollout, write_rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [
        make_rollout(task, sample, float((task + sample) % 2)) for task in range(60) for sample in range(4)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    return tmp_path / "run"


def label(task: int, rollout: int, opinion: str, *, reward: float = 1.0, queue: str = "random") -> Label:
    return Label(task=task, rollout=rollout, label=opinion, reward=reward, queue=queue, who="me", at=1.0)  # type: ignore[arg-type]


def test_the_random_queue_does_not_depend_on_the_order_of_lines(run: Path, tmp_path: Path) -> None:
    lines = (run / "rollouts.jsonl").read_bytes().splitlines()
    other = write_rows(tmp_path / "other" / "rollouts.jsonl", list(reversed(lines))).parent
    with open_index(run) as index, open_index(other) as turned:
        here = [key[1:] for key in label_queue(index, "random", seed=3, count=50)]
        assert here == [key[1:] for key in label_queue(turned, "random", seed=3, count=50)]
        assert here != [key[1:] for key in label_queue(index, "random", seed=4, count=50)]
        rest = label_queue(index, "random", seed=3, done=set(here[:10]), count=40)
        assert [key[1:] for key in rest] == here[10:50]


def test_the_random_queue_begins_anywhere_whatever_the_seed_and_the_run(run: Path, tmp_path: Path) -> None:
    """Also with seed 0, where a hash of zeros must not put task 0, sample 0 first in every run."""
    with open_index(run) as index:
        queues = [
            [key[1:] for key in label_queue(index, "random", seed=seed, count=24)] for seed in range(200)
        ]
        assert {key[1:] for key in label_queue(index, "stratified", seed=0, count=2)} != {(0, 0), (0, 1)}
    begins = [queue[0] for queue in queues]
    assert begins[0] != (0, 0)
    assert len(set(begins)) > 120, "200 draws out of 240 hold about 136 different ones"
    drawn = np.bincount([task * 4 + rollout for queue in queues for task, rollout in queue], minlength=240)
    assert 0.6 < drawn.var() / (200 * 0.1 * 0.9) < 1.5, (
        "any rollout is among the first tenth as often as another"
    )
    for size in range(2, 22):
        rows = [make_rollout(task, 0, 1.0) for task in range(size)]
        other = write_rows(tmp_path / str(size) / "rollouts.jsonl", rows).parent
        with open_index(other) as index:
            begins.append(label_queue(index, "random", seed=0, count=1)[0][1:])
    assert begins[200:].count((0, 0)) < 10
    with open_index(run) as index:
        (shown,) = show_rollouts(index, ShowOptions(sample=1, seed=0))
    assert (shown.task, shown.rollout) == queues[0][0], "`show --sample` draws in this order"


def test_labels_of_a_queue_in_an_earlier_order_still_count(run: Path) -> None:
    """A label keeps its queue and seed, and counts by its rollout: the order in which that was drawn may change."""
    with open_index(run) as index:
        earlier = index.select(
            "SELECT task, rollout, reward FROM rollouts ORDER BY hash(task, rollout, 0), task, rollout"
        )
        made = [
            label(each["task"], each["rollout"], "agree", reward=each["reward"])
            for each in earlier.to_pylist()[:30]
        ]
        done = labelled(index, made, "random")
        assert len(done) == 30
        rest = {key[1:] for key in label_queue(index, "random", seed=0, done=done, count=1000)}
        assert len(rest) == 210 and not rest & done
        assert label_rates(index, made).error.n == 30


def test_rates_come_from_the_random_queue_alone(run: Path) -> None:
    labels = [
        label(task, 0, "disagree" if task % 2 else "agree", reward=float(task % 2)) for task in range(40)
    ]
    labels += [
        label(task, 1, "disagree", reward=float((task + 1) % 2), queue="suspicious") for task in range(40)
    ]
    with open_index(run) as index:
        rates = label_rates(index, labels)
    assert rates.error.value == 0.5
    assert (rates.random, rates.suspicious) == (40, 40)
    assert rates.precision.value == 0.0, "every pass in the sample was disagreed with"
    assert rates.recall.value is None, "nobody passed an answer: there is nothing to recall"


def test_a_label_about_another_reward_is_stale(run: Path) -> None:
    with open_index(run) as index:
        rates = label_rates(index, [label(0, 0, "agree", reward=0.7)])
    assert (rates.stale, rates.random) == (1, 0)


def test_few_labels_give_no_rate(run: Path) -> None:
    with open_index(run) as index:
        rates = label_rates(
            index, [label(task, 0, "agree", reward=float(task % 2)) for task in range(FEWEST - 1)]
        )
    assert rates.error.value is None
    assert rates.error.n == FEWEST - 1


def test_intervals_of_the_error_rate_hold_the_truth_about_as_often_as_they_say(run: Path) -> None:
    truth, rng, hits = 0.2, np.random.default_rng(5), 0
    with open_index(run) as index:
        for _ in range(200):
            drawn = rng.permutation(240)[:80]
            opinions = np.where(rng.random(len(drawn)) < truth, "disagree", "agree").tolist()
            labels = [
                label(key // 4, key % 4, opinion, reward=float((key // 4 + key % 4) % 2))
                for key, opinion in zip(drawn.tolist(), opinions, strict=True)
            ]
            ci = label_rates(index, labels).error.ci
            assert ci is not None
            hits += ci[0] <= truth <= ci[1]
    assert hits >= 180


def test_a_verifier_that_people_contradict_is_a_finding(run: Path) -> None:
    file = LabelFile(RunFiles(run))
    for task in range(60):
        file.add(label(task, 0, "disagree" if task % 2 else "agree", reward=float(task % 2)))
    found = {finding.id: finding for finding in check_run(run).findings}
    assert found["labelled-errors"].level == "error"
    assert found["labelled-errors"].n == 60


def test_labels_are_compared_with_a_verifier(run: Path) -> None:
    file = LabelFile(RunFiles(run))
    for task in range(10):
        file.add(label(task, 0, "disagree", reward=float(task % 2)))
    table = compare(run, "recorded", "labels")
    assert (table.n, table.up, table.down) == (10, 5, 5)


def test_suspicious_labels_leave_the_random_queue_a_sample_of_the_whole_run(run: Path) -> None:
    with open_index(run) as index:
        drawn = label_queue(index, "random", seed=3, count=240)
        first = drawn[0][1:]
        made = [label(*first, "disagree", reward=float(sum(first) % 2), queue="suspicious")]
        assert labelled(index, made, "suspicious") == {first}
        assert labelled(index, made, "random") == set(), "it is asked about when the random queue comes to it"
        made = [label(*first, "disagree", reward=float(sum(first) % 2))]
        assert labelled(index, made, "random") == labelled(index, made, "suspicious") == {first}


def test_a_rollout_whose_reward_changed_is_asked_about_again(run: Path) -> None:
    with open_index(run) as index:
        assert labelled(index, [label(0, 0, "agree", reward=0.7)], "random") == set()


def test_a_label_by_hand_leaves_a_drawn_rollout_in_the_random_sample(run: Path) -> None:
    file = LabelFile(RunFiles(run))
    file.add(label(0, 0, "agree", reward=0.0))
    file.add(label(0, 0, "disagree", reward=0.0, queue="free"))
    (newest,) = file.newest()
    assert (newest.label, newest.queue) == ("disagree", "random")
    with open_index(run) as index:
        assert label_rates(index, [newest]).random == 1


def test_the_newest_label_of_a_person_wins_and_a_torn_line_is_passed_over(run: Path) -> None:
    file = LabelFile(RunFiles(run))
    file.add(label(0, 0, "agree"))
    with file.path.open("ab") as torn:
        torn.write(b'{"task": 1, "rol')
    file.add(label(0, 0, "disagree"))
    assert [one.label for one in file.newest()] == ["disagree"]


def test_no_label_is_lost_on_kill(run: Path) -> None:
    code = (
        "import sys; from rollforge.review.labels import *; from rollforge.store import RunFiles\n"
        "file = LabelFile(RunFiles(sys.argv[1]))\n"
        "for task in range(10_000):\n"
        "    file.add(Label(task=task, rollout=0, label='agree')); print(task, flush=True)\n"
    )
    words = [sys.executable, "-c", code, str(run)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = [int(process.stdout.readline()) for _ in range(25)]
        os.kill(process.pid, signal.SIGKILL)
        output += [int(line) for line in process.stdout.read().split("\n") if line.strip().isdecimal()]
    kept = {one.task for one in LabelFile(RunFiles(run)).read()}
    assert set(output) <= kept


@pytest.mark.parametrize(
    ("keys", "labels", "code"),
    [
        (b"adq", ["agree", "disagree"], 0),
        (b"a\nd\x04", ["agree", "disagree"], 0),
        (b"u\x03", ["unsure"], 130),
        (b"abdq", ["agree", "disagree"], 0),
    ],
    ids=["quit", "Enter by habit, Ctrl-D", "Ctrl-C", "one step back"],
)
def test_one_key_is_a_label_on_a_terminal_which_is_restored(
    run: Path, keys: bytes, labels: list[str], code: int
) -> None:
    assert (
        _labelled_on_a_terminal(run, [b"\n" * (b"\n" in keys) + bytes([key]) for key in keys if key != 10])
        == code
    )
    assert [one.label for one in LabelFile(RunFiles(run)).read()] == labels


def test_an_arrow_key_is_no_label(run: Path) -> None:
    up, left, f5 = b"\x1b[A", b"\x1bOD", b"\x1b[15~"
    assert _labelled_on_a_terminal(run, [up + left + f5 + b"u", b"q"]) == 0
    assert [one.label for one in LabelFile(RunFiles(run)).read()] == ["unsure"]


def _labelled_on_a_terminal(run: Path, keys: list[bytes]) -> int:
    """Type into `show --label`, each of the keys once it is asked for; returns the exit code."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    child = subprocess.Popen(
        [sys.executable, "-m", "rollforge", "show", str(run), "--label", "--limit", "8"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C needs a controlling terminal
    )  # fmt: skip
    printed = b""
    for asked, key in enumerate(keys, start=1):
        while printed.count(b"[q]uit: ") < asked:
            printed += os.read(ours, 65536)
        while termios.tcgetattr(theirs)[3] & termios.ICANON:
            time.sleep(0.01)  # the question is printed before the keys are read singly
        os.write(ours, key)
    while child.poll() is None:
        if select.select([ours], [], [], 0.1)[0]:
            os.read(ours, 65536)
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
    return child.returncode


def test_going_back_replaces_the_label_and_is_counted_once(run: Path) -> None:
    with open_index(run) as index:
        shown = show_rollouts(index, ShowOptions(limit=3))
    said, kept = iter("badbuq"), []
    count = ask_labels(
        shown, lambda one, opinion: kept.append((one.rollout, opinion)), ask=lambda _: next(said)
    )
    first = shown[0].rollout
    assert kept == [(first, "agree"), (shown[1].rollout, "disagree"), (shown[1].rollout, "unsure")]
    assert count == 2


def test_a_blind_label_cannot_be_taken_back_once_its_verdict_was_shown(run: Path) -> None:
    with open_index(run) as index:
        shown = show_rollouts(index, ShowOptions(limit=2))
    said, kept = iter("abaq"), []
    ask_labels(shown, lambda one, _: kept.append(one.rollout), blind=True, ask=lambda _: next(said))
    assert kept == [one.rollout for one in shown]


def test_labelling_in_a_terminal(run: Path) -> None:
    words = [sys.executable, "-m", "rollforge", "show", str(run), "--label", "--limit", "4"]
    done = subprocess.run(words, input="a\nx\nd\nu\nq\n", capture_output=True, text=True, check=True)
    assert [one.label for one in LabelFile(RunFiles(run)).read()] == ["agree", "disagree", "unsure"]
    assert "rollforge metrics --labels" in done.stderr
    with open_index(run) as index:
        rates = run_rates(index)
    assert rates is not None
    assert (rates.labels, rates.unsure) == (3, 1)


def test_the_stratified_queue_takes_turns_between_passes_and_fails(tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, float(task % 10 == 0)) for task in range(200)]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    with open_index(tmp_path / "run") as index:
        keys = label_queue(index, "stratified", seed=1, count=30)
        assert [key[1] % 10 == 0 for key in keys] == [True, False] * 15
        assert label_queue(index, "stratified", seed=1, done={keys[0][1:]}, count=29) == keys[1:]


def test_stratified_labels_measure_the_run_and_not_the_sample(tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, float(task % 10 == 0)) for task in range(2000)]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    error_of_passes, error_of_fails = 0.5, 0.1
    truth = 0.1 * error_of_passes + 0.9 * error_of_fails
    rng, hits, values = np.random.default_rng(7), 0, []
    with open_index(tmp_path / "run") as index:
        for seed in range(150):
            labels = []
            for _, task, rollout in label_queue(index, "stratified", seed=seed, count=120):
                passes = task % 10 == 0
                wrong = rng.random() < (error_of_passes if passes else error_of_fails)
                opinion = "disagree" if wrong else "agree"
                labels.append(label(task, rollout, opinion, reward=float(passes), queue="stratified"))
            rates = label_rates(index, labels)
            assert rates.error.ci is not None and rates.error.value is not None
            values.append(rates.error.value)
            hits += rates.error.ci[0] <= truth <= rates.error.ci[1]
    assert rates.stratified == 120
    assert abs(float(np.mean(values)) - truth) < 0.01, "half of the labels are passes, a tenth of the run is"
    assert hits >= 137, f"{hits} of 150 intervals hold the truth"


def test_a_stratum_without_labels_gives_no_rate_of_the_run(tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, float(task % 2)) for task in range(100)]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    with open_index(tmp_path / "run") as index:
        rates = label_rates(
            index, [label(2 * n + 1, 0, "agree", reward=1.0, queue="stratified") for n in range(30)]
        )
    assert rates.error.value is None


@pytest.mark.parametrize(
    ("said", "reward", "kept"), [("a", 1.0, "agree"), ("a", 0.0, "disagree"), ("d", 0.0, "agree")]
)
def test_blind_labels_are_about_the_answer_and_kept_about_the_verdict(
    run: Path, said: str, reward: float, kept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_index(run) as index:
        shown = show_rollouts(index, ShowOptions(reward=reward, limit=1))
    labels: list[str] = []
    assert ask_labels(shown, lambda _, opinion: labels.append(opinion), blind=True, ask=lambda _: said) == 1
    assert labels == [kept]
    printed = capsys.readouterr()
    assert "verdict hidden" in printed.out
    assert f"reward {reward:g}" not in printed.out
