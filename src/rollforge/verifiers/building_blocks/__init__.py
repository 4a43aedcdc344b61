"""Shared parts of verifiers: judge models, CPU limits for answers, code execution, fields of verdicts."""
