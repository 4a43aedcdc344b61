"""Collect in shards: one here, or all of them over the workers of an executor.

step     the collection over all shards; opened_run: the run of shards with its plan; runner: the shards of one process;
worker   the process that takes orders and reports numbers
"""
