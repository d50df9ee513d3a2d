"""What JAX's own tools see of a primitive of this package: one operation, like a product (``debug_nans``, ``checkify``).

Inside, NaN is a mark that comes and goes (see ``not_finite``), and -inf stands for a pair that is forbidden. What
counts is what comes out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def is_watched() -> bool:
    """Whether NaN or infinities raise (``jax_debug_nans``, ``jax_debug_infs``)."""
    return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # type: ignore[attr-defined]


def watched(name: str, run: Callable[..., Sequence[Array]], arrays: Sequence[Array]) -> Sequence[Array]:
    """``run(*arrays)``, unwatched inside; FloatingPointError as of any operation of JAX, if it is watched.

    An infinity inside comes out as NaN (L6): of arrays without NaN, NaN is an infinity, too. The second result of a
    forward is -inf for the empty set.
    """
    nans, infs = jax.config.jax_debug_nans, jax.config.jax_debug_infs  # type: ignore[attr-defined]
    with jax.debug_nans(False), jax.debug_infs(False):
        results = run(*arrays)
        is_nan = _any(jnp.isnan, results)
        from_inf = _any(jnp.isposinf, results) or (is_nan and not _any(jnp.isnan, arrays))
    for kind, found in (("nan", nans and is_nan), ("inf", infs and from_inf)):
        if found:
            raise FloatingPointError(f"invalid value ({kind}) encountered in {name}")
    return results


def _any(test: Callable, arrays: Sequence[Array]) -> bool:
    return any(bool(test(x).any()) for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact))
