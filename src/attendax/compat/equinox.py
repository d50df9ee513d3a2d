"""The weights of an ``equinox.nn.MultiheadAttention``, run with ``attendax.attention``."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.checks import fail
from attendax.checks.keywords import HERE, knows_arguments
from attendax.kernels.call import checked_call, results_of

__all__ = ["multihead_attention"]

NAME = "equinox.multihead_attention"


@knows_arguments(HERE, NAME)
def multihead_attention(
    module: Any,
    query: Any,
    key_: Any,
    value: Any,
    mask: Any = None,
    *,
    key: Any = None,
    inference: bool | None = None,
    process_heads: Callable | None = None,
) -> Array:
    """Call ``module(query, key_, value, mask, ...)``, an ``equinox.nn.MultiheadAttention``, in memory O(T + S).

    The weights stay in the module, so training, serialising and filtering go on as they are. As in equinox there is no
    batch: ``jax.vmap`` is for that. Where the two differ: a query that may look at no key gets 0 (before the output
    projection) and not the mean of the values, and dropout draws other numbers.

    Args:
        module: an ``equinox.nn.MultiheadAttention``.
        query: (T, query_size).
        key_: (S, key_size).
        value: (S, value_size).
        mask: None; boolean (T, S) or (N, T, S), True = may look; or a value from ``attendax.masks``.
        key: a random key for dropout.
        inference: no dropout; what the module says unless given.
        process_heads: None, or a function of the heads (T, N, D), (S, N, D), (S, N, V) that returns such.

    Returns:
        (T, output_size).

    Raises:
        TypeError: ``module`` is not such a module, an array is not floating, or the mask is not boolean.
        ValueError: a rank or a size disagrees, or there is dropout and no key.
    """
    projections = ("query_proj", "key_proj", "value_proj", "output_proj")
    if not all(hasattr(module, name) for name in (*projections, "num_heads", "dropout")):
        got = type(module).__name__
        fail(TypeError, NAME, f"module must be an equinox.nn.MultiheadAttention, got {got}.")
    inputs = {"query": query, "key_": key_, "value": value}
    for name, x in inputs.items():
        checks.floating(NAME, name, x, rank=2)
    pairs = zip((module.query_proj, module.key_proj, module.value_proj), inputs.values(), strict=True)
    heads = [_affine(projection, x).reshape(x.shape[0], module.num_heads, -1) for projection, x in pairs]
    if process_heads is not None:
        shapes = [x.shape for x in heads]
        heads = list(process_heads(*heads))
        if [x.shape for x in heads] != shapes:
            fail(ValueError, NAME, f"process_heads must keep the shapes {shapes}, got {[x.shape for x in heads]}.")
    query, key_, value = (x.swapaxes(0, 1) for x in heads)
    rate = 0.0 if (module.dropout.inference if inference is None else inference) else module.dropout.p
    call = checked_call(NAME, query, key_, value, mask, dropout_rate=rate, dropout_rng=key)
    out = results_of(call, query, value, False)
    return _affine(module.output_proj, out.swapaxes(0, 1).reshape(out.shape[1], -1))


def _affine(linear: Any, x: Any) -> Array:
    """An ``equinox.nn.Linear`` on every row: its weight is stored (out, in)."""
    return jax.vmap(linear)(jnp.asarray(x))
