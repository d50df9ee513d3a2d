"""The blockwise backend as tests see it: in its own tiles, where small cases are one tile, and in tiles of 3 x 2."""

import contextlib
import functools

from attendax import attention
from attendax.kernels.blockwise import partition
from attendax.kernels.operands import Limits

TINY = Limits(rows=3, columns=2, bytes=1)


@contextlib.contextmanager
def limited(limits):
    """Tiles of other sizes."""
    before, partition.LIMITS = partition.LIMITS, limits
    try:
        yield
    finally:
        partition.LIMITS = before


def in_tiny_tiles(function):
    """Decorate: whatever is traced inside is cut into tiles of 3 queries and 2 keys, one head each."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        with limited(TINY):
            return function(*args, **kwargs)

    return call


class Whole:
    """A twin: attention in the tiles of the library."""

    attention = staticmethod(functools.partial(attention, implementation="blockwise"))


class Tiny:
    """A twin: attention in tiny tiles."""

    attention = staticmethod(in_tiny_tiles(Whole.attention))
