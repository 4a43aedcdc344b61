"""Multi-step workflows: evaluations, benchmarks, reports and monitored collections."""
