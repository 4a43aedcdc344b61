"""The source of a check's evidence: columns and texts of a run, and facts about how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import pyarrow as pa

from rollforge.adaptive.design import SamplingDesign
from rollforge.checks.building_blocks.finding import Location
from rollforge.checks.building_blocks.stream import SuspectWindow
from rollforge.json_shapes import RowJson
from rollforge.review.labels import LabelRates
from rollforge.statistics.stats import Floats


class EvidenceSource(Protocol):
    """The columns and lines of a run: an index, or a run made in memory."""

    @property
    def numbers(self) -> Sequence[str]:
        """Number columns from the rows' own fields, including `reward`."""

    @property
    def whole_numbers(self) -> frozenset[str]:
        """Number columns without missing values, determined without reading them."""

    @property
    def texts(self) -> Sequence[str]:
        """Text columns from the rows' own fields."""

    @property
    def task_texts(self) -> Sequence[str]:
        """Text columns of the tasks as sent."""

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Table with these columns, in file order."""

    def task_table(self, columns: Sequence[str]) -> pa.Table:
        """Table with these columns of the tasks as sent."""

    def read(self, rows: Sequence[int]) -> Iterator[bytes]:
        """Raw lines of these rows."""

    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, RowJson]]:
        """These tasks as sent, as far as the run has them."""

    def other_rewards(self) -> Mapping[str, Floats]:
        """Rewards of verifiers whose verdicts do not count: verifier → one value per row of `table`, NaN for none."""


class ProbeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the last probe of the run's verifier."""

    is_broken: bool = False
    reasons: list[str] = []
    verifier: str | None = None
    fingerprint: str | None = None

    @property
    def reason(self) -> str:
        return self.reasons[0] if self.reasons else "it gave wrong verdicts on answers whose verdict is known"


@dataclass(frozen=True, kw_only=True)
class About:
    """Facts about a run that are not in its rollouts."""

    name: str = "RUN"
    """The run as commands name it."""
    runs: int = 1
    """Runs that are pooled."""
    model: str | None = None
    """The model asked for."""
    expected: int | None = None
    """Number of requested rollouts; None if nothing records it."""
    samples: int | None = None
    is_running: bool = False
    rejected_lines: int = 0
    noted: Sequence[tuple[int, str]] = ()
    """(line, reason) of odd rows that still count."""
    duplicates: int = 0
    duplicate_locations: Sequence[Location] = ()
    declared: tuple[float, float] | None = None
    """The reward range that the verifier or the user declared."""
    failed_tasks: Sequence[int] = ()
    """The task of each rollout that finally failed, if a failures file exists."""
    where: str | None = None
    """The --where condition, when only some rollouts are checked."""
    verifier_failures: str = ""
    """Why the verifier failed, as text, if the failures file says so."""
    suspect: SuspectWindow | None = None
    """The window that `collect` marked when its live detectors tripped."""
    probe: ProbeOutcome | None = None
    """None when the verifier was never probed."""
    is_collected: bool = False
    """Whether rollforge collected the run: a manifest exists."""
    open_programs: bool = False
    """Whether the agents were programs without a sandbox (`--sandbox off`)."""
    logprobs: bool = False
    """Whether log-probabilities were requested."""
    timed_out: Sequence[int] = ()
    """The task of each attempt that timed out."""
    timeout_s: float | None = None
    design: SamplingDesign | None = None
    """How the tasks of an adaptive run were sampled; None for a uniform one."""
    labels: LabelRates | None = None
    """How people's labels agree with the verdicts; None without labels."""
