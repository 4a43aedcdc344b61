"""Environments of the verifiers library, version 1 (tasksets, harnesses, agents): one episode per rollout, in this process.

The library runs the episode and judges it; every model call of its agents goes through our recording proxy, so retries, limits,
token capture and durable calls work as in any run. Agents use our in-process harness, unless the environment has its own. A
reward that is missing, or whose function raised, leaves the rollout unjudged: the library itself would count it as 0.

Options: `NAME?split=test` sets a field of the taskset, `agent.max_turns=5` a field of the environment's config, `harness=ID` and
`runtime=TYPE` apply to every role, `env=ID` pairs the taskset with an environment, `player=ROLE` selects the role that becomes
the rollout.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rollforge.agents.base import AgentOptions, Preparation, Trajectory, leave_behind
from rollforge.agents.recorded_programs.recording import (
    Recording,
    merged_response,
    sequence_numbers,
    wasted_usages,
)
from rollforge.conversations.chat_items import items_of
from rollforge.endpoint import Model
from rollforge.environments.base import ROW_KEY, EnvironmentSpec, NamedVerifier
from rollforge.environments.verifiers_harness import HARNESS, provide_harness
from rollforge.environments.verifiers_release import INSTALL_V1, PIN_V1
from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import ItemJson, ResponseJson, SequenceJson
from rollforge.proxy import ProgramSession, RecordedCall, Sequence, merge_calls
from rollforge.records import PARAMS_KEY, JsonFields, Task, Verdict
from rollforge.runtime.on_error import OnErrorAwait
from rollforge.text_safety.outgoing import cut

OWN_OPTIONS = ("harness", "runtime", "env", "player")
KEY_VARIABLE = "ROLLFORGE_NO_SUCH_KEY"
"""Name of an API key variable that is never set: the proxy identifies the library by its base URL."""
STOCK_LOOPS = ("bash", "null")
"""The library's default loops, which our harness replaces; any other harness is a choice of the environment."""
LIMITS = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "agent_timeout")
"""Stop conditions that cut an episode short; the episode is judged nevertheless."""


class VerifiersV1:
    """One environment."""

    verifier: NamedVerifier | None = None

    def __init__(self, spec: EnvironmentSpec, *, source: str | None = None) -> None:
        provide_harness()
        self._spec, self._source = spec, source
        from verifiers.v1.utils.loaders import load_taskset

        self._taskset: Any = load_taskset(self._config(AgentOptions()).taskset)

    def rows(self, limit: int | None) -> Iterator[JsonFields]:
        if limit is None and not self._taskset.bounded:
            raise UsageError(
                f"verifiers:{self._spec.name} has tasks without end",
                hint="say how many with -n, such as -n 100",
            )
        for task in itertools.islice(self._taskset, limit):
            data = task.data.model_dump(mode="json", exclude_none=True)
            yield {
                PARAMS_KEY: {"input": _prompt_items(task.data)},
                ROW_KEY: {"key": task.key, "type": type(task).__name__, "data": data},
            }

    def agent(self, options: AgentOptions) -> VerifiersV1Agent:
        from verifiers.v1.utils.loaders import load_environment

        try:
            environment = load_environment(self._config(options))
        except (TypeError, ValueError, ImportError) as error:
            raise UsageError(f"--env {self._spec.text}: {error}", hint=INSTALL_V1) from error
        return VerifiersV1Agent(environment, self._spec, options, source=self._source)

    def _config(self, options: AgentOptions) -> Any:
        from verifiers.v1.utils.loaders import env_config_type, resolve_env_config

        own = self._spec.options
        try:
            kind = env_config_type(self._spec.name, str(own.get("env", "")))
            taskset, others = _split(self._spec, set(kind.model_fields))
            raw: JsonFields = {
                "id": own.get("env", ""),
                "taskset": {"id": self._spec.name, **taskset},
                "interception": {"type": "server"},
            }
            for role, declared in _roles(kind).items():
                raw[role] = _role_settings(self._spec, declared, options.max_turns)
            return resolve_env_config(_merged(raw, others))
        except (TypeError, ValueError, ImportError, AttributeError) as error:
            raise UsageError(
                f"--env {self._spec.text}: {_first_line(error)}",
                hint="NAME?field=value sets the taskset's fields, ?agent.max_turns=5 those of a role; see docs/environments.md",
            ) from error


def _split(spec: EnvironmentSpec, fields: set[str]) -> tuple[JsonFields, JsonFields]:
    """Split options into taskset fields and other config fields, which start with a config field's name and a dot."""
    taskset: JsonFields = {}
    others: JsonFields = {}
    for key, value in spec.options.items():
        if key in OWN_OPTIONS:
            continue
        *path, name = key.removeprefix("taskset.").split(".")
        is_other = bool(path) and path[0] in fields and not key.startswith("taskset.")
        inner: Any = others if is_other else taskset
        for step in path:
            inner = inner.setdefault(step, {})
        inner[name] = value
    return taskset, others


def _roles(kind: Any) -> dict[str, Any]:
    from verifiers.v1.configs.agent import AgentConfig

    fields = kind.model_fields.items()
    return {name: field.default for name, field in fields if isinstance(field.default, AgentConfig)}


def _role_settings(spec: EnvironmentSpec, declared: Any, max_turns: int) -> JsonFields:
    """Defaults for a role: our harness instead of the library's, this machine instead of a remote runtime, and a turn limit."""
    from verifiers.v1.runtimes import PrimeConfig
    from verifiers.v1.utils.loaders import default_harness_id

    settings: JsonFields = {}
    bundled = default_harness_id(spec.name)
    if "harness" in spec.options:
        settings["harness"] = {"id": spec.options["harness"]}
    elif (bundled if declared.harness is None else declared.harness.id) in STOCK_LOOPS:
        settings["harness"] = {"id": HARNESS}
    if "runtime" in spec.options or isinstance(declared.runtime, PrimeConfig):
        settings["runtime"] = {"type": spec.options.get("runtime", "subprocess")}
    if declared.max_turns is None:
        settings["max_turns"] = max_turns
    return settings


def _merged(base: JsonFields, over: Mapping[str, Any]) -> JsonFields:
    merged = dict(base)
    for key, value in over.items():
        mine = merged.get(key)
        merged[key] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged


def _first_line(error: BaseException) -> str:
    return cut(" ".join(str(error).split()), 500)


def _prompt_items(data: Any) -> list[ItemJson]:
    """The prompt as the task row shows it; the prompt actually used is stored with the rollout."""
    messages: list[object] = []
    if data.system_prompt:
        messages.append({"role": "system", "content": data.system_prompt})
    if isinstance(data.prompt, str):
        messages.append({"role": "user", "content": data.prompt})
    else:
        messages += [message.model_dump(mode="json", exclude_none=True) for message in data.prompt or []]
    return items_of(messages)


class Played(NamedTuple):
    """One agent's trace in an episode."""

    trace: Any
    session: ProgramSession

    @property
    def role(self) -> str:
        return str(self.trace.agent.name)


class VerifiersV1Agent:
    """Plays one episode per rollout."""

    name = "verifiers"

    def __init__(
        self, environment: Any, spec: EnvironmentSpec, options: AgentOptions, *, source: str | None
    ) -> None:
        self._environment, self._spec, self._options, self._source = environment, spec, options, source
        self._player = str(spec.options.get("player", ""))
        roles = list(_roles(type(environment.config)))
        if self._player and self._player not in roles:
            raise UsageError(
                f"--env …?player={self._player}: no such role", hint=f"there are {', '.join(roles)}"
            )
        self._recording: Recording | None = None
        self._serving: asyncio.Task[None] | None = None
        self._end = asyncio.Event()

    async def prepare(self) -> Preparation:
        return Preparation(
            needs=(f"{ROW_KEY}.data",),
            judges=True,
            may_lack_prompt=True,
            fingerprint={
                "environment": self._spec.text,
                "verifiers": PIN_V1,
                "source": self._source,
                "max_turns": self._options.max_turns,
            },
        )

    async def start(self, model: Model) -> None:
        """Start the proxy and the services shared by all episodes of the environment."""
        self._recording = Recording(model, max_response_bytes=self._options.max_response_bytes)
        await self._recording.start(self._options.out)
        ready = asyncio.Event()
        self._serving = asyncio.ensure_future(self._serve(ready))
        opened = asyncio.ensure_future(ready.wait())
        try:
            await asyncio.wait({self._serving, opened}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        error = self._serving.exception() if self._serving.done() else None
        if error is not None:
            raise UsageError(
                f"--env {self._spec.text} does not start: {_first_line(error)}",
                hint='try it alone: python -c "import verifiers; verifiers.load_environment(NAME)"',
            ) from error

    async def _serve(self, ready: asyncio.Event) -> None:
        """Keep the environment's servers running. One task enters and leaves their contexts, as their cancel scopes require."""
        async with self._environment.serving():
            ready.set()
            await self._end.wait()

    async def close(self) -> None:
        self._end.set()
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)
        if self._recording is not None:
            await self._recording.close()

    @property
    def notes(self) -> list[str]:
        """Messages for the user at the end of a run."""
        return self._recording.proxy.notes() if self._recording is not None else []

    async def run(self, task: Task, sample: int) -> Trajectory:
        assert self._recording is not None, "the agent has not been started"
        parts: dict[str, Played] = {}

        async def abandon(error: BaseException) -> None:
            await self._close(parts)
            _attach(error, list(parts.values()))

        async with OnErrorAwait(abandon):
            episode = await self._play(task, sample, parts)
            await self._close(parts)
            return self._outcome(episode, list(parts.values()))

    async def _close(self, parts: Mapping[str, Played]) -> None:
        assert self._recording is not None
        for part in parts.values():
            await self._recording.proxy.close_session(part.session)

    async def _play(self, task: Task, sample: int, parts: dict[str, Played]) -> Any:
        """Play one episode to its end, or until the model is unreachable for good."""
        assert self._recording is not None
        recording = self._recording
        lost: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()

        def minted(trace: Any) -> None:
            session = recording.session(task, sample)
            parts[trace.id] = Played(trace, session)
            recording.proxy.add(session, relayed_as=trace.id)
            session.fatal.add_done_callback(lambda fatal: _pass_on(fatal, lost))

        playing = asyncio.ensure_future(
            self._environment.run_episode(self._task(task), self._context(), on_trace=minted)
        )
        try:
            waited: list[asyncio.Future[Any]] = [playing, lost]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                raise lost.result()
            return await playing
        finally:
            lost.cancel()
            if not playing.done():
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)

    def _task(self, task: Task) -> Any:
        """The library's task object, made from the row as the library's servers make it."""
        kind = type(self._environment.taskset).task_type()
        data = kind.data_type().model_validate(task[ROW_KEY]["data"])
        return kind(data, self._environment.config.taskset.task)

    def _context(self) -> Any:
        """The library's model context: one client for the run, whose calls name their trace in a header."""
        from verifiers.v1.clients import EvalClientConfig, ModelContext

        assert self._recording is not None
        proxy = self._recording.proxy
        client = EvalClientConfig(base_url=f"{proxy.url}/r/{proxy.relay_secret}/v1", api_key_var=KEY_VARIABLE)
        return ModelContext(model=proxy.model_name, client=client)

    # -- what an episode is -------------------------------------------------------------------------------------------

    def _outcome(self, episode: Any, parts: list[Played]) -> Trajectory:
        """The rollout; raises `Failure` for an episode that cannot be a rollout."""
        failures = [part.session.failure for part in parts if part.session.failure is not None]
        if failures:
            raise failures[0]
        own = [part for part in parts if part.role == self._role(parts)]
        for part in own:
            if not part.trace.ok and not part.trace.timing.finalize.start:
                raise Failure("agent", "agent", _error_text(part.trace.errors))
        if not own or not own[0].session.calls:
            raise Failure(
                "agent", "agent", _error_text(episode.errors) or "the environment made no model call"
            )
        if episode.errors and not _is_judging(episode.errors[-1]):
            raise Failure("agent", "agent", _error_text(episode.errors))
        verdict, why_not = _verdict(episode, parts, own)
        return self._trajectory(own[0], parts, verdict, why_not)

    def _role(self, parts: list[Played]) -> str:
        """The role whose episode becomes the rollout: the requested role, else the first trained one."""
        if self._player or not parts:
            return self._player
        return next((part.role for part in parts if part.trace.agent.trainable), parts[0].role)

    def _trajectory(
        self, main: Played, parts: list[Played], verdict: Verdict | None, why_not: str
    ) -> Trajectory:
        sequences, records = _sequences(main, parts)
        others = [call for part in parts if part is not main for call in part.session.calls]
        calls = main.session.calls
        response = merged_response(sequences[0], calls, others, numbers=sequence_numbers(sequences))
        if main.trace.stop_condition in LIMITS:
            response["status"] = "incomplete"
            response["incomplete_details"] = {"reason": main.trace.stop_condition}
        last = next(call for call in calls if call.number == sequences[0].calls[-1])
        return Trajectory(
            response=response,
            endpoint=last.endpoint,
            api=last.upstream,
            requests=sum(call.requests for call in (*calls, *others)),
            wasted=wasted_usages((*calls, *others)),
            verdict=verdict,
            verdict_failure=None if verdict is not None else Failure("verifier", "verifier", why_not),
            verifier=f"verifiers:{self._spec.name}",
            own={
                "played": sequences[0].prompt,
                "sequences": records,
                "environment": {
                    "player": main.role,
                    "stop": main.trace.stop_condition,
                    "sessions": {part.session.origin.session: part.role for part in parts},
                },
            },
        )


def _sequences(main: Played, parts: list[Played]) -> tuple[list[Sequence], list[SequenceJson]]:
    """Sequences of all agents, those of the main one first: as objects, and as row records with agent and session."""
    sequences: list[Sequence] = []
    records: list[SequenceJson] = []
    for part in [main, *(part for part in parts if part is not main)]:
        for sequence in merge_calls(part.session.calls):
            is_main = part is main and sequence.role == "main"
            record = sequence.to_record(with_text=not is_main)
            if part is not main and sequence.role == "main":
                record["role"] = "sub"
            record["agent"], record["session"] = part.role, part.session.origin.session
            records.append(record)
            sequences.append(sequence)
    return sequences, records


def _verdict(episode: Any, parts: list[Played], own: list[Played]) -> tuple[Verdict | None, str]:
    """The mean reward over the role's traces, or why there is no verdict."""
    if episode.errors:
        return None, _error_text(episode.errors)
    for part in parts:
        if not part.trace.ok:
            return None, f"{part.role}: {_error_text(part.trace.errors)}"
    values: list[float] = []
    for part in own:
        rewards = part.trace.rewards
        missing = [name for name, reward in rewards.items() if reward is None]
        if missing or not rewards:
            stop = part.trace.stop_condition
            return None, f"no reward from {', '.join(missing) or 'any function'} (the episode ended: {stop})"
        value = sum(reward.value for reward in rewards.values())
        if _finite(value) is None:
            return None, f"the rewards add up to {value}"
        values.append(value)
    return Verdict(reward=sum(values) / len(values), numbers=_numbers(own[0].trace)), ""


def _numbers(trace: Any) -> dict[str, bool | int | float]:
    """The trace's metrics and weighted rewards; missing and non-finite values are omitted."""
    metrics = {name: value for name, value in trace.metrics.items() if name != "reward"}
    metrics |= {f"reward/{name}": reward.value for name, reward in trace.rewards.items()}
    return {name: number for name, value in metrics.items() if (number := _finite(value)) is not None}


def _finite(value: object) -> float | None:
    is_number = isinstance(value, int | float) and value == value and abs(value) != float("inf")
    return float(value) if is_number else None  # type: ignore[arg-type]


def _is_judging(error: Any) -> bool:
    """Whether an episode failed during scoring, after it had been played."""
    return ".finalize()" in error.message


def _error_text(errors: list[Any]) -> str:
    return cut(f"{errors[-1].type}: {errors[-1].message}", 2000) if errors else ""


def _pass_on(one: asyncio.Future[Failure], to: asyncio.Future[Failure]) -> None:
    if not one.cancelled() and not to.done():
        to.set_result(one.result())


def _attach(error: BaseException, parts: list[Played]) -> None:
    """Attach the partial response to the error that ended the rollout."""
    calls: list[RecordedCall] = [call for part in parts for call in part.session.calls]
    partial: ResponseJson | None = None
    with contextlib.suppress(StopIteration):
        main = next(part for part in parts if merge_calls(part.session.calls))
        partial = merged_response(merge_calls(main.session.calls)[0], main.session.calls)
    if isinstance(error, Failure):
        error.requests = sum(call.requests for call in calls)
        error.wasted += wasted_usages(call for call in calls if call.failure is not error)
        if partial is not None:
            error.partial = {**partial, "status": "failed"}
    elif isinstance(error, asyncio.CancelledError) and partial is not None:
        cut: ResponseJson = {
            **partial,
            "status": "incomplete",
            "incomplete_details": {"reason": "cancelled"},
        }
        leave_behind(error, cut, sum(call.requests for call in calls))
