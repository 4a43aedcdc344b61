"""A module imports only from rows above it; members of a family never import another family; steps never import steps."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from scripts.shape import broad_catches, names_of_all, says_why

from tests.module_graph import (
    MODULES,
    PACKAGES,
    SOURCE,
    cycle,
    door_of,
    family_members,
    modules_imported_by,
    names_imported_by,
    parsed,
    past_the_door,
    public_classes,
)

ROWS = [
    {"errors", "records", "json_shapes"},
    {
        "runtime",
        "registry",
        "statistics",
        "_groups",
        "adaptive",
        "sandbox",
        "metrics",
        "tasks",
        "conversations",
        "charts",
        "text_safety",
        "unread_options",
        "store",
    },
    {
        "rollouts",
        "review",
        "index",
        "endpoint",
        "proxy",
        "simulate",
        "experience",
        "buffer",
    },
    {"agents", "importers", "executors", "verifiers", "checks", "recipes", "exporters", "sinks", "operators"},
    {"environments"},
    {"steps"},
    {"config", "testing", "rewards", "assembly"},
    {"interactive"},
    {"api", "view"},
    {"cli"},
]
"""Units of the package, lowest first. A unit may import its own row's tools and everything in the rows above it here."""

TOOL_ROWS = 3
"""The first rows are nouns and tools, which may use each other; from the families on, neighbours are strangers."""

DRAWERS = {"utils", "util", "common", "helpers", "misc", "managers"}

SIDE_DOORS: dict[str, dict[str, str]] = {
    "endpoint": {
        "batch_api": "only `--batch` speaks it; the door would load it for every collection",
        "batch_lines": "the format of request files, which needs no client",
        "breaker": "NeMo Gym's servers get a breaker of their own, with the same rule",
        "chat": "request files hold the bodies that the client would send",
        "client": "programs, batches and gym servers make requests that are no model's answer",
        "failures": "gym servers classify their failures by the same table",
        "model": "records of one answer, which agents read without a client",
        "prices": "prices are read before any client exists",
        "rate_limits": "the bottleneck line names the limit that a server announced",
        "server_metrics": "only a collection that follows a server's metrics loads the parser",
        "time_limit": "the engine bounds agents by the same rule as requests",
    },
    "experience": {"from_rollout": "reading rows needs the index; the record alone does not"},
    "index": {"bucket_index": "only runs in buckets send and fetch their index"},
    "metrics": {
        "evaluation": "only `eval` and `bench` fold runs; the door stays light",
        "fold": "only `eval` and `monitor` fold steps",
        "ladder": "only `eval` has a ladder of k",
        "names": "sinks check names without loading numpy",
        "profiles": "the record that sinks are given, without the arithmetic behind the door",
    },
    "sandbox": {"programs": "confines whole programs; the door confines one call"},
    "simulate": {
        "simulate_options": "flags of `simulate`, without the server behind the door",
        "simulated_server": "`simulate` serves in the foreground; the door runs it in the background",
        "service": "`simulate` serves in the foreground",
        "tasks": "`simulate --write-tasks` needs no server",
    },
    "steps.collect": {
        "batch.batch_options": "flags: help must not load the engine",
        "batch.batch_step": "a collection by batches, beside the door's plain one",
        "chosen_verifier": "what `--dry-run` checks",
        "cost_options": "flags: help must not load the engine",
        "forecast": "a record that the summary prints",
        "goal.goal_options": "flags: help must not load the engine",
        "goal.setup": "what `--dry-run` prints of a goal",
        "live": "the counters that displays read",
        "machinery": "a type that the summary names",
        "collect_options": "flags: help must not load the engine",
        "plan": "a record that the summary prints",
        "program_options": "flags: help must not load the engine",
    },
    "steps.evaluation": {"compare": "`bench` compares evaluations; `eval` makes one"},
    "steps.metrics": {"metric_records": "records that the table prints, without the index"},
    "steps.prepare": {"settings": "flags: help must not load the index"},
    "steps.profile": {
        "profile_records": "records that the table prints, without the index",
        "profile_files": "only the command writes files; Python gets tables",
    },
    "steps.verify": {
        "verify_options": "flags: help must not load the engine",
        "tally": "records that the summary prints",
    },
    "store": {
        "absent": "text of a run that is only in a bucket; the index asks before it opens a file",
        "bundle_names": "names of indexes in a bucket",
        "lean": "copies without text, which only readers of an index can use",
        "object_lines": "pieces of a growing file in a bucket, whose places the index notes",
        "atomic": "replacing any file, also those that are no run's",
        "batches": "the log of batches, which only `--batch` has",
        "bucket": "needs the extra `cloud`; only the shell opens buckets",
        "bucket_storage": "shards of a run in a bucket; only collections of shards write there",
        "costs": "records of money, read without opening a run",
        "digest": "hashing starts a thread; only datasets need it",
        "files": "names of files, for commands that open none",
        "find": "runs by path, folder or glob, before one is opened",
        "leading_keys": "keys of lines in bulk, with numpy, which the rest of the store does without; only merge needs them",
        "lineage_table": "files of a dataset, which no run has",
        "lock": "steps that write verdicts lock another file than the run's",
        "manifest": "records of the manifest, read without opening a run",
        "outputs": "which files a command may replace, whatever it writes",
        "shard_storage": "objects of a run of shards, which classic runs have not",
        "reading": "one way to read JSON that may be damaged, whoever wrote it",
        "rollout_parts": "which files make up a run, for readers that open them themselves",
        "scratch": "temporary directories, which belong to no run",
        "shard_plan": "which tasks each shard has, which status and merge read too",
        "shards": "leases of a run of shards",
        "shipping": "labels go to a bucket without opening its run",
        "failure_reasons": "a file of its own that only some commands read",
    },
    "tasks": {"containers": "rows of any container, also of files that hold no tasks"},
    "verifiers.probes": {"report": "records that the table prints, without the prober"},
}
"""Modules that others may import although their package has a door, each with its reason."""

SHARED_NAMES = {"base": "what every member of a family implements"}
"""Module names that more than one package has, because they play the same part in each."""

MEMBERS_ONLY: dict[str, dict[str, str]] = {
    "checks": {},
    "importers": {},
    "sinks": {},
    "verifiers": {"by_taskset": "a verifier that `eval` makes; manifests record its path, so it has no name"},
}
"""Families whose folder holds `base`, registered members and folders of tools, with the exceptions and their reasons."""


def unit_of(name: str) -> str:
    return name.split(".")[0]


def row_of(unit: str) -> int:
    return next(number for number, row in enumerate(ROWS) if unit in row)


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_point_upwards_only(name: str) -> None:
    unit = unit_of(name)
    own = row_of(unit)
    for target in names_imported_by(name):
        other = unit_of(target)
        if other in ("__version__", unit):
            continue
        row = row_of(other)
        is_allowed = row < own or (row == own and own < TOOL_ROWS)
        assert is_allowed, f"{name} imports {target}"


def test_steps_never_import_steps() -> None:
    for name in MODULES:
        if not name.startswith("steps."):
            continue
        for target in modules_imported_by(name):
            if target.startswith("steps."):
                assert target.split(".")[1] == name.split(".")[1], f"{name} imports {target}"


def test_no_two_units_import_each_other() -> None:
    edges = {
        (unit_of(name), unit_of(target)) for name in MODULES if name for target in modules_imported_by(name)
    }
    assert not {(a, b) for a, b in edges if a < b and (b, a) in edges}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not through imports inside functions or for type checkers only."""
    assert not cycle(), " -> ".join(cycle())


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_with_a_door_is_entered_through_it(package: str) -> None:
    if not door_of(package):
        return
    past = past_the_door(package)
    allowed = SIDE_DOORS.get(package, {})
    beside = {inner: who for inner, who in past.items() if inner not in allowed}
    assert not beside, f"import from rollforge.{package} instead"
    assert not set(allowed) - set(past), "these doors are no longer used"


def test_every_side_door_says_why_it_is_there() -> None:
    assert all(reason for doors in SIDE_DOORS.values() for reason in doors.values())


def test_a_unit_is_in_one_row() -> None:
    units = [unit for row in ROWS for unit in row]
    assert sorted(units) == sorted(set(units))


def test_a_module_name_means_one_thing() -> None:
    """Commands share the names of their steps, and registered members are named after the trainer or rule they serve."""
    packages: dict[str, list[str]] = {}
    for name in MODULES:
        if name not in family_members() and unit_of(name) != "cli" and name not in PACKAGES:
            packages.setdefault(name.rpartition(".")[2], []).append(name)
    repeated = {
        short: names for short, names in packages.items() if len(names) > 1 and short not in SHARED_NAMES
    }
    assert set(SHARED_NAMES) <= {short for short, names in packages.items() if len(names) > 1}
    assert not repeated, "give one of them another name, or say in SHARED_NAMES which part all of them play"


@pytest.mark.parametrize("family", sorted(MEMBERS_ONLY))
def test_a_module_directly_in_the_family_is_a_member(family: str) -> None:
    modules = {name for name in MODULES if name.rpartition(".")[0] == family and name not in PACKAGES}
    expected = {f"{family}.{name}" for name in ("base", *MEMBERS_ONLY[family])}
    assert modules - family_members() == expected, "tools belong in a folder of their own"


def test_a_class_name_means_one_thing() -> None:
    assert not {name: places for name, places in public_classes().items() if len(places) > 1}


def test_only_the_shell_prints_or_exits() -> None:
    for name in MODULES:
        if unit_of(name) in ("cli", "simulate"):
            continue
        for node in ast.walk(parsed(name)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "sys.exit", "exit"), f"{name}:{node.lineno}"


def test_functions_decode_into_records_in_the_way_that_is_safe_in_threads() -> None:
    """Two threads that meet a record at the same time crash inside msgspec; see `runtime.typed_decoding`."""
    unsafe = ("msgspec.json.decode", "msgspec.msgpack.decode", "msgspec.convert")
    makers = ("msgspec.json.Decoder", "msgspec.msgpack.Decoder")
    found = []
    for name in MODULES:
        functions = [
            node
            for node in ast.walk(parsed(name))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for call in (
            node for function in functions for node in ast.walk(function) if isinstance(node, ast.Call)
        ):
            called = ast.unparse(call.func)
            kinds = [ast.unparse(word.value) for word in call.keywords if word.arg == "type"]
            kinds += [ast.unparse(value) for value in call.args[0 if called in makers else 1 :]]
            if called in (*unsafe, *makers) and [kind for kind in kinds if kind != "str"]:
                found.append(f"{name}:{call.lineno}")
    assert [place for place in found if not place.startswith("runtime.typed_decoding:")] == []


def test_a_broad_except_says_why() -> None:
    kept = names_of_all(parsed(name) for name in MODULES)
    broad = [
        (name, node.lineno, MODULES[name].read_text().split("\n")[node.lineno - 2 : node.lineno + 1])
        for name in MODULES
        for node in broad_catches(parsed(name), kept)
    ]
    assert [(name, line) for name, line, beside in broad if not says_why(beside)] == []
    # Most of them belong to the boundaries to other people's code. Cleaning up after any error is `runtime.on_error`.
    lines = sum(path.read_text().count("\n") for path in MODULES.values())
    assert len(broad) < 0.45 * lines / 1000


@pytest.mark.parametrize(
    ("code", "is_explained"),
    [
        ("try: f()\nexcept:\n    pass", False),
        ("try: f()\nexcept (OSError, Exception):  # noqa: BLE001\n    pass", False),
        ("try: f()\nexcept BaseException:  # noqa: BLE001, S110  # type: ignore[misc]\n    pass", False),
        ("try: f()\nexcept Exception:  # noqa: BLE001  (a user's code may raise anything)\n    pass", True),
        ("with contextlib.suppress(Exception): f()", False),
        ("with suppress(OSError, BaseException):  # nobody is left to tell\n    f()", True),
    ],
)
def test_catching_everything_is_seen_in_every_spelling_and_needs_words(code: str, is_explained: bool) -> None:
    (node,) = broad_catches(ast.parse(code))
    assert says_why(["", *code.split("\n")][node.lineno - 1 : node.lineno + 2]) is is_explained


@pytest.mark.parametrize(
    ("code", "places"),
    [
        (
            "QUIET = contextlib.suppress(Exception)\nwith QUIET: f()\nasync def g():\n    with lock, QUIET: h()",
            2,
        ),
        ("class A:\n    quiet = suppress(Exception)\n    def f(self):\n        with self.quiet: g()", 1),
        ("ANY: tuple = (OSError, Exception)\ntry: f()\nexcept ANY: pass\nwith suppress(*ANY): g()", 2),
        (
            "QUIET = contextlib.suppress(OSError)\nwith QUIET: f()\ntry: g()\nexcept (KeyError, MyException): h()",
            0,
        ),
    ],
)
def test_a_shared_object_that_catches_everything_counts_wherever_it_is_used(code: str, places: int) -> None:
    tree = ast.parse(code)
    assert len(broad_catches(tree, names_of_all([tree]))) == places


def test_every_module_says_what_it_is() -> None:
    assert not [
        name for name in MODULES if MODULES[name].read_text().strip() and not ast.get_docstring(parsed(name))
    ]


def test_there_are_no_drawers() -> None:
    assert not [path for path in SOURCE.rglob("*") if path.stem in DRAWERS]


def test_every_folder_of_tests_is_a_package_so_that_two_files_may_share_a_name() -> None:
    folders = {path.parent for path in Path(__file__).parent.rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
