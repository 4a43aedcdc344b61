"""rollforge: from tasks to training-ready data.

The names below are the public API. They are loaded on first use, so that `import rollforge` costs nothing. Nothing is imported
here: under `python -m rollforge` the current directory is still on `sys.path`, and a file there must not run (`__main__.py`).
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rollforge.api import Run as Run
    from rollforge.api import bench as bench
    from rollforge.api import bench_async as bench_async
    from rollforge.api import collect as collect
    from rollforge.api import collect_async as collect_async
    from rollforge.api import evaluate as evaluate
    from rollforge.api import evaluate_async as evaluate_async
    from rollforge.api import open_run as open_run
    from rollforge.api import verify as verify
    from rollforge.api import verify_async as verify_async
    from rollforge.errors import RollforgeError as RollforgeError
    from rollforge.interactive.outcome import RunWarning as RunWarning
    from rollforge.records import Response as Response
    from rollforge.records import Task as Task
    from rollforge.records import Verdict as Verdict

_MODULE_OF = {
    "Response": "rollforge.records",
    "RollforgeError": "rollforge.errors",
    "Run": "rollforge.api",
    "RunWarning": "rollforge.interactive.outcome",
    "Task": "rollforge.records",
    "Verdict": "rollforge.records",
    "bench": "rollforge.api",
    "bench_async": "rollforge.api",
    "collect": "rollforge.api",
    "collect_async": "rollforge.api",
    "evaluate": "rollforge.api",
    "evaluate_async": "rollforge.api",
    "open_run": "rollforge.api",
    "verify": "rollforge.api",
    "verify_async": "rollforge.api",
}

__all__ = [
    "Response",
    "RollforgeError",
    "Run",
    "RunWarning",
    "Task",
    "Verdict",
    "__version__",
    "bench",
    "bench_async",
    "collect",
    "collect_async",
    "evaluate",
    "evaluate_async",
    "open_run",
    "verify",
    "verify_async",
]


def __getattr__(name: str) -> "Any":
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rollforge' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
