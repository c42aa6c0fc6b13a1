"""``python -m specstream``: the command line."""

import sys

from specstream.cli import main

if __name__ == "__main__":
    sys.exit(main())
