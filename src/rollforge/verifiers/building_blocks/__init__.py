"""What verifiers are built from: judge models, limits on the cost of an answer, code execution, fields of verdicts."""
