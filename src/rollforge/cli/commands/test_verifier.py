"""`rollforge test-verifier`: runs the test cases that a verifier's author wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.render.console import out, print_json, say
from rollforge.errors import Exit

if TYPE_CHECKING:
    from rollforge.steps.verifier_cases import CasesReport

EXAMPLE = "rollforge test-verifier my_verifier.py:verify"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CaseFlags:
    """Flags that select cases and how the verifier runs."""

    cases: str | None = None
    """File of cases, one JSON object per line; the default is my_verifier_cases.jsonl beside my_verifier.py."""
    repeats: int = 5
    """Calls of each determinism case."""
    verifier_set: Annotated[list[str], Parameter(name=["--verifier-set", "--set", "-S"], negative=())] = (
        field(default_factory=list)
    )
    """key=value option of the verifier; repeatable."""
    sandbox: Literal["auto", "require", "off"] | None = None
    """For a verifier that runs programs: auto and require need bubblewrap or refuse, off runs them with limits only."""
    mode: Literal["fast", "precise"] | None = None
    """Mode of a verifier that has two; its default is precise."""
    verify_workers: str = "1"
    """Worker processes for a synchronous verifier; 0 runs it in this process without protection."""
    verify_timeout: str = "60s"
    """Longest time for one verdict."""


def test_verifier(
    name: str,
    /,
    *,
    flags: CaseFlags = CaseFlags(),  # noqa: B008  (frozen)
    json: Annotated[bool, Parameter(negative=())] = False,
) -> Exit:
    """Test a verifier on the cases beside it: full reward, zero reward, malformed rows, determinism.

    Exit code 5 when a case fails. `rollforge init verifier NAME` writes a verifier with cases.

    Parameters
    ----------
    name
        Name of a built-in verifier, file.py:function or module:function.
    json
        Print one JSON object on stdout instead of talk.
    """
    from rollforge.config import parse_duration, parse_settings
    from rollforge.runtime.event_loop import run_async
    from rollforge.steps.verifier_cases import CaseOptions, run_cases
    from rollforge.verifiers.running.ready_verifier import parse_workers

    options = parse_settings(flags.verifier_set) | ({"sandbox": flags.sandbox} if flags.sandbox else {})
    report = run_async(
        run_cases(
            CaseOptions(
                verifier=name,
                cases=flags.cases,
                options=options,
                mode=flags.mode,
                repeats=flags.repeats,
                workers=parse_workers(flags.verify_workers),
                timeout=parse_duration(flags.verify_timeout),
            )
        )
    )
    code = Exit.DONE if report.ok else Exit.BROKEN_VERIFICATION
    if json:
        import msgspec

        print_json(msgspec.to_builtins(report) | {"ok": report.ok, "exit_code": int(code)})
    else:
        _print(report)
    return code


test_verifier.__test__ = False  # type: ignore[attr-defined]  # a command, not a test of ours


def _print(report: CasesReport) -> None:
    show = out().print
    for result in report.results:
        mark = "ok    " if result.ok else "FAILED"
        show(
            f"{mark} {result.kind:<12} {result.name}" + (f": {result.text}" if result.text else ""),
            markup=False,
        )
    passed = sum(result.ok for result in report.results)
    show(f"{passed} of {len(report.results)} cases of {report.cases} passed", markup=False)
    if report.missing:
        say(f"note: no case of kind {', '.join(report.missing)}")
