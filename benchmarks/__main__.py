"""``python -m benchmarks``, in a clone: ``bench`` times attention, ``matrix`` and ``models`` judge other libraries."""

import sys
from pathlib import Path

from attendax import exits

FOLDER = str(Path(__file__).resolve().parent)

if __name__ == "__main__":
    exits.end_at_once()
    if FOLDER not in sys.path:
        sys.path.insert(0, FOLDER)  # whose modules import each other by their names
    import command_line

    status = command_line.main()
    exits.end_at_once()
    sys.exit(status)
