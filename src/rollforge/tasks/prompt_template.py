"""Fills a prompt template from a row's fields: YAML with `user` and, optionally, `system`.

`{field}` is a top-level field of the row, `{{` and `}}` are braces. Expressions are deliberately not supported.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.json_shapes import ItemJson
from rollforge.registry import did_you_mean
from rollforge.runtime.typed_decoding import convert


class PromptTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Template texts for user and system messages."""

    user: str
    system: str | None = None

    @classmethod
    def load(cls, path: str | Path) -> PromptTemplate:
        """Load a template from a YAML file and check its placeholders."""
        import yaml  # only a run with a template pays for loading it

        value: object = None
        try:
            value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
            template = convert(value, cls)
        except FileNotFoundError:
            raise UsageError(
                f"{path}: no such file",
                hint="--prompt-template takes a YAML file with `user:` and `system:`",
            ) from None
        except (yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
            what = "a plain text, and no template" if isinstance(value, str) else str(error)
            raise UsageError(
                f"{path}: {what}", hint="a template is YAML with `user:` and, if wanted, `system:`"
            ) from error
        for text in filter(None, (template.user, template.system)):
            _check_placeholders(text, path)
        return template

    def items(self, row: Mapping[str, object]) -> list[ItemJson]:
        """The input items for one row.

        Raises:
            KeyError: a placeholder names a field that the row does not have; the message names both.
        """
        fields = _Fields(row)
        roles = [("system", self.system), ("user", self.user)]
        return [
            {"role": role, "content": text.format_map(fields), "type": "message"}
            for role, text in roles
            if text is not None
        ]


class _Fields(dict[str, object]):
    def __missing__(self, name: str) -> object:
        raise KeyError(f"the template's field {{{name}}} is not in the row{did_you_mean(name, list(self))}")


def _check_placeholders(text: str, path: str | Path) -> None:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise UsageError(f"{path}: {error}", hint="write {{ and }} for literal braces") from error
    for name in names:
        if not name or not name.replace("_", "a").replace("-", "a").isalnum():
            raise UsageError(
                f"{path}: {{{name}}} is not a field name",
                hint="placeholders name top-level fields; write {{ for a brace",
            )
