"""Checks the outcome of a rollout: reward, response, token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollforge.records import FAILURE_KEY
from rollforge.steps.validate.item_checks import check_item
from rollforge.steps.validate.validation_records import RowFault, kind_of

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")

_JUDGE = "judge it again: rollforge verify RUN --verifier NAME"
_RESPONSE = 'a response has {"output": [items]}; an attempt without one belongs into the failures file'
_TOKENS = "take them from one call of the model, or leave all three out"


def check_rollout(row: Mapping[str, object]) -> Iterator[RowFault]:
    """Check the outcome of a rollout."""
    if "response" not in row and "invocations" in row:
        return  # a trajectory of several agents; NeMo Gym's environment server checks its own
    reward = row.get("reward")
    is_failure = FAILURE_KEY in row  # an attempt of which there may be nothing to judge, or to keep
    if "reward" not in row and not is_failure:
        yield RowFault("reward", "missing: expected a number, or null for unjudged", _JUDGE)
    elif reward is not None and (isinstance(reward, str | list | dict)):
        yield RowFault("reward", f"expected a number or null, got {kind_of(reward)}", _JUDGE)
    response = row.get("response")
    if is_failure and response is None:
        return
    if not isinstance(response, dict):
        yield RowFault("response", f"expected an object, got {kind_of(response)}", _RESPONSE)
        return
    output = response.get("output")
    if not isinstance(output, list):
        yield RowFault("response.output", f"expected a list of items, got {kind_of(output)}", _RESPONSE)
        return
    for path, item in _items(output, "response.output"):
        yield from check_item(item, path, odd="warning")
        if isinstance(item, dict):
            yield from _check_tokens(item, path)
    usage = response.get("usage")
    if usage is not None and not isinstance(usage, dict):
        yield RowFault(
            "response.usage",
            f"expected an object, got {kind_of(usage)}",
            'like {"output_tokens": 20}, or null',
        )


def _items(output: list[object], path: str) -> Iterator[tuple[str, object]]:
    """Every item with its path, flattening lists per turn."""
    for number, item in enumerate(output):
        item_path = f"{path}[{number}]"
        if isinstance(item, list):
            yield from _items(item, item_path)
        else:
            yield item_path, item


def _check_tokens(item: Mapping[str, object], path: str) -> Iterator[RowFault]:
    """Check that the three token fields occur together, with one log-probability per token."""
    there = [name for name in TOKEN_FIELDS if item.get(name) is not None]
    if there and len(there) < len(TOKEN_FIELDS):
        missing = ", ".join(name for name in TOKEN_FIELDS if name not in there)
        yield RowFault(path, f"token fields come all three or not at all; missing: {missing}", _TOKENS)
    elif there:
        tokens, logs = item["generation_token_ids"], item["generation_log_probs"]
        if isinstance(tokens, list) and isinstance(logs, list) and len(tokens) != len(logs):
            yield RowFault(
                path, f"{len(tokens)} generated tokens, but {len(logs)} log probabilities", _TOKENS
            )
