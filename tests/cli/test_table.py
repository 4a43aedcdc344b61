"""Plain tables: whole in a pipe, wrapped between items and styled on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from rollforge.cli.render.table import Grid, TableColumn, cells_of, put

DRAW = """
from rollforge.cli.render.table import TableColumn, Grid
grid = Grid(TableColumn("name"), TableColumn("n", is_right=True), TableColumn("tasks", style="dim"))
grid.add("很多", "1", "  ".join(f"{n} (50.0 %)" for n in range(100, 106)))
grid.add("e\\u0301t\\u00e9", "1,000", "")
grid.put()
"""


def on_terminal(columns: int, **environment: str) -> list[str]:
    """The lines that a terminal of so many columns is given."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    subprocess.run([sys.executable, "-c", DRAW], check=True, stdout=theirs, env=known | environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as screen:
        while some := screen.read(65536):  # a terminal hands over what it has so far, and fails at its end
            shown += some
    return shown.decode().replace("\r\n", "\n").splitlines()


def test_nothing_is_wrapped_or_styled_in_a_pipe() -> None:
    done = subprocess.run([sys.executable, "-c", DRAW], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "name      n  tasks",
        "很多      1  100 (50.0 %)  101 (50.0 %)  102 (50.0 %)  103 (50.0 %)  104 (50.0 %)  105 (50.0 %)",
        "e\u0301t\u00e9   1,000",
    ]


def test_a_long_list_is_wrapped_between_its_items() -> None:
    lines = on_terminal(44, NO_COLOR="1", TERM="xterm")
    assert lines[1:4] == [
        "很多      1  100 (50.0 %)  101 (50.0 %)",
        "             102 (50.0 %)  103 (50.0 %)",
        "             104 (50.0 %)  105 (50.0 %)",
    ]
    assert all(cells_of(line) <= 44 for line in lines)


@pytest.mark.parametrize(("environment", "is_styled"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False)])
def test_headers_are_dim_on_a_terminal_that_can(environment: dict[str, str], is_styled: bool) -> None:
    assert ("\x1b[2mname\x1b[0m" in on_terminal(200, **environment)[0]) == is_styled


def test_a_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    Grid(TableColumn("a"), TableColumn("b")).put()
    assert capsys.readouterr().out == "a  b\n"


def test_what_a_file_says_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    grid = Grid(TableColumn("agent"))
    grid.add("red\x1b[31m\x07 \u202eback\nline\u00a0end")
    grid.put()
    put("a\rb")
    assert capsys.readouterr().out == "agent\nred␛[31m␇ ⟨U+202E⟩back␊line\u00a0end\na␍b\n"
