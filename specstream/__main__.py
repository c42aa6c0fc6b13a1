"""``python -m specstream``: the command line."""

import sys

from specstream.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
