"""Query, key and value of grouped heads."""

import jax.numpy as jnp
import pytest


@pytest.fixture
def arrays(rng):
    """B, N, G, T, S, D, V = 2, 4, 2, 5, 7, 3, 11."""
    return [jnp.asarray(rng.normal(size=shape)) for shape in ((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 11))]
