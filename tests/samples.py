"""The few of many parameters of a test that are run quickly."""

import itertools
import random
import re
import zlib

import pytest


def sample(rows, count):
    """The rows of a grid to take: in a random order that never changes, those with most values not yet taken.

    Args:
        rows: a set for each, of its values.
        count: how many.
    """
    order = random.Random(7).sample(range(len(rows)), len(rows))
    kept, seen = [], set()
    for _ in range(min(count, len(rows))):
        best = max((k for k in order if k not in kept), key=lambda k: len(rows[k] - seen))
        kept.append(best)
        seen.update(rows[best])
    return set(kept)


def covering(*axes):
    """Rows of a grid, few of them, so that any two values of two axes are in one: the row with most new pairs first.

    Args:
        axes: the values of each.
    """

    def pairs(row):
        return set(itertools.combinations(enumerate(row), 2))

    grid = list(itertools.product(*axes))
    random.Random(7).shuffle(grid)
    kept, missing = [], set().union(*map(pairs, grid))
    while missing:
        best = max(grid, key=lambda row: len(pairs(row) & missing))
        kept.append(best)
        missing -= pairs(best)
    return kept


TURNS = 16  # shares, of which one has the tests that need the same library: to build it takes a minute
LIBRARY = re.compile(r"test_native_elsewhere\.py::.*[\[-](\w+)\]$|test_native_(mistakes)\.py")


def in_share(name, share):
    """Whether the test of this name falls to the share K/N, whatever other tests there are."""
    found = re.fullmatch("([0-9]+)/([0-9]+)", share)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--share takes K/N with K from 1 to N, got {share!r}")
    number = zlib.crc32(name.encode())
    if built := LIBRARY.search(name):
        number += zlib.crc32((built[1] or built[2]).encode()) % TURNS - number % TURNS
    return number % int(found[2]) == int(found[1]) - 1
