"""Fuzzes the compiled modules under the address and undefined-behaviour sanitizers.

    python scripts/fuzz.py --seconds 60 [--seed 1]

Compiles each module with sanitizers into a temporary folder, and feeds it generated and mutated input in a child process whose
allocator and interpreter run under the sanitizer. A report of the sanitizer, a crash or a hang ends it with exit code 1 and says
how to repeat it. `make fuzz` runs it for a minute; a test runs it for seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {"_rows": ROOT / "src/rollforge/index/_rows.c", "_groups": ROOT / "src/rollforge/_groups.c"}
SANITIZERS = (
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)
UNTOUCHED = 0.2
"""Share of generated blocks that are not mutated, so that whole rows reach the columns."""

TEXTS = [
    "", "a", "é", "😀", "\\n", '\\"', "\\\\", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\\udc00", "\\/", "\\x", "\x7f", "x" * 63,
    "x" * 64, "x" * 65, "你好" * 40, "\\n" * 40, "\\\\" * 33, "a\\", "\x01", "ab" * 200,
]  # fmt: skip
KEYS = [
    "reward", "response", "responses_create_params", "agent_ref", "_rf", "reward_components", "messages", "prompt", "output", "usage",
    "type", "role", "content", "text", "name", "status", "incomplete_details", "reason", "model", "input", "instructions", "started",
    "verifier", "_ng_task_index", "_ng_rollout_index", "generation_token_ids", "invocations", "mask_sample", "x",
]  # fmt: skip
WORDS = [
    "message",
    "output_text",
    "refusal",
    "function_call",
    "reasoning",
    "assistant",
    "user",
    "completed",
    "incomplete",
    "length",
]
NUMBERS = [
    "0", "1", "-1", "0.5", "1e22", "1e23", "1e308", "1e309", "-0.0", "9007199254740993", "123456789012345678901", "01", "1.",
    "1" * 320,
]  # fmt: skip


def value(chance: random.Random, depth: int) -> str:
    """Some JSON, or nearly."""
    kind = chance.randrange(9 if depth else 5)
    if kind < 2:
        return '"' + "".join(chance.choices(TEXTS, k=chance.randrange(4))) + '"'
    if kind == 2:
        return f'"{chance.choice(WORDS)}"'
    if kind == 3:
        return chance.choice(NUMBERS)
    if kind == 4:
        return chance.choice(["true", "false", "null", "NaN", "nul"])
    if kind == 5:
        return "[" + ",".join(value(chance, depth - 1) for _ in range(chance.randrange(4))) + "]"
    pairs = (f'"{chance.choice(KEYS)}":{value(chance, depth - 1)}' for _ in range(chance.randrange(6)))
    return "{" + ",".join(pairs) + "}"


def row(chance: random.Random) -> str:
    """A line like those of a rollouts file."""
    part = f'{{"type":"output_text","text":"{"".join(chance.choices(TEXTS, k=3))}"}}'
    item = f'{{"type":"message","role":"assistant","content":[{part}]}}'
    items = ",".join(
        chance.choices(
            [item, f"[{item}]", '{"type":"function_call"}', value(chance, 2)], k=chance.randrange(4)
        )
    )
    response = f'{{"output":[{items}],"usage":{value(chance, 2)},"status":"completed"}}'
    pairs = [f'"{chance.choice(KEYS)}":{value(chance, 3)}' for _ in range(chance.randrange(5))]
    pairs.append(f'"response":{response}')
    pairs.append(f'"responses_create_params":{{"input":"{chance.choice(TEXTS)}"}}')
    chance.shuffle(pairs)
    if chance.random() < 0.5:
        pairs.insert(
            0, f'"_ng_task_index":{chance.choice(NUMBERS)},"_ng_rollout_index":{chance.choice(NUMBERS)}'
        )
    return "{" + (", " if chance.random() < 0.3 else ",").join(pairs) + "}"


def mutated(chance: random.Random, data: bytes) -> bytes:
    """The bytes with a few of them changed, removed, added or repeated."""
    text = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(text)) if text else 0
        match chance.randrange(6):
            case 0 if text:
                text[place] = chance.randrange(256)
            case 1 if text:
                del text[place : place + chance.randrange(1, 8)]
            case 2:
                text.insert(place, chance.choice(b'"\\{}[],:0eE+-.tfnu\n\x00\x80\xc3\xed\xf0\xff'))
            case 3:
                text[place:place] = text[place : place + chance.randrange(1, 70)]
            case 4:
                del text[place:]
            case _:  # cut inside an escape, a long character, a number or a word
                places = [n for n, byte in enumerate(text) if byte in b"\\-0tfn" or byte >= 0x80]
                del text[chance.choice(places) + chance.randrange(1, 7) if places else place :]
    return bytes(text)


def exact(data: bytes) -> object:
    """The bytes in memory of exactly their size: reading one byte too far is found. Python's own objects end in a NUL."""
    return (ctypes.c_char * len(data)).from_buffer_copy(data)


def fuzz_rows(module: object, chance: random.Random) -> int:
    """Some blocks through one reader; how many lines."""
    rows = module.Rows()  # type: ignore[attr-defined]
    lines = 0
    for _ in range(chance.randrange(1, 12)):
        made = [
            row(chance) if chance.random() < 0.8 else value(chance, 4) for _ in range(chance.randrange(1, 8))
        ]
        block = "\n".join(made).encode("utf-8", "surrogatepass")
        block = block if chance.random() < UNTOUCHED else mutated(chance, block)
        count, left = rows.take(exact(block), 1 + lines, chance.randrange(2**40))
        module.leading_keys(exact(block))  # type: ignore[attr-defined]
        assert len(left) % 24 == 0 and len(left) // 24 <= count
        if chance.random() < 0.5:
            answers, ends, characters, *_ = rows.drain()
            assert len(ends) // 8 == len(characters) // 4
            answers.decode()  # what is handed out is valid UTF-8
        lines += count
    count, numbers, texts, _, _, fixed = rows.finish()
    assert len(fixed["line"]) == 8 * count
    assert all(len(values) == 8 * count for _, values in numbers)
    for _, is_valid, ends, text in texts:
        assert len(is_valid) == count and len(ends) == 4 * count
        text.decode()
    return lines


def fuzz_groups(module: object, chance: random.Random) -> int:
    """Some groups of numbers through the statistics; how many."""
    sizes = [chance.choice([0, 1, 2, 3, 15, 16, 17, 64, 65, 200]) for _ in range(chance.randrange(1, 40))]
    sizes = [size for size in sizes if size] or [1]
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e308, -1e308, 5e-324]
    values = [
        chance.choice(special) if chance.random() < 0.2 else chance.gauss(0, 1) for _ in range(sum(sizes))
    ]
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    into = bytearray(8 * 6 * len(sizes))
    module.describe(  # type: ignore[attr-defined]
        struct.pack(f"{len(values)}d", *values), struct.pack(f"{len(starts)}q", *starts), into
    )
    edges = sorted(chance.gauss(0, 1) for _ in range(chance.randrange(1, 12)))
    counts = module.count_below(  # type: ignore[attr-defined]
        struct.pack(f"{len(values)}d", *values), struct.pack(f"{len(edges)}d", *edges)
    )
    assert len(counts) == len(edges)
    return len(sizes)


def child(folder: str, seconds: float, seed: int) -> None:
    """Fuzz until the time is over; the last line says how much was tried."""
    sys.path.insert(0, folder)
    import _groups  # type: ignore[import-not-found]
    import _rows  # type: ignore[import-not-found]

    until, tried = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        seed += 1
        os.write(2, f"seed {seed}\n".encode()) if seed % 200 == 0 else None
        chance = random.Random(seed)
        tried += fuzz_rows(_rows, chance)
        if seed % 20 == 0:
            tried += fuzz_groups(_groups, chance)
    print(tried, seed)


def compiler() -> list[str]:
    """The compiler, and where Python's headers are."""
    return [
        os.environ.get("CC", "cc"),
        "-std=c11",
        "-D_GNU_SOURCE",
        "-fPIC",
        "-shared",
        f"-I{sysconfig.get_path('include')}",
    ]


def run(seconds: float, seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        for name, source in SOURCES.items():
            target = Path(folder) / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
            done = subprocess.run(
                [*compiler(), *SANITIZERS, str(source), "-o", str(target)], capture_output=True, text=True
            )
            if done.returncode:
                print(f"{source.name} cannot be compiled with sanitizers here: {done.stderr[-500:]}")
                return 77  # as for automake: skipped
        runtime = subprocess.run(
            [compiler()[0], "-print-file-name=libasan.so"], capture_output=True, text=True
        ).stdout.strip()
        environment = {
            **os.environ,
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # Python itself never frees some objects
            "PYTHONMALLOC": "malloc",
        }
        words = [sys.executable, __file__, "--child", folder, "--seconds", str(seconds), "--seed", str(seed)]
        try:
            done = subprocess.run(
                words, env=environment, capture_output=True, text=True, timeout=60 + 5 * seconds
            )
        except subprocess.TimeoutExpired as error:
            print(f"it hangs after {(error.stderr or b'')[-40:]!r}; repeat it with --seed")
            return 1
        if done.returncode:
            print(done.stderr[-6000:])
            return 1
        tried, last = done.stdout.split()
        print(f"{int(tried):,} lines and groups, seeds {seed + 1} to {last}: nothing found")
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.seconds, options.seed)
        return 0
    return run(options.seconds, options.seed)


if __name__ == "__main__":
    raise SystemExit(main())
