"""The buffer, on SQLite and on a real PostgreSQL server: nothing lost, nothing seen twice, bounded."""

import math
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.buffer import BufferFull, Experience, LeaseLost, Mixture, open_buffer
from rollforge.buffer.samplers import balanced, staleness
from rollforge.errors import DataError, RollforgeError, UsageError
from rollforge.experience import from_bytes, from_row, to_bytes, to_row


class Clock:
    """Time that moves when told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def make(number, **fields):
    fields = {"task": f"t{number // 4}", "run": f"r{number}", "reward": float(number % 2)} | fields
    return Experience(id=f"e{number}", **fields)


def numbers(batch):
    return [int(experience.id[1:]) for experience in batch.experiences]


def test_what_is_appended_is_claimed_and_acknowledged_once(place):
    with open_buffer(place) as buffer:
        assert buffer.append(make(i) for i in range(10)) == 10
        first = buffer.claim(4)
        second = buffer.claim(4)
        assert numbers(first) == [0, 1, 2, 3]
        assert numbers(second) == [4, 5, 6, 7]
        buffer.acknowledge(first)
        buffer.give_back(second)
        assert numbers(buffer.claim(4)) == [4, 5, 6, 7]
        counters = buffer.counters()
        assert (counters["waiting"], counters["claimed"], counters["done"]) == (2, 4, 4)
        assert counters["acknowledged"] == 4


def test_the_same_experience_is_stored_once_even_after_it_was_used(place):
    with open_buffer(place) as buffer:
        buffer.append([make(0), make(1)])
        buffer.acknowledge(buffer.claim(2))
        assert buffer.append([make(0), make(2)]) == 1
        assert numbers(buffer.claim(1)) == [2]
        assert buffer.counters()["duplicates"] == 1


@pytest.mark.parametrize("on_full", ["wait", "evict-oldest"])
def test_known_experiences_need_no_room_in_a_full_buffer(place, on_full):
    with open_buffer(place, capacity=2, on_full=on_full) as buffer:
        buffer.append([make(0), make(1)])
        assert buffer.append([make(0), make(1)], timeout=0) == 0
        assert buffer.append([], timeout=0) == 0
        counters = buffer.counters()
        assert (counters["waiting"], counters["duplicates"], counters["evicted"]) == (2, 2, 0)


def test_while_an_experience_waits_what_was_appended_last_counts(place):
    with open_buffer(place) as buffer:
        buffer.append([make(0, advantage=0.0), make(1, advantage=0.0)])
        claimed = buffer.claim(1)
        buffer.append([make(0, advantage=0.5), make(1, advantage=0.5, priority=2.0)])
        buffer.give_back(claimed)
        again = buffer.claim(2, sampler="priority")
        assert [(e.id, e.advantage) for e in again.experiences] == [("e1", 0.5), ("e0", 0.0)]


def test_a_lease_that_runs_out_gives_the_batch_to_the_next_and_refuses_the_late_acknowledgement(place):
    clock = Clock()
    with open_buffer(place, lease_seconds=60, clock=clock) as buffer:
        buffer.append([make(0), make(1)])
        late = buffer.claim(2)
        assert buffer.claim(2, timeout=0) is None
        clock.now += 61
        again = buffer.claim(2)
        assert numbers(again) == [0, 1]
        with pytest.raises(LeaseLost):
            buffer.acknowledge(late)
        buffer.acknowledge(again)
        assert buffer.counters()["acknowledged"] == 2


def test_a_renewed_lease_holds(place):
    clock = Clock()
    with open_buffer(place, lease_seconds=60, clock=clock) as buffer:
        buffer.append([make(0)])
        batch = buffer.claim(1)
        clock.now += 50
        buffer.renew(batch)
        clock.now += 50
        assert buffer.claim(1, timeout=0) is None
        buffer.acknowledge(batch)


def test_reuse_serves_again_and_counts(place):
    with open_buffer(place, max_uses=2) as buffer:
        buffer.append([make(0)])
        for use in range(2):
            batch = buffer.claim(1)
            assert batch.experiences[0].uses == use
            buffer.acknowledge(batch)
        assert buffer.claim(1, timeout=0) is None
        assert buffer.counters()["done"] == 1


def test_a_full_buffer_makes_the_producer_wait(place):
    with open_buffer(place, capacity=3) as buffer:
        with pytest.raises(BufferFull, match="2 experiences"):
            buffer.append([make(i) for i in range(5)], timeout=0)
        assert len(buffer) == 3
        batch = buffer.claim(3)
        with pytest.raises(BufferFull):
            buffer.append([make(9)], timeout=0)
        buffer.acknowledge(batch)
        assert buffer.append([make(9)], timeout=0) == 1


def test_a_waiting_producer_goes_on_when_the_trainer_has_made_room(tmp_path):
    path = tmp_path / "b.db"
    with open_buffer(path, capacity=2) as producer, open_buffer(path) as trainer:
        producer.append([make(0), make(1)])
        thread = threading.Thread(target=producer.append, args=([make(2), make(3)],))
        thread.start()
        trainer.acknowledge(trainer.claim(2))
        thread.join(30)
        assert not thread.is_alive()
        assert numbers(trainer.claim(2)) == [2, 3]


@pytest.mark.parametrize(("rule", "left"), [("evict-oldest", [2, 3, 4]), ("evict-lowest", [1, 3, 4])])
def test_an_evicting_buffer_drops_by_its_rule_and_counts(place, rule, left):
    priority = {0: 0.0, 1: 5.0, 2: 1.0}
    with open_buffer(place, capacity=3, on_full=rule) as buffer:
        buffer.append([make(i, priority=priority[i]) for i in range(3)])
        buffer.append([make(3, priority=9.0), make(4, priority=9.0)])
        assert sorted(numbers(buffer.claim(3))) == left
        assert buffer.counters()["evicted"] == 2


def test_after_finish_the_rest_comes_as_a_smaller_batch(place):
    with open_buffer(place) as buffer:
        buffer.append([make(0), make(1), make(2)])
        assert buffer.claim(5, timeout=0) is None
        assert len(buffer.claim(2, timeout=0)) == 2
        buffer.finish()
        assert numbers(buffer.claim(5)) == [2]
        assert buffer.claim(5) is None


def test_a_partial_batch_is_given_when_asked_for(place):
    with open_buffer(place) as buffer:
        buffer.append([make(0)])
        assert buffer.claim(2, timeout=0) is None
        assert numbers(buffer.claim(2, timeout=0, partial=True)) == [0]


def test_newest_and_priority_and_uniform(place):
    with open_buffer(place, seed=3) as buffer:
        buffer.append([make(i, priority=float(i % 5)) for i in range(20)])
        assert numbers(buffer.claim(2, sampler="newest")) == [19, 18]
        assert numbers(buffer.claim(3, sampler="priority")) == [4, 9, 14]
        drawn = numbers(buffer.claim(5, sampler="uniform"))
        assert len(set(drawn)) == 5
        with pytest.raises(UsageError, match="did you mean 'fifo'"):
            buffer.claim(1, sampler="fifoo")


def test_the_same_seed_draws_the_same_and_a_reopened_buffer_goes_on(tmp_path):
    def draw(path, *, reopen):
        buffer = open_buffer(path, seed=7)
        buffer.append([make(i) for i in range(30)])
        drawn = []
        for _ in range(4):
            drawn.append(numbers(buffer.claim(5, sampler="uniform")))
            if reopen:
                buffer.close()
                buffer = open_buffer(path, seed=7)
        buffer.close()
        return drawn

    assert draw(tmp_path / "a.db", reopen=False) == draw(tmp_path / "b.db", reopen=True)


def test_stale_experiences_leave_and_are_counted(place):
    with open_buffer(place) as buffer:
        buffer.append([make(i, model_version=i) for i in range(6)])
        batch = buffer.claim(2, sampler=staleness(limit=2), version=5)
        assert numbers(batch) == [3, 4]
        assert buffer.counters()["stale"] == 3
        metrics = batch.metrics()
        assert metrics["sample/staleness/max"] == 2
        with pytest.raises(UsageError, match="version"):
            buffer.claim(1, sampler="staleness")


def test_balanced_takes_from_every_band_of_difficulty(place):
    with open_buffer(place) as buffer:
        buffer.append([make(i, difficulty=0.05 if i < 16 else 0.95) for i in range(20)])
        assert sorted(numbers(buffer.claim(6, sampler=balanced(2)))) == [0, 1, 2, 16, 17, 18]


def test_sample_metrics_say_what_the_batch_is_made_of(place):
    clock = Clock()
    with open_buffer(place, clock=clock, capacity=4, on_full="evict-oldest") as buffer:
        rewards = [None, 0.0, 1.0, 0.5, 1.0]
        buffer.append([make(i, reward=rewards[i], model_version=i) for i in range(5)])
        clock.now += 30
        metrics = buffer.claim(4, version=5).metrics()
    assert metrics["sample/experience_count"] == 4
    assert metrics["sample/task_count"] == 2
    assert [metrics[f"sample/model_version/{name}"] for name in ("mean", "min", "max")] == [2.5, 1, 4]
    assert metrics["sample/staleness/mean"] == 2.5
    assert metrics["sample/age/mean"] == pytest.approx(30)
    assert metrics["sample/reuse/mean"] == 0
    assert metrics["sample/reward/mean"] == pytest.approx(0.625)
    assert metrics["sample/reward/std"] == pytest.approx(np.std([0.0, 1.0, 0.5, 1.0]))
    assert metrics["sample/evicted"] == 1
    assert metrics["sample/waiting_time"] >= 0


def test_a_mixture_pays_every_share_exactly_over_time_and_its_state_resumes(tmp_path):
    buffers = {name: open_buffer(tmp_path / f"{name}.db") for name in ("fresh", "expert")}
    for name, buffer in buffers.items():
        buffer.append([make(i, taskset=name) for i in range(60)])
    mixture = Mixture({"fresh": (buffers["fresh"], 2.0), "expert": (buffers["expert"], 1.0)})
    sizes = []
    for _ in range(3):
        batch = mixture.claim(5)
        sizes.append(len(batch.batches["expert"]))
        mixture.acknowledge(batch)
    assert sum(sizes) == 5
    resumed = Mixture({"fresh": (buffers["fresh"], 2.0), "expert": (buffers["expert"], 1.0)})
    resumed.restore(mixture.state)
    assert resumed.split(5) == mixture.split(5)
    assert mixture.claim(3).metrics()["sample/share/fresh"] == pytest.approx(2 / 3)
    for buffer in buffers.values():
        buffer.close()


TRAINER = """
import sys
from rollforge.buffer import open_buffer
with open_buffer(sys.argv[1]) as buffer:
    print("ready", flush=True)
    while batch := buffer.claim(7, timeout=0, partial=True):
        with open(sys.argv[2], "a") as log:
            log.write(batch.token + " " + " ".join(e.id for e in batch.experiences) + "\\n")
        buffer.acknowledge(batch)
"""


@pytest.mark.slow
def test_killed_trainers_lose_nothing_and_acknowledge_nothing_twice(place, tmp_path):
    total = 400
    log = tmp_path / "log"
    log.touch()
    with open_buffer(place) as buffer:
        buffer.append([make(i) for i in range(total)])
        rng = random.Random(5)
        for _ in range(6):
            trainer = subprocess.Popen(
                [sys.executable, "-c", TRAINER, place, str(log)], stdout=subprocess.PIPE
            )
            assert trainer.stdout.readline() == b"ready\n"
            try:
                trainer.wait(rng.uniform(0.005, 0.06))
            except subprocess.TimeoutExpired:
                trainer.send_signal(signal.SIGKILL)
                trainer.wait()
            trainer.stdout.close()
        while batch := buffer.claim(7, timeout=0, partial=True):
            buffer.acknowledge(batch)
        counters = buffer.counters()
    assert counters["done"] == counters["acknowledged"] == total
    assert (counters["waiting"], counters["claimed"]) == (0, 0)


def test_two_trainers_never_hold_the_same_experience(place):
    with open_buffer(place) as producer:
        producer.append([make(i) for i in range(200)])
        producer.finish()
    seen = [[], []]

    def train(mine):
        with open_buffer(place) as buffer:
            while batch := buffer.claim(9):
                mine += numbers(batch)
                buffer.acknowledge(batch)

    threads = [threading.Thread(target=train, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen[0] + seen[1]) == list(range(200))


@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=20),
    reward=st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    text=st.text(max_size=30),
)
def test_an_experience_survives_the_round_trip(tokens, reward, text):
    experience = make(
        1,
        reward=reward,
        response=text,
        tokens=np.array(tokens, dtype=np.int32),
        mask=np.ones(len(tokens), dtype=bool),
        logprobs=np.linspace(-1, 0, len(tokens), dtype=np.float32),
        info={"a": [1, None, {"b": "c"}]},
    )
    for again in (from_bytes(to_bytes(experience)), from_row(to_row(experience))):
        assert again.reward == reward
        assert again.response == text
        assert again.info == experience.info
        for name in ("tokens", "mask", "logprobs"):
            ours, theirs = getattr(experience, name), getattr(again, name)
            assert theirs.dtype == ours.dtype
            assert theirs.tolist() == ours.tolist()


def test_what_is_no_experience_is_refused():
    with pytest.raises(DataError, match="not an experience"):
        from_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(DataError, match="flat arrays"):
        to_bytes(make(0, tokens=np.zeros((2, 2), dtype=np.int32)))
    assert math.isnan(from_bytes(to_bytes(make(0, reward=math.nan))).reward)


def test_a_place_that_is_no_buffer_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look at " * 10)
    with pytest.raises(UsageError, match="not a buffer"):
        open_buffer(path)
    with pytest.raises(UsageError, match="no such kind"):
        open_buffer("mysql://x")
    for nowhere in (tmp_path, path / "buffer.db"):
        with pytest.raises(UsageError, match="no buffer can be there"):
            open_buffer(nowhere)


def test_what_makes_no_sense_is_refused_before_anything_changes(tmp_path):
    place = tmp_path / "buffer.db"
    for options, message in (
        ({"on_full": "evict_oldest"}, "did you mean 'evict-oldest'"),
        ({"max_uses": 0}, "max_uses"),
        ({"capacity": 0}, "capacity"),
    ):
        with pytest.raises(UsageError, match=message):
            open_buffer(place, **options)
    with open_buffer(place) as buffer:
        for count in (0, -1):
            with pytest.raises(UsageError, match="at least 1"):
                buffer.claim(count, timeout=0)
        with pytest.raises(UsageError, match="priority"):
            buffer.append([make(0), make(1, priority=math.nan)])
        assert len(buffer) == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_buffer_has_a_message(tmp_path, seed):
    """Every page may be overwritten: the buffer serves what it can, or says that it is damaged, with its path or its reason."""
    place = tmp_path / "buffer.db"
    with open_buffer(place) as buffer:
        buffer.append([Experience(id=str(n), task=str(n), run="r") for n in range(200)])
    data = bytearray(place.read_bytes())
    chance = random.Random(seed)
    for _ in range(4):
        at = chance.randrange(100, len(data))
        data[at : at + 64] = chance.randbytes(min(64, len(data) - at))
    place.write_bytes(bytes(data))
    try:
        with open_buffer(place) as buffer:
            while batch := buffer.claim(5, timeout=0):
                buffer.acknowledge(batch)
    except RollforgeError as error:
        assert "buffer" in str(error)


def test_a_database_that_does_not_answer_is_named_with_its_flag():
    with pytest.raises(UsageError, match="does not answer") as refused:
        open_buffer("postgresql://127.0.0.1:1/experiences")
    assert "--buffer" in refused.value.hint
