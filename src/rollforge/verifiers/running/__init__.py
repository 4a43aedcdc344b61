"""Running verifiers: from one call to a pool of worker processes.

judge        a verifier made ready: equal answers share a call, cache, counters
answer_keys  when two answers are equal
cache        verdicts on disk, across runs
in_loop      calls in the event loop's thread
pool         calls in worker processes
worker_line  the parent's end of one worker
spawner      starts and reaps workers
worker       the code inside worker processes
calling      the call itself, the same in the loop and in workers
"""
