"""Statistics without I/O: summaries of rewards, intervals of means, and pass@k with its relatives."""
