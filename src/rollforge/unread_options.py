"""Finds options without effect: a table of what each option requires, and one of options that a mode ignores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollforge.errors import UsageError

_PAIRS = ("RECIPE dpo", "RECIPE rm")
_SIDES = (*_PAIRS, "RECIPE kto")
_JUDGED = ("--verifier", "--env", "--agent", "--gym-head", "--gym-resources", "--gym-agent")
_PROGRAM = ("--agent program", "--agent claude-code", "--agent codex", "--agent opencode", "--agent qwen-code",
    "--agent mini-swe-agent")  # fmt: skip

NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "collect": {
        **dict.fromkeys(("--min-reward", "--band", "--max-samples", "--audit"), ("--goal",)),
        "--min-gap": ("--goal dpo=", "--goal rm="),
        "--min-spread": ("--goal grpo=",),
        "--batch-size": ("--batch", "--write-batch"),
        "--batch-poll": ("--batch",),
        **dict.fromkeys(
            ("--workdir", "--stdin", "--pass-env", "--withhold", "--mount", "--network", "--artifacts"),
            _PROGRAM,
        ),
        "--agent-map": ("--gym-head",),
        "--fan-out": ("--gym-head",),
        **dict.fromkeys(("--sink", "--metric-names", "--pipeline", "--buffer"), ("--step-size",)),
        "--model-version": ("--buffer", "--pipeline"),
        **dict.fromkeys(
            ("--verifier-set", "--verifier-output", "--cache", "--probe", "--fast", "--judge-price"),
            _JUDGED,
        ),
    },
    "verify": {"--input": ("--probe",), "--limit": ("--probe",), "--max-cost": ("--judge-price",)},
    "prepare": {
        "--near": ("--dedupe near", "--dedupe-prompts near"),
        "--ngram": ("--decontaminate",),
        "--tokenizer": ("--max-tokens",),
        "--max-tokens": ("--tokenizer",),
        "--public": ("--push",),
        "--per-task": ("RECIPE sft",),
        "--layout": ("RECIPE sft",),
        **dict.fromkeys(("--min-gap", "--strategy", "--max-pairs", "--max-uses", "--length-ratio"), _PAIRS),
        **dict.fromkeys(("--high", "--low", "--chosen-where", "--rejected-where", "--pairs"), _SIDES),
        "--across-prompts": ("RECIPE kto",),
        "--min-spread": ("RECIPE grpo",),
        "--ground-truth": ("RECIPE ppo", "RECIPE grpo"),
        "--shape": ("RECIPE rm", "RECIPE ppo", "RECIPE grpo"),
    },
    "show": {"--seed": ("--sample", "--label"), "--stratified": ("--label",), "--blind": ("--label",)},
    "validate": {"--out": ("--fix",)},
    "simulate": {
        **dict.fromkeys(("--kv-requests", "--kv-speed", "--metrics"), ("--kv-tokens",)),
        "--latency-spread": ("--latency",),
        "--rate-headers": ("--rpm", "--tpm"),
        "--kind": ("--write-tasks",),
        "--limit": ("--write-tasks",),
    },
}  # fmt: skip
"""Command → option → options of which at least one must be given for it to be read.

`--goal dpo=` means: --goal with a value that begins with `dpo=`. Names in capitals are arguments. Limits, timeouts and numbers of
workers are not in the table, because a bound on something that does not happen is no mistake.
"""

READS: dict[str, dict[str, tuple[str, ...]]] = {
    "verify": {
        "--diff": ("--tasks", "--json"),
        "--use": ("--json",),
        "--probe": (
            *("--verifier", "--set", "--mode", "--fast", "--sandbox", "--input", "--limit", "--tasks", "--json"),
            *("--verify-workers", "--verify-timeout", "--verify-memory", "--progress"),
        ),
    },
    "simulate": {"--write-tasks": ("--limit", "--kind", "--seed", "--json")},
    "status": {"--owed": ("--json",)},
    "rewards": {"--path": ("--json",)},
    "query": {"--out": ("--format", "--verifier", "--strict", "--workers", "--json")},
    "serve-verifier": {
        "--write-server": ("--verifier-set", "--sandbox", "--mode", "--token-env", "--verify-workers", "--verify-timeout", "--json")
    },
}  # fmt: skip
"""Command → option that switches the command's mode → the only other options that this mode reads."""

OWN_RECIPES = ("sft", "dpo", "kto", "rm", "ppo", "grpo")
"""Key for recipes of other packages, which may read any option."""


def refuse_unread(command: str, typed_flags: Iterable[str], values: Mapping[str, object]) -> None:
    """Raise for the first given option that would have no effect.

    Args:
        typed_flags: flags that the user typed, by their long names.
        values: flag or argument → its value, as far as known.
    """
    for flag in typed_flags:
        needs = NEEDS.get(command, {}).get(flag, ())
        if needs and not any(_holds(need, values) for need in needs):
            raise UsageError(
                f"{flag} is read only with {' or '.join(map(_shown, needs))}",
                hint=f"leave out {flag}, or {'prepare' if needs[0].startswith('RECIPE') else 'add'} {_shown(needs[0])}",
            )
        for mode, read in READS.get(command, {}).items():
            if flag != mode and flag not in read and _holds(mode, values):
                raise UsageError(
                    f"{flag} is not read beside {mode}",
                    hint=f"leave out {flag} or {mode}; beside {mode} only {', '.join(read)} is read",
                )


def _holds(need: str, values: Mapping[str, object]) -> bool:
    name, _, beginning = need.partition(" ")
    value = values.get(name)
    if name == "RECIPE" and value not in OWN_RECIPES:  # one of another package, or that of a manifest
        return True
    if not beginning:
        return bool(value)
    words = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(word, str) and word.startswith(beginning) for word in words)


def _shown(need: str) -> str:
    """A requirement as users would type it."""
    name, _, beginning = need.partition(" ")
    if name == "RECIPE":
        return f"{beginning}"
    return f"{need}N" if need.endswith("=") else need
