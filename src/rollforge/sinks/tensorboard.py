"""Writes TensorBoard event files; names stay as they are, `@` included. `tensorboard=DIR` names the directory.

Needs the extra `tensorboard` (tensorboardX); no TensorFlow, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollforge.sinks.base import SinkOptions, need_extra


class TensorboardSink:
    """Scalars in an event file."""

    is_remote = False

    def __init__(self, options: SinkOptions) -> None:
        self.path = Path(options.target) if options.target else options.directory / "tensorboard"
        self._writer: Any = None

    def start(self) -> None:
        try:
            from tensorboardX import FileWriter
        except ImportError as error:
            raise need_extra("tensorboard", "tensorboard", error) from error
        self.path.mkdir(parents=True, exist_ok=True)
        self._writer = FileWriter(str(self.path))

    def log(self, metrics: Mapping[str, float | None], *, step: int, at: float) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        # Built by hand: the package's add_scalar would turn every @ into an underscore.
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
            if value is not None
        ]
        self._writer.add_summary(Summary(value=values), step, at)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
