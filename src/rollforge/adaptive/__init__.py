"""Adaptive sampling: which tasks deserve more samples, how a run records its sampling, and which statistics stay unbiased.

design           how the tasks of a run were sampled, as its manifest keeps it
sampling_rule    whether one more sample of a task is worth its cost
group_yield      the share of groups with more than one reward, also beyond the samples taken
stage_estimates  means over all tasks although only some groups are whole

Collecting towards a goal uses them: `steps/collect/goal/`.
"""
