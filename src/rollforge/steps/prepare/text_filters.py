"""Filters that need text: near duplicates, token lengths, prompts that an evaluation also has.

Text is read only if such a filter is requested, and only of rollouts that the recipe could still select; also of empty answers,
to report what they contain instead. The results are masks, which the recipe counts like other reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Literal

import numpy as np

from rollforge.conversations.messages import ChatMessage, Conversation, Inexpressible
from rollforge.conversations.reader import ConversationReader
from rollforge.errors import UsageError
from rollforge.recipes.base import Ints, Mask, screen
from rollforge.steps.prepare.dataset_manifest import tokenizer_file
from rollforge.steps.prepare.evaluation_prompts import evaluation_files, read_prompts
from rollforge.steps.prepare.overlap import Grams, SignatureIndex, signature, similarity
from rollforge.steps.prepare.rollout_pool import EvaluationOverlap, Pool
from rollforge.steps.prepare.settings import Settings
from rollforge.steps.prepare.write_rows import Progress

CHUNK = 1024


AnswerUse = Literal["converted", "copied", "unwritten"]
"""How rows use answers: convert them to messages, copy them unread, or omit them (prompt sets)."""


def rule_out_by_text(pool: Pool, settings: Settings, progress: Progress, answers: AnswerUse) -> None:
    """Add the requested filters' masks to the pool's candidates."""
    unusable = dict(pool.candidates.unusable)
    if (empty := _empty(pool)).any():
        if answers != "unwritten":
            is_converted = answers == "converted"
            unusable |= _reasons_of_empty(pool, np.flatnonzero(empty), progress, is_converted=is_converted)
        pool.candidates = replace(
            pool.candidates, flags={**pool.candidates.flags, "empty": np.zeros_like(empty)}
        )
    if settings.dedupe_prompts != "none":
        unusable["duplicate prompt"] = _repeated_prompts(pool, settings, progress)
    if settings.decontaminate:
        unusable["prompt overlaps an evaluation"] = _contaminated(pool, settings, progress)
    pool.candidates = replace(pool.candidates, unusable=unusable)
    if len(settings.split) > 1:
        pool.prompt = _normalised_prompts(pool, progress)
    if settings.dedupe != "none" and pool.has_calls.any():
        pool.candidates = replace(pool.candidates, answer=_answers_with_calls(pool, settings, progress))
    if settings.max_tokens is not None:
        unusable["too many tokens"] = _too_many_tokens(pool, settings, progress)
        pool.candidates = replace(pool.candidates, unusable=unusable)
    if settings.dedupe == "near":
        pool.candidates = replace(pool.candidates, near_duplicate=_near_duplicates(pool, settings, progress))


def _conversations(
    pool: Pool, positions: Ints, progress: Progress, phase: str
) -> Iterator[tuple[int, Conversation]]:
    """Positions with their conversations. Unreadable rollouts are skipped here; the survey counts them."""
    reader = ConversationReader(images="pass")
    for start in range(0, len(positions), CHUNK):
        chunk = positions[start : start + CHUNK]
        progress(phase, start, len(positions))
        for position, line in zip(chunk, pool.read(chunk), strict=True):
            try:
                yield int(position), reader.read(line)
            except Inexpressible:
                continue


def _empty(pool: Pool) -> Mask:
    """Judged rollouts without an answer."""
    return np.asarray(pool.candidates.flag("empty") & ~np.isnan(pool.candidates.reward))


def _reasons_of_empty(
    pool: Pool, positions: Ints, progress: Progress, *, is_converted: bool
) -> dict[str, Mask]:
    """Why each of these has no answer: empty, only reasoning, or an output that is not a list of items."""
    reader = ConversationReader(images="pass")
    ruled_out: dict[str, Mask] = {}
    for number, (position, line) in enumerate(zip(positions, pool.read(positions), strict=True)):
        if number % CHUNK == 0:
            progress("look at empty answers", number, len(positions))
        try:
            answer = reader.read(line).answer
            reason = "ends in bare reasoning" if any(m.has_reasoning for m in answer) else "empty output"
        except Inexpressible as error:
            if not is_converted:
                continue  # copied rows need not be readable
            reason = str(error)
        reason = f"cannot be expressed: {reason}"
        ruled_out.setdefault(reason, np.zeros(len(pool.candidates), dtype=bool))[position] = True
    return ruled_out


def _first_of_each_prompt(pool: Pool) -> tuple[Ints, Ints]:
    """(position of the first rollout of each prompt, prompt number of each rollout)."""
    _, first, codes = np.unique(pool.prompt, return_index=True, return_inverse=True)
    return first, codes


def _repeated_prompts(pool: Pool, settings: Settings, progress: Progress) -> Mask:
    """Rollouts whose prompt an earlier task also has."""
    candidates = pool.candidates
    first, codes = _first_of_each_prompt(pool)
    owner = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(owner, codes, candidates.group)
    repeated = candidates.group != owner[codes]
    if settings.dedupe_prompts == "near":
        signatures = SignatureIndex(settings.near)
        is_near = np.zeros(len(first), dtype=bool)
        for position, conversation in _conversations(pool, np.sort(first), progress, "compare prompts"):
            is_near[codes[position]] = signatures.has_near(signature(prompt_text(conversation)))
        repeated |= is_near[codes]
    return np.asarray(repeated)


def _normalised_prompts(pool: Pool, progress: Progress) -> Ints:
    """Prompt codes that ignore white space, so that a split keeps such prompts together."""
    first, codes = _first_of_each_prompt(pool)
    number = np.arange(len(first))
    number_by_digest: dict[bytes, int] = {}
    for position, conversation in _conversations(pool, np.sort(first), progress, "compare prompts"):
        prompt_digest = sha256(
            " ".join(prompt_text(conversation).split()).encode("utf-8", "replace")
        ).digest()
        number[codes[position]] = number_by_digest.setdefault(prompt_digest, int(codes[position]))
    return np.asarray(number[codes])


def _answers_with_calls(pool: Pool, settings: Settings, progress: Progress) -> Ints:
    """`Candidates.answer`, with equal codes also for answers with the same text and tool calls."""
    answer = pool.candidates.answer.copy()
    alive = _alive(pool, settings)
    with_calls = alive[pool.has_calls[alive]]
    for position, conversation in _conversations(pool, with_calls, progress, "compare answers"):
        answer_digest = sha256(answer_text(conversation).encode("utf-8", "replace")).digest()
        answer[position] = int.from_bytes(answer_digest[:8], "little", signed=True)
    return answer


def _contaminated(pool: Pool, settings: Settings, progress: Progress) -> Mask:
    """Rollouts whose prompt shares a word sequence with an evaluation prompt; the pool records the number per file."""
    first, codes = _first_of_each_prompt(pool)
    texts = {
        position: prompt_text(conversation)
        for position, conversation in _conversations(pool, np.sort(first), progress, "decontaminate")
    }
    overlaps = np.zeros(len(first), dtype=bool)
    for path in evaluation_files(settings.decontaminate):
        prompts = read_prompts(path)
        grams = Grams(settings.ngram)
        for text in prompts:
            grams.add(text)
        here = np.zeros(len(first), dtype=bool)
        for position, text in texts.items():
            here[codes[position]] = grams.overlaps(text)
        tasks = len(np.unique(pool.candidates.group[here[codes]]))
        pool.evaluations.append(EvaluationOverlap(str(path), len(prompts), tasks))
        overlaps |= here
    return np.asarray(overlaps[codes])


def _alive(pool: Pool, settings: Settings) -> Ints:
    return np.flatnonzero(screen(pool.candidates, settings.recipe_options()).alive)


def _too_many_tokens(pool: Pool, settings: Settings, progress: Progress) -> Mask:
    count = token_counter(str(settings.tokenizer))
    too_many = np.zeros(len(pool.candidates), dtype=bool)
    limit = settings.max_tokens or 0
    for position, conversation in _conversations(pool, _alive(pool, settings), progress, "count tokens"):
        too_many[position] = count(whole_text(conversation)) > limit
    return too_many


def token_counter(path: str) -> Callable[[str], int]:
    """A function that counts tokens with the tokenizer at `path` (a `tokenizer.json` or its folder)."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError(
            "--max-tokens needs the tokenizers package",
            hint="pip install 'rollforge[tokenizer]', or use --max-chars",
        ) from error
    file = tokenizer_file(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing narrower
        raise UsageError(
            f"{file}: not a tokenizer: {error}", hint="give the tokenizer.json of a Hugging Face model"
        ) from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def _near_duplicates(pool: Pool, settings: Settings, progress: Progress) -> Mask:
    """Answers that are nearly equal to a better answer of the same task."""
    candidates = pool.candidates
    alive = _alive(pool, settings)
    order = candidates.best_first(alive, settings.seed)
    near = np.zeros(len(candidates), dtype=bool)
    group = -1
    kept_signatures: list[np.ndarray] = []
    for position, conversation in _conversations(pool, order, progress, "compare answers"):
        if candidates.group[position] != group:
            group, kept_signatures = int(candidates.group[position]), []
        own = signature(answer_text(conversation))
        if any(similarity(own, other) >= settings.near for other in kept_signatures):
            near[position] = True
        else:
            kept_signatures.append(own)
    return near


def prompt_text(conversation: Conversation) -> str:
    """The text of the prompt."""
    return "\n".join(message.content for message in conversation.prompt)


def answer_text(conversation: Conversation) -> str:
    """The model's text, reasoning and calls."""
    return _joined_text([message for message in conversation.answer if message.role == "assistant"])


def whole_text(conversation: Conversation) -> str:
    """All text that a chat template renders: tool schemas, prompt, answer, and messages of tools and users in between."""
    schemas = (conversation.tools or b"").decode("utf-8", "replace")
    return schemas + "\n" + _joined_text(conversation.messages)


def _joined_text(messages: Iterable[ChatMessage]) -> str:
    parts = []
    for message in messages:
        parts += [
            message.reasoning or "",
            message.content,
            *(f"{c.name} {c.arguments}" for c in message.calls),
        ]
    return "\n".join(part for part in parts if part)
