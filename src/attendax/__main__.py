"""``python -m attendax``: the same as the command ``attendax``."""

import sys

from attendax.cli import main

if __name__ == "__main__":
    sys.exit(main())
