"""Any program as an agent: run it once per rollout, record its model calls, merge them into the rollout.

A program gets a directory, a home and an environment of its own, the task as files, and base URLs and keys that lead to the
recording proxy. The proxy records its calls; its exit decides whether the rollout is judged. Knowledge of particular programs is
in `presets`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from rollforge.agents.base import AgentOptions, Preparation, Trajectory, leave_behind
from rollforge.agents.recorded_programs.artifacts import keep_artifacts, make_safe, read_result
from rollforge.agents.recorded_programs.program_endings import Endings
from rollforge.agents.recorded_programs.program_files import fill_workdir, folder_digest, program_task
from rollforge.agents.recorded_programs.recording import (
    Recording,
    merged_response,
    sequence_numbers,
    wasted_usages,
)
from rollforge.endpoint import Model
from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import ArtifactJson, PlayedJson, ProgramFactsJson, ResponseJson
from rollforge.proxy import ProgramSession, merge_calls
from rollforge.records import JsonFields, Task, to_json
from rollforge.runtime.on_error import OnErrorAwait
from rollforge.sandbox.programs import (
    RELAY_PORT,
    ProgramFolders,
    ProgramLimits,
    ProgramOutput,
    ProgramRun,
    ProgramSandbox,
    absolute_words,
)
from rollforge.store import RunFiles
from rollforge.store.scratch import make_scratch

PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables of this process that every program inherits; `--pass-env` adds others."""

MOST_DIGESTED = 16 << 20

MOST_WORD_BYTES = 120 << 10
"""Limit on one command-line argument: Linux allows 128 KiB, and the supervisor receives the whole command as one argument."""

_BRACES = re.compile(r"\{(\w+)\}")

NO_CALL = "the program made no model call: did it read OPENAI_BASE_URL?"


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a particular program: arguments, environment variables and files, no code."""

    words: tuple[str, ...]
    """The command; `{prompt}`, `{task}`, `{workdir}`, `{base_url}`, `{key}` and `{model}` are replaced."""
    environment: dict[str, str] = {}
    """Additional environment variables, with the same replacements."""
    home_files: dict[str, str] = {}
    """Files in its home directory, path → text, with the same replacements."""
    reads_prompt: bool = False
    """Whether it reads the prompt from standard input; other programs need `--stdin prompt` for that."""
    hint: str = ""
    """How to install it."""


class Program:
    """Runs a command per rollout."""

    name = "program"
    preset: Preset | None = None

    def __init__(self, options: AgentOptions) -> None:
        if options.tools:
            raise UsageError(
                "--tools are for the tool loop; a program brings its own", hint="leave out --tools"
            )
        self._options = options
        self._preset = self.preset or Preset(words=tuple(_split(options.program)))
        self._words = list(self._preset.words)
        self._reads_prompt = self._preset.reads_prompt or options.stdin == "prompt"
        self._model: Model | None = None
        self._recording: Recording | None = None
        self._sandbox: ProgramSandbox | None = None
        self._socket_folder: Path | None = None
        self._left_out: Counter[str] = Counter()
        self._endings = Endings()
        self._matched: set[str] = set()
        self._has_looked_for_artifacts = False

    async def prepare(self) -> Preparation:
        """Find the program and the sandbox."""
        options = self._options
        if not self._words:
            raise UsageError(
                "--agent program: names no command",
                hint='write --agent "program:python my_agent.py {prompt}"',
            )
        own = 1 if self.preset is not None else len(self._words)
        self._words = [*absolute_words(self._words[:own]), *self._words[own:]]
        if not Path(self._words[0]).is_absolute() or not os.access(self._words[0], os.X_OK):
            raise UsageError(
                f"the program {self._words[0]!r} is not here or cannot be run",
                hint=self._preset.hint or "check its name and PATH; it is run without a shell",
            )
        if "://" in options.out:
            raise UsageError(
                "programs need a run on a disk: their calls are synced there before they are answered",
                hint="give -o a local directory",
            )
        if options.workdir and not Path(options.workdir).is_dir():
            raise UsageError(
                f"--workdir {options.workdir}: no such directory",
                hint="give a directory that exists, or leave it out: programs start in an empty one",
            )
        for name in options.pass_env:
            if name not in os.environ:
                raise UsageError(
                    f"the environment variable {name} is not set (--pass-env)", hint=f"export {name}=…"
                )
        self._sandbox = ProgramSandbox(
            options.sandbox, network=options.network, shown=options.mount, command=self._words
        )
        fingerprint: JsonFields = {
            "program": list(self._preset.words),
            "program_files": _digests(self._words[1:own]),
            "workdir": options.workdir,
            "sandbox": "bubblewrap" if self._sandbox.is_confined else "off",
            "network": self._sandbox.network,
            "artifacts": list(options.artifacts),
        }
        if options.workdir:
            try:
                fingerprint["workdir_files"] = await asyncio.to_thread(folder_digest, options.workdir)
            except OSError as error:
                raise UsageError(
                    f"--workdir {options.workdir}: {error}", hint="every rollout gets a copy of it"
                ) from error
        # What a program can read, in runs that ask for something else than the usual.
        if options.stdin != "none":
            fingerprint["stdin"] = options.stdin
        for name, words in (("withhold", options.withhold), ("pass_env", options.pass_env)):
            if words:
                fingerprint[name] = sorted(words)
        return Preparation(fingerprint=fingerprint, hides=options.withhold)

    async def start(self, model: Model) -> None:
        """Open the proxy and the file of calls."""
        assert self._sandbox is not None, "the agent has not been prepared"
        self._model = model
        self._recording = Recording(model, max_response_bytes=self._options.max_response_bytes)
        self._socket_folder = make_scratch("proxy")
        await self._recording.start(
            self._options.out, self._socket if self._sandbox.network == "none" else None
        )

    @property
    def notes(self) -> list[str]:
        """Messages for the user at the end of a run."""
        notes = self._recording.proxy.notes() if self._recording is not None else []
        notes += [f"{count:,} × {message}" for message, count in self._endings.messages.most_common(3)]
        if self._sandbox is not None and self._sandbox.weakness:
            notes.append(f"programs are not fully confined: {self._sandbox.weakness}")
        if self._has_looked_for_artifacts:
            notes += [
                f"--artifacts {glob}: no file matched in any rollout"
                for glob in self._options.artifacts
                if glob not in self._matched
            ]
        if self._left_out:
            named = ", ".join(sorted(self._left_out)[:5])
            notes.append(f"tools that a provider would run were left out of the calls: {named}")
        return notes

    async def run(self, task: Task, sample: int) -> Trajectory:
        """One rollout."""
        assert self._recording is not None, "the agent has not been started"
        session = self._recording.session(task, sample)
        scratch, output = await asyncio.to_thread(ProgramFolders.make), ProgramOutput()
        proxy = self._recording.proxy

        async def abandon(error: BaseException) -> None:
            await proxy.close_session(session)
            self._attach(error, session, output)
            await asyncio.shield(asyncio.to_thread(scratch.remove))

        async with OnErrorAwait(abandon):
            await asyncio.to_thread(fill_workdir, scratch.work, self._options.workdir, task.get("files"))
            proxy.add(session)
            ended = await self._play(task, scratch, session, output)
            trajectory = await self._judgeable(ended, scratch, session)
            self._endings.survived()
        return trajectory

    async def close(self) -> None:
        """Stop the proxy and close the file of calls."""
        if self._recording is not None:
            await self._recording.close()
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = None

    # -- one rollout --------------------------------------------------------------------------------------------------

    @property
    def _socket(self) -> Path:
        assert self._socket_folder is not None
        return self._socket_folder / "proxy.sock"

    async def _play(
        self, task: Task, scratch: ProgramFolders, session: ProgramSession, output: ProgramOutput
    ) -> ProgramRun:
        """Run the program to its end, or until the model is unreachable for good."""
        assert self._sandbox is not None
        values, environment = self._setting(task, scratch, session)
        argv = _passable([_filled(word, values) for word in self._words])
        running = asyncio.ensure_future(
            self._sandbox.run(
                argv,
                scratch,
                environment=environment,
                stdin=values["prompt"].encode() if self._reads_prompt else None,
                socket=self._socket if self._sandbox.network == "none" else None,
                limits=ProgramLimits(
                    memory_bytes=self._options.max_memory_bytes, processes=self._options.max_processes
                ),
                output=output,
            )
        )
        try:
            waited: list[asyncio.Future[Any]] = [running, session.fatal]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and session.fatal.done():
                raise session.fatal.result()
            return await running
        finally:
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def _setting(
        self, task: Task, scratch: ProgramFolders, session: ProgramSession
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Write the task's files; return the values of the command's `{placeholders}` and the program's environment."""
        assert self._sandbox is not None and self._recording is not None and self._model is not None
        port = RELAY_PORT if self._sandbox.network == "none" else self._recording.proxy.port
        root = f"http://127.0.0.1:{port}/r/{session.secret}"
        files = {name: scratch.control / name for name in ("task.json", "prompt.txt", "result.txt")}
        files["task.json"].write_bytes(to_json(program_task(task, self._options.withhold)))
        files["prompt.txt"].write_text(task.prompt, encoding="utf-8")
        inside = {name: self._sandbox.inside(scratch, path) for name, path in files.items()}
        values = {
            "prompt": task.prompt,
            "task": inside["task.json"],
            "workdir": self._sandbox.inside(scratch, scratch.work),
            "base_url": f"{root}/v1",
            "key": session.key,
            "model": self._model.options.name,
        }
        environment = {name: os.environ[name] for name in PASSED if name in os.environ}
        environment |= {
            "HOME": self._sandbox.inside(scratch, scratch.home),
            "OPENAI_BASE_URL": f"{root}/v1",
            "OPENAI_API_BASE": f"{root}/v1",
            "OPENAI_API_KEY": session.key,
            "OPENAI_MODEL": values["model"],
            "LLM_BASE_URL": f"{root}/v1",
            "LLM_API_KEY": session.key,
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_KEY": session.key,
            "ANTHROPIC_MODEL": values["model"],
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "ROLLFORGE_TASK": inside["task.json"],
            "ROLLFORGE_PROMPT": inside["prompt.txt"],
            "ROLLFORGE_RESULT": inside["result.txt"],
        }
        environment |= {name: _filled(text, values) for name, text in self._preset.environment.items()}
        environment |= {name: os.environ[name] for name in self._options.pass_env}
        for name, text in self._preset.home_files.items():
            path = scratch.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(text, values), encoding="utf-8")
        return values, environment

    async def _judgeable(
        self, ended: ProgramRun, scratch: ProgramFolders, session: ProgramSession
    ) -> Trajectory:
        """The rollout for the verifier; raises `Failure` for one that must not be judged."""
        assert self._recording is not None
        await self._recording.proxy.close_session(session)
        self._left_out.update(session.left_out)
        if ended.exceeded:
            raise _with_run(Failure("agent", "agent", self._too_much(ended)), ended)
        failed = session.failure
        if failed is not None:
            raise _model_failure(failed, ended)
        if ended.exit_code != 0:
            words = f": {ended.last_words}" if ended.last_words else ""
            raise _with_run(
                Failure("agent", "agent", f"the program ended with exit code {ended.exit_code}{words}"), ended
            )
        if not session.calls:
            failure = Failure("agent", "agent", NO_CALL)
            failure.is_terminal = True
            raise _with_run(failure, ended)
        return await asyncio.to_thread(self._trajectory, ended, scratch, session)

    def _trajectory(self, ended: ProgramRun, scratch: ProgramFolders, session: ProgramSession) -> Trajectory:
        sequences = merge_calls(session.calls)
        main, calls = sequences[0], session.calls
        make_safe(scratch.work)
        response = merged_response(main, calls, numbers=sequence_numbers(sequences))
        result = read_result(scratch.control / "result.txt")
        if result is not None:
            response["result"] = result
        artifacts: list[ArtifactJson] = []
        if self._options.artifacts and self._options.out:
            folder = RunFiles(self._options.out).artifacts
            artifacts = keep_artifacts(
                scratch.work,
                self._options.artifacts,
                folder,
                self._options.max_artifact_bytes,
                matched=self._matched,
            )
            self._has_looked_for_artifacts = True
        response["artifacts"] = artifacts
        last = next(call for call in calls if call.number == main.calls[-1])
        own: PlayedJson = {
            "played": main.prompt,
            "sequences": [sequence.to_record(with_text=sequence is not main) for sequence in sequences],
            "program": _run_facts(ended, session),
        }
        return Trajectory(
            response=response,
            endpoint=last.endpoint,
            api=last.upstream,
            requests=sum(call.requests for call in calls),
            wasted=wasted_usages(calls),
            own=own,
            judged={"workdir": str(scratch.work), "artifacts_root": _artifacts_root(self._options.out)},
            release=scratch.remove,
        )

    def _too_much(self, ended: ProgramRun) -> str:
        limits = self._options
        if ended.exceeded == "memory":
            most = f"{limits.max_memory_bytes / (1 << 20):,.0f} MiB of memory (--max-memory-bytes)"
        else:
            most = f"{limits.max_processes:,} processes (--max-processes)"
        return f"the program, with all that it started, used more than {most} and was ended"

    def _count(self, failure: Failure) -> None:
        """Count how programs ended; stop the run when nearly all fail for one cause."""
        run: ProgramRun | None = getattr(failure, "program_run", None)
        if failure.boundary != "agent" or run is None:
            self._endings.survived()
            return
        why = self._endings.died(failure.message, run.stderr)
        if why is not None:
            failure.message, failure.stops_run = why, True

    def _attach(self, error: BaseException, session: ProgramSession, output: ProgramOutput) -> None:
        """Attach the partial response and the program's output to the error that ended the rollout."""
        if isinstance(error, Failure):
            self._count(error)
            error.requests = sum(call.requests for call in session.calls)
            error.wasted += wasted_usages(call for call in session.calls if call.failure is not error)
            error.partial = _partial(session, getattr(error, "program_run", None) or output.run())
        elif isinstance(error, asyncio.CancelledError):
            partial = _partial(session, output.run())
            if partial is not None:
                partial["status"], partial["incomplete_details"] = "incomplete", {"reason": "cancelled"}
                leave_behind(error, partial, sum(call.requests for call in session.calls))


def _partial(session: ProgramSession, run: ProgramRun | None) -> ResponseJson | None:
    """The partial response of an unfinished rollout; None if the program neither started nor called the model."""
    sequences = merge_calls(session.calls)
    if not sequences and run is None:
        return None
    partial: ResponseJson = {"object": "response", "output": []}
    if sequences:
        partial = merged_response(sequences[0], session.calls)
    elif not session.has_asked:
        partial["usage"] = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    partial["status"] = "failed"
    if run is not None:
        partial["program"] = _run_facts(run, session)
    return partial


PROGRAM_ENDINGS = frozenset(
    {
        "",
        ".py",
        ".sh",
        ".js",
        ".mjs",
        ".ts",
        ".rb",
        ".pl",
        ".json",
        ".toml",
        ".yaml",
        ".yml",
        ".md",
        ".txt",
        ".cfg",
        ".ini",
    }
)
"""Suffixes of programs, prompts and settings. Other files named in a command may be outputs of the program."""


def _digests(words: list[str]) -> dict[str, str]:
    """A digest of each program or settings file that the command names: changed files would produce different rollouts."""
    digest_by_name = {}
    for word in words:
        path = Path(word)
        is_named = path.is_absolute() and path.suffix in PROGRAM_ENDINGS and path.is_file()
        if is_named and path.stat().st_size <= MOST_DIGESTED:
            digest_by_name[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return digest_by_name


def _split(command: str | None) -> list[str]:
    try:
        return shlex.split(command or "")
    except ValueError as error:
        raise UsageError(f"--agent program:{command}: {error}", hint="check the quotes") from error


def _filled(text: str, values: dict[str, str]) -> str:
    """The text with known `{names}` replaced. Other braces stay, also those inside an inserted prompt."""
    return _BRACES.sub(lambda match: values.get(match[1], match[0]), text)


def _passable(argv: list[str]) -> list[str]:
    """The arguments, checked for what a process accepts.

    Raises:
        Failure: an argument contains a NUL byte or is too long; no further attempt can change that.
    """
    if any("\0" in word for word in argv):
        why = "holds a NUL byte, which no word of a command can"
    elif len(to_json(argv)) > MOST_WORD_BYTES:
        why = (
            f"makes the command longer than {MOST_WORD_BYTES >> 10} KiB, the most that a process can be given"
        )
    else:
        return argv
    raise Failure(
        "agent",
        "permanent",
        f"the prompt {why}: leave {{prompt}} out and read the file ROLLFORGE_PROMPT, or use --stdin prompt",
    )


def _model_failure(failure: Failure, ended: ProgramRun) -> Failure:
    """The model's failure, with the program's ending added."""
    how = f"the program then ended with exit code {ended.exit_code}"
    failure.message = f"{failure.message} ({how})"
    return _with_run(failure, ended)


def _with_run(failure: Failure, ended: ProgramRun) -> Failure:
    failure.program_run = ended  # type: ignore[attr-defined]
    return failure


def _run_facts(ended: ProgramRun, session: ProgramSession) -> ProgramFactsJson:
    """How the program ended, for the rollout's row. The session's secret is masked, since the program may have printed it."""
    return {
        "session": session.origin.session,
        "exit_code": ended.exit_code,
        "seconds": round(ended.seconds, 3),
        "calls": len(session.calls),
        "repeated": sum(call.repeats for call in session.calls),
        "stdout": ended.stdout.replace(session.secret, "…"),
        "stderr": ended.stderr.replace(session.secret, "…"),
    }


def _artifacts_root(out: str) -> str | None:
    return str(RunFiles(out).rollouts.parent.absolute()) if out else None
