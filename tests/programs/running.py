"""Collects with a program as the agent, against a simulated model, in a folder of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.steps.collect import Collection, CollectResult
from rollforge.steps.collect.collect_options import CollectOptions

ASK = """
import json, os, sys, urllib.error, urllib.request

def ask(messages, **more):
    body = json.dumps({"model": "m", "messages": messages, **more}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]

def user(text):
    return [{"role": "user", "content": text}]
"""
"""What test programs begin with."""


class Ran(NamedTuple):
    """What a collection left."""

    result: CollectResult
    rows: list[Any]
    failures: list[Any]
    calls: list[Any]
    out: Path


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_program(folder: Path, source: str) -> str:
    """The command that runs the source after `ASK`."""
    path = folder / "agent.py"
    path.write_text(ASK + source)
    return f"program:{Path(sys.executable).resolve()} {path}"


async def collected(
    folder: Path,
    source: str,
    *,
    words: str = "",
    tasks: list[dict[str, Any]] | None = None,
    model: dict[str, Any] | None = None,
    **options: Any,
) -> Ran:
    """Run the program once per rollout."""
    (folder / "tasks.jsonl").write_text(
        "".join(
            json.dumps({"prompt": "What is 2 + 2?", **task}) + "\\n".replace("\\n", "\n")
            for task in tasks or [{"expected_answer": "4"}]
        )
    )
    async with SimulatedServer(SimulateOptions(**{"reasoning": 0, **(model or {})})) as server:
        settings: dict[str, Any] = {"attempts": 1, "no_verify": "verifier" not in options, "retries": 0}
        collection = Collection(
            CollectOptions(
                input=str(folder / "tasks.jsonl"),
                out=str(folder / "run"),
                model="simulated",
                base_urls=(server.base_url,),
                agent=f"{write_program(folder, source)} {words}",
                **{**settings, **options},
            )
        )
        result = await collection.run()
    out = folder / "run"
    return Ran(
        result,
        lines(out / "rollouts.jsonl"),
        lines(out / "rollouts_failures.jsonl"),
        lines(out / "rollouts_calls.jsonl"),
        out,
    )
