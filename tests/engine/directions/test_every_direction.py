"""L12 in tiles: third derivatives. The other directions are rows of ``test_every_law_of_a_call.py``.

Tiles are 3 x 2, so that every loop, skip and overlap is on the way.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blockwise import Tiny
from compilation import quickly

pytestmark = pytest.mark.law("L12", "tiles")

N, T, S = 2, 4, 5


@pytest.mark.slow
@pytest.mark.parametrize("poison", [0.0, np.nan])
def test_l12_third_derivatives_in_reverse(poison):
    """Reverse mode through the program itself (``Plan.reversible``), with masked keys that are finite, and NaN (L6)."""
    rng = np.random.default_rng(12)
    query, key, value, *along = (rng.normal(size=(N, n, 3)) for n in (T, S, S, T, T))
    bad = [np.where(np.arange(S)[:, None] < 3, x, poison) for x in (key, value)]
    mask = np.arange(S)[None] < 3

    def third(attend):
        first = jax.grad(lambda q: jnp.sum(attend(q) ** 2))
        second = jax.grad(lambda q: jnp.vdot(first(q), along[0]))
        return quickly(jax.grad(lambda q: jnp.vdot(second(q), along[1])))(query)

    def plain(q):
        return jax.nn.softmax(q @ key[:, :3].swapaxes(-1, -2) / np.sqrt(3)) @ value[:, :3]

    got, wanted = third(lambda q: Tiny.attention(q, *bad, mask=mask)), third(plain)
    assert np.abs(wanted).max() > 1e-3  # an expectation of 0 would prove nothing
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())
