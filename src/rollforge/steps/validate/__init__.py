"""Validate: checks every row of a file against its schema; faults have a location and a hint."""

from rollforge.steps.validate.file_checks import ValidateOptions, validate_files
from rollforge.steps.validate.validation_records import FileReport, LineFault, ValidationReport

__all__ = ["FileReport", "LineFault", "ValidateOptions", "ValidationReport", "validate_files"]
