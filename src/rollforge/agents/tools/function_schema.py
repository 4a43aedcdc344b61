"""A Python function as a tool: the schema the model reads, and the check of the arguments it sends.

One msgspec type, built from the annotations, gives both the JSON schema and the conversion of arguments, so that they cannot disagree.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import docstring_parser
import msgspec

from rollforge.agents.tools.base import ToolError, function_tool
from rollforge.errors import UsageError
from rollforge.json_shapes import SchemaJson, ToolJson
from rollforge.records import to_json
from rollforge.runtime.typed_decoding import convert


class DocstringTexts(NamedTuple):
    """The parts of a docstring that a tool's schema needs."""

    description: str
    parameters: dict[str, str]
    """Description of each parameter, on one line."""


def read_docstring(function: Callable[..., Any]) -> DocstringTexts:
    """Description and parameter texts of a numpy, Google or reST docstring; both empty when there is none."""
    text = inspect.getdoc(function) or ""
    try:
        parsed = docstring_parser.parse(text)
    except (docstring_parser.ParseError, ValueError, IndexError):  # a text in none of the styles
        return DocstringTexts(text.strip(), {})
    texts = {
        name.strip().lstrip("*"): " ".join(parameter.description.split())
        for parameter in parsed.params
        if parameter.description
        for name in parameter.arg_name.split(",")
    }
    return DocstringTexts(
        (parsed.description or "").strip(),
        {name: description for name, description in texts.items() if description},
    )


class FunctionTool:
    """A function with its schema. `bind` converts and checks arguments; calling is left to the session."""

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        self.function = function
        self.name = name or function.__name__
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(type(function), "__call__", None)  # noqa: B004  (the method itself is asked, not whether there is one)
        )
        self._parameters = _parameters(self.name, function)
        self._hints = _hints(self.name, function)
        self._arguments = _arguments_type(self.name, self._parameters, self._hints)
        self.schema = self._schema()

    def bind(self, arguments: Mapping[str, object]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments for the function; raises `ToolError` when they do not fit the types."""
        try:
            values = convert(arguments, self._arguments)
        except msgspec.ValidationError as error:
            text = f"Invalid arguments for {self.name}: {error}"
            raise ToolError("bad-arguments", to_json({"error": text}).decode()) from error
        args: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter in self._parameters:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                args.append(
                    getattr(values, parameter.name) if parameter.name in arguments else parameter.default
                )
            elif parameter.name in arguments:
                keywords[parameter.name] = getattr(values, parameter.name)
        return args, keywords

    def _schema(self) -> ToolJson:
        docstring = read_docstring(self.function)
        try:
            whole = msgspec.json.schema(self._arguments)
        except TypeError as error:
            raise UsageError(
                f"the tool {self.name}: a parameter's type has no JSON schema: {error}",
                hint="use str, int, float, bool, list, dict, Literal, Enum, TypedDict, a dataclass or a union with None",
            ) from error
        definitions = whole.get("$defs", {})
        own = definitions.pop(whole["$ref"].rsplit("/", 1)[-1])
        properties = own.get("properties", {})
        for name, part in properties.items():
            text = _annotated_text(self._hints.get(name)) or docstring.parameters.get(name)
            if text and "description" not in part:
                part["description"] = text
        parameters: SchemaJson = {
            "type": "object",
            "properties": properties,
            "required": own.get("required", []),
            "additionalProperties": False,
        }
        if definitions:
            parameters["$defs"] = definitions
        return function_tool(self.name, docstring.description, parameters)


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the tool {name} has no signature: {error}",
            hint="wrap it in a function of your own with named, typed parameters",
        ) from error
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(
                f"the tool {name} takes *{parameter.name}",
                hint="a schema cannot say that; name its parameters",
            )
    return parameters


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else getattr(type(function), "__call__", function)  # noqa: B004
    try:
        return get_type_hints(target, include_extras=True)
    except Exception as error:  # annotations are the user's code
        raise UsageError(
            f"the tool {name}: its annotations cannot be read: {type(error).__name__}: {error}",
            hint="import the names that the annotations use at the top of the file",
        ) from error


def _arguments_type(
    name: str, parameters: list[inspect.Parameter], hints: dict[str, Any]
) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in parameters:
        kind = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind, _default(parameter.default)))
    try:
        return msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the tool {name}: {error}",
            hint="use plain types in its signature: str, int, float, bool, list, dict",
        ) from error


def _default(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return msgspec.field(default_factory=lambda: value)


def _annotated_text(kind: Any) -> str | None:
    """The text in `Annotated[int, "how many"]`."""
    if get_origin(kind) is Annotated:
        for extra in get_args(kind)[1:]:
            if isinstance(extra, str):
                return extra
    return None
