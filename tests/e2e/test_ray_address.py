"""An address where no cluster listens is refused at once, with what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.simulate import example_tasks

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rollforge[ray]'")


def test_a_dead_address_is_refused_before_ray_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in example_tasks(2, 0, "math"))
    )
    words = "collect -i tasks.jsonl -o run -m simulated --verifier exact --on ray:127.0.0.1:1 --progress none"
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert "there is no Ray cluster at 127.0.0.1:1" in done.stderr
