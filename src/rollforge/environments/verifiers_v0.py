"""Environments of the verifiers library, version 0 (`load_environment`): `verifiers:NAME[?arg=value&…]`.

The options are the arguments of the environment's `load_environment`. Its rollouts run in this process and call our model client,
so our retries, limits and token capture apply. A reward function that raises, or returns no finite number, makes the rollout
unjudged: the library itself would score it 0. A group verifier gives the rewards of a whole group after its last sample.

The last release with version 0 is 0.3.1. Environments are separate packages; rollforge installs none.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypedDict

import msgspec

from rollforge.agents.base import AgentOptions, Preparation, Trajectory
from rollforge.agents.transcript import Transcript
from rollforge.conversations.chat_items import items_of, message_of, messages_of_response
from rollforge.endpoint import Model
from rollforge.environments.base import ROW_KEY, EnvironmentSpec, NamedVerifier, missing_package
from rollforge.environments.verifiers_release import INSTALL_V0
from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import (
    ParamsJson,
    ResponseJson,
    TokenDetailsJson,
    ToolJson,
    items_in,
    prompt_in,
)
from rollforge.records import PARAMS_KEY, JsonFields, Response, Task, Verdict

SPLITS = ("train", "eval")

_RAISED: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("raised", default=None)
"""Exceptions of reward functions during the scoring of one rollout."""


class VerifiersV0:
    """One environment."""

    verifier: NamedVerifier | None = None

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._split = str(spec.options.get("split", "train"))
        if self._split not in SPLITS:
            raise UsageError(f"--env verifiers:…?split={self._split}", hint=f"there are {', '.join(SPLITS)}")
        self._environment = load(spec.name, _arguments(spec))
        if self._environment.rubric.has_group_rewards:
            options: JsonFields = {"name": spec.name, "arguments": _arguments(spec)}
            self.verifier = NamedVerifier(f"{__name__}:GroupRewards", options)

    def rows(self, limit: int | None) -> Iterator[JsonFields]:
        get = self._environment.get_dataset if self._split == "train" else self._environment.get_eval_dataset
        for number, row in enumerate(get(limit if limit is not None else -1)):
            plain = {key: value for key, value in row.items() if value is not None}
            plain.setdefault("example_id", number)
            yield {PARAMS_KEY: {"input": items_of(plain.get("prompt"))}, ROW_KEY: plain}

    def agent(self, options: AgentOptions) -> VerifiersAgent:
        return VerifiersAgent(self._environment, self._spec, judges=self.verifier is None)


def load(name: str, arguments: Mapping[str, Any]) -> Any:
    """Load the environment, with its reward functions wrapped to report exceptions."""
    try:
        importlib.import_module("verifiers.legacy")
    except ImportError as error:
        raise missing_package("verifiers", INSTALL_V0) from error
    module_name = name.rpartition("/")[2].replace("-", "_")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"--env verifiers:{name}: {error}", hint=INSTALL_V0) from error
    maker = getattr(module, "load_environment", None)
    if maker is None:
        raise UsageError(
            f"the module {module_name} has no load_environment", hint="is it an environment of version 0?"
        )
    unknown = [key for key in arguments if not _takes(maker, key)]
    if unknown:
        argument_names = ", ".join(inspect.signature(maker).parameters) or "none"
        raise UsageError(
            f"{module_name}.load_environment takes no argument {unknown[0]!r}",
            hint=f"its arguments: {argument_names}",
        )
    environment = maker(**arguments)
    _watch_rewards(environment.rubric)
    return environment


def _arguments(spec: EnvironmentSpec) -> dict[str, Any]:
    return {key: value for key, value in spec.options.items() if key != "split"}


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _watch_rewards(rubric: Any) -> None:
    """Wrap every reward function, so that an exception is recorded before the library turns it into 0."""
    rubric.funcs = [_watched(function) for function in rubric.funcs]
    for inner in getattr(rubric, "rubrics", ()):
        _watch_rewards(inner)


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, wrapped to record exceptions and invalid return values, both of which the library turns into 0."""

    @functools.wraps(function)
    async def asked(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
            return _checked(await value if inspect.isawaitable(value) else value, kwargs)
        except Exception as error:  # a reward function is user code: record its error and raise it again
            _note(function, error)
            raise

    return asked


def _checked(value: Any, arguments: Mapping[str, Any]) -> Any:
    """A reward, or a list of one per group member; raises for anything else, None included."""
    if hasattr(value, "tolist"):  # an array of numpy, or a tensor
        value = value.tolist()
    if not isinstance(value, list | tuple):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"the reward is {number}, which is not finite")
        return number
    sizes = [len(arguments[name]) for name in ("states", "completions", "prompts") if name in arguments]
    if sizes and len(value) != sizes[0]:
        raise ValueError(f"{len(value)} rewards for a group of {sizes[0]}")
    return [_checked(one, {}) for one in value]


def _note(function: Callable[..., Any], error: Exception) -> None:
    raised = _RAISED.get()
    if raised is not None:
        name = getattr(function, "__name__", "a reward function")
        raised.append(f"{name} raised {type(error).__name__}: {error}")


class VerifiersAgent:
    """Runs the environment's own rollout loop with our model client."""

    name = "verifiers"

    def __init__(self, environment: Any, spec: EnvironmentSpec, *, judges: bool) -> None:
        self._environment, self._spec, self._judges = environment, spec, judges
        self._model: Model | None = None

    async def prepare(self) -> Preparation:
        return Preparation(
            needs=(ROW_KEY,),
            judges=self._judges,
            may_lack_prompt=True,
            fingerprint={"environment": self._spec.text, "verifiers": version("verifiers")},
        )

    async def start(self, model: Model) -> None:
        self._model = model

    async def close(self) -> None:
        """Run the environment's teardown, if it has one."""
        teardown = getattr(self._environment, "teardown", None)
        if teardown is not None and inspect.iscoroutinefunction(teardown):
            await teardown()

    async def run(self, task: Task, sample: int) -> Trajectory:
        assert self._model is not None, "the agent has not been started"
        client = make_client(self._model, task.params, sample)
        raised: list[str] = []
        mark = _RAISED.set(raised)
        try:
            state = await self._rollout(dict(task[ROW_KEY]), client)
        except asyncio.CancelledError as cancelled:
            client.recorder.leave_on(cancelled)
            raise
        finally:
            _RAISED.reset(mark)
        recorder: Recorder = client.recorder
        if recorder.failure is not None:
            raise recorder.lost()
        error = state.get("error")
        if error is not None:
            raise recorder.lost(Failure("agent", "agent", f"{type(error).__name__}: {error}"))
        recorder.hear(state.get("completion"))
        return recorder.finish(self._verdict(state, raised), f"verifiers:{self._spec.name}", raised)

    async def _rollout(self, row: dict[str, Any], client: Any) -> Any:
        if self._judges:
            return await self._environment._run_rollout_state(row, client, client.recorder.model_name, {})
        return await self._environment.rollout(row, client, client.recorder.model_name, {})

    def _verdict(self, state: Mapping[str, Any], raised: list[str]) -> Verdict | None:
        reward = state.get("reward")
        if not self._judges or raised or not isinstance(reward, int | float):
            return None
        metrics = state.get("metrics") or {}
        numbers = {
            str(name): value for name, value in metrics.items() if isinstance(value, bool | int | float)
        }
        return Verdict(
            reward=float(reward), numbers={key: value for key, value in numbers.items() if key != "reward"}
        )


class Recorder:
    """Transcript of one rollout, recorded from the environment's model requests."""

    def __init__(self, model: Model, params: ParamsJson, sample: int) -> None:
        self._model, self._params, self._sample = model, params, sample
        self._transcript: Transcript | None = None
        self._prompt: ParamsJson = {}
        self._heard = 0
        self.failure: Failure | None = None
        self.model_name = model.options.name

    async def respond(self, messages: Sequence[Any], tools: list[ToolJson] | None) -> ResponseJson:
        """Answer one model request of the environment."""
        params: ParamsJson = {**self._params, "tools": tools} if tools else self._params
        if self._transcript is None:
            first_params: ParamsJson = {**params, "input": items_of(messages)}
            self._prompt = prompt_in(first_params)
            self._transcript = Transcript(first_params)
        else:
            self._transcript.add_outputs(items_of(messages[self._heard :]))
        try:
            answer = await self._model.respond({**params, "input": items_of(messages)}, self._sample)
        except Failure as failure:
            self.failure = failure
            raise
        self._transcript.add_answer(answer)
        self._heard = len(messages) + 1
        return answer.response

    def hear(self, completion: object) -> None:
        """Append the environment's messages since the model's last turn."""
        messages = list(completion) if isinstance(completion, list) else []
        positions = [
            position for position, one in enumerate(messages) if message_of(one).get("role") == "assistant"
        ]
        if self._transcript is not None and positions:
            self._transcript.add_outputs(items_of(messages[positions[-1] + 1 :]))

    def lost(self, failure: Failure | None = None) -> Failure:
        """The failure that ended the rollout, with the turns so far."""
        cause = failure or self.failure
        assert cause is not None
        self.leave_on(cause)
        return cause

    def leave_on(self, error: BaseException) -> None:
        """Attach the turns so far to the error that ended the rollout."""
        if self._transcript is not None:
            self._transcript.leave_on(error)

    def finish(self, verdict: Verdict | None, verifier: str, raised: list[str]) -> Trajectory:
        """The trajectory of a finished rollout."""
        if self._transcript is None:
            raise Failure("agent", "agent", "the environment made no model call")
        failure = Failure("verifier", "verifier", "; ".join(raised[:3])) if raised else None
        return Trajectory(
            response=self._transcript.response(),
            endpoint=self._transcript.endpoint,
            api=self._transcript.api,
            requests=self._transcript.requests,
            wasted=self._transcript.wasted,
            verdict=verdict,
            verdict_failure=failure,
            verifier=verifier,
            own={"played": self._prompt},
        )


def make_client(model: Model, params: ParamsJson, sample: int) -> Any:
    """A client of the library's type that calls our model."""
    from verifiers.legacy.clients.client import Client
    from verifiers.legacy.types import Response as TheirResponse

    class OurClient(Client):  # type: ignore[misc]
        def __init__(self, recorder: Recorder) -> None:
            super().__init__(recorder)
            self.recorder = recorder

        def setup_client(self, config: Any) -> Any:
            return self.recorder

        async def to_native_tool(self, tool: Any) -> ToolJson:
            return {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                **({} if tool.strict is None else {"strict": tool.strict}),
            }

        async def to_native_prompt(self, messages: Any) -> tuple[Any, JsonFields]:
            return messages, {}

        async def get_native_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
        ) -> ResponseJson:
            return await self.recorder.respond(prompt, tools)

        async def raise_from_native_response(self, response: Any) -> None:
            """Do nothing: our client raises errors itself."""

        async def from_native_response(self, response: ResponseJson) -> Any:
            return TheirResponse.model_validate(_their_response(response))

        async def close(self) -> None:
            """Do nothing: the run closes its own client."""

    return OurClient(Recorder(model, params, sample))


class _TheirUsageJson(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    reasoning_tokens: int


class _TheirCallJson(TypedDict):
    id: str
    name: str
    arguments: str


class _TheirMessageJson(TypedDict):
    content: str | None
    reasoning_content: str | None
    tool_calls: list[_TheirCallJson] | None
    finish_reason: str
    is_truncated: bool


class _TheirResponseJson(TypedDict):
    """A model answer in the form that the library reads."""

    id: str
    created: int
    model: str
    usage: _TheirUsageJson | None
    message: _TheirMessageJson


def _their_response(raw: ResponseJson) -> _TheirResponseJson:
    response = Response(raw)
    usage = response.usage
    details = usage.get("output_tokens_details") or TokenDetailsJson()
    calls: list[_TheirCallJson] = [
        {"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in response.tool_calls
    ]
    reason = response.finish_reason
    counted: _TheirUsageJson = {
        "prompt_tokens": usage.get("input_tokens") or 0,
        "completion_tokens": usage.get("output_tokens") or 0,
        "total_tokens": usage.get("total_tokens") or 0,
        "reasoning_tokens": details.get("reasoning_tokens") or 0,
    }
    return {
        "id": str(raw.get("id") or ""),
        "created": int(raw.get("created_at") or 0),
        "model": str(raw.get("model") or ""),
        "usage": counted if usage else None,
        "message": {
            "content": response.text or None,
            "reasoning_content": response.reasoning or None,
            "tool_calls": calls or None,
            "finish_reason": reason if reason in ("stop", "length", "tool_calls") else "stop",
            "is_truncated": response.is_truncated,
        },
    }


class GroupRewardsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `GroupRewards`: the environment that judges."""

    name: str
    arguments: JsonFields = {}


class GroupRewards:
    """Judges whole groups by the environment's group reward functions."""

    is_group = True
    options_type = GroupRewardsOptions
    needs = (ROW_KEY,)

    def __init__(self, options: GroupRewardsOptions) -> None:
        self._environment = load(options.name, options.arguments)

    async def verify_group(self, task: Task, responses: Sequence[Response]) -> list[JsonFields | None]:
        """One verdict per response; none at all when a reward function raises."""
        raised: list[str] = []
        mark = _RAISED.set(raised)
        try:
            states = [self._state(task, response) for response in responses]
            await self._environment.rubric.score_group(states)
        finally:
            _RAISED.reset(mark)
        if raised:
            raise ValueError("; ".join(raised[:3]))
        return [{"reward": float(state["reward"]), **_numbers(state["metrics"])} for state in states]

    def _state(self, task: Task, response: Response) -> Any:
        from verifiers.legacy.types import State

        row = task[ROW_KEY]
        return State(
            input=row,
            prompt=row.get("prompt"),
            completion=messages_of_response(items_in(response.get("output"))),
            answer=row.get("answer", ""),
            info=row.get("info", {}),
            task=row.get("task"),
            trajectory=[],
            metrics={},
        )


def _numbers(metrics: Mapping[str, Any]) -> JsonFields:
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, bool | int | float) and name != "reward"
    }
