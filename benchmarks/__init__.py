"""Programs for developers of attendax, in a clone: ``python -m benchmarks``, or ``python -m benchmarks.gpu``."""

import sys
from pathlib import Path

FOLDER = str(Path(__file__).resolve().parent)

if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)  # whose modules import each other by their names
