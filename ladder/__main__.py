"""python -m ladder: the same as the `ladder` command."""

import sys

from ladder.cli import main

if __name__ == "__main__":
    sys.exit(main())
