"""`python -m rollforge` is `rollforge`."""

from rollforge.cli import main

main()
