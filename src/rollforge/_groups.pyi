from rollforge.stats import Floats, Ints

MOST: int

def describe(values: Floats, starts: Ints, into: Floats, /) -> None: ...
