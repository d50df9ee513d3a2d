"""Which of the many parameters of a test are run quickly."""

import random


def sample(rows, count):
    """Which rows of a grid to take: in a random order that never changes, those with most values not yet taken.

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
