"""Kill -9 at random moments of collect, verify, follow, prepare, index, buffer and tools: 0 lost, 0 doubled, 0 silently zero.

A few kills of each in CI; `ROLLFORGE_TORTURE=1` does 1,000 in all. The end of the run prints the counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from rollforge.buffer import open_buffer
from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from tests.hostile.kills import (
    JUDGE,
    Damage,
    ForkServer,
    Killer,
    count_missing,
    count_wanting,
    final_text,
    is_alive,
    key,
    run,
    true_reward,
    whole_lines,
)

IS_LONG = bool(os.environ.get("ROLLFORGE_TORTURE"))
KILLS = (
    {"collect": 300, "verify": 150, "follow": 100, "prepare": 130, "index": 130, "buffer": 130, "tools": 60}
    if IS_LONG
    else dict.fromkeys(("collect", "verify", "follow", "prepare", "index", "buffer", "tools"), 3)
)
SHARE = float(os.environ.get("ROLLFORGE_TORTURE_SHARE", "1"))
TASKS, SAMPLES, TOOL_TASKS = 60, 4, 6
RUN_KEYS = [(task, sample) for task in range(TASKS) for sample in range(SAMPLES)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(72_000)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ForkServer]]:
    """Two, for two commands at once; none in CI, where every kill is of a new process."""
    servers = [ForkServer(tmp_path_factory.mktemp("forks")) for _ in range(2 * IS_LONG)]
    yield servers
    for server in servers:
        server.end()


@pytest.fixture
def killer(request: pytest.FixtureRequest, servers: list[ForkServer]) -> Iterator[Killer]:
    area = request.node.name.split("_")[2]
    damage = Damage(area)
    yield Killer(damage, random.Random(f"{area} {os.environ.get('ROLLFORGE_TORTURE_SEED', '0')}"), servers)
    counts = {
        "kills": damage.kills,
        "lost": damage.lost,
        "doubled": damage.doubled,
        "silently zero": damage.zero,
    }
    request.node.user_properties.append(("tried", counts))
    request.node.user_properties.append(("said", damage.line()))


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedProcess]:
    with SimulatedProcess(SimulateOptions(latency=0.03, faults=("500=0.05", "reset=0.02"))) as process:
        yield process


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, server: SimulatedProcess) -> Path:
    """A whole run, for the commands that read one."""
    folder = tmp_path_factory.mktemp("finished")
    done = run(collect(folder, server))
    assert done.returncode == 0, done.stderr
    return folder


def wanted(area: str) -> int:
    return max(int(KILLS[area] * SHARE), 1)


def write_tasks(folder: Path, kind: Literal["math", "tools"] = "math", count: int = TASKS) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    rows = example_tasks(count, 0, kind)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "judge.py").write_text(JUDGE.format(seconds=0.002))


def collect(folder: Path, server: SimulatedProcess, *more: str | Path) -> list[str | Path]:
    if not (folder / "tasks.jsonl").exists():
        write_tasks(folder)
    return [
        *("collect", "-i", folder / "tasks.jsonl", "-o", folder / "run", "-m", "simulated"),
        *("--base-url", server.base_url, "--verifier", f"{folder / 'judge.py'}:judge", "--stop-on", "never"),
        *("-k", str(SAMPLES), "-c", "16", "--progress", "none", *more),
    ]


def count_rewards(damage: Damage, rows: list[dict], texts: dict) -> None:
    """Rewards that are not what the verifier says: null where it was to judge, 0, or of another answer."""
    for row in rows:
        expected = true_reward(texts[key(row)])
        if row["reward"] is None or abs(row["reward"] - expected) > 1e-9:
            damage.zero += 1
            damage.notes.append(f"{key(row)}: reward {row['reward']}, the verifier says {expected}")


def test_kills_collect(killer: Killer, server: SimulatedProcess, tmp_path: Path) -> None:
    damage, round_number = killer.damage, 0
    for name in ("imports", "measured"):
        killer.measure(collect(tmp_path / name, server))
    while damage.kills < wanted("collect"):
        round_number += 1
        folder = tmp_path / f"round{round_number}"
        words = collect(folder, server)
        rollouts = folder / "run" / "rollouts.jsonl"
        ended = None
        while ended is None and damage.kills < wanted("collect"):
            before = [key(row) for row in whole_lines(rollouts)]
            ended = killer.kill(words)
            count_missing(damage, before, [key(row) for row in whole_lines(rollouts)])
        killer.finish(words, is_new=round_number % 4 == 0)
        rows = whole_lines(rollouts)
        count_wanting(damage, RUN_KEYS, [key(row) for row in rows])
        count_rewards(damage, rows, {key(row): final_text(row) for row in rows})
    damage.assert_none()


def test_kills_verify(killer: Killer, finished: Path, tmp_path: Path) -> None:
    damage, round_number = killer.damage, 0
    while damage.kills < wanted("verify"):
        round_number += 1
        folder = tmp_path / f"round{round_number}"
        shutil.copytree(finished, folder)
        (folder / "again.py").write_text(JUDGE.format(seconds=0.01))
        words = ["verify", folder / "run", "--verifier", f"{folder / 'again.py'}:judge", "--progress", "none"]
        if round_number <= 2:
            killer.measure(words)  # the first time with its imports
            continue
        kill_until_judged(killer, "verify", folder, words)
    damage.assert_none()


def kill_until_judged(killer: Killer, area: str, folder: Path, words: list[str | Path]) -> None:
    """Kill `verify` again and again until it ends by itself; then every rollout has one verdict, the right one."""
    damage, verdicts = killer.damage, folder / "run" / "rollouts_verdicts.jsonl"
    ended = None
    while ended is None and damage.kills < wanted(area):
        before = [key(row) for row in whole_lines(verdicts)]
        ended = killer.kill(words)
        count_missing(damage, before, [key(row) for row in whole_lines(verdicts)])
    killer.finish(words)
    check_verdicts(damage, folder)


def check_verdicts(damage: Damage, folder: Path) -> None:
    rows = whole_lines(folder / "run" / "rollouts_verdicts.jsonl")
    texts = {key(row): final_text(row) for row in whole_lines(folder / "run" / "rollouts.jsonl")}
    count_wanting(damage, texts, [key(row) for row in rows])
    count_rewards(damage, rows, texts)


def test_kills_follow(killer: Killer, server: SimulatedProcess, tmp_path: Path) -> None:
    """Both are killed: the collector, and the `verify --follow` that reads what it writes."""
    damage, round_number = killer.damage, 0
    for name in ("imports", "measured"):
        collecting, following = _collect_and_follow(tmp_path / name, server)
        assert killer.start(collecting, seat=1).wait(timeout=600) == 0
        killer.measure(following)
    while damage.kills < wanted("follow"):
        round_number += 1
        folder = tmp_path / f"round{round_number}"
        collecting, following = _collect_and_follow(folder, server)
        verdicts = folder / "run" / "rollouts_verdicts.jsonl"
        for _ in range(4):
            before = [key(row) for row in whole_lines(verdicts)]
            collector = killer.start(collecting, seat=1)
            if killer.chance.random() < 0.5:
                killer.kill(following)
            else:
                _wait_until((folder / "run").exists)  # from then on a follower notices that nobody collects
                follower = killer.start(following)
                time.sleep(killer.chance.uniform(0.0, killer.usual_s))
                killer.finish_off(collector)
                follower.wait(timeout=600)  # it notices that nobody collects any more
            if collector.poll() is None:
                killer.finish_off(collector)
            count_missing(damage, before, [key(row) for row in whole_lines(verdicts)])
        killer.finish(collecting, is_new=round_number % 4 == 0)
        killer.finish(following, is_new=round_number % 4 == 0)
        count_wanting(damage, RUN_KEYS, [key(row) for row in whole_lines(folder / "run" / "rollouts.jsonl")])
        check_verdicts(damage, folder)
    damage.assert_none()


def _collect_and_follow(folder: Path, server: SimulatedProcess) -> tuple[list[str | Path], list[str | Path]]:
    judge = ("--verifier", f"{folder / 'judge.py'}:judge")
    collecting = [word for word in collect(folder, server, "--no-verify") if word not in judge]
    return collecting, ["verify", folder / "run", *judge, "--follow", "--progress", "none"]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"  # it has the time
    }


def test_kills_prepare(killer: Killer, finished: Path, tmp_path: Path) -> None:
    """The folder is absent, the dataset that was there, or the new one: never part of one."""
    damage = killer.damage
    recipes = ("sft", "dpo", "grpo", "rm")
    words = {
        recipe: ["prepare", recipe, finished / "run", "-o", tmp_path / "data", "--to", "trl", "--force"]
        for recipe in recipes
    }
    words["sft"] += ["--min-reward", "0.5"]
    whole = []
    for recipe in recipes:
        killer.measure(words[recipe])
        whole.append(digests(tmp_path / "data"))
    shutil.rmtree(tmp_path / "data")
    present: dict[str, str] = {}
    while damage.kills < wanted("prepare"):
        killer.kill(words[killer.chance.choice(recipes)])
        found = digests(tmp_path / "data")
        if found not in [present, *whole]:
            damage.lost += 1
            damage.notes.append(f"after kill {damage.kills}: {sorted(found)} is no whole dataset")
        present = found
    for recipe, expected in zip(recipes, whole, strict=True):
        done = run(words[recipe])
        assert done.returncode == 0, done.stderr
        damage.lost += digests(tmp_path / "data") != expected
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".data.")]
    assert not left, f"left behind: {left}"
    damage.assert_none()


def test_kills_index(killer: Killer, finished: Path, tmp_path: Path) -> None:
    """An index that was killed while it was built, extended or saved changes no number."""
    damage = killer.damage
    folder = tmp_path / "run"
    shutil.copytree(finished / "run", folder)
    shutil.rmtree(folder / "rollouts_index", ignore_errors=True)
    rollouts = folder / "rollouts.jsonl"
    lines = rollouts.read_bytes().splitlines(keepends=True)
    many = [line for copy in range(12) for line in _as_tasks(lines, copy * TASKS)]
    reference = tmp_path / "reference"
    while damage.kills < wanted("index"):
        rollouts.write_bytes(b"".join(many[: len(many) // 3]))
        for share in (2, 3):
            for _ in range(5):
                killer.kill(
                    ["metrics", folder, "--json"] if killer.chance.random() < 0.7 else ["profile", folder]
                )
            rollouts.write_bytes(b"".join(many[: len(many) * share // 3]))
        shutil.rmtree(reference, ignore_errors=True)
        shutil.copytree(folder, reference)
        shutil.rmtree(reference / "rollouts_index", ignore_errors=True)
        output, expected = run(["metrics", folder, "--json"]), run(["metrics", reference, "--json"])
        assert output.returncode == expected.returncode == 0, output.stderr + expected.stderr
        numbers, whole = json.loads(output.stdout), json.loads(expected.stdout)
        numbers.pop("run"), whole.pop("run")
        if numbers != whole:
            damage.lost += 1
            damage.notes.append(f"after kill {damage.kills}: {numbers['counts']}, whole {whole['counts']}")
        shutil.rmtree(folder / "rollouts_index", ignore_errors=True)
    damage.assert_none()


def _as_tasks(lines: list[bytes], first: int) -> list[bytes]:
    rows = [json.loads(line) for line in lines]
    return [
        json.dumps(row | {"_ng_task_index": row["_ng_task_index"] + first}).encode() + b"\n" for row in rows
    ]


PRODUCER = """
import sys
from rollforge.buffer import open_buffer
from rollforge.experience import Experience
place, count = sys.argv[1], int(sys.argv[2])
with open_buffer(place) as buffer:
    for first in range(0, count, 7):
        buffer.append([
            Experience(id=str(n), task=str(n // 4), run="r", reward=0.5 + n / 1000)
            for n in range(first, min(first + 7, count))
        ])
"""
TRAINER = """
import os, sys
from rollforge.buffer import open_buffer
place, log = sys.argv[1:]
out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
with open_buffer(place) as buffer:
    while batch := buffer.claim(5, timeout=1.5):
        for experience in batch.experiences:
            os.write(out, f"claimed {experience.id} {experience.reward}\\n".encode())
        buffer.acknowledge(batch)
        os.write(out, "".join(f"done {experience.id}\\n" for experience in batch.experiences).encode())
"""


def test_kills_buffer(killer: Killer, tmp_path: Path) -> None:
    """Producers and trainers of one buffer are killed; every experience is served, none again after its end."""
    damage, round_number = killer.damage, 0
    while damage.kills < wanted("buffer"):
        round_number += 1
        place, log, count = tmp_path / f"b{round_number}.db", tmp_path / f"log{round_number}", 400
        programs = ["-c", PRODUCER, place, str(count)], ["-c", TRAINER, place, log]
        for _ in range(8):
            pair = [killer.start(words, seat=seat) for seat, words in enumerate(programs)]
            time.sleep(killer.chance.uniform(*((0.02, 0.5) if killer.servers else (0.2, 1.2))))
            for process in pair:
                killer.finish_off(process)
        for words in programs:
            subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=300)
        _check_log(damage, log, count)
        with open_buffer(place) as buffer:
            damage.lost += buffer.counters()["waiting"]
    damage.assert_none()


def _check_log(damage: Damage, log: Path, count: int) -> None:
    served, ended = set(), set()
    for line in log.read_text().splitlines():
        word, number, *reward = line.split()
        if word == "done":
            ended.add(number)
            continue
        served.add(number)
        damage.doubled += number in ended
        damage.zero += float(reward[0]) != 0.5 + int(number) / 1000
    damage.lost += len({str(number) for number in range(count)} - served)


TOOLS = """
import time
def get_synonym_value(synonym: str):
    time.sleep(0.01)
    return {'synonym_value': sum(map(ord, synonym))}
def extract_synonym_values(synonym_values: list[int]):
    return {'success': True}
"""
STDIO_TOOLS = """
import os, pathlib, sys
sys.path.insert(0, os.path.dirname(__file__))
import tools
from mcp.server.mcpserver import MCPServer
started = pathlib.Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
with open(pathlib.Path(__file__).with_name("processes"), "a") as processes:
    processes.write(f"{os.getpid()} {started}\\n")
server = MCPServer("needles")
server.tool()(tools.get_synonym_value)
server.tool()(tools.extract_synonym_values)
server.run()
"""


def test_kills_tools(killer: Killer, server: SimulatedProcess, tmp_path: Path) -> None:
    """A rollout with tools is whole or absent: every call has its output. Tool processes end with their parent."""
    damage, round_number = killer.damage, 0
    while damage.kills < wanted("tools"):
        round_number += 1
        folder = tmp_path / f"round{round_number}"
        write_tasks(folder, "tools", TOOL_TASKS)
        (folder / "tools.py").write_text(TOOLS)
        (folder / "stdio.py").write_text(STDIO_TOOLS)
        is_stdio = round_number % 2 == 0
        place = f"mcp-stdio:{sys.executable} {folder / 'stdio.py'}" if is_stdio else folder / "tools.py"
        words = collect(folder, server, "--tools", place)
        for _ in range(2 if round_number <= 2 else 0):
            killer.measure(words)  # the first time with its imports
            shutil.rmtree(folder / "run")
        killer.usual_s = min(killer.usual_s, 6.0)
        rollouts = folder / "run" / "rollouts.jsonl"
        ended, kills = None, damage.kills
        while ended is None and damage.kills < wanted("tools") and damage.kills < kills + 10:
            before = [key(row) for row in whole_lines(rollouts)]
            ended = killer.kill(words)
            count_missing(damage, before, [key(row) for row in whole_lines(rollouts)])
        killer.finish(words, is_new=round_number % 4 == 0)
        rows = whole_lines(rollouts)
        count_wanting(damage, RUN_KEYS[: TOOL_TASKS * SAMPLES], [key(row) for row in rows])
        count_rewards(damage, rows, {key(row): final_text(row) for row in rows})
        for row in rows:
            items = row["response"]["output"]
            calls = [item["call_id"] for item in items if item["type"] == "function_call"]
            outputs = [item["call_id"] for item in items if item["type"] == "function_call_output"]
            count_wanting(damage, calls, outputs)
        _wait_for_the_end(folder / "processes")
    damage.assert_none()


def _wait_for_the_end(processes: Path) -> None:
    """Tool processes must not outlive the command."""
    lines = processes.read_text().splitlines() if processes.exists() else []
    _wait_until(lambda: not any(is_alive(*map(int, line.split())) for line in lines))


def _wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600  # a machine with much else to do
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
