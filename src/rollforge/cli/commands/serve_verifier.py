"""`rollforge serve-verifier`: a verifier as a NeMo Gym resources server."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.converters import PORT
from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import write_record
from rollforge.errors import Exit, UsageError

if TYPE_CHECKING:
    from rollforge.steps.serve import VerifierServer
    from rollforge.verifiers.base import Verifier

EXAMPLE = "rollforge serve-verifier mcqa --port 8090"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServingFlags:
    """How the verifier runs."""

    verifier_set: Annotated[list[str], Parameter(name=["--verifier-set", "--set", "-S"], negative=())] = (
        field(default_factory=list)
    )
    """key=value option of the verifier; repeatable."""
    sandbox: Literal["auto", "require", "off"] | None = None
    """For a verifier that runs programs: auto and require need bubblewrap or refuse, off runs them with limits only."""
    mode: Literal["fast", "precise"] | None = None
    """Mode of a verifier that has two; its default is precise."""
    verify_workers: str = "auto"
    """Worker processes for a synchronous verifier; auto uses idle cores, 0 runs it in this process without protection."""
    verify_timeout: str = "60s"
    """Longest time for one verdict."""
    token_env: str | None = None
    """Environment variable with a token that every request must send (Authorization: Bearer TOKEN). Beyond loopback a token is
    required: without this flag one is generated and printed to stderr."""
    write_server: str | None = None
    """Write a folder by which NeMo Gym starts this verifier itself (app.py, requirements, configuration), and stop."""


def serve_verifier(
    name: str,
    /,
    *,
    port: Annotated[int, PORT] = 8090,
    host: str = "127.0.0.1",
    serving: ServingFlags = ServingFlags(),  # noqa: B008  (frozen)
    json: Annotated[bool, Parameter(negative=())] = False,
) -> Exit:
    """Serve a verifier as a NeMo Gym resources server: /seed_session, /verify, /aggregate_metrics, /reverify_mode.

    Requests from web pages and for other host names are refused, and requests must be JSON.

    Parameters
    ----------
    name
        Name of a built-in verifier, file.py:function or module:function.
    port
        Where to listen; 0 takes any free port.
    host
        Loopback by default. On any other address every request needs a token (see --token-env).
    json
        Print the start record, and at the end the counts, as one line of JSON each on stdout.
    """
    from rollforge.config import parse_duration, parse_settings
    from rollforge.runtime.event_loop import run_async
    from rollforge.steps.serve import VerifierServer
    from rollforge.verifiers.base import load_verifier
    from rollforge.verifiers.running.ready_verifier import parse_workers

    if not 0 <= port <= 65535:
        raise UsageError(f"{port} is no port", hint="0 takes any free one")
    options = parse_settings(list(serving.verifier_set))
    if serving.sandbox:
        options["sandbox"] = serving.sandbox
    verifier = load_verifier(name, options, serving.mode)
    if serving.write_server is not None:
        return _write_folder(verifier, name, serving, json)
    server = VerifierServer(
        verifier,
        host=host,
        port=port,
        workers=parse_workers(serving.verify_workers),
        timeout_s=parse_duration(serving.verify_timeout),
        token=_token(serving.token_env, host),
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


def _token(variable: str | None, host: str) -> str | None:
    from rollforge.runtime.web_guard import is_loopback

    if variable is not None:
        token = os.environ.get(variable, "").strip()
        if not token:
            raise UsageError(f"the environment variable {variable} is not set", hint="--token-env names it")
        return token
    if is_loopback(host):
        return None
    token = secrets.token_urlsafe(24)
    say(f"every request needs this token (Authorization: Bearer TOKEN): {token}")
    return token


def _write_folder(verifier: Verifier, name: str, serving: ServingFlags, json: bool) -> Exit:
    from rollforge.steps.serve import write_gym_folder

    words = [_portable(name)]
    for setting in serving.verifier_set:
        words += ["--verifier-set", setting]
    for flag, value in (
        ("--sandbox", serving.sandbox),
        ("--mode", serving.mode),
        ("--token-env", serving.token_env),
    ):
        words += [flag, value] if value else []
    words += ["--verify-workers", serving.verify_workers, "--verify-timeout", serving.verify_timeout]
    written = write_gym_folder(Path(serving.write_server or ""), verifier, words)
    if json:
        print_json({"written": [str(path) for path in written]})
    else:
        say(f"written: {', '.join(str(path) for path in written)}")
        say(f"  put the folder into resources_servers/ of NeMo Gym; {written[-1]} says how to start it")
    return Exit.DONE


def _portable(name: str) -> str:
    """The spec with an absolute path, since NeMo Gym starts the server in another directory."""
    path, colon, function = name.partition(":")
    return f"{Path(path).resolve()}{colon}{function}" if path.endswith(".py") else name


async def _serve(server: VerifierServer, json: bool) -> None:
    import asyncio
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
