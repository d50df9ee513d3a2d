"""All weights, and the gradients of attention, as NamedTuples: one definition for the NumPy and the JAX side.

A NamedTuple is a pytree without registration, so ``jax.grad`` returns the same type as the backward written by hand.
Nothing here imports JAX or NumPy. Throughout, ``y = x @ W + b``: weights are stored (in, out), and head ``h`` owns the
columns ``h * d_k`` to ``(h + 1) * d_k`` of ``W_Q``, ``W_K``, ``W_V`` and the same rows of ``W_O``. An optional leaf
that a layer does not have is None. Sizes such as ``num_heads`` are arguments of the functions, never leaves.
"""

from typing import Any, NamedTuple


class MultiHeadParams(NamedTuple):
    """Weights of multi-head attention (Vaswani et al. 2017, section 3.2.2): ``W`` (M, M), ``b`` (M,) or None.

    Keys of width M_k and values of width M_v have ``W_K`` (M_k, M) and ``W_V`` (M_v, M).
    """

    W_Q: Any
    W_K: Any
    W_V: Any
    W_O: Any
    b_Q: Any = None
    b_K: Any = None
    b_V: Any = None
    b_O: Any = None


class QKNorm(NamedTuple):
    """Gains of the query and key norm, one per column of a head: ``gamma`` (d_k,), shared by all heads."""

    gamma_Q: Any
    gamma_K: Any


class EncoderBlockParams(NamedTuple):
    """Weights of one encoder block: 1 marks the norm of the attention, 2 that of the feed-forward network.

    ``W1`` (M, F), ``b1`` (F,), ``W2`` (F, M), ``b2`` (M,); ``gamma`` and ``beta`` (M,). In whole encoders, weights that
    a configuration does not have are None, ``W1`` of a gated network is (M, 2F), and ``W_K``, ``W_V`` are (M, G·D).
    """

    attention: MultiHeadParams
    W1: Any
    b1: Any
    W2: Any
    b2: Any
    gamma1: Any
    beta1: Any
    gamma2: Any
    beta2: Any


class SingleHeadParams(NamedTuple):
    """Weights of the single-head layer ``Attention``: four square matrices (M, M)."""

    query_weights: Any
    key_weights: Any
    value_weights: Any
    output_weights: Any


class EmbeddingParams(NamedTuple):
    """Weights of a BERT-style input layer: tables (rows, M), summed, then normalised with ``gamma``, ``beta``."""

    token: Any
    position: Any
    token_type: Any
    gamma: Any
    beta: Any


class EncoderParams(NamedTuple):
    """Weights of a whole encoder: the input layer, a tuple of L ``EncoderBlockParams``, and the norm after the last."""

    embeddings: EmbeddingParams
    blocks: tuple[EncoderBlockParams, ...]
    gamma: Any = None
    beta: Any = None


class AttentionGradients(NamedTuple):
    """A gradient for every floating input, in the input's shape and dtype; None for an input that was not given."""

    grad_query: Any
    grad_key: Any
    grad_value: Any
    grad_bias: Any = None
    grad_score_mod: Any = None
