"""`rollforge report`: one HTML file to send, verdicts first, then pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.converters import Flag
from rollforge.cli.render.console import print_json, say
from rollforge.errors import Exit

EXAMPLE = "rollforge report runs/first -o report.html"


def report(
    run: Annotated[list[str], Parameter(name="run")],
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("report.html"),
    texts: Literal["some", "none"] = "some",
    verifier: str | None = None,
    json: Flag = False,
) -> Exit:
    """Write a report as one HTML file: can the rewards be trusted, what is the data fit for, then charts.

    The file needs no network and no script, and opens from disk. The same run gives the same bytes. Several runs are
    compared task by task with the first. A folder made by `prepare`, `eval` or `bench` gets a report of its own kind.

    Parameters
    ----------
    run
        A run, several runs, the folder of a dataset, or the result of eval or bench.
    out
        The file to write, or a folder to put report.html into.
    texts
        some: the prompts and answers that findings point at, shortened. none: no word of any prompt or answer.
    verifier
        Whose verdicts count, when the run has several.
    json
        Print one JSON object on stdout: path, kind, bytes.
    """
    import msgspec

    from rollforge.assembly.reports import write_report

    written = write_report(run, out, texts=texts, verifier=verifier)
    if json:
        print_json(msgspec.to_builtins(written))
    else:
        say(f"wrote {written.path} ({written.bytes / 1e6:.2f} MB): open it in a browser")
    return Exit.DONE
