"""The verifier protocol, and loading of verifiers by name, by path, or as a function.

A verifier is any function `(task, response)`, sync or async, or a class with such a method `verify`. It returns a bool, a number,
a dict of numbers with `reward`, or None for "cannot judge". An exception means "failed to judge": it becomes a `Failure` of class
`verifier`, never a zero. A verifier named `verify_group` (or marked `is_group`) gets all responses to one task at once. Verifiers
are executed by `running`.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonFields, Response, Task, Verdict
from rollforge.registry import did_you_mean, load_target
from rollforge.runtime.typed_decoding import convert
from rollforge.text_safety.redaction import SECRETS
from rollforge.verifiers import VERIFIERS
from rollforge.verifiers.running.fingerprint import fingerprint_of

VerifierFunction = Callable[..., Any]

Mode = Literal["fast", "precise"]
"""How a verifier with two modes judges."""


class Judge(Protocol):
    """A verifier ready to run, as `collect` and `verify` use it."""

    @property
    def name(self) -> str:
        """The name given by the user: `math`, `my_file.py:verify`."""

    @property
    def fingerprint(self) -> str:
        """Digest of source, options and mode; verdicts with equal fingerprints are comparable."""

    async def start(self) -> None:
        """Start workers and set-up; raises `UsageError` if the verifier cannot run here."""

    async def judge(self, task: Task, response: Response) -> Verdict:
        """Return the verdict; raises `Failure("verifier", "verifier", …)` if there is none."""

    async def close(self) -> None:
        """Release everything `start` took."""


class Verifier(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded verifier with all its declared properties, before it runs."""

    name: str
    function: VerifierFunction
    """The function or the class itself."""
    fingerprint: str
    needs: tuple[str, ...] = ()
    """Task fields that it reads; a task file without them is refused before the first model call."""
    options: JsonFields = {}
    mode: Mode | None = None
    """None for a verifier without modes."""
    is_group: bool = False
    """Whether it scores all responses to one task together."""
    is_deterministic: bool = True
    """Whether equal answers to a task get equal verdicts, so that they can share one call."""
    is_cheap: bool = False
    """Whether it is fast and safe enough to be called directly in the event loop."""
    is_cheap_for: Callable[[Task], bool] | None = None
    """For a cheap verifier: whether this task is cheap too; other tasks are judged in worker processes."""
    reward_range: tuple[float, float] | None = None
    """The lowest and highest reward, if declared."""
    warning: str | None = None
    """Warning about running it with these options, such as a missing sandbox; shown by every command."""
    gold: Callable[[Task], Any] | None = None
    """Its own `gold(task)`: right answers for probes, if the right answer is not plain text."""
    skip_probes: frozenset[str] = frozenset()
    """Probe questions that do not apply to it."""

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.function)

    @property
    def method_name(self) -> str:
        """Name of a class's judging method."""
        return "verify_group" if self.is_group and hasattr(self.function, "verify_group") else "verify"

    @property
    def judging_function(self) -> VerifierFunction:
        """The unbound function called with (task, response): the function itself, or the class's method."""
        if self.is_class:
            method: VerifierFunction = getattr(self.function, self.method_name)
            return method
        return self.function

    @property
    def is_async(self) -> bool:
        function = self.judging_function
        return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(type(function), "__call__", None)  # noqa: B004  (we need the method itself)
        )


def load_verifier(
    spec: str | VerifierFunction, options: JsonFields | None = None, mode: Mode | None = None
) -> Verifier:
    """Load `spec`: a built-in verifier's name, `file.py:name`, `module:name`, or a function or class.

    Args:
        options: Values for the verifier's options record, keyword parameters or `self.config`.
        mode: `fast` or `precise`, for a verifier with modes; None means `precise` there.
    """
    if callable(spec):
        function, name = spec, getattr(spec, "__qualname__", type(spec).__name__)
    elif isinstance(spec, str):
        function, name = _find(spec), spec
    else:
        function, name = spec, repr(spec)
    if not callable(function):
        raise UsageError(
            f"{name} is a {type(function).__name__}, not a function or class that verifies",
            hint="name a function (task, response): --verifier file.py:verify",
        )
    if (
        inspect.isclass(function)
        and not hasattr(function, "verify")
        and not hasattr(function, "verify_group")
    ):
        raise UsageError(
            f"the class {name} has no method `verify`", hint="write def verify(self, task, response)"
        )
    has_modes = _has_fast_mode(function)
    if mode == "fast" and not has_modes:
        raise UsageError(f"{name} has no fast mode", hint="leave out --fast (--mode fast)")
    mode = (mode or "precise") if has_modes else None
    options = dict(options or {})
    check_options(name, function, options)
    _refuse_secrets(name, options)
    SECRETS.learn_from(options)
    _with_options(function, "check_machine", options, None)
    is_cheap = bool(_attribute(function, "is_cheap", False))
    return Verifier(
        name=name,
        function=function,
        fingerprint=fingerprint_of(function, options, mode),
        needs=_needs(function, options),
        options=options,
        mode=mode,
        is_group=bool(_attribute(function, "is_group", False)) or _is_named_group(function),
        is_deterministic=_is_deterministic(function, options),
        is_cheap=is_cheap,
        is_cheap_for=_hook(function, "is_cheap_for") if is_cheap else None,
        reward_range=_attribute(function, "reward_range", None),
        warning=_with_options(function, "warning_for", options, None),
        gold=_hook(function, "gold") or _module_hook(function, "gold"),
        skip_probes=frozenset(_attribute(function, "skip_probes", ())),
    )


def _find(spec: str) -> Any:
    if ":" in spec:
        return load_target(spec)
    if spec.endswith(".py"):
        return load_target(f"{spec}:verify")
    return VERIFIERS.load(spec)


def _attribute(function: VerifierFunction, name: str, default: Any) -> Any:
    """A declared attribute: of the verifier, else of its module (a file may declare it once, at the top)."""
    own = getattr(function, name, None)
    if own is not None and not callable(own):
        return own
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    declared = getattr(module, name, None) if module is not None and module.__name__ != "__main__" else None
    return default if declared is None else declared


def _hook(function: VerifierFunction, name: str) -> Callable[..., Any] | None:
    """A callable attribute of the function or class, or None."""
    hook = getattr(function, name, None)
    return hook if callable(hook) else None


def _module_hook(function: VerifierFunction, name: str) -> Callable[..., Any] | None:
    hook = getattr(sys.modules.get(getattr(function, "__module__", None) or ""), name, None)
    return hook if callable(hook) else None


def _with_options(function: VerifierFunction, name: str, options: JsonFields, default: Any) -> Any:
    """The result of a hook that takes the options; `default` if the verifier has no such hook."""
    hook = _hook(function, name)
    return hook(options) if hook else default


def _needs(function: VerifierFunction, options: JsonFields) -> tuple[str, ...]:
    """Task fields that it reads; with `needs_with(options)` they depend on the options."""
    declared = _with_options(function, "needs_with", options, None)
    return tuple(_attribute(function, "needs", ()) if declared is None else declared)


def _is_deterministic(function: VerifierFunction, options: JsonFields) -> bool:
    declared = _with_options(function, "is_deterministic_with", options, None)
    return bool(_attribute(function, "is_deterministic", True) if declared is None else declared)


def _is_named_group(function: VerifierFunction) -> bool:
    if inspect.isclass(function):
        return hasattr(function, "verify_group") and not hasattr(function, "verify")
    return getattr(function, "__name__", "") == "verify_group"


def takes_self(function: VerifierFunction) -> bool:
    """Whether the function is written as a method, `verify(self, task, response)`, as in NeMo Gym's documentation."""
    return not inspect.isclass(function) and next(iter(_parameters(function)), None) == "self"


def options_type(function: VerifierFunction) -> type[msgspec.Struct] | None:
    """The options Struct that a class or its module declares as `options_type` or `Options`."""
    for name in ("options_type", "Options"):
        declared = getattr(function, name, None)
        if declared is None and inspect.isclass(function):
            declared = getattr(sys.modules.get(function.__module__), name, None)
        if inspect.isclass(declared) and issubclass(declared, msgspec.Struct):
            return declared
    return None


def keyword_options(function: VerifierFunction) -> list[str]:
    """Parameters of a function after (task, response), which are its options."""
    names = list(_parameters(function))
    return names[3 if takes_self(function) else 2 :]


def option_names(function: VerifierFunction) -> list[str]:
    """Names of the options that the verifier declares."""
    struct = options_type(function)
    if struct is not None:
        return [field.encode_name for field in msgspec.structs.fields(struct)]
    return [] if inspect.isclass(function) else keyword_options(function)


def check_options(name: str, function: VerifierFunction, options: Mapping[str, Any]) -> None:
    """Refuse unknown options before anything runs."""
    if takes_self(function):
        return  # `self.config` is a free dict there
    names = option_names(function)
    struct = options_type(function)
    takes_any = struct is None and inspect.isclass(function) and "options" in _parameters(function)
    for key in options:
        if key not in names and not takes_any:
            raise UsageError(
                f"the verifier {name} has no option {key!r}{did_you_mean(key, names)}",
                hint=f"its options: {', '.join(names) or 'none'}",
            )
    if struct is not None:
        convert_options(name, struct, options)


_REFUSED = ("api_key", "password", "secret")
"""Endings of option names that are refused, because options are written to the run's files."""


def _refuse_secrets(name: str, options: Mapping[str, Any]) -> None:
    """Refuse keys and passwords: options are written to the run's manifest. The message does not repeat the value."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            _refuse_secrets(name, value)
        elif isinstance(value, str) and (key.endswith(_REFUSED) or _has_user(value)):
            raise UsageError(
                f"the option {key!r} of the verifier {name} holds a key, a user or a password, which would stand in the run's files",
                hint="let the verifier read it from a variable; judges take its name as api_key_env",
            )


def _has_user(text: str) -> bool:
    """Whether the text is a URL with user information."""
    scheme, colon, rest = text.partition("://")
    return bool(colon) and scheme.isalnum() and "@" in rest.partition("/")[0]


def convert_options(name: str, struct: type[msgspec.Struct], options: Mapping[str, Any]) -> msgspec.Struct:
    """Convert options to the verifier's options record; strings become numbers for number fields."""
    # A command line's `gym=0.7` arrives as a number; it names a release.
    values = {key: str(value) if key == "gym" else value for key, value in options.items()}
    try:
        return convert(values, struct, strict=False)
    except msgspec.ValidationError as error:
        text = re.fullmatch(r"Expected `str.*`, got `(?:int|float|bool)` - at `\$\.(\w+)`", str(error))
        value = json.dumps(values[text[1]]) if text is not None else ""
        hint = (
            f"""quote a text that looks like a number: {text[1]}='"{value}"'""" if text is not None else None
        )
        raise UsageError(
            f"options of the verifier {name}: {error}",
            hint=hint or "its options with their types: docs/verifiers.md",
        ) from error


def _has_fast_mode(function: VerifierFunction) -> bool:
    declared = _attribute(function, "has_fast_mode", None)
    if declared is not None:
        return bool(declared)
    if takes_self(function):
        return "fast_mode" in _source(function)
    struct = options_type(function)
    if struct is not None and "fast_mode" in struct.__struct_fields__:
        return True
    return not inspect.isclass(function) and bool({"fast_mode", "mode"} & set(keyword_options(function)))


def _parameters(function: VerifierFunction) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _source(function: VerifierFunction) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return ""
