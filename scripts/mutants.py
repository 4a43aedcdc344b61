"""Plants mistakes in the source, one at a time, and runs the tests that should notice: `python scripts/mutants.py`.

A seeded sample of mutants over statistics, adaptive sampling, recipes, checks, index, store, steps, proxy,
environments and importers: a flipped comparison, a boundary moved by one (`<` to `<=`), another threshold (limits of
checks included), a reversed sort order, a join with a key too few, `and` for `or`, `not in` for `in`, a lost `not`.
Each is planted in a temporary copy of the tree. Prints which ones the tests caught; exit code 1 when fewer than
`--least` of 60 are.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import aiohttp  # noqa: F401  (loaded once here, for the forks that run the tests)
import duckdb  # noqa: F401
import msgspec  # noqa: F401
import numpy  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/rollforge")

AREAS: dict[str, tuple[list[str], list[str]]] = {
    "stats": (
        ["statistics"],
        ["tests/test_stats.py", "tests/steps/test_metrics.py", "tests/steps/test_profile.py"],
    ),
    "adaptive": (
        ["adaptive", "steps/collect/goal"],
        ["tests/test_group_yield.py", "tests/steps/test_goal_schedule.py", "tests/test_adaptive_coverage.py"],
    ),
    "recipes": (
        ["recipes"],
        ["tests/recipes", "tests/contract/test_recipes.py", "tests/steps/test_prepare.py", "tests/steps/test_prepare_groups.py"],
    ),
    "checks": (["checks"], ["tests/checks", "tests/contract/test_checks.py"]),
    "index": (
        ["index"],
        ["tests/index", "tests/properties", "tests/steps/test_metrics.py", "tests/steps/test_profile.py"],
    ),
    "store": (["store"], ["tests/store", "tests/steps/test_collect.py", "tests/index"]),
    "steps": (
        [
            "steps/check", "steps/collect", "steps/metrics", "steps/prepare", "steps/profile", "steps/verify", "steps/show.py",
            "steps/merge.py",
        ],
        ["tests/steps", "tests/checks", "tests/cli"],
    ),
    "proxy": (["proxy"], ["tests/proxy"]),
    "environments": (["environments"], ["tests/environments", "tests/contract/test_environments.py"]),
    "importers": (["importers"], ["tests/importers"]),
}  # fmt: skip
"""For each area: its modules, and the tests that should notice a mistake there."""

NOT_LOGIC = re.compile(
    r"CHUNK|BUFFER|BLOCK|BATCH|WORKERS|THREADS|LANES|AT_ONCE|CACHE|TIMEOUT|SECONDS|_S$|DELAY|VERSION|version"
)
"""Names of numbers that change no result: sizes of blocks, how many work at once, versions, times that a test would wait."""

SAME_RESULT = {
    "statistics/intervals.py: MOST_STEPS": "Newton's method converges in fewer steps",
    "statistics/stats.py: FEW_GROUPS": "chooses between two ways to the same sums",
    "statistics/stats.py: MOST_PADDING": "chooses between two ways to the same sums",
    "statistics/intervals.py: abs(1 - change) < 1e-15  ->  abs(1 - change) <= 1e-15": "no float is that far from 1",
    "adaptive/group_yield.py: TINY": "a floor against the logarithm of zero",
    "adaptive/sampling_rule.py: OUT_OF_REACH": "no gain of a sample comes near it",
    "adaptive/sampling_rule.py: ROUNDS": "the rate converges in fewer rounds",
    "steps/collect/goal/goal_schedule.py: LAG": "batches in flight",
    "steps/collect/engine.py: time.monotonic() - self.live.started >= limit  ->  time.monotonic() - self.live.started > limit": (
        "a clock is never at the limit exactly"
    ),
    "store/lock.py: time.monotonic() > deadline  ->  time.monotonic() >= deadline": "a clock is never at the limit exactly",
    "store/costs.py: len(spans) > 100000  ->  len(spans) >= 100000": "the union of intervals is the same whenever they are joined",
    "store/costs.py: len(spans) > 100000  ->  len(spans) <= 100000": "the union of intervals is the same whenever they are joined",
    "checks/identical.py: len(run.agent.names) > 1  ->  len(run.agent.names) >= 1": "a single agent has all rewards, which differ",
    "checks/building_blocks/evidence.py: TOGETHER": "columns read at a time",
    "index/arrow.py: JOINED": "texts joined at a time",
    "index/bucket_index.py: HEAD_BYTES": "more bytes of an object hold the same header",
    "index/by_task.py: key[1:] >= key[:-1]  ->  key[1:] > key[:-1]": "a stable sort leaves ascending keys as they are",
    "index/bucket_index.py: MOST_SPANS": "above it the whole file is read instead",
    "index/cache.py: SPARE_FILES": "file descriptors left for other uses",
    "index/native_reader.py: REMEMBERED": "size of a cache of hashes",
    "index/row_text.py: FEW_ROWS": "chooses between two ways to the same offsets",
    "steps/collect/batch/results.py: _OFFSET_BITS": "how two numbers are packed into one",
    "steps/prepare/write_rows.py: REPORT_EVERY": "rows between two reports of progress",
    "steps/prepare/write_rows.py: PARQUET_ROWS": "rows written at a time",
    "steps/verify/spread.py: sorted(newest.items())  ->  sorted(newest.items(), reverse=True)": (
        "the order of a sum, which must only be the same whatever the order of the files"
    ),
    "steps/profile/profile_files.py: SLICE": "tasks held in memory at a time",
    "steps/profile/profile_files.py: REST": "slices between two releases of memory",
}
"""Mistakes that change no result, each with its reason: `module: NAME` of a number, or `module: before  ->  after`."""

FLIPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip

BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip

SLOW_FOLDERS = {"trainers", "browser", "real", "e2e", "typing"}
"""Folders of tests that take minutes; what only they notice counts as missed."""

LONGEST = 30
"""Seconds of CPU for the tests of one mutant, unless `--seconds` says otherwise."""

MOST_FILES = 6
"""Test files per mutant, nearest first: a test far from a module that alone notices a mistake there is no guard of it."""

KEYS = {"task", "rollout", "file", "agent", "verifier"}


@dataclass(frozen=True)
class Mutant:
    """One mistake: which node of which module, and what becomes of it."""

    area: str
    module: str
    line: int
    kind: str
    number: int
    """Which of the module's possible mistakes it is."""
    text: str
    identity: str
    """Function and whole text, and a count where one function has the same mistake twice: other code does not move it."""


class _Sites(ast.NodeTransformer):
    """Walks a module, counts the places where a mistake is possible, and plants one at place `wanted`."""

    def __init__(self, wanted: int | None = None) -> None:
        self.wanted = wanted
        self.sites: list[tuple[int, str, str, str]] = []
        self._inside: list[str] = []
        self._repeats: Counter[str] = Counter()

    def _plant(self, node: ast.AST, kind: str, changed: ast.AST, name: str = "") -> ast.AST:
        number = len(self.sites)
        before, after = ast.unparse(node), ast.unparse(changed)
        text = f"{before[:60]}  ->  {after[:60]}"
        mistake = f"{'.'.join(self._inside)}: {name} {kind}: {before}  ->  {after}"
        self._repeats[mistake] += 1
        identity = f"{mistake} #{self._repeats[mistake]}"
        self.sites.append((getattr(node, "lineno", 0), kind, f"{name} = {text}" if name else text, identity))
        return ast.copy_location(changed, node) if number == self.wanted else node

    def _inside_of(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        self._inside.append(node.name)
        try:
            return self.generic_visit(node)
        finally:
            self._inside.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._inside_of(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._inside_of(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside_of(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        name = ast.unparse(node.target)
        if node.value is not None and _is_number(node.value) and not NOT_LOGIC.search(name):
            node.value = self._threshold(name, node.value)
        elif node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        name = ast.unparse(node.targets[0])
        if name.isupper() and _is_number(node.value):
            if not NOT_LOGIC.search(name):
                node.value = self._threshold(name, node.value)
            return node
        return self.generic_visit(node)

    def _threshold(self, name: str, value: ast.expr) -> ast.expr:
        assert isinstance(value, ast.Constant) and isinstance(value.value, int | float)
        changed = self._plant(value, "threshold", ast.Constant(value.value * 4), name)
        assert isinstance(changed, ast.expr)
        return changed

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        flip = FLIPS.get(type(node.ops[0]))
        if flip is None or len(node.ops) != 1:
            return node
        boundary = BOUNDARIES.get(type(node.ops[0]))
        if boundary is not None:
            moved = self._plant(node, "boundary", ast.Compare(node.left, [boundary()], node.comparators))
            if moved is not node:
                return moved
        kind = "logic" if flip in (ast.In, ast.NotIn) else "comparison"
        return self._plant(node, kind, ast.Compare(node.left, [flip()], node.comparators))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return self._plant(node, "logic", ast.BoolOp(other, node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self._plant(node, "logic", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name == "check":  # the limits of a check are keywords of its decorator
            for keyword in node.keywords:
                if keyword.arg is not None and _is_number(keyword.value):
                    keyword.value = self._threshold(keyword.arg, keyword.value)
            return node
        if name in ("np.sort", "np.argsort"):
            backwards = ast.Slice(step=ast.UnaryOp(ast.USub(), ast.Constant(1)))
            return self._plant(node, "sort order", ast.Subscript(node, backwards, ast.Load()))
        if name == "sorted" or name.endswith(".sort"):
            others = [keyword for keyword in node.keywords if keyword.arg != "reverse"]
            is_reversed = len(others) != len(node.keywords)
            turned = others if is_reversed else [*others, ast.keyword("reverse", ast.Constant(True))]
            return self._plant(node, "sort order", ast.Call(node.func, node.args, turned))
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        text = node.value
        if isinstance(text, str) and " " in text:
            for old, new, kind in (
                (" desc", " asc", "sort order"), ("using (task, rollout)", "using (task)", "join key"),
                ("task, rollout", "task", "join key"),
            ):  # fmt: skip
                if old in text and "select" in text.lower():
                    return self._plant(node, kind, ast.Constant(text.replace(old, new, 1)))
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        """Columns named in a dictionary are an option of a library, such as those to keep statistics of: no join."""
        is_option = [isinstance(value, ast.List | ast.Tuple) for value in node.values]
        node.values = [
            value if skip else self.visit(value) for value, skip in zip(node.values, is_option, strict=True)
        ]
        return node

    def visit_List(self, node: ast.List) -> ast.AST:
        return self._columns(node)

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        return self._columns(node)

    def _columns(self, node: ast.List | ast.Tuple) -> ast.AST:
        self.generic_visit(node)
        names = [item.value for item in node.elts if isinstance(item, ast.Constant)]
        if len(node.elts) > 1 and len(names) == len(node.elts) and set(names) <= KEYS:
            return self._plant(node, "join key", type(node)(node.elts[:-1], node.ctx))
        return node


def _is_number(value: ast.expr) -> bool:
    """Whether it is a number that decides something: no flag, and no zero, which four times itself would not change."""
    return isinstance(value, ast.Constant) and type(value.value) in (int, float) and value.value != 0


def modules_of(area: str) -> Iterator[Path]:
    """The area's Python files, below the package, without those of an area before it."""
    before = list(AREAS)[: list(AREAS).index(area)]
    others = {module for one in before for module in modules_of(one)}
    yield from (module for module in _files_of(area) if module not in others)


def _files_of(area: str) -> Iterator[Path]:
    for name in AREAS[area][0]:
        path = ROOT / PACKAGE / name
        found = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []
        yield from (file.relative_to(ROOT / PACKAGE) for file in found)


def mutants_of(area: str) -> list[Mutant]:
    """Every mistake that can be planted in the area."""
    made = []
    for module in modules_of(area):
        sites = _Sites()
        sites.visit(ast.parse((ROOT / PACKAGE / module).read_text()))
        made += [
            Mutant(area, str(module), line, kind, number, text, identity)
            for number, (line, kind, text, identity) in enumerate(sites.sites)
            if not _names(str(module), kind, text) & SAME_RESULT.keys()
        ]
    return made


def _names(module: str, kind: str, text: str) -> set[str]:
    """How `SAME_RESULT` may name a mistake: by its text, or a number by its name."""
    return {f"{module}: {text}"} | (
        {f"{module}: {text.partition(' = ')[0]}"} if kind == "threshold" else set()
    )


def sample(count: int, seed: int) -> list[Mutant]:
    """A seeded sample, as many from each area, and within an area of every kind in turn.

    The order is by a hash of the mistake, its function and its module, without positions: a change of the source moves
    the sample only by the mistakes that it adds or removes.
    """
    chosen: list[Mutant] = []
    by_area = {area: mutants_of(area) for area in AREAS}
    for mutants in by_area.values():
        mutants.sort(key=lambda one: _rank(one, seed))
    kinds = ("threshold", "comparison", "boundary", "sort order", "join key", "logic")
    turn = 0
    while len(chosen) < count and any(by_area.values()):
        area = list(AREAS)[turn % len(AREAS)]
        kind = kinds[(turn // len(AREAS)) % len(kinds)]
        turn += 1
        match = next((one for one in by_area[area] if one.kind == kind), next(iter(by_area[area]), None))
        if match is not None:
            by_area[area].remove(match)
            chosen.append(match)
    return chosen


def _rank(mutant: Mutant, seed: int) -> bytes:
    words = f"{seed} {mutant.module} {mutant.identity}"
    return hashlib.sha256(words.encode()).digest()


def is_caught(mutant: Mutant, tree: Path, seconds: int) -> bool:
    """Plant the mistake in `tree` and run the area's tests; a failure counts if that test passes without the mistake."""
    path = tree / PACKAGE / mutant.module
    source = path.read_text()
    planted = ast.fix_missing_locations(_Sites(mutant.number).visit(ast.parse(source)))
    failing_anyway: list[str] = []
    while len(failing_anyway) < 5:
        path.write_text(ast.unparse(planted))
        failed = first_failure(tree, tests_for(mutant, tree), failing_anyway, seconds)
        path.write_text(source)
        if failed is None:
            return False
        if first_failure(tree, [failed], [], LONGEST) is None:
            return True
        failing_anyway.append(failed)
    return False


def tests_for(mutant: Mutant, tree: Path) -> list[str]:
    """The test files that know the mutant's module, nearest first, then the other quick tests of its area."""
    path = Path(mutant.module)
    dotted = "rollforge." + ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    parent = dotted.rpartition(".")[0]
    names = defined_names(tree / PACKAGE / path)
    area = [tree / test for test in AREAS[mutant.area][1]]
    known: dict[str, int] = {}
    for file in sorted((tree / "tests").rglob("test_*.py")):
        text = file.read_text()
        is_of_area = any(file == test or test in file.parents for test in area)
        nearness = (
            8 * (file.stem in (f"test_{path.stem}", f"test_{path.parent.name}"))
            + 4 * (dotted in text)
            + 2 * (parent != "rollforge" and parent in text and bool(names & set(re.findall(r"\w+", text))))
            + is_of_area
        )
        if nearness and not set(file.relative_to(tree).parts) & SLOW_FOLDERS:
            known[str(file.relative_to(tree))] = nearness
    size = {name: (tree / name).stat().st_size for name in known}
    return sorted(known, key=lambda name: (-min(known[name], 4), size[name]))[:MOST_FILES]


def defined_names(path: Path) -> set[str]:
    """Public functions and classes of a module."""
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }


def first_failure(tree: Path, tests: list[str], without: list[str], seconds: int) -> str | None:
    """The first test that fails, or None when all pass, or when none has failed after so many seconds of CPU."""
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "300", "-m", "not slow"]
    words += [word for test in without for word in ("--deselect", test)]
    printed = tree / "printed.txt"
    child = os.fork()
    if child == 0:
        _run_tests(tree, [*words, *tests], printed, seconds)
    _, status = os.waitpid(child, 0)
    if not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0:  # the system ended it, or all passed
        return None
    # The name of a case may have spaces; a message follows it behind a dash.
    named = re.findall(
        r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", printed.read_text(errors="replace"), flags=re.MULTILINE
    )
    return named[0] if named else tests[0]


def _run_tests(tree: Path, words: list[str], printed: Path, seconds: int) -> NoReturn:
    """Run pytest in this process, a fork that has the heavy libraries already, and end it."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        os.chdir(tree)
        file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        source = str(tree / "src")
        os.environ |= {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path[:] = [str(tree), source, *(one for one in sys.path if one != str(ROOT / "src"))]
        code = int(pytest.main(words))
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  (whatever it is, this process must not go on as a second parent)
        traceback.print_exc()
    finally:
        os._exit(code)


def copy_tree(folder: Path) -> Path:
    """What the tests need of the checkout."""
    for name in ("src", "tests", "scripts", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "requirements-ci.txt"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def _try_all(
    mutants: list[Mutant], tree: Path, seconds: int, results: multiprocessing.Queue[tuple[Mutant, bool]]
) -> None:
    for mutant in mutants:
        results.put((mutant, is_caught(mutant, tree, seconds)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=int, default=55, help="how many of 60 must be caught")
    parser.add_argument("--area", choices=list(AREAS), help="only this area")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=LONGEST, help="of CPU for the tests of one mutant")
    parser.add_argument(
        "--only", nargs="*", metavar="MODULE:LINE", help="only these of the sample, as printed"
    )
    parser.add_argument("--list", action="store_true", help="name the mutants, run nothing")
    options = parser.parse_args()
    chosen = [one for one in sample(options.count, options.seed) if options.area in (None, one.area)]
    if options.only:
        chosen = [one for one in chosen if f"{one.module}:{one.line}" in options.only]
    if options.list:
        for one in chosen:
            print(f"{one.module}:{one.line} {one.kind}: {one.text}")
        return 0
    caught = 0
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [copy_tree(Path(folder) / str(number)) for number in range(options.jobs)]
        results: multiprocessing.Queue[tuple[Mutant, bool]] = fork.Queue()
        for number, tree in enumerate(trees):
            fork.Process(
                target=_try_all, args=(chosen[number :: options.jobs], tree, options.seconds, results)
            ).start()
        for _ in chosen:
            mutant, is_noticed = results.get()
            caught += is_noticed
            word = "caught" if is_noticed else "MISSED"
            print(f"{word}  {mutant.module}:{mutant.line} {mutant.kind}: {mutant.text}", flush=True)
    print(f"{caught} of {len(chosen)} caught")
    return int(caught * 60 < options.least * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
