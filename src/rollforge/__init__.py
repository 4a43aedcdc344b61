"""rollforge: from tasks to training-ready data.

The names below are the public API. They are loaded on first use, so that `import rollforge` costs nothing. Nothing is imported
here: under `python -m rollforge` the current directory is still on `sys.path`, and a file there must not run (`__main__.py`).
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rollforge.api import Run as Run
    from rollforge.api import collect as collect
    from rollforge.api import open_run as open_run
    from rollforge.errors import RollforgeError as RollforgeError
    from rollforge.records import Response as Response
    from rollforge.records import Task as Task
    from rollforge.records import Verdict as Verdict

_PLACES = {
    "Response": "rollforge.records",
    "RollforgeError": "rollforge.errors",
    "Run": "rollforge.api",
    "Task": "rollforge.records",
    "Verdict": "rollforge.records",
    "collect": "rollforge.api",
    "open_run": "rollforge.api",
}

__all__ = ["Response", "RollforgeError", "Run", "Task", "Verdict", "__version__", "collect", "open_run"]


def __getattr__(name: str) -> "Any":
    if name not in _PLACES:
        raise AttributeError(f"module 'rollforge' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
