"""Folders of the repository, for tests in whatever folder they are."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
SOURCE = ROOT / "src"
KIT = TESTS / "kit"
