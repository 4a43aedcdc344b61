"""Records what every reading command prints and writes on a corpus of runs, and compares two recordings.

    python scripts/corpus.py make DIR                              write the corpus (runs of every healthy and sick kind)
    python scripts/corpus.py record DIR OUT --python PYTHON        run the commands with that interpreter's rollforge
    python scripts/corpus.py compare OLD NEW                       print what differs, grouped by command

Commands run on copies, with stdin closed and a fixed terminal width. A recording keeps exit code, stdout, stderr and every
file that a command wrote (text of small files, digests of the others; the index is a cache and is left out). Times, durations,
versions and absolute paths are masked when recordings are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

TEXT_LIMIT = 60_000
"""Characters up to which a written file is kept as text."""

SECONDS = 180
"""After this time a command counts as hanging."""

RECIPES = ("sft", "dpo", "kto", "rm", "ppo", "grpo")
EXPORTERS = ("trl", "verl", "openrlhf", "nemo-rl", "llama-factory", "axolotl", "chat", "gym")
FAMILIES = ("agents", "verifiers", "checks", "recipes", "exporters", "sinks", "operators")
VERBS = (
    "demo", "collect", "verify", "metrics", "profile", "check", "prepare", "validate", "query", "show", "status",
    "eval", "bench", "experiences", "simulate", "init", "serve-verifier", "list",
)  # fmt: skip


# Which commands are run


def commands_of(run: str, target: str) -> Iterator[str]:
    """Command lines for one run, in the order in which they are run on the same copy."""
    kind, _, name = run.partition("/")
    if kind == "sick":
        yield f"check {target} --json"
        yield f"metrics {target}"
        return
    yield f"status {target}"
    yield f"status {target} --json"
    yield f"validate {target}"
    yield f"validate {target} --json"
    yield f"metrics {target}"
    yield f"metrics {target} --json"
    yield f"profile {target}"
    yield f"profile {target} --json --rollout-infos -o wide"
    yield f"check {target}"
    yield f"check {target} --json"
    yield f"check {target} --markdown"
    yield f'query {target} "describe rollouts"'
    yield f'query {target} "select * from rollouts order by row limit 5" --json'
    yield f'query {target} "select reward, count(*) from rollouts group by 1 order by 1"'
    yield f'query {target} "select * from tasks order by task limit 3" -f csv'
    yield f"show {target} -n 2"
    yield f"show {target} --suspicious -n 2 --json"
    yield f"experiences {target} --dry-run --json"
    if kind in ("written", "packed"):
        yield f"show {target} --line 4"
        yield f"metrics {target} --strict"
        yield f"prepare sft {target} -o sft --to chat --force --progress none"
        yield f"prepare dpo {target} -o dpo --to trl --force --progress none"
    if run in ("collected/math", "healthy/continuous", "written/gym-c", "collected/tool-loop"):
        yield from _prepare_everything(target)
    if run in ("healthy/binary", "healthy/continuous", "collected/math", "written/more-numbers"):
        yield from _with_options(target)
    if run == "healthy/continuous":
        yield from _prepare_with_options(target)
    if name.startswith("judged-"):
        yield f"verify {target} --diff recorded math"
        yield f"verify {target} --diff exact math --json"
        yield f"metrics {target} --verifier math"
        yield f"metrics {target} --verifier exact --json"
        yield f"prepare dpo {target} -o data --to trl --verifier exact --progress none"


def _prepare_everything(target: str) -> Iterator[str]:
    for recipe in RECIPES:
        yield f"check {target} --for {recipe}"
        yield f"check {target} --for {recipe} --json"
        yield f"prepare {recipe} {target} --to chat --dry-run --force"
        for exporter in EXPORTERS:
            yield f"prepare {recipe} {target} -o {recipe}-{exporter} --to {exporter} --force --progress none"
    yield "validate dpo-trl/train.jsonl"
    yield "show --example dpo-trl/train.jsonl:1"
    yield "prepare --from dpo-trl/manifest.json -o again --progress none"


def _with_options(target: str) -> Iterator[str]:
    yield f'metrics {target} --where "reward > 0.2" --json'
    yield f"metrics {target} --threshold 0.9"
    yield f"metrics {target} --compat nemo-gym --json"
    yield f"metrics {target} --compat trinity --json"
    yield f"metrics {target} --against {target}"
    yield f'profile {target} --where "reward is not null" -o some'
    yield f"profile {target} --parquet --look 2 -o other"
    yield f"check {target} --fail-on warning --ignore volume"
    yield f"check {target} --set truncated-answers.max_share=0.0 --json"
    yield f'check {target} --where "answer_chars > 10" --json'
    yield f"check {target} --reward-range 0 1"
    yield f"show {target} --best 2"
    yield f"show {target} --worst 2 --full"
    yield f"show {target} --sample 2 --seed 3 --raw"
    yield f"show {target} --task 1 --json"
    yield f'show {target} --sort "answer_chars desc" -n 1'
    yield f'query {target} "select task, avg(reward) as mean from rollouts group by 1 order by 1" -o means.csv'
    yield f'query {target} "select nonsense from rollouts"'
    yield f'query {target} "drop table rollouts"'
    yield f"metrics {target} --verifier nobody"
    yield f'metrics {target} --where "rewrd > 1"'
    yield f"experiences {target} -o experiences.jsonl --taskset sums --model-version 3"
    yield f"experiences {target} --per-turn -o turns.jsonl --json"


def _prepare_with_options(target: str) -> Iterator[str]:
    variants = (
        "sft --to chat --min-reward 0.5 --per-task 2",
        "sft --to chat --min-reward 0.5 --dedupe exact --dedupe-prompts near",
        "sft --to trl --min-reward 0.5 --split 0.8/0.1/0.1 --order shuffled --seed 4",
        "sft --to trl --min-reward 0.5 --order easy-first --shards 3 --format parquet",
        "sft --to chat --min-reward 0.5 --balance difficulty --limit 20",
        "sft --to chat --band 0.1-0.9 --min-chars 100 --max-chars 900 --keep-truncated",
        "sft --to chat --min-reward 0.5 --decontaminate tasks/held-out.jsonl --ngram 5",
        "dpo --to trl --strategy all --max-pairs 3",
        "dpo --to trl --strategy best --max-uses 2",
        "dpo --to trl --strategy hardest --min-gap 0.1 --length-ratio 1.5",
        "dpo --to chat --high 0.7 --low 0.4 --pairs step",
        'dpo --to chat --chosen-where "reward > 0.6" --rejected-where "reward < 0.5"',
        "kto --to trl --across-prompts --balance label",
        "rm --to chat --shape scored",
        "ppo --to chat --shape groups",
        "grpo --to verl --min-spread 0.3 --ground-truth expected_answer",
        "grpo --to chat --shape groups --order hard-first",
        "sft --to chat --where nonsense",
        "sft --to nobody",
        "sft --to chat --min-reward 5",
    )
    for number, variant in enumerate(variants):
        recipe, _, options = variant.partition(" ")
        yield f"prepare {recipe} {target} -o variant-{number} {options} --force --progress none --json"


def general_commands() -> Iterator[str]:
    """Command lines that need no run of the corpus as their own."""
    yield "-h"
    yield "--version"
    for verb in VERBS:
        yield f"{verb} -h"
    yield "list"
    for family in FAMILIES:
        yield f"list {family}"
        yield f"list {family} --json"
    for file in ("good", "bad", "repeated"):
        yield f"validate tasks/{file}.jsonl"
        yield f"validate tasks/{file}.jsonl --json"
    yield "validate tasks/good.jsonl tasks/held-out.jsonl"
    yield "validate tasks/good.jsonl --verifier mcqa"
    yield "validate tasks/bad.jsonl --fix -o fixed"
    yield "simulate --write-tasks sums.jsonl -n 5"
    yield "simulate --write-tasks - -n 3 --kind mixed --seed 2"
    yield "init verifier mine"
    yield "collect -i tasks/good.jsonl -o runs/x -m simulated --verifier exact --dry-run"
    yield "collect -i tasks/good.jsonl -o runs/x -m simulated --verifier exact --dry-run --json -k 2 --temperature 0.5"
    yield "collect -i tasks/bad.jsonl -o runs/x -m simulated --dry-run"
    yield "collect +input_jsonl_fpath=tasks/good.jsonl +output_jsonl_fpath=x.jsonl +num_repeats=2 -m simulated --dry-run"
    yield "collect -i nowhere.jsonl -o runs/x -m simulated"
    yield "verify tasks/good.jsonl --verifier nobody"
    yield "metrics nowhere"
    yield "metrcs nowhere"
    yield "metrics nowhere --jsn"
    yield "profile tasks --threshold high"
    yield "check"
    yield "prepare"
    yield "prepare sfd nowhere -o x --to trl"
    yield "show nowhere"
    yield "status nowhere"
    yield "query nowhere x"
    yield "experiences nowhere"


_THOROUGH = (
    "",
    "healthy/binary",
    "healthy/continuous",
    "collected/math",
    "collected/tool-loop",
    "collected/faults",
)
"""Runs on which a short recording also runs every command line (general ones have the empty name)."""

_SHORT = (
    "metrics {} --json",
    "profile {}",
    "check {} --json",
    "prepare dpo {} -o dpo --to trl --force --progress none",
)


def is_short(run: str, target: str, line: str) -> bool:
    """Whether a recording that is not `--all` has this command line."""
    if run in _THOROUGH:
        return True
    matrix = line.split()[0] == "prepare" and run == "written/gym-c" and line.split()[-3] == "trl"
    return matrix or line in {form.format(target) for form in _SHORT} or " --diff " in line


def jobs_of(corpus: Path, *, is_all: bool = True) -> dict[str, list[str]]:
    """Every run of the corpus with its command lines; the empty name stands for the general ones."""
    jobs = {"": list(general_commands())}
    for folder in sorted(
        path for kind in corpus.iterdir() if kind.name != "tasks" for path in kind.iterdir()
    ):
        if folder.is_dir():
            run = folder.relative_to(corpus).as_posix()
            files = sorted(path.name for path in folder.glob("*.jsonl*"))
            is_plain = "rollouts.jsonl" in files
            target = folder.name if is_plain else f"{folder.name}/{files[0]}"
            if len(files) > 1 and not is_plain:
                target = f"'{folder.name}/*.jsonl'"
            jobs[run] = [line for line in commands_of(run, target) if is_all or is_short(run, target, line)]
    return jobs


# Recording: one process per command, forked from one that has loaded the libraries


def serve() -> NoReturn:
    """Run command lines read from stdin, one JSON object a line, each in a forked process; answer with exit codes."""
    sys.path.pop(0)
    with contextlib.suppress(ImportError):
        import rich.table  # noqa: F401
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _run_forked(job)
        print(json.dumps({"code": _wait(child)}), flush=True)
    sys.exit(0)


def _wait(child: int) -> int:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def _run_forked(job: dict[str, Any]) -> NoReturn:
    """In the child: take on the job's streams and folder, call rollforge's main, leave with its exit code."""
    os.setsid()
    os.chdir(job["cwd"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, job["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, job["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(path, flags), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    sys.argv = ["rollforge", *job["words"]]
    code = 1
    try:
        from rollforge.cli import main

        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  (what the interpreter would print)
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class Recorder:
    """Runs command lines with one interpreter's rollforge."""

    def __init__(self, python: str, scratch: Path) -> None:
        self.scratch = scratch
        home = scratch / "home"
        home.mkdir()
        own = {
            "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(scratch), "COLUMNS": "100", "LINES": "40",
            "TERM": "dumb", "NO_COLOR": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [python, str(Path(__file__).resolve()), "_serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=own,
            text=True,
        )

    def run(self, line: str, folder: Path) -> dict[str, Any]:
        """One command in `folder`: exit code, stdout, stderr, and the files it wrote or changed."""
        before = _digests(folder)
        out, err = self.scratch / "out", self.scratch / "err"
        job = {"words": shlex.split(line), "cwd": str(folder), "out": str(out), "err": str(err)}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        after = _digests(folder)
        changed = [path for path, digest in after.items() if before.get(path) != digest]
        return {
            "exit": answer["code"],
            "stdout": self._text(out),
            "stderr": self._text(err),
            "files": {path: self._content(folder / path, after[path]) for path in changed},
            "gone": sorted(before.keys() - after.keys()),
        }

    def _content(self, path: Path, digest: str) -> str:
        if (
            path.suffix in (".json", ".jsonl", ".md", ".csv", ".toml", ".py")
            and path.stat().st_size < TEXT_LIMIT
        ):
            return self._text(path)
        return digest

    def _text(self, path: Path) -> str:
        return path.read_text(errors="backslashreplace").replace(str(self.scratch), "SCRATCH")

    def close(self) -> None:
        """End the process that forks."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def _digests(folder: Path) -> dict[str, str]:
    """Digest of every file below, except caches."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and "_index/" not in name and not name.endswith((".lock", ".pyc")):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def record(corpus: Path, out: Path, python: str, *, only: list[str], runs: list[str], is_all: bool) -> None:
    """Run the command lines, or those of some verbs and runs, and write them to `out`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    count = 0
    with tempfile.TemporaryDirectory(prefix="corpus-") as name, out.open("w") as file:
        scratch = Path(name).resolve()
        recorder = Recorder(python, scratch)
        for run, lines in jobs_of(corpus, is_all=is_all).items():
            wanted = [line for line in lines if not only or line.split()[0] in only]
            if not wanted or (runs and not any(run.startswith(prefix) for prefix in runs)):
                continue
            folder = scratch / "work"
            folder.mkdir()
            shutil.copytree(corpus / "tasks", folder / "tasks")
            if run:
                shutil.copytree(corpus / run, folder / run.split("/")[1])
            for line in wanted:
                file.write(json.dumps({"run": run, "line": line, **recorder.run(line, folder)}) + "\n")
                count += 1
            shutil.rmtree(folder)
        recorder.close()
    print(f"{count} commands in {time.monotonic() - begun:.0f} s: {out}")


# Comparing

MASKS: tuple[tuple[str, str], ...] = (
    (r"SCRATCH/\w+", "SCRATCH"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?", "TIME"),
    (r'"(created|written|seconds|took|rollforge|version|python)": ?("[^"]*"|[\d.e-]+)', r'"\1": MASKED'),
    (r"\b\d+(\.\d+)?(e-\d+)? ?(ms|µs|s|seconds)\b", "DURATION"),
    (r'"(at|updated_s_ago|time/[^"]*)": ?[\d.e-]+', r'"\1": MASKED'),
    (r'^ *File ".*corpus.py".*$(\n +.*$)*', "THE RECORDER"),
    (r"rollforge \d+\.\d+[\w.+]*", "rollforge VERSION"),
)  # fmt: skip


_LONG_NUMBER = re.compile(r"-?\d+\.\d{11,}(e-?\d+)?")


def masked(text: str) -> str:
    """The text without what differs from one time or place to the next; numbers are rounded to 12 digits."""
    text = _LONG_NUMBER.sub(lambda match: str(round(float(f"{float(match.group()):.12g}"), 15)), text)
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def compare(old: Path, new: Path, *, lines: int, only: list[str], is_help_shown: bool) -> int:
    """Print the differences, grouped by verb; the number of command lines that differ."""
    first, second = _load(old), _load(new)
    groups: dict[str, list[str]] = {}
    for key in first.keys() & second.keys():
        verb = key[1].split()[0]
        if (only and verb not in only) or (key[1].endswith("-h") and not is_help_shown):
            continue
        report = list(_differences(first[key], second[key]))
        if report:
            shown = report[:lines] + (
                [f"    … {len(report) - lines} more lines"] if len(report) > lines else []
            )
            groups.setdefault(verb, []).append("\n".join([f"[{key[0]}] rollforge {key[1]}", *shown]))
    for verb, reports in sorted(groups.items()):
        print(f"\n== {verb}: {len(reports)} differ")
        print("\n".join(sorted(reports)))
    missing = first.keys() - second.keys()
    differing = sum(map(len, groups.values()))
    print(
        f"\n{len(first.keys() & second.keys())} commands in both, {differing} differ, {len(missing)} only in {old}"
    )
    return differing


def _load(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return {(row["run"], row["line"]): row for row in rows}


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    if old["exit"] != new["exit"]:
        yield f"    exit code {old['exit']} -> {new['exit']}"
    for stream in ("stdout", "stderr"):
        yield from _diff(stream, old[stream], new[stream])
    for path in sorted(old["files"].keys() | new["files"].keys()):
        before, after = old["files"].get(path), new["files"].get(path)
        if before is None or after is None:
            yield f"    file {path}: {'new' if before is None else 'no longer written'}"
        else:
            yield from _diff(path, before, after)
    if old["gone"] != new["gone"]:
        yield f"    removed: {old['gone']} -> {new['gone']}"


def _diff(title: str, before: str, after: str) -> Iterator[str]:
    if before == after or (one := _lines(before)) == (other := _lines(after)):
        return
    yield f"    {title}:"
    for line in difflib.unified_diff(one, other, lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            yield f"      {line[:220]}"


def _lines(text: str) -> list[str]:
    """Lines to compare; a JSON object is spread out so that a difference names its key."""
    with contextlib.suppress(ValueError):
        text = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
    return masked(text).splitlines()


def main() -> int:
    if sys.argv[1:] == ["_serve"]:
        serve()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("make")
    making.add_argument("corpus", type=Path)
    recording = verbs.add_parser("record")
    recording.add_argument("corpus", type=Path)
    recording.add_argument("out", type=Path)
    recording.add_argument("--python", default=sys.executable)
    recording.add_argument(
        "--run", action="append", default=[], help="only runs whose name begins so; repeatable"
    )
    recording.add_argument(
        "--all", action="store_true", help="every command on every run: three times as long"
    )
    comparing = verbs.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--lines", type=int, default=12, help="lines shown per command")
    comparing.add_argument("--help-texts", action="store_true", help="compare -h too")
    for one in (recording, comparing):
        one.add_argument("--only", action="append", default=[], help="only this verb; repeatable")
    options = parser.parse_args()
    if options.verb == "make":
        from corpus_runs import make_corpus

        make_corpus(options.corpus)
    elif options.verb == "record":
        record(
            options.corpus,
            options.out,
            options.python,
            only=options.only,
            runs=options.run,
            is_all=options.all,
        )
    else:
        return int(
            compare(
                options.old,
                options.new,
                lines=options.lines,
                only=options.only,
                is_help_shown=options.help_texts,
            )
            > 0
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
