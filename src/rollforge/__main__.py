"""`python -m rollforge` is `rollforge`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current directory: a file there must not pose as a module that we import

from rollforge.cli import main

main()
