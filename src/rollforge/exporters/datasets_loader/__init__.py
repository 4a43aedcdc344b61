"""What the `datasets` JSON loader would do to rows, known before they are written.

The loader infers types from the first ten megabytes of the first file. `arguments` knows which call arguments it would change, `times`
which texts it would parse as timestamps, `watch` watches rows for both, and `late` brings late columns to the front.
"""
