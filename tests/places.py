"""Folders of the repository, for tests in whatever folder they are."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
SOURCE = ROOT / "src"
KIT = TESTS / "kit"
PYTHONPATH = os.pathsep.join(map(str, (SOURCE, TESTS, KIT)))  # for a process that imports modules of the kit's tests
