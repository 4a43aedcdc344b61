"""Regenerates what the docs repeat of the code: --help pages, family tables, the README tree; wraps prose. `--check` only compares."""

from __future__ import annotations

import ast
import io
import re
import sys
from pathlib import Path

from rich.console import Console
from wrap import PAGES, wrap

from rollforge.cli.app import COMMANDS, build_app

ROOT = Path(__file__).resolve().parent.parent
COMMAND_PAGES = ROOT / "docs" / "commands"
SOURCE = ROOT / "src" / "rollforge"
WIDTH = 110


def help_text(verb: str | None) -> str:
    """What `rollforge VERB --help` prints, without colour, at a fixed width."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    app = build_app(verb, shows_all=True)
    app(
        [*([verb] if verb else []), "--help"],
        console=console,
        result_action="return_value",
        exit_on_error=False,
    )
    return "\n".join(line.rstrip() for line in buffer.getvalue().strip().splitlines())


def replace_block(text: str, name: str, content: str) -> str:
    """The text with the part between `<!-- name -->` and its end mark replaced; added at the end when there is none."""
    closing = name.split(":")[0]
    block = f"<!-- {name} -->\n{content}\n<!-- /{closing} -->"
    pattern = re.compile(rf"<!-- {re.escape(name)} -->.*?<!-- /{closing} -->", re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text)
    return f"{text.rstrip()}\n\n{block}\n"


def command_page(verb: str) -> tuple[Path, str]:
    path = COMMAND_PAGES / f"{verb}.md"
    text = path.read_text() if path.exists() else f"# rollforge {verb}\n"
    return path, replace_block(
        text, f"help:{verb}", f"```text\n$ rollforge {verb} --help\n{help_text(verb)}\n```"
    )


def tree() -> str:
    """The package, one line per module or folder, each with the first sentence of its docstring."""
    lines = ["src/rollforge/"]
    entries = sorted(
        (path for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()),
        key=lambda path: (path.is_dir(), path.name),
    )
    for path in entries:
        if path.name == "__main__.py":
            continue
        file = path / "__init__.py" if path.is_dir() else path
        name = f"{path.name}/" if path.is_dir() else path.name
        lines.append(f"├── {name:<18} {summary(file)}")
    lines[-1] = lines[-1].replace("├", "└")
    return "```text\n" + "\n".join(lines) + "\n```"


def summary(file: Path) -> str:
    """The first sentence of a module's docstring, without its opening words."""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    line = " ".join(text.split("\n\n")[0].split())
    line = re.sub(r"^This module (is )?", "", line)
    return re.split(r"(?<=[a-z)`])\. ", line)[0].rstrip(".")


def family_tables() -> str:
    """Members of every family with the first line of what they do."""
    from rollforge.cli.commands.list_ import describe_family, family_names

    parts = []
    for family in family_names():
        rows = "\n".join(f"| `{member.name}` | {member.summary} |" for member in describe_family(family))
        parts.append(f"### {family}\n\n| name | what it does |\n| --- | --- |\n{rows}")
    return "\n\n".join(parts)


def pages() -> dict[Path, str]:
    """Every generated page with its text."""
    found = dict(command_page(verb) for verb in COMMANDS)
    readme = ROOT / "README.md"
    found[readme] = replace_block(readme.read_text(), "tree", tree())
    families = ROOT / "docs" / "families.md"
    text = families.read_text() if families.exists() else "# Families\n"
    found[families] = replace_block(text, "families", family_tables())
    return found


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    stale = []
    made = pages()
    for path in (path for path in PAGES if path.exists()):
        made[path] = wrap(made.get(path, path.read_text()))
    for path, text in made.items():
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.relative_to(ROOT))
        if not is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for path in stale:
        print(f"{'stale' if is_check else 'wrote'}: {path}")
    if stale and is_check:
        print("run `make docs`")
    return int(bool(stale) and is_check)


if __name__ == "__main__":
    sys.exit(main())
