"""Synthetic runs for tests: healthy ones of many kinds, and sick ones with one known defect, in memory or on disk.

They test detectors (rollforge's own, and yours): a healthy run should get no error, a sick one the finding its defect names.

    run = healthy_run(Shape(tasks=200, samples=8), seed=1)
    sick = sick_run("breaks-halfway", seed=2)
    sick.write("runs/sick")                      # rollouts, tasks and manifest, as collect writes them
"""

from rollforge.testing.defects import DEFECTS, Defect, sick_run
from rollforge.testing.made_rows import Shape
from rollforge.testing.runs import MadeRun, healthy_run, varied_shape

__all__ = ["DEFECTS", "Defect", "MadeRun", "Shape", "healthy_run", "sick_run", "varied_shape"]
