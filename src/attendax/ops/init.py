"""How weights are drawn at the start."""

import math
from typing import Any

import jax
from jax import Array


def glorot(rng: Any, rows: int, columns: int, dtype: Any) -> Array:
    """Uniform in ±√(6 / (rows + columns)), so that variance neither grows nor fades (Glorot and Bengio 2010)."""
    limit = math.sqrt(6 / (rows + columns))
    return jax.random.uniform(rng, (rows, columns), dtype, -limit, limit)
