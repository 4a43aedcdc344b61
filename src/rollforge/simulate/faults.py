"""Injected faults: kind, frequency and affected requests.

Transport faults depend on (seed, request number), so that a retry can succeed. Answer faults depend on
(seed, prompt, sample), so that they are stable: a truncated answer stays truncated on every request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rollforge.errors import UsageError
from rollforge.registry import did_you_mean
from rollforge.simulate.draws import Chance

TIMING = {"rate": "1", "after": "", "every": "", "length": ""}
"""Options of every fault: the share of requests, and its time window in seconds since the first request."""

TRANSPORT: dict[str, dict[str, str]] = {
    "429": {"retry_after": "1"},
    "500": {"retry_after": ""},
    "502": {"retry_after": ""},
    "503": {"retry_after": ""},
    "504": {"retry_after": ""},
    "hang": {"seconds": "3600"},
    "drip": {"seconds": "0.05"},
    "torn": {"content_length": ""},
    "error-event": {},
    "content-type": {"status": ""},
    "reset": {"when": ""},
    "down": {"status": ""},
    "endless": {"status": "200", "mb": ""},
    "large-body": {"mb": "256"},
    "gzip-bomb": {"mb": "1024"},
    "headers": {"kb": "1024"},
    "nested": {"depth": "100000"},
    "bad-utf8": {},
    "redirect": {"to": "http://other-host.invalid/v1", "status": "307"},
    "echo-headers": {"status": "401"},
}
ANSWER: dict[str, dict[str, str]] = {
    "empty": {},
    "truncated": {},
    "refusal": {},
    "filtered": {},
    "overflow": {"wording": ""},
    "wrong-model": {"name": "simulated-other-model"},
    "absurd-numbers": {"number": ""},
}
BATCH: dict[str, dict[str, str]] = {
    "batch-delay": {"seconds": "2"},
    "batch-partial": {},
    "batch-expired": {"share": "0.5"},
    "batch-error": {"status": "500"},
    "batch-lost": {"when": "during"},
    "batch-lost-upload": {},
    "batch-failed": {"code": "token_limit_exceeded"},
}
"""Faults of `/v1/batches`: per batch, or per line for `batch-partial` and `batch-error`."""
KINDS = {**TRANSPORT, **ANSWER, **BATCH}
"""Fault kind → its additional options with defaults. An empty default means none, or a seeded draw."""

_CHOICES = {
    "content_length": ("right", "wrong"),
    "wording": ("openai", "vllm"),
    "when": ("before", "during"),
    "number": ("digits", "negative", "huge", "fraction", "text", "nan"),
}
_NUMBERS = ("retry_after", "share", "seconds", "status", "mb", "kb", "depth")


class Fault(NamedTuple):
    """One parsed `--fault` option."""

    kind: str
    rate: float
    after: float
    every: float | None
    length: float | None
    options: Mapping[str, str]

    def is_in_force(self, elapsed: float) -> bool:
        """Whether the fault is active; `elapsed` counts seconds since the first request."""
        since = elapsed - self.after
        if since < 0:
            return False
        if self.length is None:
            return True
        return (since % self.every if self.every else since) < self.length

    def seconds(self) -> float:
        """The option `seconds`."""
        return float(self.options["seconds"])

    def megabytes(self) -> int | None:
        """The option `mb`; None for an endless body."""
        return int(float(self.options["mb"])) if self.options["mb"] else None

    def choose(self, option: str, chance: Chance) -> str:
        """The option's value if given, else a seeded choice."""
        return self.options.get(option) or chance.pick(_CHOICES[option])


class Faults:
    """All faults of a server."""

    def __init__(self, specs: Iterable[str], seed: int) -> None:
        faults = [parse_fault(spec) for spec in specs]
        self._seed = seed
        self._transport = [fault for fault in faults if fault.kind in TRANSPORT]
        self._answer = [fault for fault in faults if fault.kind in ANSWER]
        self._batch = {fault.kind: fault for fault in faults if fault.kind in BATCH}
        self._outages = [fault for fault in faults if fault.kind == "down"]

    def for_request(self, number: int, elapsed: float) -> Fault | None:
        """The transport fault for this request, if any."""
        for fault in self._transport:
            if fault.is_in_force(elapsed) and Chance("fault", self._seed, fault.kind, number).happens(
                fault.rate
            ):
                return fault
        return None

    def for_answer(self, task: str, sample: int, elapsed: float) -> dict[str, Fault]:
        """Answer faults of this sample of the task, by kind."""
        due = [fault for fault in self._answer if fault.is_in_force(elapsed)]
        return {
            fault.kind: fault
            for fault in due
            if Chance("fault", self._seed, fault.kind, task, sample).happens(fault.rate)
        }

    def for_batch(self, kind: str, *what: object) -> Fault | None:
        """The fault of this kind, if it affects this batch or line."""
        fault = self._batch.get(kind)
        is_hit = fault is not None and Chance("fault", self._seed, kind, *what).happens(fault.rate)
        return fault if is_hit else None

    def outage(self, elapsed: float) -> Fault | None:
        """The active outage that affects every request, if any."""
        return next(
            (fault for fault in self._outages if fault.rate >= 1 and fault.is_in_force(elapsed)), None
        )


def parse_fault(spec: str) -> Fault:
    """Parse `KIND=RATE[,option=value…]`; the word `burst` or `interval` may replace the rate."""
    kind, _, rest = spec.partition("=")
    if kind not in KINDS:
        raise UsageError(
            f"there is no fault {kind!r}{did_you_mean(kind, KINDS)}", hint=f"known faults: {', '.join(KINDS)}"
        )
    first, *words = rest.split(",") if rest else ["1"]
    option_values = dict(_option(spec, kind, word) for word in words)
    if first in ("burst", "interval"):
        _check_timing(spec, first, option_values)
    else:
        option_values["rate"] = first
    numbers = {
        key: _number(spec, key, option_values.pop(key)) for key in list(option_values) if key in TIMING
    }
    rate = numbers.get("rate", 1.0)
    if not 0 <= rate <= 1:
        raise UsageError(
            f"--fault {spec}: a rate lies between 0 and 1, not {rate:g}", hint=f"--fault {kind}=0.05"
        )
    every, length = numbers.get("every"), numbers.get("length")
    after = numbers.get("after", every - length if every and length and first == "burst" else 0.0)
    return Fault(kind, rate, after, every, length, _checked({**KINDS[kind], **option_values}, spec))


def _option(spec: str, kind: str, word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    options = {**TIMING, **KINDS[kind]}
    if not equals or key not in options:
        raise UsageError(
            f"--fault {spec}: {kind} has no option {key!r}{did_you_mean(key, options)}",
            hint=f"options of {kind}: {', '.join(options)}",
        )
    return key, value


def _check_timing(spec: str, word: str, option_values: Mapping[str, str]) -> None:
    needed = ("every", "length") if word == "burst" else ("length",)
    missing = [key for key in needed if key not in option_values]
    if missing:
        raise UsageError(
            f"--fault {spec}: a fault with {word!r} needs {' and '.join(missing)} in seconds",
            hint="--fault 429=burst,every=10,length=2 or --fault down=interval,after=5,length=10",
        )


def _number(spec: str, key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        example = f"--fault {spec.partition('=')[0]}=0.05"
        raise UsageError(f"--fault {spec}: {key} must be a number, not {value!r}", hint=example) from error


def _checked(options: dict[str, str], spec: str) -> dict[str, str]:
    for key, value in options.items():
        if value and key in _CHOICES and value not in _CHOICES[key]:
            raise UsageError(
                f"--fault {spec}: {key} is {' or '.join(_CHOICES[key])}, not {value!r}",
                hint=f"for example {key}={_CHOICES[key][0]}",
            )
        if value and key in _NUMBERS and _number(spec, key, value) < 0:
            raise UsageError(
                f"--fault {spec}: {key} cannot be negative, not even {value}", hint=f"for example {key}=0.1"
            )
    return options
