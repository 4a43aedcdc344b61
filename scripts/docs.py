"""Regenerates what repeats the code: --help pages, the Python API, family tables, the tree, keyword types, the site's nav, llms.txt.

It also wraps prose. `--check` only compares.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

from keywords import keywords_file
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


def python_api() -> str:
    """Every public name with its signature and what its docstring says."""
    import rollforge

    parts = []
    for name in sorted(rollforge.__all__, key=lambda name: (inspect.isclass(getattr(rollforge, name)), name)):
        member = getattr(rollforge, name)
        if inspect.isclass(member):
            parts.append(f"### rf.{name}\n\n{described(member)}")
            if issubclass(member, Exception):
                continue
            parts += [
                f"#### {name}.{method}\n\n{signed(f'{method}', function)}"
                for method, function in inspect.getmembers(member, callable)
                if not method.startswith("_") and inspect.isroutine(function) and function.__doc__
            ]
        elif callable(member):
            parts.append(f"### rf.{name}\n\n{signed(name, member)}")
    return "\n\n".join(parts)


def signed(name: str, function: Callable[..., object]) -> str:
    """A signature, one parameter a line where it is long, and the docstring."""
    try:
        text = str(inspect.signature(function)).replace("'", "")
    except ValueError:
        return described(function)
    if len(text) > 90:
        text = re.sub(r", (?=\*?\*?\w+(:|,|=|\)))", ",\n    ", text).replace("(", "(\n    ", 1)
    return f"```text\n{name}{text}\n```\n\n{described(function)}"


def described(member: object) -> str:
    """The docstring as Markdown: the summary, then `Args:` and `Raises:` as lists."""
    lines = (inspect.getdoc(member) or "").splitlines()
    made: list[str] = []
    for line in lines:
        if re.fullmatch(r"(Args|Raises|Returns):", line.strip()):
            made += [f"**{line.strip()[:-1]}**", ""]
        elif match := re.match(r"    (\w+): (.*)", line):
            made.append(f"- `{match[1]}`: {match[2]}")
        else:
            made.append(line.strip() if not line.startswith("        ") else f"  {line.strip()}")
    return "\n".join(made)


def nav_block(text: str, name: str, entries: list[str]) -> str:
    """`mkdocs.yml` with the entries between `# name` and `# /name`, at that comment's indent."""
    pattern = re.compile(rf"^( *)# {name}\n.*?^ *# /{name}$", re.DOTALL | re.MULTILINE)
    return pattern.sub(
        lambda match: "\n".join(
            [f"{match[1]}# {name}", *(f"{match[1]}{entry}" for entry in entries), f"{match[1]}# /{name}"]
        ),
        text,
    )


def titles(folder: str) -> list[tuple[str, str]]:
    """(title, path) of the pages in a folder of docs."""
    found = sorted((ROOT / "docs" / folder).glob("*.md"))
    return [(title_of(path), path.relative_to(ROOT / "docs").as_posix()) for path in found]


def title_of(path: Path) -> str:
    match = re.search(r"^# (.*)$", path.read_text(), re.MULTILINE)
    return match[1].replace(": ", " – ").replace("`", "") if match else path.stem


def site_nav() -> str:
    """`mkdocs.yml` with every page: what no part of it names is a guide."""
    text = (ROOT / "mkdocs.yml").read_text()
    for folder in ("commands", "formats", "decisions"):
        text = nav_block(
            text, folder, [f"- {folder.title()}:", *(f"    - {t}: {p}" for t, p in titles(folder))]
        )
    text = nav_block(text, "guides", [])
    guides = [(title, path) for title, path in titles("") if f" {path}\n" not in text]
    return nav_block(text, "guides", ["- Guides:", *(f"    - {title}: {path}" for title, path in guides)])


def llms_text() -> str:
    """The pages for language models, each with its first sentence, as llmstxt.org proposes."""
    lines = [
        "# rollforge",
        "",
        "> Turns LLM rollouts into training data that can be trusted: collect, verify, check, prepare.",
        "",
    ]
    lines += [
        "Every command takes -h and --json; exit codes: 0 done, 2 usage, 3 incomplete, 4 gate failed, 5 verifier broken,"
    ]
    lines += [
        "6 budget reached, 7 resume refused, 130 interrupted. `rollforge init skill` writes a skill file for coding agents.",
        "",
    ]
    for heading, folder in (
        ("Guides", ""),
        ("How to", "how-to"),
        ("Commands", "commands"),
        ("Formats", "formats"),
        ("Python", "reference"),
    ):
        lines += [f"## {heading}", ""]
        for title, path in titles(folder):
            lines.append(f"- [{title}]({path}): {first_sentence(ROOT / 'docs' / path)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def first_sentence(path: Path) -> str:
    text = re.sub(r"<!--.*?-->|```.*?```", "", path.read_text(), flags=re.DOTALL)
    paragraphs = [
        part
        for part in text.split("\n\n")
        if part.strip() and not part.lstrip().startswith(("#", "|", "-", "!"))
    ]
    line = " ".join(paragraphs[0].split()) if paragraphs else ""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", re.split(r"(?<=[a-z)`])[.:] ", line)[0].rstrip(".:"))


def pages() -> dict[Path, str]:
    """Every generated page with its text."""
    found = dict(command_page(verb) for verb in COMMANDS)
    architecture = ROOT / "docs" / "architecture.md"
    found[architecture] = replace_block(architecture.read_text(), "tree", tree())
    api = ROOT / "docs" / "reference" / "api.md"
    found[api] = replace_block(api.read_text(), "api", python_api())
    found[ROOT / "mkdocs.yml"] = site_nav()
    found[ROOT / "docs" / "llms.txt"] = llms_text()
    families = ROOT / "docs" / "families.md"
    text = families.read_text() if families.exists() else "# Families\n"
    found[families] = replace_block(text, "families", family_tables())
    return found


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    stale = []
    made = pages()
    path, text = keywords_file()
    made[path] = text
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
