"""Secrets: one redactor collects all secret values of the process, and removes them from texts and bytes.

`SECRETS` learns values where they enter: command line, config, options, and environment variables named by options. `outgoing.py`
applies it to every file and stream. A value is a secret because of its option's name (`api_key`, `token`, …), its place in a URL
(password, query), or its shape (`sk-…`, `hf_…`, `Bearer …`). Replacing a plain word everywhere would corrupt rollouts: it is
ignored, or if certainly a secret, masked only in key positions (`Bearer WORD`, `:WORD@`).
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import threading
from collections.abc import Iterable, Mapping
from html import escape
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

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
_CERTAIN_NAME = re.compile(r"(api[_-]?key|secret|password|passwd|pwd|credentials?)$", re.IGNORECASE)
"""Option names that are used only for secrets; an option named `key` may also mean a field."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_VARIABLE = re.compile(
    r"(key|token|secret|password|passwd|pwd|passphrase|credentials?|auth|cookie|_pat|_pass)$", re.IGNORECASE
)
"""Names of environment variables that hold a secret; many have no mark before the last word, such as `DBPASSWORD`."""
_KEY_FOR_A_NAME = re.compile(r"(?=.*[a-z])(?=.*[0-9])[\w.+/\-]{12,}=*")
"""A key typed where a variable's name belongs; names of variables are rarely lower case with digits."""
_HEADER = re.compile(r"(?P<name>[A-Za-z][\w\-]*):\s*(?P<value>[^\s/].*)", re.DOTALL)
_USER_FLAGS = ("-u", "--user", "-U", "--proxy-user")
"""Flags of curl and others before USER:PASSWORD."""
_COMMAND = re.compile(r"(program|mcp-stdio(-shared)?):")
"""How options begin whose value is a command line with flags of its own."""
_PLACEHOLDERS = re.compile(
    r"(no|not|un|your|some)?[-_ ]?"
    r"(api|key|needed|used|required|anything|changeme|default|example|placeholder|simulated|none|[-_ ])+|postgres",
    re.IGNORECASE,
)
"""Placeholder values for a key that is not needed."""
_AS_KEY = ("Bearer {}", "bearer {}", ":{}@", "={}")
"""Positions in which a plain word or number is a key."""
_LEAST = 6
_LEAST_PLAIN = 10
"""Length from which a certain secret made only of letters is replaced everywhere."""
_ENVIRONMENT = (
    *("OPENAI_API_KEY", "PGPASSWORD", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *(
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "OTEL_EXPORTER_OTLP_HEADERS",
    ),
)
"""Variables from which rollforge or a sink's library reads a secret without an option that names them."""

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_SETTINGS = ("AWS_", "AZURE_", "GOOGLE_", "HF_", "MLFLOW_", "OTEL_", "RAY_", "WANDB_")
"""Variables of libraries: secrets by name, addresses that may contain one, or header lists."""


def is_secret_name(name: str) -> bool:
    """Whether an option of this name holds a secret: `api_key`, `auth.token`, `clientSecret`, `password`."""
    name = _HUMP.sub("_", name)
    return bool(_NAME.search(name)) and not _NOT_SECRET.search(name)


class Redactor:
    """The known secret values, and their removal from texts and bytes."""

    def __init__(self) -> None:
        self._mask_by_text: dict[str, str] = {}
        self._masks: tuple[tuple[bytes, bytes], ...] = ()
        self._learning = threading.Lock()

    def learn(self, value: object) -> None:
        """Register a value as a secret, in all its usual encodings; the caller is certain that it is one."""
        plain = value.strip() if isinstance(value, str) else ""
        if len(plain) < _LEAST or _PLACEHOLDERS.fullmatch(plain):
            return
        if plain.isdigit() or (plain.isalpha() and len(plain) < _LEAST_PLAIN):
            self._add({pattern.format(plain): pattern.format(MASK) for pattern in _AS_KEY})
        else:
            self._mask(plain)

    def _learn_likely(self, value: str) -> None:
        """Register a value as a secret if it looks like one; it may also be a field's name, a path or a plain word."""
        plain = value.strip()
        if plain.startswith(("/", "~", "./")) or len(plain) < _LEAST:
            return
        has_both = any(one.isdigit() for one in plain) and any(one.isalpha() for one in plain)
        if has_both or (len(plain) >= 16 and not plain.isdigit()):
            self._mask(plain)

    def _mask(self, value: str) -> None:
        data = value.encode(errors="surrogateescape")  # a variable may hold any bytes
        in_json, in_ascii = json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1]
        spellings = {
            *(value, quote(data, safe=""), quote(data), quote_plus(data), repr(value)[1:-1]),
            *(
                base64.b64encode(data).decode().rstrip("="),
                base64.urlsafe_b64encode(data).decode().rstrip("="),
            ),
            *(in_json, in_ascii, in_ascii.replace("/", "\\/"), json.dumps(in_json, ensure_ascii=False)[1:-1]),
            *(escape(value), escape(value, quote=False)),
            data.decode("latin-1"),  # headers are Latin-1
        }
        self._add(dict.fromkeys(spellings, MASK))

    def _add(self, mask_by_text: dict[str, str]) -> None:
        if mask_by_text.keys() <= self._mask_by_text.keys():
            return
        with (
            self._learning
        ):  # threads of workers learn too, and none of them may lose what another one learned
            self._mask_by_text |= mask_by_text
            # The longest first: a secret may contain another one.
            longest_first = sorted(self._mask_by_text.items(), key=lambda item: len(item[0]), reverse=True)
            self._masks = tuple(
                (text.encode(errors="surrogateescape"), mask.encode()) for text, mask in longest_first
            )

    def learn_from(self, value: object, name: str = "") -> None:
        """Find secrets in options, config or command line: by name, by place in a URL, by shape, or by a named variable."""
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

    def _learn_command(self, command: str) -> None:
        """Find the secrets in a command line, also in headers (`-H "Name: VALUE"`) and in commands inside it (`sh -c "…"`)."""
        try:
            words = shlex.split(command)
        except ValueError:  # an open quote: whoever runs the command refuses it
            return
        self.learn_words(words)
        last = ""
        for word in words:
            header = _HEADER.fullmatch(word)
            if header and is_secret_name(header["name"]):
                self._learn_named(header["value"], header["name"])
                self._learn_likely(header["value"].rpartition(" ")[2])  # after a scheme of its own
            elif ":" in word and last in _USER_FLAGS:
                self.learn(word.partition(":")[2])
                self.learn(word)
            elif any(one.isspace() for one in word):
                self._learn_command(word)
            elif word.startswith("-") and word.count("=") > 1:  # --env=NAME=VALUE
                self.learn_words([word.partition("=")[2]])
            last = word

    def learn_environment(self, *names: str) -> None:
        """Register the values of variables named by options, and of those that libraries read themselves."""
        for name in (*_ENVIRONMENT, *names):
            self.learn(os.environ.get(name))
        for name in _PROXIES:
            self._learn_text(os.environ.get(name) or os.environ.get(name.upper()) or "", "")
        for name, value in os.environ.items():
            if name.startswith(_SETTINGS):
                self._learn_text(value, name)
            if name.startswith("OTEL_") and name.endswith("_HEADERS"):
                for header in value.split(","):
                    key, _, text = header.partition("=")
                    self._learn_text(unquote(text.strip()), key.strip())

    def text(self, text: str) -> str:
        """The text with every known secret replaced by `***`."""
        for secret, mask in self._masks:
            text = text.replace(secret.decode(errors="surrogateescape"), mask.decode())
        return text

    def data(self, data: bytes) -> bytes:
        """The bytes with every known secret replaced by `***`; the same object if there is none."""
        for secret, mask in self._masks:
            if secret in data:
                data = data.replace(secret, mask)
        return data

    def _learn_text(self, text: str, name: str) -> None:
        if name in ("pass_env", "pass-env"):  # programs get PATH, too
            if _SECRET_VARIABLE.search(text):
                self.learn(os.environ.get(text))
            self._learn_text(os.environ.get(text, ""), "")  # an address with a password
        elif name.endswith(("_env", "-env")):
            is_name = text in os.environ or not _KEY_FOR_A_NAME.fullmatch(text)
            self.learn(os.environ.get(text) if is_name else text)  # the variable that holds the secret
        if is_secret_name(name):
            self._learn_named(text, name)
        for match in _SHAPE.finditer(text):
            self.learn(match.group(0))
        for match in _BEARER.finditer(text):
            self._learn_likely(match.group(1))
        for match in _URL.finditer(text):
            self._learn_url(match.group(0))
        if _COMMAND.match(text):
            self._learn_command(text.partition(":")[2])

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
            self._learn_likely(unquote(user))  # a token alone, as in https://TOKEN@host
        for key, value in parse_qsl(parts.query):
            if _NAME.search(key):
                self._learn_named(value, key)

    def _learn_named(self, value: str, name: str) -> None:
        (self.learn if _CERTAIN_NAME.search(name) else self._learn_likely)(value)


SECRETS = Redactor()
"""The secrets of this process."""
