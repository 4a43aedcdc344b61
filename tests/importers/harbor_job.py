"""Runs a real Harbor job without Docker: tasks, an environment that is a folder on this machine, an agent that asks a model.

Usage: harbor_job.py FOLDER BASE_URL. Needs Harbor (Python 3.12+). The trials' folders below FOLDER/jobs are what Harbor itself
writes. Written for tests of `rollforge import harbor`.
"""

import asyncio
import json
import shutil
import sys
import urllib.request
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.trajectories import (
    Agent,
    FinalMetrics,
    Observation,
    ObservationResult,
    Step,
    ToolCall,
    Trajectory,
)
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

BASE_URL = ""


class FolderEnvironment(BaseEnvironment):
    """Commands run on this machine; the container's paths become paths below a folder of the trial's own."""

    @staticmethod
    def type() -> str:
        return "folder"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        pass

    @property
    def root(self) -> Path:
        return self.trial_paths.trial_dir.parent.parent / "boxes" / self.session_id

    def _inside(self, text: str) -> str:
        for name in ("/logs", "/tests", "/app", "/solution", "/installed-agent"):
            text = text.replace(name, f"{self.root}{name}")
        return text

    async def start(self, force_build: bool) -> None:
        for name in ("logs/verifier", "logs/agent", "logs/artifacts", "app", "tests"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    async def upload_file(self, source_path, target_path) -> None:
        target = Path(self._inside(str(target_path)))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, target)

    async def upload_dir(self, source_dir, target_dir) -> None:
        shutil.copytree(source_dir, self._inside(str(target_dir)), dirs_exist_ok=True)

    async def download_file(self, source_path, target_path) -> None:
        shutil.copy(self._inside(str(source_path)), target_path)

    async def download_dir(self, source_dir, target_dir) -> None:
        source = Path(self._inside(str(source_dir)))
        if source.is_dir():
            shutil.copytree(source, target_dir, dirs_exist_ok=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            self._inside(command),
            cwd=self._inside(cwd) if cwd else self.root / "app",
            env={"PATH": "/usr/bin:/bin", **(env or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)


class AskingAgent(BaseAgent):
    """One question to the model, one command, and a trajectory in Harbor's own format."""

    SUPPORTS_ATIF = True

    @staticmethod
    def name() -> str:
        return "asking"

    def version(self) -> str:
        return "1"

    async def setup(self, environment) -> None:
        pass

    async def run(self, instruction, environment, context) -> None:
        if "give up" in instruction:
            raise RuntimeError("the agent gave up")
        body = json.dumps(
            {"model": "simulated", "messages": [{"role": "user", "content": instruction}]}
        ).encode()
        request = urllib.request.Request(
            f"{BASE_URL}/chat/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            answer = json.load(reply)
        text = answer["choices"][0]["message"]["content"]
        (environment.root / "app" / "answer.txt").write_text(text)
        seen = await environment.exec("wc -c < answer.txt")
        steps = [
            Step(step_id=1, source="user", message=instruction),
            Step(
                step_id=2,
                source="agent",
                message=text,
                model_name="simulated",
                tool_calls=[
                    ToolCall(
                        tool_call_id="c1", function_name="bash", arguments={"command": "wc -c < answer.txt"}
                    )
                ],
                observation=Observation(
                    results=[ObservationResult(source_call_id="c1", content=seen.stdout)]
                ),
            ),
            Step(step_id=3, source="agent", message="It is written.", model_name="simulated"),
        ]
        usage = answer["usage"]
        metrics = FinalMetrics(
            total_prompt_tokens=usage["prompt_tokens"],
            total_completion_tokens=usage["completion_tokens"],
            total_steps=3,
        )
        trajectory = Trajectory(
            schema_version="ATIF-v1.6",
            session_id=str(environment.session_id),
            agent=Agent(name="asking", version="1", model_name="simulated"),
            steps=steps,
            final_metrics=metrics,
        )
        (self.logs_dir / "trajectory.json").write_text(trajectory.model_dump_json(exclude_none=True))
        context.n_input_tokens, context.n_output_tokens = usage["prompt_tokens"], usage["completion_tokens"]


TASKS = {
    "sum": (
        "What is 2 + 2? Put the final answer in \\boxed{}.",
        'grep -q "boxed{4}" "$app/answer.txt" && echo 1 > "$logs/reward.txt" || echo 0 > "$logs/reward.txt"',
    ),
    "parts": ("What is 3 + 3?", 'echo \'{"reward": 0.5, "speed": 2}\' > "$logs/reward.json"'),
    "unsaid": ("What is 4 + 4?", "true"),
    "lost": ("Please give up.", 'echo 1 > "$logs/reward.txt"'),
}


def write_task(folder: Path, name: str, instruction: str, test: str) -> Path:
    task = folder / "tasks" / name
    (task / "environment").mkdir(parents=True)
    (task / "tests").mkdir()
    (task / "instruction.md").write_text(instruction + "\n")
    (task / "task.toml").write_text(
        'version = "1.0"\n[metadata]\n[verifier]\ntimeout_sec = 60.0\n[agent]\ntimeout_sec = 60.0\n[environment]\n'
    )
    (task / "environment" / "Dockerfile").write_text("FROM scratch\n")
    here = 'app="$(dirname "$0")/../app"; logs="$(dirname "$0")/../logs/verifier"'
    (task / "tests" / "test.sh").write_text(f"#!/bin/bash\n{here}\n{test}\n")
    return task


async def main(folder: Path) -> None:
    for name, (instruction, test) in TASKS.items():
        task = write_task(folder, name, instruction, test)
        for attempt in range(2):
            config = TrialConfig(
                task=TaskConfig(path=task),
                trial_name=f"{name}__{attempt}",
                trials_dir=folder / "job",
                agent=AgentConfig(import_path="harbor_job:AskingAgent", model_name="rollforge/simulated"),
                environment=EnvironmentConfig(import_path="harbor_job:FolderEnvironment"),
            )
            trial = await Trial.create(config)
            result = await trial.run()
            print(
                result.trial_name,
                result.verifier_result,
                result.exception_info and result.exception_info.exception_type,
            )


if __name__ == "__main__":
    import harbor_job  # the classes that Harbor imports by name

    harbor_job.BASE_URL = sys.argv[2]
    asyncio.run(main(Path(sys.argv[1]).resolve()))
