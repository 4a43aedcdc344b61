"""Validate: every row of a file against the schema it claims, with the place and the hint."""

from rollforge.steps.validate.files import ValidateOptions, validate_files
from rollforge.steps.validate.records import FileReport, Problem, Report

__all__ = ["FileReport", "Problem", "Report", "ValidateOptions", "validate_files"]
