"""Every code block of README and docs does what it says: commands and Python run as printed, in order, page by page.

Each page has a folder of its own with the runs that docs speak of (`runs/first`, `runs/math`, …). `http://localhost:8000/v1` leads to
the embedded model. What needs more (a GPU, a key, a trainer) is marked, and its flags, syntax and imports are checked instead.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rollforge.cli.app import build_app
from rollforge.simulate import SimulatedProcess, SimulateOptions
from tests.docs_blocks import PAGES, ROOT, Block, blocks_of
from tests.docs_services import SERVICES, Service, environment_of, missing, run_batch
from tests.servers import running

PYTHON = os.environ.get("ROLLFORGE_DOCS_PYTHON", sys.executable)
"""The interpreter that runs the blocks; `make fresh` gives one that has only the wheel."""
LANGUAGES = {"bash", "sh", "console", "python", "text", "json", "toml", "yaml"}
SERVER = "http://localhost:8000/v1"
WITH_BLOCKS = [page for page in PAGES if page.exists() and blocks_of(page)]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with SimulatedProcess(SimulateOptions(seed=1)) as process:
        yield process.base_url


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: task files and two collected runs."""
    folder = tmp_path_factory.mktemp("docs")
    for name, kind in (("tasks", "math"), ("gsm8k", "math"), ("mmlu", "mcqa")):
        rollforge(
            folder, "simulate", "--write-tasks", f"{name}.jsonl", "-n", "60", "--seed", "1", "--kind", kind
        )
    words = ["-i", "tasks.jsonl", "-m", "simulated", "-k", "8", "--verifier", "exact", "--progress", "none"]
    rollforge(folder, "collect", *words, "-o", "runs/first", "--logprobs", "--api", "chat")
    shutil.copytree(folder / "runs/first", folder / "runs/math")
    return folder


@pytest.mark.slow
def test_every_verifier_that_docs_print_passes_the_probe(ground: Path, tmp_path: Path) -> None:
    """A reader copies them; one that the probe calls broken would teach a mistake."""
    files = [
        block
        for page in WITH_BLOCKS
        for block in blocks_of(page)
        if "def verify(" in block.text and "file" in block.marks
    ]
    assert len(files) >= 2
    for number, block in enumerate(files):
        path = tmp_path / f"printed_{number}.py"
        path.write_text(block.text)
        rollforge(ground, "verify", "runs/first", "--verifier", f"{path}:verify", "--probe")


def rollforge(folder: Path, *words: str, codes: frozenset[int] | set[int] = frozenset({0})) -> None:
    """Run a command; another exit code than `codes` fails the test with its output."""
    check_exit([PYTHON, "-m", "rollforge", *words], folder, dict(os.environ), codes)


def check_exit(
    words: list[str],
    folder: Path,
    environment: dict[str, str],
    codes: frozenset[int] | set[int] = frozenset({0}),
) -> None:
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=240,
    )  # fmt: skip
    assert done.returncode in codes, f"{' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"


class Reader:
    """Somebody who follows a page from its top to its end, in a folder of their own."""

    def __init__(self, folder: Path, server: str, stack: contextlib.ExitStack) -> None:
        self.folder, self.server, self._stack = folder, server, stack
        self._addresses = {SERVER: server, "https://api.openai.com/v1": server}
        self._services: dict[str, Service] = {}
        self._collected: set[str] = set()

    def follow(self, block: Block) -> None:
        """Do what one block says."""
        names = block.marks.get("needs", "").split()
        if any(missing(name, PYTHON) for name in names):
            return
        for name in names:
            if name not in self._services:
                self._services[name] = self._stack.enter_context(SERVICES[name](self.folder, PYTHON))
                self._addresses |= self._services[name].addresses
        if name := block.marks.get("file"):
            (self.folder / name).write_text(self._reached(block.text))
        elif block.language == "python":
            self._run_program(block)
        for words in block.lines:
            match words[0]:
                case "rollforge":
                    self._run_command([self._reached(word) for word in words[1:]], block)
                case "vllm":
                    run_batch(words, self.folder, self.server)

    def _run_command(self, words: list[str], block: Block) -> None:
        own = words[words.index("-o") + 1] if "-o" in words else ""
        if words[0] == "collect" and own and own not in self._collected:
            self._collected.add(own)
            shutil.rmtree(self.folder / own, ignore_errors=True)
        whole = [PYTHON, "-m", "rollforge", *words]
        if printed := block.marks.get("serves"):
            bare = [word for word in whole if word not in ("--port", printed)]
            port = self._stack.enter_context(
                running(
                    lambda port: [*bare, "--port", str(port)],
                    self.folder / f"server-{printed}.log",
                    cwd=self.folder,
                )
            )
            self._addresses |= {
                f"{host}:{printed}": f"127.0.0.1:{port}" for host in ("127.0.0.1", "localhost")
            }
        else:
            check_exit(whole, self.folder, self._environment, block.exit_codes)

    def _run_program(self, block: Block) -> None:
        text = "import os, sys\nsys.path.insert(0, os.getcwd())\n" + runnable(self._reached(block.text))
        (self.folder / "_block.py").write_text(text)
        check_exit([PYTHON, "_block.py"], self.folder, self._environment)

    @property
    def _environment(self) -> dict[str, str]:
        return environment_of(list(self._services.values()))

    def _reached(self, text: str) -> str:
        """The text with printed addresses replaced by those that answer here."""
        for printed, real in self._addresses.items():
            text = text.replace(printed, real)
        return text


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=page_id)
def test_blocks_run_as_printed(page: Path, ground: Path, server: str, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.is_run]
    if not any(block.commands or block.language == "python" for block in blocks):
        return
    folder = tmp_path / "page"
    shutil.copytree(ground, folder)
    with contextlib.ExitStack() as stack:
        reader = Reader(folder, server, stack)
        for block in blocks:
            reader.follow(block)


def test_a_command_is_printed_in_a_block_that_runs() -> None:
    """A block of plain text would escape the tests above."""
    escaped = [
        f"{block}: {line}"
        for page in WITH_BLOCKS
        for block in blocks_of(page)
        if block.language == "text"
        for line in block.text.splitlines()
        if line.startswith(("rollforge ", "$ rollforge "))
    ]
    assert escaped == []


def runnable(source: str) -> str:
    """The program; one with `async` at its top level is wrapped in a coroutine, as a notebook would."""
    body = tree_of(source).body
    if not any(
        isinstance(node, ast.AsyncWith | ast.AsyncFor) or "await " in ast.unparse(node) for node in body
    ):
        return source
    inner = "\n".join(f"    {line}" for line in source.splitlines())
    return f"import asyncio\n\n\nasync def main():\n{inner}\n\n\nasyncio.run(main())\n"


def tree_of(source: str) -> ast.Module:
    """The syntax tree of a program that may use `async` at its top level."""
    tree = compile(source, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(tree, ast.Module)
    return tree


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=page_id)
def test_every_block_has_a_language_and_its_syntax(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{block}: ```{block.language}"
        match block.language:
            case "python":
                tree_of(block.text)
            case "json":
                json.loads(block.text)
            case "toml":
                tomllib.loads(block.text)
            case "yaml":
                yaml.safe_load(block.text)


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=page_id)
def test_flags_of_every_printed_command_exist(page: Path) -> None:
    for block in blocks_of(page):
        for words in block.commands:
            if words[0].startswith("-"):
                continue  # the program's own flags, such as --version
            verb, flags = (
                words[0],
                [word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-zA-Z]", word)],
            )
            known = flags_of(verb)
            assert not [flag for flag in flags if flag not in known], f"{block}: rollforge {' '.join(words)}"


def flags_of(verb: str) -> set[str]:
    """Every flag that a command takes, from its parser."""
    command = build_app(verb)[verb]
    names = {name for argument in command.assemble_argument_collection() for name in argument.names}
    return names | {"--help", "-h", "--help-all", "--config"}


def names_that_docs_import() -> set[str]:
    """`module:name` for everything of ours that a Python block imports."""
    found = set()
    for page in WITH_BLOCKS:
        for block in blocks_of(page):
            if block.language != "python":
                continue
            for node in ast.walk(tree_of(block.text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rollforge"):
                    found |= {f"{node.module}:{alias.name}" for alias in node.names}
    return found


PROMISED = {
    "rollforge.agents.base:Preparation",
    "rollforge.agents.base:Trajectory",
    "rollforge.buffer.trinity:read_trinity",
    "rollforge.buffer.trinity:write_trinity",
    "rollforge.buffer:open_buffer",
    "rollforge.conversations.shape:Shaping",
    "rollforge.rewards:make_reward_func",
    "rollforge.rewards:reward",
    "rollforge.exporters.base:Exporter",
    "rollforge.executors.base:ExecutorOptions",
    "rollforge.executors.processes:Processes",
    "rollforge.experience:Experience",
    "rollforge.exporters.columns:RowTables",
    "rollforge.exporters.columns:conversation",
    "rollforge.exporters.columns:field",
    "rollforge.exporters.columns:messages",
    "rollforge.exporters.columns:prompt",
    "rollforge.exporters.columns:tools",
    "rollforge.exporters.examples:Kind",
    "rollforge.exporters.form:Layout",
    "rollforge.exporters.snippets:fenced",
    "rollforge.exporters.snippets:load_lines",
    "rollforge.metrics:StepFold",
    "rollforge.metrics:TrainerBatch",
    "rollforge.metrics:trainer_metrics",
    "rollforge.operators.base:Outcome",
    "rollforge.operators.base:sift",
    "rollforge.operators.chain:pipeline_from_config",
    "rollforge.recipes.base:Candidates",
    "rollforge.recipes.base:RecipeOptions",
    "rollforge.recipes.base:Selection",
    "rollforge.recipes.base:recipe",
    "rollforge.recipes.pairing:select_pairs",
    "rollforge.simulate:SimulateOptions",
    "rollforge.simulate:SimulatedProcess",
    "rollforge.simulate:SimulatedServer",
    "rollforge.simulate:example_tasks",
    "rollforge.sinks.base:SinkOptions",
    "rollforge.sinks.base:open_sinks",
    "rollforge.steps.check:check_run",
    "rollforge.steps.prepare:prepare",
    "rollforge.steps.prepare:trace",
}
"""Names that docs have told users to import. They stay importable; a name joins when a page first shows it."""


def test_names_that_docs_tell_users_to_import_stay() -> None:
    for name in sorted(PROMISED):
        module, _, attribute = name.partition(":")
        assert hasattr(importlib.import_module(module), attribute), name
    assert names_that_docs_import() <= PROMISED


def test_relative_links_lead_somewhere() -> None:
    for page in (page for page in PAGES if page.exists()):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^):\s]+)\)", text):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page_id(page)} links to {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", target.read_text(), flags=re.MULTILINE)
                assert anchor in {anchor_of(heading) for heading in headings}, (
                    f"{page_id(page)} links to {link}"
                )


def anchor_of(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
