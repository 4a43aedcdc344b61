"""Predicts what the `datasets` JSON loader would do to rows, before they are written.

The loader infers types from the first ten megabytes of the first file. `call_arguments` finds call arguments that it would
change, `times` finds texts that it would parse as timestamps, `watch` applies both to rows, and `late` finds columns that appear
too late.
"""
