"""Plants mistakes in the source, one at a time, and runs the tests that should notice: `python scripts/mutants.py`.

A seeded sample of mutants over steps, recipes, checks, statistics, index and store: a flipped comparison, another threshold, a
reversed sort order, a join with a key too few. Each is planted in a temporary copy of the tree. Prints which ones the tests
caught; exit code 1 when fewer than `--least` of 60 are.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/rollforge")

AREAS: dict[str, tuple[list[str], list[str]]] = {
    "stats": (
        ["stats.py", "intervals.py", "at_k.py", "group_yield.py"],
        ["tests/test_stats.py", "tests/test_group_yield.py", "tests/steps/test_metrics.py", "tests/steps/test_profile.py"],
    ),
    "recipes": (
        ["recipes"],
        ["tests/recipes", "tests/contract", "tests/steps/test_prepare.py", "tests/steps/test_prepare_groups.py"],
    ),
    "checks": (["checks"], ["tests/checks", "tests/contract"]),
    "index": (
        ["index"],
        ["tests/index", "tests/properties", "tests/steps/test_metrics.py", "tests/steps/test_profile.py"],
    ),
    "store": (["store"], ["tests/store", "tests/hostile", "tests/steps/test_collect.py", "tests/e2e", "tests/index"]),
    "steps": (
        ["steps/check", "steps/collect", "steps/metrics", "steps/prepare", "steps/profile", "steps/verify", "steps/show.py"],
        ["tests/steps", "tests/checks", "tests/cli"],
    ),
}  # fmt: skip
"""For each area: its modules, and the tests that should notice a mistake there."""

NOT_LOGIC = re.compile(
    r"CHUNK|BUFFER|BYTES|SECONDS|WORKERS|THREADS|BATCH|CACHE|TIMEOUT|WIDTH|VERSION|_LIMIT|SHOWN|timeout|memory|seed"
)
"""Names of numbers that change speed or layout, and no result."""

FLIPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip

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


class _Sites(ast.NodeTransformer):
    """Walks a module, counts the places where a mistake is possible, and plants one at place `wanted`."""

    def __init__(self, wanted: int | None = None) -> None:
        self.wanted = wanted
        self.sites: list[tuple[int, str, str]] = []

    def _plant(self, node: ast.AST, kind: str, changed: ast.AST) -> ast.AST:
        number = len(self.sites)
        before, after = ast.unparse(node), ast.unparse(changed)
        self.sites.append((getattr(node, "lineno", 0), kind, f"{before[:60]}  ->  {after[:60]}"))
        return ast.copy_location(changed, node) if number == self.wanted else node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        name = ast.unparse(node.target)
        if node.value is not None and _is_number(node.value) and not NOT_LOGIC.search(name):
            node.value = self._threshold(node.value)
        elif node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        name = ast.unparse(node.targets[0])
        if name.isupper() and _is_number(node.value):
            if not NOT_LOGIC.search(name):
                node.value = self._threshold(node.value)
            return node
        return self.generic_visit(node)

    def _threshold(self, value: ast.expr) -> ast.expr:
        assert isinstance(value, ast.Constant) and isinstance(value.value, int | float)
        changed = self._plant(value, "threshold", ast.Constant(value.value * 4))
        assert isinstance(changed, ast.expr)
        return changed

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        flip = FLIPS.get(type(node.ops[0]))
        if flip is None or len(node.ops) != 1:
            return node
        return self._plant(node, "comparison", ast.Compare(node.left, [flip()], node.comparators))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
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
    """Whether it is a number that decides something: no flag, no start value, no block size, no tolerance for rounding."""
    if not isinstance(value, ast.Constant) or isinstance(value.value, bool | str):
        return False
    number = value.value
    is_block_size = isinstance(number, int) and number >= 256 and number & (number - 1) == 0
    return isinstance(number, int | float) and not is_block_size and abs(number) >= 1e-4


def modules_of(area: str) -> Iterator[Path]:
    """The area's Python files, below the package."""
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
            Mutant(area, str(module), line, kind, number, text)
            for number, (line, kind, text) in enumerate(sites.sites)
        ]
    return made


def sample(count: int, seed: int) -> list[Mutant]:
    """A seeded sample, as many from each area, and within an area of every kind in turn."""
    rng = random.Random(seed)
    chosen: list[Mutant] = []
    by_area = {area: mutants_of(area) for area in AREAS}
    for mutants in by_area.values():
        rng.shuffle(mutants)
    kinds = ("threshold", "comparison", "sort order", "join key")
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


def is_caught(mutant: Mutant, tree: Path) -> bool:
    """Plant the mistake in `tree` and run the area's tests; a failure counts if that test passes without the mistake."""
    path = tree / PACKAGE / mutant.module
    source = path.read_text()
    planted = ast.fix_missing_locations(_Sites(mutant.number).visit(ast.parse(source)))
    failing_anyway: list[str] = []
    while len(failing_anyway) < 5:
        path.write_text(ast.unparse(planted))
        failed = first_failure(tree, tests_for(mutant, tree), failing_anyway)
        path.write_text(source)
        if failed is None:
            return False
        if first_failure(tree, [failed], []) is None:
            return True
        failing_anyway.append(failed)
    return False


def tests_for(mutant: Mutant, tree: Path) -> list[str]:
    """The area's tests, those of the mutant's own step first."""
    tests = [test for test in AREAS[mutant.area][1] if (tree / test).exists()]
    if mutant.area == "steps":
        step = mutant.module.split("/")[1].removesuffix(".py")
        own = sorted((tree / "tests" / "steps").glob(f"test_{step}*.py"))
        tests = [*(str(one.relative_to(tree)) for one in own), *tests]
    return list(dict.fromkeys(tests))


def first_failure(tree: Path, tests: list[str], without: list[str]) -> str | None:
    """The first test that fails, or None when all pass; a run that takes too long fails at its first test."""
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "120"]
    words += [word for test in without for word in ("--deselect", test)]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *tests],
            cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return tests[0]
    if done.returncode == 0:
        return None
    named = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    return named[0] if named else tests[0]


def copy_tree(folder: Path) -> Path:
    """What the tests need of the checkout."""
    for name in ("src", "tests", "scripts", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "requirements-ci.txt"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=int, default=55, help="how many of 60 must be caught")
    parser.add_argument("--area", choices=list(AREAS), help="only this area")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="name the mutants, run nothing")
    options = parser.parse_args()
    chosen = [one for one in sample(options.count, options.seed) if options.area in (None, one.area)]
    if options.list:
        for one in chosen:
            print(f"{one.module}:{one.line} {one.kind}: {one.text}")
        return 0
    caught = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        trees = [copy_tree(Path(folder) / str(number)) for number in range(options.jobs)]

        def try_one(mutant: Mutant) -> tuple[Mutant, bool]:
            tree = trees.pop()
            try:
                return mutant, is_caught(mutant, tree)
            finally:
                trees.append(tree)

        for mutant, is_noticed in pool.map(try_one, chosen):
            caught += is_noticed
            word = "caught" if is_noticed else "MISSED"
            print(f"{word}  {mutant.module}:{mutant.line} {mutant.kind}: {mutant.text}", flush=True)
    print(f"{caught} of {len(chosen)} caught")
    return int(caught * 60 < options.least * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
