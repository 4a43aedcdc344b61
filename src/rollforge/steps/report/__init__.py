"""Reports: one self-contained HTML file about a run, several runs, a dataset or an evaluation."""

from rollforge.steps.report.inputs import CheckFacts, FlipFacts, MetricsFacts, ProfileFacts, facts_of
from rollforge.steps.report.run_page import RunInputs, report_run

__all__ = ["CheckFacts", "FlipFacts", "MetricsFacts", "ProfileFacts", "RunInputs", "facts_of", "report_run"]
