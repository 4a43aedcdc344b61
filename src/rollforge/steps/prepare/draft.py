"""Writes rows during the survey, in the form that a sample of the rows suggests.

The form of a dataset is known only after its last row. If the sample was right, which is usual, the draft becomes the dataset,
and every rollout is read and converted only once. Otherwise the draft is deleted, and `write_dataset` reads the rollouts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollforge.conversations.messages import Inexpressible
from rollforge.exporters.base import Exporter
from rollforge.exporters.examples import Example
from rollforge.exporters.form import Form
from rollforge.steps.prepare.dataset_plan import DatasetPlan
from rollforge.steps.prepare.write_rows import (
    REPORT_EVERY,
    Progress,
    RowFile,
    Written,
    WrittenFile,
    dataset_files,
    open_row_file,
)


class Draft:
    """Files of a dataset whose final form is not yet certain."""

    def __init__(
        self, folder: Path, plan: DatasetPlan, exporter: Exporter, shards: int, progress: Progress
    ) -> None:
        self._folder, self._plan, self._exporter = folder, plan, exporter
        self._shards, self._progress = shards, progress
        self.form: Form | None = None
        """Form of the rows; None if no draft is written."""
        self._files: list[WrittenFile] = []
        self._begun = self._rows = 0
        self._current: RowFile | None = None

    def begin(self, form: Form | None) -> None:
        """Start again in this form; None for no draft."""
        self.drop()
        self.form = form
        self._begun = self._rows = 0
        self._files = (
            [] if form is None else [file for file, _ in dataset_files(self._plan, form, self._shards)]
        )

    def begin_file(self) -> None:
        """Switch to the next file."""
        if self.form is None:
            return
        self._close()
        path = self._folder / self._files[self._begun].name
        self._current = open_row_file(path, self._exporter, self._plan.selection.kind, self.form)
        self._begun += 1

    def meet(self, keys: Mapping[str, frozenset[str]]) -> None:
        """Abandon the draft if messages of a column have optional keys that the form lacks."""
        if self.form is None or self.form.shaping.keys != "uniform":
            return
        form_keys = self.form.keys
        if any(names - form_keys.get(column, frozenset()) for column, names in keys.items()):
            self.drop()

    def add(self, number: int, example: Example, *, slips: bool = False) -> None:
        """Write one example; one that `slips` has call arguments that no object can represent."""
        if self.form is None or self._current is None or (slips and self.form.shaping.arguments == "object"):
            return
        try:
            self._current.add(example)
        except Inexpressible:  # in this form; the survey's own may be another
            self.drop()
            return
        self._files[self._begun - 1].examples.append(number)
        self._rows += 1
        if self._rows % REPORT_EVERY == 0:
            self._progress("write", self._rows, len(self._plan.split))

    def drop(self) -> None:
        """Stop and delete the draft."""
        self._close()
        for file in self._files[: self._begun]:
            (self._folder / file.name).unlink(missing_ok=True)
        self.form = None

    def settle(self, form: Form, lost: Mapping[int, str]) -> Written | None:
        """The draft as the dataset, if it has all rows in this form; otherwise it is deleted."""
        self._close()
        is_whole = self._rows == len(self._plan.split) - len(lost)
        if self.form is None or not is_whole or not form.writes_like(self.form):
            self.drop()
            return None
        return Written(self._files, lost)

    def _close(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None
