"""The embedded model: a seeded, simulated, OpenAI-compatible server for demos, tests and rehearsals.

```
options       what can be set
tasks         example task rows            problems, facts, arithmetic, needles   what they ask
model         ask + sample → turn          skill, words, tools, tokens            how it answers
dialects      the APIs it speaks           reading, conversation, writing         ask in, turn out
service       request → reply, or a fault  faults                                 what goes wrong
server        HTTP on loopback             wire, process                          bytes; a child process
```

It is not a language model: it parses the numbers and options of the example tasks, and all its answers say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollforge.simulate.process import SimulatedProcess as SimulatedProcess
    from rollforge.simulate.simulate_options import SimulateOptions as SimulateOptions
    from rollforge.simulate.simulated_server import SimulatedServer as SimulatedServer
    from rollforge.simulate.tasks import example_tasks as example_tasks

_MODULE_OF = {
    "SimulateOptions": "rollforge.simulate.simulate_options",
    "SimulatedProcess": "rollforge.simulate.process",
    "SimulatedServer": "rollforge.simulate.simulated_server",
    "example_tasks": "rollforge.simulate.tasks",
}

__all__ = ["SimulateOptions", "SimulatedProcess", "SimulatedServer", "example_tasks"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rollforge.simulate' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)
