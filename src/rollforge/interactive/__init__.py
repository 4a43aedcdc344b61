"""Support for notebooks, scripts and async services: waiting, progress, tables, in-memory tasks, outcomes.

waiting      runs async work from sync code, inside a running event loop too; the first interrupt drains
progress     the live line of a notebook, a terminal or a log
table        a run's rollouts, tasks and failures as lazy tables
in_memory    tasks from lists, iterators, DataFrames, Arrow tables and datasets
outcome      how a run ended, as a text that says whether it is all right
options      keyword arguments → the records of the steps
keywords     the types of those keyword arguments, generated from the records
"""
