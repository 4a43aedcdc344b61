"""One file per verb: its flags, the call of its step, its exit code."""
