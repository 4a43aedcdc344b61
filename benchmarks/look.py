"""Report and viewer over a large run: seconds of CPU after the index, bytes, the server's memory, frames while scrolling.

The rows are short, because neither reads text but for the rollout on the screen. Each part runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from pathlib import Path

from benchmarks.collect import cpu_s, measure_part, peak_mb

SAMPLES = 8
REPORT_S = 3.0
REPORT_BYTES = 2 << 20
FIRST_ROWS_S = 1.0
VIEW_MB = 300
OPEN_S = 0.5
FRAME_MS = 20.0
LONG_BYTES = 32 << 20


def write_run(path: Path, rows: int) -> None:
    """A healthy run of short rollouts in order of arrival."""
    rng = random.Random(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for number in range(rows):
            task, sample = divmod(number, SAMPLES)
            right = rng.random() < (task * 7919 % 1000) / 1000
            answer = task if right else task + rng.randrange(1, 50)
            tokens = 20 + int(rng.expovariate(1 / 60))
            row = {
                "_ng_task_index": task, "_ng_rollout_index": sample, "agent_ref": {"name": "model_call"},
                "reward": float(right), "extracted_answer": str(answer),
                "responses_create_params": {"input": [{"role": "user", "content": f"What is {task} + 0?"}]},
                "response": {
                    "id": f"r{number}", "model": "m", "status": "completed", "created_at": 1_700_000_000 + number // 500,
                    "output": [{"type": "message", "role": "assistant", "content": [
                        {"type": "output_text", "text": "so " * (tokens // 2) + f"it is {answer}"}]}],
                    "usage": {"input_tokens": 12, "output_tokens": tokens, "total_tokens": tokens + 12},
                },
                "_rf": {"started": 1_700_000_000 + number / 500, "seconds": tokens / 50, "verifier": "exact", "verify_seconds": 1e-4},
            }  # fmt: skip
            file.write(json.dumps(row) + "\n")


def report_part(run: str, out: str) -> dict[str, float]:
    """The report of a run whose index is there, in this process, after imports."""
    from rollforge.assembly.reports import write_report
    from rollforge.index import open_index

    with open_index(run):
        pass
    wall, cpu = time.perf_counter(), cpu_s()
    written = write_report([run], out)
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_s": cpu_s() - cpu,
        "bytes": written.bytes,
        "peak_mb": peak_mb(),
    }


async def ask(address: str, long: str) -> dict[str, float]:
    """First rows, a filter with a sort, suspicious rollouts and a very long rollout, each over HTTP; seconds by the clock."""
    from aiohttp import ClientSession, CookieJar

    found = {}
    base, token = address.split("?token=")
    async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:
        async with session.get(address):
            pass
        for name, path in (
            ("first rows", "api/rollouts?run=0&count=100"),
            ("filter and sort", "api/rollouts?run=0&count=100&where=reward=0&sort=output_tokens+desc"),
            ("suspicious", "api/suspicious?run=0&count=100"),
            ("suspicious again", "api/suspicious?run=0&count=100"),
            ("groups", "api/groups?run=0&count=100"),
            ("a rollout of 32 MB", "api/rollout?run=1&row=0"),
        ):
            began = time.perf_counter()
            async with session.get(base + path) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            found[name] = time.perf_counter() - began
    assert token and long
    return found


def view_part(run: str, long: str) -> dict[str, float]:
    """The viewer as a user starts it."""
    words = [sys.executable, "-m", "rollforge", "view", run, long, "--json", "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = ""
    began = time.perf_counter()
    while not text.rstrip().endswith("}"):
        text += process.stdout.readline()
    started = time.perf_counter() - began
    found = asyncio.run(ask(json.loads(text)["address"], long))
    peak = highest_mb(process.pid)
    process.terminate()
    process.wait()
    return {"start": started, **found, "peak_mb": peak}


def highest_mb(pid: int) -> float:
    """Peak memory of a running process. `wait4` would count that of the process that started it, too."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


SCROLL = """async () => {
  const list = document.querySelector('.list');
  const times = [];
  for (const [by, frames] of [[78, 300], [3000, 300]]) {
    await new Promise((done) => {
      let left = frames, last = performance.now();
      const step = (now) => {
        times.push(now - last);
        last = now;
        list.scrollTop += by;
        performance.mark('frame');
        if (left -= 1) requestAnimationFrame(step); else done();
      };
      requestAnimationFrame(step);
    });
  }
  return times.slice(1);
}"""
"""Three rows a frame, then a hundred and more; seconds between frames as the browser gives them."""


def frames_part(run: str) -> dict[str, float]:
    """Scrolling the list in Chromium: time between frames, and the processor time of the page's main thread in each."""
    import shutil

    from playwright.sync_api import sync_playwright

    words = [sys.executable, "-m", "rollforge", "view", run, "--json", "--no-browser"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        text += process.stdout.readline()
    address = json.loads(text)["address"]
    with sync_playwright() as driver:
        flags = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        page = browser.new_page(viewport={"width": 1300, "height": 850})
        page.goto(address)
        page.goto(address.split("?")[0] + "#page=rollouts")
        page.wait_for_selector(".row .chip", timeout=60_000)
        page.evaluate(SCROLL)  # once to warm up
        page.evaluate("() => { document.querySelector('.list').scrollTop = 0; }")
        browser.start_tracing(page=page, categories=["toplevel", "blink.user_timing"])
        times = sorted(page.evaluate(SCROLL))
        work = _work_per_frame(json.loads(browser.stop_tracing()))
        browser.close()
    process.terminate()
    process.wait()
    return {
        "p50": times[len(times) // 2],
        "p99": times[int(len(times) * 0.99)],
        "work_p50": work[len(work) // 2],
        "work_p99": work[int(len(work) * 0.99)],
    }


def _work_per_frame(trace: dict[str, list[dict[str, object]]]) -> list[float]:
    """Milliseconds of processor time that the page's main thread took between two frames, ascending."""
    events = trace["traceEvents"]
    marks = [
        one for one in events if one.get("name") == "frame" and "blink.user_timing" in str(one.get("cat"))
    ]
    thread = marks[0]["pid"], marks[0]["tid"]
    begins = sorted(float(str(one["ts"])) for one in marks)
    work = [0.0] * len(begins)
    for one in events:
        if (one["pid"], one["tid"]) != thread or "tdur" not in one or "RunTask" not in str(one.get("name")):
            continue
        place = bisect_right(begins, float(str(one["ts"])) + float(str(one["dur"]))) - 1
        if place >= 0:
            work[place] += float(str(one["tdur"])) / 1000
    return sorted(work[:-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keep", help="folder for the run; made once, used again")
    parser.add_argument("--part", nargs=2, metavar=("RUN", "OUT"))
    words = parser.parse_args()
    if words.part:
        print(json.dumps(report_part(*words.part)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(words.keep or temporary)
        run, long = folder / f"run-{words.rows}", folder / "long"
        if not (run / "rollouts.jsonl").exists():
            write_run(run / "rollouts.jsonl", words.rows)
        if not (long / "rollouts.jsonl").exists():
            write_run(long / "rollouts.jsonl", 1)
            line = (long / "rollouts.jsonl").read_text()
            filler = "a line of some length that a tool wrote, again and again\\n" * (LONG_BYTES >> 6)
            (long / "rollouts.jsonl").write_text(line.replace("it is ", filler + "it is "))
        from rollforge.index import open_index

        began = cpu_s()
        for path in (run, long):
            with open_index(str(path)):
                pass
        print(f"{words.rows:,} rollouts; index {cpu_s() - began:.1f} s of CPU")
        report = measure_part("look", str(run), str(folder / "report.html"))
        print(
            f"report: {report['seconds']:.2f} s, {report['cpu_s']:.2f} s of CPU (limit {REPORT_S:g}), "
            f"{report['bytes'] / 1e6:.2f} MB (limit {REPORT_BYTES / 1e6:.1f}), peak {report['peak_mb']:.0f} MB"
        )
        view = view_part(str(run), str(long))
        for name, value in view.items():
            limit = {
                "first rows": f" (limit {FIRST_ROWS_S:g} s)",
                "a rollout of 32 MB": f" (limit {OPEN_S:g} s)",
            }.get(name, "")
            print(
                f"view: {name} {value:.2f} s{limit}"
                if name != "peak_mb"
                else f"view: peak {value:.0f} MB (limit {VIEW_MB})"
            )
        try:
            frames = frames_part(str(run))
        except ImportError:
            print("scrolling: playwright is not installed")
            return
        print(
            f"scrolling: {frames['p50']:.1f} ms between frames, p99 {frames['p99']:.1f} ms (limit {FRAME_MS:g}); "
            f"work per frame {frames['work_p50']:.1f} ms of CPU, p99 {frames['work_p99']:.1f} ms"
        )


if __name__ == "__main__":
    main()
