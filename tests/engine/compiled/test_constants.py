"""Arrays that are constants of a program: XLA computes nothing over them while it compiles (L16).

It would reduce a mask number by number: 37 CPU seconds for one of (2, 3, 241, 1921).
"""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks

pytestmark = pytest.mark.law("L16", "tiles")

RNG = np.random.default_rng(3)
QUERY, KEY, VALUE = (RNG.standard_normal((1, 2, size, 8)).astype(np.float32) for size in (40, 1100, 1100))
IDS = np.sort(RNG.integers(0, 3, (1, 1100))).astype(np.int32)
GIVEN = {
    "mask": (RNG.random((1, 2, 40, 1100)) < 0.7, lambda x: {"mask": x}),
    "bias": (RNG.standard_normal((1, 2, 40, 1100)).astype(np.float32), lambda x: {"bias": x}),
    "ids": (IDS, lambda x: {"mask": masks.segments(x[:, :40], x)}),
}
DIRECTIONS = {
    "forward": lambda f: f,
    "second": lambda f: lambda q, x: jax.jvp(jax.grad(lambda q: f(q, x).sum()), (q,), (q,))[1],
}


def operations(function, *arrays):
    text = jax.jit(function).lower(*arrays).compile().as_text()
    return collections.Counter(re.findall(r"\b(reduce|reduce-window|compare)\(", text))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", GIVEN)
def test_a_constant_is_computed_with_when_the_program_runs(name, direction):
    x, options = GIVEN[name]
    f = DIRECTIONS[direction](
        lambda q, x: attendax.attention(q, KEY, VALUE, implementation="blockwise", **options(jnp.asarray(x)))
    )
    wanted = operations(f, QUERY, x)
    assert wanted["reduce"] + wanted["reduce-window"] > 0
    assert operations(lambda q: f(q, x), QUERY) == wanted
