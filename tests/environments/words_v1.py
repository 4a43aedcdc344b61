"""An environment of verifiers, version 1, for tests: sums, a tool, rewards that raise, two roles. Needs verifiers 0.4."""

import verifiers.v1 as vf


class WordData(vf.TaskData):
    answer: str


class WordTaskConfig(vf.TaskConfig):
    kind: str = "sum"


class WordConfig(vf.TasksetConfig):
    count: int = 4
    task: WordTaskConfig = WordTaskConfig()


class Book(vf.Toolset[vf.ToolsetConfig, vf.State]):
    TOOL_PREFIX = "book"

    @vf.tool
    async def look(self, word: str) -> str:
        """Look a word up."""
        return f"{word}: found"


class WordTask(vf.Task[WordData, vf.State, WordTaskConfig]):
    @vf.reward(weight=0.5)
    async def right(self, task, trace) -> float:
        if self.config.kind == "breaks" and task.answer == "4":
            raise RuntimeError("no such answer")
        if self.config.kind == "tool":
            return float(any("found" in str(message.content) for message in trace.tool_messages))
        return float("boxed{" + task.answer + "}" in trace.last_reply)

    @vf.reward(weight=0.25)
    async def spoke(self, trace) -> float:
        return float(bool(trace.last_reply))

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)

    @classmethod
    def toolsets(cls, config):
        return [Book(vf.ToolsetConfig())] if config.kind == "tool" else []


class WordTaskset(vf.Taskset[WordTask, WordConfig]):
    def load(self):
        for number in range(self.config.count):
            text = f"What is {number} + {number}? Put the final answer in \\boxed{{}}."
            if self.config.task.kind == "tool":
                text = 'Look it up.\ncall book_look {"word": "sum"}'
            data = WordData(prompt=text, answer=str(2 * number), system_prompt="Be brief.")
            yield WordTask(data, self.config.task)


__all__ = ["WordTaskset"]

if __name__ == "__main__":  # the library starts a task's tools as a program of this module
    Book.run()
