"""`rollforge serve-verifier`: a verifier as a NeMo Gym resources server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.render.console import say
from rollforge.cli.render.progress import write_record
from rollforge.errors import Exit

if TYPE_CHECKING:
    from rollforge.steps.serve import VerifierServer

EXAMPLE = "rollforge serve-verifier mcqa --port 8090"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Judging:
    """How the verifier runs."""

    verifier_set: Annotated[list[str], Parameter(name=["--verifier-set", "--set", "-S"], negative=())] = (
        field(default_factory=list)
    )
    """key=value option of the verifier; repeatable."""
    mode: Literal["fast", "precise"] | None = None
    """For a verifier that offers both; precise is the default there."""
    verify_workers: str = "auto"
    """Processes for a sync verifier; auto uses idle cores, 0 runs it unprotected in this process."""
    verify_timeout: str = "60s"
    """Longest time for one verdict."""


def serve_verifier(
    name: str,
    /,
    *,
    port: int = 8090,
    host: str = "127.0.0.1",
    judging: Judging = Judging(),  # noqa: B008  (frozen)
    json: Annotated[bool, Parameter(negative=())] = False,
) -> Exit:
    """Serve a verifier as a NeMo Gym resources server: /seed_session, /verify, /aggregate_metrics, /reverify_mode.

    Parameters
    ----------
    name
        A ready verifier's name, file.py:function or module:function.
    port
        Where to listen; 0 takes any free port.
    host
        Loopback by default. There is no authentication: open it to a network only when you trust all of it.
    json
        Print the start record, and at the end the counts, as one line of JSON each on stdout.
    """
    from rollforge.config import parse_duration, parse_settings
    from rollforge.loop import run_async
    from rollforge.steps.serve import VerifierServer
    from rollforge.verifiers.base import load_verifier
    from rollforge.verifiers.running.judge import parse_workers

    verifier = load_verifier(name, parse_settings(judging.verifier_set), judging.mode)
    server = VerifierServer(
        verifier,
        host=host,
        port=port,
        workers=parse_workers(judging.verify_workers),
        timeout_s=parse_duration(judging.verify_timeout),
    )
    run_async(_serve(server, json))
    if json:
        write_record({"event": "end", **server.served})
    else:
        counts = server.served
        say(
            f"{counts['verified']:,} verdicts given, {counts['failed']:,} failed, {counts['refused']:,} requests refused"
        )
    return Exit.DONE


async def _serve(server: VerifierServer, json: bool) -> None:
    import asyncio
    import os
    import signal

    stop = asyncio.Event()
    async with server:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        verifier = server.verifier
        if json:
            record = {"event": "start", "url": server.url, "verifier": verifier.name, "needs": verifier.needs}
            write_record({**record, "fingerprint": verifier.fingerprint, "pid": os.getpid()})
        else:
            needs = f"; rows need {', '.join(verifier.needs)}" if verifier.needs else ""
            say(f"verifier {verifier.name} at {server.url} (Ctrl-C ends it{needs})")
            say(
                f"  try: rollforge collect -i tasks.jsonl -o runs/served -m simulated --gym-resources {server.url}"
            )
        await stop.wait()
