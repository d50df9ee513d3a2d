"""``attendax.attention``: it checks the arguments, then runs the call on one device, or on a mesh that divides it.

And ``attendax.merge`` of two of its results.
"""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
from jax import Array, lax

from attendax import checks
from attendax.kernels.call import Call, as_asked, checked_call, with_arrays, with_traced
from attendax.kernels.derivatives import attend
from attendax.kernels.online_softmax import max_or_zero
from attendax.kernels.operands import public, wide_dtype
from attendax.masks import ArrayLike, Mask
from attendax.options import Options, in_full
from attendax.scores import ScoreModifier
from attendax.sharding.division import DIVISION, attend_by_types


@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> Array: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[Array, Array]: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: bool, **options: Unpack[Options]
) -> Array | tuple[Array, Array]: ...
@public
@in_full
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    score_mod: ScoreModifier | None = None,
    scale: float | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> Array | tuple[Array, Array]:
    """Average the values, each weighted by how well its key answers the query, in memory O(T + S).

    ``s = scale · Q Kᵀ``; the score modifier; ``+ bias``; the mask; ``p = softmax(s)``; dropout; ``out = p V`` (L2;
    Vaswani et al. 2017, equation 1). Works under jit and vmap, and in every direction of differentiation (L12), also
    with respect to ``scale``. Tiles in which a mask does not allow any pair are skipped.

    Args:
        {arguments}
        implementation: "native", the C++ kernel for CPUs; "blockwise", JAX tiles for every platform; "dense", which
            builds all T x S scores; for some calls on an NVIDIA GPU, "cudnn" or "triton" [native if it takes the call,
            else blockwise]. ``explain`` says which one runs, and why not the others.

    Returns:
        {results}

    Raises:
        {errors}
        NotImplementedError: an implementation that this version lacks, or "native", "cudnn" or "triton" for a call that
            it cannot take.

    Example:
        >>> import jax.numpy as jnp
        >>> query, key, value = jnp.zeros((1, 2)), jnp.zeros((4, 2)), jnp.arange(4.0)[:, None]
        >>> attention(query, key, value).tolist()
        [[1.5]]
        >>> from attendax import masks
        >>> attention(query, key, value, mask=masks.padding(jnp.array(2))).tolist()
        [[0.5]]
    """
    arrays, options = (query, key, value, mask, bias, score_mod), (scale, dropout_rate, dropout_rng)
    call = checked_call("attention", *arrays, *options, implementation, return_lse, traced=False)
    if DIVISION.value is not None or any(jax.typeof(x).sharding.mesh.explicit_axes for x in (query, key)):
        results = attend_by_types(call, query, key)
    else:
        results = attend(*with_arrays(Call(with_traced(call.operands), call.plan)))
    return as_asked(results, query, value, return_lse, score_mod)


@public
def merge(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Attention over the union of two disjoint sets of keys, from the attention over each (L9).

    With ``lse = log(exp(lse₁) + exp(lse₂))``: ``out = exp(lse₁ - lse) out₁ + exp(lse₂ - lse) out₂``. Associative and
    commutative; an out of 0 with an lse of -inf is neutral. Gradients flow through all four (Liu et al. 2023).

    Args:
        one: out (..., T, V) and lse (..., T), as ``attention`` gives them with ``return_lse``.
        other: the same of other keys.

    Returns:
        out in the dtype of the first, and lse.

    Raises:
        TypeError: not pairs of floating arrays, or outs of different dtypes.
        ValueError: the shapes disagree.

    Example:
        A sink takes a share of the weight and gives nothing (Xiao et al. 2024; ``scores.sink`` for attention itself).
        It is a key with the score of the sink and the value 0:

        >>> out, lse = jnp.ones((1, 2, 3)), jnp.zeros((1, 2))
        >>> sink = jnp.zeros_like(out), jnp.full_like(lse, jnp.log(3.0))
        >>> merge((out, lse), sink)[0][0, 0].round(6).tolist()
        [0.25, 0.25, 0.25]
    """
    checks.pairs_to_merge("merge", one, other)
    (out1, lse1), (out2, lse2) = one, other
    compute_dtype = wide_dtype(lse1.dtype, lse2.dtype)
    lse1, lse2 = lse1.astype(compute_dtype), lse2.astype(compute_dtype)
    largest = lax.stop_gradient(jnp.maximum(lse1, lse2))
    empty, shift = largest == -jnp.inf, max_or_zero(largest)
    share1, share2 = (jnp.exp(jnp.where(lse == -jnp.inf, -jnp.inf, lse - shift)) for lse in (lse1, lse2))
    total = jnp.where(empty, 1, share1 + share2)
    shares = (share[..., None] for share in (share1, share2))
    pairs = zip((out1, out2), shares, strict=True)
    terms = (jnp.where(share == 0, 0, out.astype(compute_dtype)) * share / total[..., None] for out, share in pairs)
    out = sum(terms, jnp.zeros(out1.shape, compute_dtype))
    return out.astype(out1.dtype), jnp.where(empty, -jnp.inf, shift + jnp.log(total))
