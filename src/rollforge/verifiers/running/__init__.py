"""Running verifiers: from one call to a pool of worker processes.

ready_verifier  a verifier made ready: equal answers share a call, cache, counters
answer_keys     when two answers are equal
verdict_cache   verdicts on disk, across runs
in_loop         calls in the event loop's thread
worker_pool     calls in worker processes
engines         calls in the loop for cheap tasks, in workers for others
cores           how many CPU cores may be used, and how many are idle
worker_line     the parent's end of one worker
spawner         starts and reaps workers
worker          the code inside worker processes
calling         the call itself, the same in the loop and in workers
fingerprint     digest of a verifier's source and options
sources         files of users' code that travel to other machines
"""
