"""Initial weights."""

import math

import jax
from jax import Array
from jax.typing import DTypeLike


def glorot(rng: Array, rows: int, columns: int, dtype: DTypeLike) -> Array:
    """Uniform in ±√(6 / (rows + columns)), so that variance neither grows nor fades (Glorot and Bengio 2010)."""
    limit = math.sqrt(6 / (rows + columns))
    return jax.random.uniform(rng, (rows, columns), dtype, -limit, limit)
