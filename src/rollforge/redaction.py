"""Keeps secrets out of everything that is written or printed: one redactor knows every secret value in play.

`SECRETS` learns values from where they enter: command words, config, options, and environment variables that options name. Every
writer passes its bytes through it (`store/atomic.py`, `store/durable.py`), and `main` puts it between the program and its stdout and
stderr. A value is a secret because of its option's name (`api_key`, `token`, …), its place in a URL (password, query), or its shape
(`sk-…`, `hf_…`, `Bearer …`). Short and plain words are left alone: replacing them would change rollouts.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

MASK = "***"

_NAME = re.compile(
    r"(^|[_\-.\s])(api[_-]?key|key|token|secret|password|passwd|pass|pwd|credentials?|authorization|auth|bearer|cookie|signature|sig)$",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(
    r"(^|[_\-.])(sort|group|task|primary|max|min|num|output|input|total|top|stop|pad|eos|bos)[_\-.]?(key|tokens?)$",
    re.I,
)
_SHAPE = re.compile(
    r"\b(sk-[A-Za-z0-9_\-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|xox[abpr]-[A-Za-z0-9\-]{10,}|AKIA[A-Z0-9]{16}"
    r"|nvapi-[A-Za-z0-9_\-]{16,}|eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]+|glpat-[A-Za-z0-9_\-]{16,})"
)
_BEARER = re.compile(r"\b(?:Bearer|Basic|token)\s+([A-Za-z0-9._~+/=\-]{8,})", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s\"'<>]+")
_LEAST = 6
_ENVIRONMENT = (
    *("OPENAI_API_KEY", "PGPASSWORD", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"),
)
"""Variables that this program or a sink's library reads a secret from without being told their names."""

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def is_secret_name(name: str) -> bool:
    """Whether an option of this name holds a secret: `api_key`, `auth.token`, `password`."""
    return bool(_NAME.search(name)) and not _NOT_SECRET.search(name)


class Redactor:
    """The secret values in play, and their removal from texts and bytes."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._bytes: tuple[bytes, ...] = ()

    def learn(self, value: object) -> None:
        """Treat a value as a secret from now on, in all its usual spellings."""
        if not isinstance(value, str) or not _is_worth_hiding(value):
            return
        spellings = {value, quote(value, safe=""), quote(value), value.strip()}
        spellings.add(msgspec.json.encode(value).decode()[1:-1])
        spellings.add(base64.b64encode(value.encode()).decode())
        new = {one for one in spellings if len(one) >= _LEAST} - self._texts
        if new:
            self._texts |= new
            # The longest first: a secret may contain another one.
            self._bytes = tuple(sorted((one.encode() for one in self._texts), key=len, reverse=True))

    def learn_from(self, value: object, name: str = "") -> None:
        """Find the secrets in options, config or command words: by name, by place in a URL, by shape."""
        if isinstance(value, Mapping):
            for key, item in value.items():
                self.learn_from(item, str(key))
        elif isinstance(value, list | tuple):
            for item in value:
                self.learn_from(item, name)
        elif isinstance(value, str):
            self._learn_text(value, name)

    def learn_words(self, words: Iterable[str]) -> None:
        """Find the secrets among the words of a command line."""
        last = ""
        for word in words:
            name, has_value, value = word.partition("=")
            if has_value:
                self._learn_text(value, name.lstrip("+-"))
            self._learn_text(word, last.lstrip("-") if last.startswith("-") else "")
            last = word

    def learn_environment(self, *names: str) -> None:
        """Learn the values of variables that options name, and of those that libraries read by themselves."""
        for name in (*_ENVIRONMENT, *names):
            self.learn(os.environ.get(name))
        for name in _PROXIES:
            self._learn_text(os.environ.get(name) or os.environ.get(name.upper()) or "", "")

    def text(self, text: str) -> str:
        """The text with every known secret replaced by `***`."""
        for secret in self._bytes:
            spelled = secret.decode()
            if spelled in text:
                text = text.replace(spelled, MASK)
        return text

    def data(self, data: bytes) -> bytes:
        """The bytes with every known secret replaced by `***`; the same object when there is none."""
        for secret in self._bytes:
            if secret in data:
                data = data.replace(secret, MASK.encode())
        return data

    def _learn_text(self, text: str, name: str) -> None:
        if is_secret_name(name):
            self.learn(text)
        for match in _SHAPE.finditer(text):
            self.learn(match.group(0))
        for match in _BEARER.finditer(text):
            self.learn(match.group(1))
        for match in _URL.finditer(text):
            self._learn_url(match.group(0))

    def _learn_url(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            password, user = parts.password, parts.username
        except ValueError:
            return
        if password:
            self.learn(unquote(password))
            self.learn(f"{unquote(user or '')}:{unquote(password)}")
        elif user and parts.scheme not in ("postgresql", "postgres"):
            self.learn(unquote(user))  # a token alone, as in https://TOKEN@host
        for key, value in parse_qsl(parts.query):
            if _NAME.search(key):
                self.learn(value)


def _is_worth_hiding(value: str) -> bool:
    """Whether a value can be a secret: plain short words (`EMPTY`, `dummy`, `simulated`) are none, and would be found in texts."""
    plain = value.strip()
    if len(plain) < _LEAST or plain.startswith(("/", "~", "./")):
        return False
    return len(plain) >= 16 or (any(one.isdigit() for one in plain) and any(one.isalpha() for one in plain))


SECRETS = Redactor()
"""The secrets of this process."""


class _Redacting:
    """A text stream that redacts whatever is written to it; everything else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(SECRETS.text(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> _RedactingBuffer:
        return _RedactingBuffer(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _RedactingBuffer:
    """The binary side of a redacting stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        self._stream.write(SECRETS.data(bytes(data)))
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output() -> None:
    """Let stdout and stderr of this process pass through the redactor; done once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOBase):
            setattr(sys, name, _Redacting(stream))
