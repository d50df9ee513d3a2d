"""Whether an installed attendax works: ``python -P -W error tests/smoke.py library`` with its native library, ``pure``
without it. It needs no other file of the tests.
"""

import importlib.metadata
import sys

import jax
import numpy as np

import attendax
from attendax.kernels import native


def main(expected):
    assert attendax.__version__ == importlib.metadata.version("attendax")
    assert bool(native.library().isa) == (expected == "library"), native.status()
    x = np.random.default_rng(0).standard_normal((1, 2, 70, 24), np.float32)
    causal = attendax.masks.causal()
    right = attendax.spec.attention(x, x, x, mask=causal)
    np.testing.assert_allclose(attendax.attention(x, x, x, mask=causal), right, atol=1e-5)
    gradient = jax.grad(lambda x: attendax.attention(x, x, x, mask=causal).sum())(x)
    assert jax.numpy.isfinite(gradient).all()
    print("attendax", attendax.__version__, "runs as installed, with jax", jax.__version__)
    print(native.status())


if __name__ == "__main__":
    main(sys.argv[1])
