"""JSON objects of the model APIs, as plain dictionaries whose keys and values are known.

Names that end in `Json` are such dictionaries. Their types follow the API's documentation and are not checked at run time, so
code must still narrow untrusted values. They are dictionaries instead of records so that unlisted fields pass through. Do not
decode into them: msgspec would drop unlisted fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict, TypeVar, cast

Shape = TypeVar("Shape", bound=Mapping[str, object])


class TokenLogprobJson(TypedDict, total=False):
    """One generated token with its logprob and its alternatives."""

    token: str
    id: int
    """Token id, in llama.cpp's answers."""
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TokenLogprobJson]


class ImageJson(TypedDict, total=False):
    """An image in a chat message."""

    url: str | None
    detail: str


class PartJson(TypedDict, total=False):
    """One part of a message's content, in the Responses API or in Chat Completions."""

    type: str
    text: str | None
    refusal: str
    annotations: list[object]
    logprobs: list[TokenLogprobJson] | None
    image_url: str | ImageJson | None


class CallFactsJson(TypedDict):
    """Facts that rollforge adds to a tool's output."""

    seconds: float
    error: str | None


class ItemJson(TypedDict, total=False):
    """An item of the Responses API: a message, reasoning, a function call, or the output of one."""

    type: str
    id: str
    role: str | None
    status: str
    content: str | list[PartJson] | None
    summary: list[PartJson]
    """Only for reasoning items."""
    encrypted_content: str | None
    call_id: str | None
    name: str | None
    arguments: str | None
    """Only for function calls: the arguments as the model wrote them."""
    output: str | list[PartJson] | None
    """Only for outputs of function calls."""
    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float | None]
    routed_experts: object
    _rf: CallFactsJson


SchemaJson = TypedDict(
    "SchemaJson",
    {
        "type": str | list[str],
        "description": str,
        "properties": "dict[str, SchemaJson]",
        "required": list[str],
        "additionalProperties": "bool | SchemaJson",
        "items": "SchemaJson",
        "enum": list[object],
        "$defs": "dict[str, SchemaJson]",
    },
    total=False,
)
"""A JSON schema; keywords listed here are those that rollforge reads or writes."""


class FunctionJson(TypedDict, total=False):
    """A function that a model may call, as Chat Completions nests it."""

    name: str | None
    description: str | None
    parameters: SchemaJson | None
    strict: bool | None


class ToolJson(FunctionJson, total=False):
    """A tool as the Responses API lists it; Chat Completions nests all but its type in `function`."""

    type: str
    function: FunctionJson


class ToolChoiceJson(TypedDict, total=False):
    """Which function a model must call."""

    type: str
    name: str | None
    function: FunctionJson


class FormatJson(TypedDict, total=False):
    """Required format of the answer: text, JSON, or JSON with a schema."""

    type: str
    name: str
    schema: object
    strict: bool | None
    json_schema: FormatJson
    """The schema, in Chat Completions."""


class TextOptionsJson(TypedDict, total=False):
    """Options for the text of an answer."""

    format: FormatJson
    verbosity: str


class ReasoningOptionsJson(TypedDict, total=False):
    """Options for a reasoning model."""

    effort: str | None
    summary: str | None


class ParamsJson(TypedDict, total=False):
    """A request of the Responses API, as in a row's `responses_create_params`."""

    input: str | list[ItemJson]
    instructions: str | None
    model: str
    tools: list[ToolJson]
    tool_choice: str | ToolChoiceJson | None
    parallel_tool_calls: bool | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    top_logprobs: int | None
    stop: str | list[str]
    seed: int
    text: TextOptionsJson | None
    reasoning: ReasoningOptionsJson | None
    include: list[str] | None
    metadata: dict[str, str] | None
    previous_response_id: str | None
    prompt: object
    background: bool | None
    stream: bool
    store: bool
    user: str
    return_token_ids: bool


class TokenDetailsJson(TypedDict, total=False):
    """Tokens by kind."""

    cached_tokens: int | None
    reasoning_tokens: int | None


class UsageJson(TypedDict, total=False):
    """Token counts of the Responses API."""

    input_tokens: int | None
    input_tokens_details: TokenDetailsJson | None
    output_tokens: int | None
    output_tokens_details: TokenDetailsJson | None
    total_tokens: int | None
    model_calls: int
    """Number of calls that were summed, for a rollout of a program."""
    sequences: int
    drift_turns: int


class IncompleteJson(TypedDict, total=False):
    """Why an answer is incomplete."""

    reason: str | None
    inferred: bool
    """Whether rollforge inferred the truncation from the token count although the server reported a complete answer."""


class ErrorJson(TypedDict, total=False):
    """An error as servers describe it."""

    message: str | None
    type: str
    param: str | None
    code: str | int | None
    status: int
    n_prompt_tokens: int
    n_ctx: int
    """Context size; llama.cpp reports it together with the prompt's length."""


class ResponseJson(TypedDict, total=False):
    """An answer of the Responses API."""

    id: str
    object: str
    created_at: float
    model: str | None
    status: str
    error: ErrorJson | None
    incomplete_details: IncompleteJson | None
    output: list[ItemJson]
    parallel_tool_calls: bool
    tool_choice: str | ToolChoiceJson
    tools: list[ToolJson]
    usage: UsageJson | None
    finish_reason: str | None
    """Chat's finish reason, for which the Responses API has no field."""
    instructions: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    previous_response_id: str | None
    reasoning: ReasoningOptionsJson
    text: TextOptionsJson
    store: bool
    truncation: str
    user: str | None
    metadata: dict[str, str]
    system_fingerprint: str
    program: ProgramFactsJson
    """How the program ended, for a rollout of a program."""
    result: str
    """Content of the program's result file."""
    artifacts: list[ArtifactJson]
    artifacts_root: str | None
    workdir: str | None
    """The program's working directory; only the verifier sees it."""


class ArtifactJson(TypedDict, total=False):
    """A file that a program left behind."""

    path: str
    bytes: int
    sha256: str | None
    file: str | None
    error: str


class ProgramFactsJson(TypedDict):
    """How a program ended."""

    session: str
    exit_code: int | None
    seconds: float
    calls: int
    repeated: int
    stdout: str
    stderr: str


class DriftJson(TypedDict):
    """Where a sequence's tokens differ from those that the model saw and wrote."""

    turn: int
    tokens: int
    turns: int


class SequenceJson(TypedDict, total=False):
    """One sequence of a program's calls, as in `_rf.sequences`."""

    role: str
    turns: int
    calls: list[int]
    input_tokens: int | None
    output_tokens: int | None
    fidelity: str
    drift: DriftJson
    prompt: ParamsJson
    output: list[ItemJson]
    agent: str
    """The agent's name, in an environment with several agents."""
    session: str
    """Session of its calls in the calls file, in an environment with several agents."""


class EpisodeFactsJson(TypedDict, total=False):
    """How an episode of an environment with several agents was played."""

    player: str
    """The role whose episode became the rollout."""
    stop: str | None
    sessions: dict[str, str]
    """Session in the calls file → role."""


class PlayedJson(TypedDict, total=False):
    """Fields that an agent adds to the row's `_rf`."""

    played: ParamsJson
    """The prompt actually used, if the agent or environment made it."""
    sequences: list[SequenceJson]
    program: ProgramFactsJson
    environment: EpisodeFactsJson


class OwnJson(PlayedJson, total=False):
    """The `_rf` of a row: how the rollout was made and judged."""

    started: float
    seconds: float
    endpoint: str
    requests: int
    api: str
    verify_seconds: float | None
    verifier: str | None
    fingerprint: str
    mode: str | None
    stage: str
    cost: float | None
    judge_cost: float | None


class AgentRefJson(TypedDict, total=False):
    """The agent that a row is for."""

    type: str
    name: str


class RowJson(TypedDict, total=False):
    """A row of NeMo Gym or rollforge: a task, a rollout, or a server's answer to one."""

    responses_create_params: ParamsJson
    response: ResponseJson | None
    reward: float | None
    agent_ref: AgentRefJson
    taskset: str
    task_id: object
    """Only in typed tasks: a name, or an object with task set and name."""
    task_input: object
    prompt: object
    completion: object
    messages: list[ChatMessageJson]
    """Only in rows in chat form, as are `prompt` and `completion`."""
    tools: list[ToolJson]
    _ng_task_index: int
    _ng_rollout_index: int
    _ng_attempt_index: int
    _ng_failure_class: str
    _ng_failure_terminal: bool
    _ng_failure_message: str
    _ng_failure_judge_error: str
    _ng_no_persist: bool
    judge_failed: bool
    failure_kind: str
    failure_reason: str | None
    mask_sample: bool
    verification_skipped: bool
    expected_answer: object
    verifier_metadata: object
    _rf: OwnJson


FailureRowJson = TypedDict(
    "FailureRowJson",
    {
        "_ng_task_index": int,
        "_ng_rollout_index": int,
        "_ng_attempt_index": int,
        "_ng_failure_class": str,
        "_ng_failure_terminal": bool,
        "class": str,
        "boundary": str,
        "message": str,
        "failure_kind": str,
        "failure_reason": str,
        "attempt": int,
        "status": int | None,
        "at": float,
        "seconds": float,
        "requests": int,
        "agent_ref": AgentRefJson,
        "response": object,
        "_rf": OwnJson,
    },
    total=False,
)
"""A line of a run's failures file: one failed attempt."""


class ChatFunctionCallJson(TypedDict, total=False):
    """The function of a call in Chat Completions."""

    name: str | None
    arguments: str | None


class ChatCallJson(TypedDict, total=False):
    """A function call in Chat Completions."""

    index: int
    """Only in the chunks of a stream."""
    id: str | None
    type: str
    function: ChatFunctionCallJson


class ChatMessageJson(TypedDict, total=False):
    """A message of Chat Completions."""

    role: str | None
    content: str | list[PartJson] | None
    refusal: str | None
    reasoning_content: str
    reasoning: str
    tool_calls: list[ChatCallJson]
    tool_call_id: str | None


class ChatLogprobsJson(TypedDict, total=False):
    """The logprobs of a choice."""

    content: list[TokenLogprobJson] | None
    refusal: list[TokenLogprobJson] | None


class ChatChoiceJson(TypedDict, total=False):
    """One answer of a chat completion."""

    index: int
    message: ChatMessageJson
    finish_reason: str | None
    logprobs: ChatLogprobsJson | None
    token_ids: list[int]
    prompt_token_ids: list[int]
    error: object


class ChatUsageJson(TypedDict, total=False):
    """Token counts of Chat Completions."""

    prompt_tokens: int | None
    prompt_tokens_details: TokenDetailsJson | None
    completion_tokens: int | None
    completion_tokens_details: TokenDetailsJson | None
    total_tokens: int | None


class ChatCompletionJson(TypedDict, total=False):
    """An answer of Chat Completions."""

    id: str
    object: str
    created: float
    model: str
    system_fingerprint: str
    choices: list[ChatChoiceJson]
    usage: ChatUsageJson | None
    prompt_token_ids: list[int]
    error: object


class ChatBodyJson(TypedDict, total=False):
    """A request of Chat Completions."""

    model: str
    messages: list[ChatMessageJson]
    tools: list[ToolJson]
    tool_choice: str | ToolChoiceJson | None
    parallel_tool_calls: bool | None
    max_tokens: int | None
    max_completion_tokens: int | None
    n: int | None
    logprobs: bool
    top_logprobs: int | None
    reasoning_effort: str
    temperature: float | None
    seed: int
    response_format: FormatJson
    return_token_ids: bool
    metadata: dict[str, str] | None
    stream: bool
    stream_options: StreamOptionsJson


class ModelJson(TypedDict, total=False):
    """An entry of a model list, with the fields that OpenAI's and Anthropic's clients read."""

    id: str
    object: str
    created: int
    owned_by: str
    type: str
    display_name: str
    created_at: str
    max_model_len: int
    context_length: int


class ModelListJson(TypedDict):
    """A list of models."""

    object: str
    data: list[ModelJson]
    has_more: bool
    first_id: str
    last_id: str


class StreamOptionsJson(TypedDict, total=False):
    """Options of a stream, such as usage in its last chunk."""

    include_usage: bool


def without(row: Shape, keys: Iterable[str]) -> Shape:
    """A copy of `row` without `keys`."""
    return cast("Shape", {key: value for key, value in row.items() if key not in keys})


def prompt_in(params: ParamsJson) -> ParamsJson:
    """The prompt in a request: `input`, `instructions` and `tools`, without empty fields."""
    prompt: ParamsJson = {}
    if (items := params.get("input")) is not None and items != []:
        prompt["input"] = items
    if (instructions := params.get("instructions")) is not None:
        prompt["instructions"] = instructions
    if (tools := params.get("tools")) is not None and tools != []:
        prompt["tools"] = tools
    return prompt


def played_in(own: object) -> ParamsJson | None:
    """The prompt actually used, from a row's `_rf`; older rows of environments contain only its items."""
    played = own.get("played") if isinstance(own, dict) else None
    if isinstance(played, list):
        return {"input": items_in(played)} if played else None
    return cast("ParamsJson", played) if isinstance(played, dict) and played else None


def items_in(value: object) -> list[ItemJson]:
    """The objects in a JSON list; other entries, and other values, are ignored."""
    return cast("list[ItemJson]", _objects(value))


def tools_in(value: object) -> list[ToolJson]:
    """The objects in a list of tools."""
    return cast("list[ToolJson]", _objects(value))


def parts_in(value: object) -> list[PartJson]:
    """The objects in the content of a message or in a summary."""
    return cast("list[PartJson]", _objects(value))


def _objects(value: object) -> list[object]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
