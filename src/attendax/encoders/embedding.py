"""Texts in, embeddings out, as a stream: batches of few shapes, results in the order of the texts.

Every new shape costs a compilation (0.5 to 0.9 s for six layers), every padded token costs its share of the
arithmetic. So lengths are rounded up to a short ladder, texts of similar length share a batch, and a batch holds about
1,024 tokens: with larger ones the allocator, not the arithmetic, sets the pace.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attendax import checks, spec
from attendax.params import EncoderParams

from .batches import LADDER as LADDER
from .batches import SHORTEST, pack, padded_rows, plan_rows
from .batches import TOKEN_BUDGET as TOKEN_BUDGET
from .batches import Batch as Batch
from .batches import pad as pad
from .batches import padded_length as padded_length
from .batches import plan_batches as plan_batches
from .config import EncoderConfig
from .encoder import encode, first_tokens
from .sentences import SentenceEncoder, Tokens, tokenize

WINDOW = 1024  # texts that are read, and sorted by length, at a time, once the stream has got going: 1, 4, 16, ...
GROWTH = 4  # windows grow as the rows of a batch do, so that few shapes are compiled that come only once


class Embedding(NamedTuple):
    """One text's embedding (M,), NumPy, with the tokens it was made from."""

    tokens: Tokens
    vector: np.ndarray


def embed(
    encoder: SentenceEncoder, texts: Iterable[str], *, window: int = WINDOW, packed: bool = False
) -> Iterator[Embedding]:
    """Embed texts one window at a time: lazily, in constant memory, in their order.

    The first window of a stream is one text, and each later window is four times as long, up to ``window``. So the
    first result does not wait for the 1,024th text. The windows of a list or tuple are full from the start.

    If ``texts`` raises an error, the texts before it are embedded and returned first.

    Args:
        encoder: the result of ``load_sentence_encoder``.
        texts: any iterable of strings; it may be endless.
        window: the largest number of texts that are read and sorted by length at a time.
        packed: put several texts in a row, instead of one text and padding.

    Raises:
        TypeError: ``texts`` is one string.
        ValueError: ``window`` is below 1.
    """
    checks.integer("embed", "window", window)
    checks.boolean("embed", "packed", packed)
    if isinstance(texts, str):
        checks.fail(TypeError, "embed", "texts is one string; put it in a list.")
    first = window if isinstance(texts, Sequence) else 1
    run = _run_packed if packed else _run_padded
    for sentences in _windows((tokenize(encoder, text) for text in texts), first, window):
        vectors = run(encoder, [sentence.ids for sentence in sentences])
        for index, sentence in enumerate(sentences):
            yield Embedding(sentence, vectors[index])


def _run_padded(encoder: SentenceEncoder, texts: list[list[int]]) -> dict[int, np.ndarray]:
    """The embedding of each text, by its number."""
    vectors: dict[int, np.ndarray] = {}
    for batch in plan_batches([len(ids) for ids in texts], limit=encoder.max_tokens):
        ids, mask = pad([texts[i] for i in batch.indices], batch.rows, batch.columns)
        options: Any = {"config": encoder.config, "normalize": encoder.normalize, "pooling": encoder.pooling}
        found = _embed_batch(encoder.params, ids, mask, **options)
        vectors.update(zip(batch.indices, np.asarray(found), strict=False))  # the rows left over are padding
    return vectors


def _run_packed(encoder: SentenceEncoder, texts: list[list[int]]) -> dict[int, np.ndarray]:
    """The embedding of each text, by its number, from rows of several texts."""
    vectors: dict[int, np.ndarray] = {}
    options: Any = {"config": encoder.config, "normalize": encoder.normalize, "pooling": encoder.pooling}
    for columns, rows in plan_rows([len(ids) for ids in texts], limit=encoder.max_tokens):
        full = max(1, TOKEN_BUDGET // columns)
        for start in range(0, len(rows), full):
            chosen = rows[start : start + full]
            ids, segments = pack([[texts[i] for i in row] for row in chosen], padded_rows(len(chosen), full), columns)
            found = np.asarray(_embed_rows(encoder.params, ids, segments, texts=columns // SHORTEST, **options))
            vectors.update((i, found[r, k]) for r, row in enumerate(chosen) for k, i in enumerate(row))
    return vectors


def embed_by_specification(encoder: SentenceEncoder, sentence: Tokens) -> np.ndarray:
    """The embedding (M,) of one sentence in plain NumPy: the same weights, no batch, no padding, no compiler."""
    params = jax.tree.map(np.asarray, encoder.params)
    ids = np.array([sentence.ids], np.int32)
    hidden = encode(ids, params, config=encoder.config, twin=spec)
    return pool(hidden, np.ones(ids.shape, bool), encoder.pooling, normalize=encoder.normalize)[0]


def pool(hidden: Any, mask: Any, pooling: str, *, normalize: bool) -> Any:
    """The mean over the tokens, or the hidden state of the first."""
    if pooling == "cls":
        mask = mask & (np.arange(mask.shape[1]) == 0)[None]
    return mean_pool(hidden, mask, normalize=normalize)


def mean_pool(hidden: Any, mask: Any, *, normalize: bool = True) -> Any:
    """Average the hidden states of the real tokens, then scale to length 1 (Reimers and Gurevych 2019, section 3).

    e = mean over {t : mask_t} of h_t;  e / max(|e|, 1e-12)

    Args:
        hidden: (B, T, M), NumPy or JAX; padded positions do not matter, even if they hold NaN.
        mask: (B, T) boolean, True = a real token.
        normalize: scale to length 1.

    Returns:
        (B, M), NumPy or JAX like ``hidden``; zeros for a row without real tokens.

    Raises:
        TypeError: ``hidden`` is not an array, or ``mask`` is not a boolean array.
        ValueError: their shapes do not fit.

    Example:
        >>> hidden = np.array([[[3.0, 0.0], [3.0, 8.0], [np.nan, np.inf]]])
        >>> mean_pool(hidden, np.array([[True, True, False]]))
        array([[0.6, 0.8]])
    """
    _check_pooling(hidden, mask)
    xp = hidden.__array_namespace__()
    if xp is np and not checks.is_traced(mask):
        mask = np.asarray(mask)  # a JAX array that jit closes over would be traced by its own operations
    count = xp.maximum(xp.sum(mask, axis=1, dtype=hidden.dtype), 1)
    mean = xp.sum(xp.where(mask[:, :, None], hidden, 0), axis=1) / count[:, None]
    if not normalize:
        return mean
    return mean / xp.maximum(xp.sqrt(xp.sum(mean * mean, axis=1, keepdims=True)), 1e-12)


def _check_pooling(hidden: Any, mask: Any) -> None:
    """Refuse what would be averaged with other weights than 0 and 1, or broadcast."""
    if not hasattr(hidden, "__array_namespace__"):
        checks.fail(TypeError, "mean_pool", f"hidden must be an array, got {type(hidden).__name__}.")
    dtype = getattr(mask, "dtype", type(mask).__name__)
    if not np.issubdtype(getattr(mask, "dtype", np.float32), np.bool_):
        checks.fail(TypeError, "mean_pool", f"mask must be an array of boolean dtype, got {dtype}.")
    if hidden.ndim != 3 or mask.shape != hidden.shape[:2]:
        rows = [("hidden", str(hidden.shape), "(B, T, M)"), ("mask", str(mask.shape), "(B, T)")]
        checks.fail(ValueError, "mean_pool", "hidden and mask do not fit each other.", rows)


@partial(jax.jit, static_argnames=("config", "normalize", "pooling"))
def _embed_batch(
    params: EncoderParams, ids: Any, mask: Any, *, config: EncoderConfig, normalize: bool, pooling: str = "mean"
) -> jax.Array:
    return pool(encode(ids, params, config=config, mask=mask), mask, pooling, normalize=normalize)


@partial(jax.jit, static_argnames=("config", "normalize", "pooling", "texts"))
def _embed_rows(
    params: EncoderParams, ids: Any, segments: Any, *, config: EncoderConfig, normalize: bool, pooling: str, texts: int
) -> jax.Array:
    """The embeddings (rows, texts, M); zeros where a row has fewer texts."""
    hidden = encode(ids, params, config=config, mask=segments > 0, segments=segments)
    own = segments[:, None, :] == jnp.arange(1, texts + 1)[None, :, None]
    if pooling == "cls":
        own = own & first_tokens(segments, jnp)[:, None]
    weights = own.astype(hidden.dtype)
    count = jnp.maximum(weights.sum(axis=2, keepdims=True), 1)
    mean = jnp.matmul(weights, hidden, precision="highest") / count
    if not normalize:
        return mean
    return mean / jnp.maximum(jnp.sqrt((mean * mean).sum(axis=-1, keepdims=True)), 1e-12)


def _windows(items: Iterable[Tokens], size: int, limit: int) -> Iterator[list[Tokens]]:
    """Lists of ``size`` items, then of ever more up to ``limit``; what was read before an error comes out before it."""
    window: list[Tokens] = []
    try:
        for item in items:
            window.append(item)
            if len(window) == size:
                yield window
                window = []
                size = min(GROWTH * size, limit)
    except Exception:
        if window:
            yield window
        raise
    if window:
        yield window
