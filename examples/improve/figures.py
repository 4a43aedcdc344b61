"""Prints the figures of all variants and seeds that were benched, as a Markdown table: figures.py [WORK].

All nine: for variant in sft dpo grpo; do for seed in 1 2 3; do bash improve.sh $variant $seed; done; done
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any


def difference(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())["differences"][-1]
    return found


def shown(one: dict[str, Any]) -> str:
    interval = "" if one["ci"] is None else " [{:+.3f}, {:+.3f}]".format(*one["ci"])
    return f"{one['difference']:+.3f}{interval}"


def main(work: Path) -> None:
    print("| | base | trained | paired difference [95 %] | without brevity: `mentions` | tasks |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for path in sorted((work / "bench").glob("*.json")):
        match = re.fullmatch(r"(sft|dpo|grpo)(\d+)", path.stem)
        mentions = path.with_name(f"{path.stem}-mentions.json")
        if match is None or not mentions.exists():
            continue
        reward, other = difference(path), difference(mentions)
        print(
            f"| {match[1].upper()}, seed {match[2]} | {reward['baseline']:.3f} | {reward['value']:.3f} "
            f"| {shown(reward)} | {shown(other)} | {reward['tasks']} |"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "work"))
