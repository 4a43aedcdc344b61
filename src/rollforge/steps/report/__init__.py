"""Reports: one self-contained HTML file about a run, several runs, a dataset or an evaluation."""

from rollforge.steps.report.bins import RunBins, read_bins
from rollforge.steps.report.compare_page import SideInputs, report_comparison
from rollforge.steps.report.dataset_page import (
    dataset_turns,
    is_dataset,
    jsonl_rows,
    parquet_rows,
    report_dataset,
)
from rollforge.steps.report.evaluation_page import report_evaluation
from rollforge.steps.report.figures import LEFT_OUT, is_unset, title_of
from rollforge.steps.report.inputs import (
    BenchFacts,
    CheckFacts,
    EvaluationFacts,
    FlipFacts,
    LoggedStep,
    ManifestFacts,
    MetricsFacts,
    PairedFacts,
    ProbeFacts,
    ProfileFacts,
    facts_of,
)
from rollforge.steps.report.operation_figures import flip_verdict
from rollforge.steps.report.run_page import DatasetFacts, Overview, RunInputs, report_run, run_figures

__all__ = [
    "LEFT_OUT",
    "BenchFacts",
    "CheckFacts",
    "DatasetFacts",
    "EvaluationFacts",
    "FlipFacts",
    "LoggedStep",
    "ManifestFacts",
    "MetricsFacts",
    "Overview",
    "PairedFacts",
    "ProbeFacts",
    "ProfileFacts",
    "RunBins",
    "RunInputs",
    "SideInputs",
    "dataset_turns",
    "facts_of",
    "flip_verdict",
    "is_dataset",
    "is_unset",
    "jsonl_rows",
    "parquet_rows",
    "read_bins",
    "report_comparison",
    "report_dataset",
    "report_evaluation",
    "report_run",
    "run_figures",
    "title_of",
]
