"""The command ``attendax``, and ``python -m attendax``."""

import os
import sys
import time

from attendax import exits


def main() -> None:
    """Run the command line and end the process; a signal ends it from the first import on."""
    called = time.monotonic()
    exits.end_at_once()
    from attendax import cli

    status = cli.main(called=called)
    exits.end_at_once()
    if status in exits.STATUSES:  # the command has cleaned up; what XLA still compiles is left behind
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
