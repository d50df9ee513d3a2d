"""``jax.nn.dot_product_attention``: its signature and layout, with the meaning of the laws."""

from typing import Any, Literal, overload

from jax import Array

from attendax import checks, masks
from attendax.checks import fail
from attendax.checks.advice import on_axes
from attendax.checks.keywords import knows_arguments
from attendax.kernels.call import checked_call, results_of
from attendax.kernels.operands import takes_arrays

from .layout import heads_first, joined, scores_shape, wide_bias

__all__ = ["dot_product_attention"]

NAME = "jax_nn.dot_product_attention"
IMPLEMENTATIONS = {"xla": "blockwise"}  # its name in jax.nn -> its name here
NOT_HERE = "jax.nn has no such argument; attendax.attention has {}."
KNOWN = {
    **dict.fromkeys(("causal", "use_causal_mask"), "Write is_causal=True."),
    **dict.fromkeys(("attn_mask", "attention_mask"), "Write mask=array (boolean, True = may look), or bias=array."),
    **dict.fromkeys(("window_size", "sliding_window"), "Write local_window_size=(left, right)."),
    **dict.fromkeys(("key_lengths", "kv_seqlen", "kv_seq_lengths"), "Write key_value_seq_lengths=lengths."),
    **dict.fromkeys(("sm_scale", "softmax_scale"), "Write scale=number."),
    **dict.fromkeys(("return_lse", "return_logsumexp"), "Write return_residual=True."),
    **dict.fromkeys(("dropout_rate", "dropout_rng", "dropout_p", "dropout"), NOT_HERE.format("dropout_rate")),
    **dict.fromkeys(("score_mod", "softcap", "logits_soft_cap"), NOT_HERE.format("score_mod")),
}


@overload
def dot_product_attention(
    query: Any, key: Any, value: Any, bias: Any = ..., mask: Any = ..., *, scale: float | None = ...,
    is_causal: bool = ..., query_seq_lengths: Any = ..., key_value_seq_lengths: Any = ...,
    local_window_size: int | tuple[int, int] | None = ..., implementation: str | None = ...,
    return_residual: Literal[False] = ...,
) -> Array: ...  # fmt: skip
@overload
def dot_product_attention(
    query: Any, key: Any, value: Any, bias: Any = ..., mask: Any = ..., *, scale: float | None = ...,
    is_causal: bool = ..., query_seq_lengths: Any = ..., key_value_seq_lengths: Any = ...,
    local_window_size: int | tuple[int, int] | None = ..., implementation: str | None = ...,
    return_residual: Literal[True],
) -> tuple[Array, Array]: ...  # fmt: skip
@knows_arguments(KNOWN, NAME)
@takes_arrays
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """``attendax.attention`` under the signature of ``jax.nn.dot_product_attention``, in memory O(T + S).

    Where the two differ: a query that may look at no key gets 0 and not the mean of the values; float64 stays float64;
    the residual is not rounded to the dtype of the key, and has its gradient; V may differ from D; a mask or bias of
    rank 3 for arrays of rank 4 is refused, where jax.nn reads (B, T, S) as one for each head.

    Args:
        query: (B, T, N, D) or (T, N, D).
        key: (B, S, G, D) or (S, G, D), N a multiple of G.
        value: (B, S, G, V) or (S, G, V).
        bias: None, or floating, (T, S) or broadcastable to (B, N, T, S) with rank 4; -inf forbids.
        mask: None; boolean, (T, S) or (B, N, T, S) with any axis 1, True = may look; or a value of ``attendax.masks``.
        scale: a number; 1/√D unless given.
        is_causal: query i may look at keys 0 to i, even if T != S.
        query_seq_lengths: None, or integers (B,); a query beyond its length gets 0.
        key_value_seq_lengths: None, or integers (B,); keys beyond are padding.
        local_window_size: None, (left, right), or one number for both.
        implementation: None, "xla" for "blockwise", or what ``attendax.attention`` takes.
        return_residual: also return the log-sum-exp of the scores.

    Returns:
        (B, T, N, V) or (T, N, V) in the dtype of ``query``; with ``return_residual`` also lse (B, T, N) or (T, N),
        float32 or wider.

    Raises:
        TypeError: an array is not floating, dtypes differ, or the mask is not boolean.
        ValueError: a rank, a size or an option is out of bounds.
        NotImplementedError: an implementation that is not there.

    Example:
        >>> import jax.numpy as jnp
        >>> query, key, value = jnp.zeros((2, 1, 3)), jnp.zeros((4, 1, 3)), jnp.arange(4.0).reshape(4, 1, 1)
        >>> dot_product_attention(query, key, value, is_causal=True).ravel().tolist()
        [0.0, 0.5]
    """
    rank = len(getattr(query, "shape", ()))
    if rank not in (3, 4):
        fail(ValueError, NAME, f"query has rank {rank} but needs (B, T, N, D) or (T, N, D).")
    checks.boolean(NAME, "is_causal", is_causal)
    checks.one_of(NAME, "implementation", implementation, (None, *IMPLEMENTATIONS, *checks.IMPLEMENTATIONS))
    query, key, value = heads_first(NAME, query, key, value)
    batch = query.shape[0] if rank == 4 else None
    scores = scores_shape(query, key)
    pairs = _of_rank("mask", mask, scores)
    of_keys = _lengths("key_value_seq_lengths", key_value_seq_lengths, batch)
    of_queries = _lengths("query_seq_lengths", query_seq_lengths, batch)
    causal = masks.causal() if is_causal else None
    mask = joined(NAME, scores, pairs, causal, _window(local_window_size), _padding(of_keys, of_queries, key.shape[-2]))
    call = checked_call(
        NAME,
        query,
        key,
        value,
        mask,
        wide_bias(_of_rank("bias", bias, scores), query.dtype),
        scale=scale,
        implementation=IMPLEMENTATIONS.get(implementation or "", implementation),
        return_lse=return_residual,
    )
    results = results_of(call, query, value, return_residual)
    if not return_residual:
        return results.swapaxes(-3, -2)
    return results[0].swapaxes(-3, -2), results[1].swapaxes(-2, -1)


def _of_rank(name: str, array: Any, scores: tuple[int, ...]) -> Any:
    """A mask or bias for scores of this shape: one of rank 4 also fits three axes if its first axis is 1."""
    rank = len(scores)
    shape = tuple(getattr(array, "shape", ())) if hasattr(array, "dtype") else ()
    if rank == 3 and len(shape) == 4 and shape[0] == 1:
        return array[0]
    if len(shape) not in (0, 2, rank):
        sentence = f"{name} has rank {len(shape)} but needs rank 2, (T, S), or {rank}."
        boolean = "mask.astype(bool)" if name == "mask" and str(array.dtype) != "bool" else ""
        fail(ValueError, NAME, sentence, advice=on_axes(name, shape, scores, array=boolean))
    return array


def _lengths(name: str, value: Any, batch: int | None) -> Any:
    """Lengths (B,); of arrays without a batch, (1,) or ()."""
    if value is None:
        return None
    shape = tuple(getattr(value, "shape", ()))
    if shape != (batch,) and not (batch is None and shape in ((), (1,))):
        fail(ValueError, NAME, f"{name} has shape {shape} but needs {(1,) if batch is None else (batch,)}.")
    return value.reshape(()) if batch is None and hasattr(value, "reshape") else value


def _padding(of_keys: Any, of_queries: Any, num_keys: int) -> Any:
    if of_keys is None and of_queries is None:
        return None
    return masks.padding(num_keys if of_keys is None else of_keys, of_queries)


def _window(size: Any) -> Any:
    if size is None:
        return None
    left, right = size if isinstance(size, tuple | list) else (size, size)
    for side in (left, right):
        if side is not None and not hasattr(side, "shape"):
            checks.integer(NAME, "local_window_size", side, minimum=0)
    return masks.window(left, right)
