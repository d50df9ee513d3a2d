"""``python -m benchmarks``, in a clone: ``bench`` times attention, ``matrix`` and ``models`` judge other libraries."""

import sys

from attendax import exits

if __name__ == "__main__":
    exits.end_at_once()
    import command_line

    status = command_line.main()
    exits.end_at_once()
    sys.exit(status)
