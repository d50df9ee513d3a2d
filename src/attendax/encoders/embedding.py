"""Texts in, embeddings out, as a stream: batches of few shapes, results in the order of the texts.

Every new shape costs a compilation (0.5 to 0.9 s for six layers), every padded token costs its share of the
arithmetic. So lengths are rounded up to a short ladder, texts of similar length share a batch, and a batch holds about
1,024 tokens: with larger ones the allocator, not the arithmetic, sets the pace.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from attendax import checks, spec
from attendax.params import EncoderParams

from .encoder import EncoderConfig, encode
from .sentences import SentenceEncoder, Tokens, tokenize

# Of 1,000 texts with 5 to 200 words, 1.40 times the real tokens ran with windows of 256 texts and a ladder of 10 steps
# up to 256; windows of 1,024 leave 1.25, and the steps 40, 80 and 160 beside them 1.18.
LADDER = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512)
TOKEN_BUDGET = 1024
WINDOW = 1024  # texts that are read, and sorted by length, at a time, once the stream has got going: 1, 4, 16, ...
GROWTH = 4  # windows grow as the rows of a batch do, so that few shapes are compiled that come only once


class Embedding(NamedTuple):
    """One text's embedding (M,), NumPy, with the tokens it was made from."""

    tokens: Tokens
    vector: np.ndarray


class Batch(NamedTuple):
    """Which texts run together, and the shape they are padded to."""

    indices: tuple[int, ...]
    rows: int
    columns: int


def embed(encoder: SentenceEncoder, texts: Iterable[str], *, window: int = WINDOW) -> Iterator[Embedding]:
    """Embed texts one window at a time: lazily, in constant memory, in their order.

    The first window of a stream is one text, each later one four times as long, up to ``window``: the first result does
    not wait for the 1,024th text. A list or tuple is there already; its windows are full from the start.

    Texts that were read before ``texts`` raised an error are embedded and handed out before the error is.

    Args:
        encoder: what ``load_sentence_encoder`` read.
        texts: any iterable of strings; endless ones too.
        window: how many texts are read, and sorted by length, at a time, at the most.

    Raises:
        TypeError: ``texts`` is one string, whose characters are hardly meant as texts.
        ValueError: ``window`` is below 1.
    """
    checks.integer("embed", "window", window)
    if isinstance(texts, str):
        checks.fail(TypeError, "embed", "texts is one string; put it in a list.")
    first = window if isinstance(texts, Sequence) else 1
    for sentences in _windows((tokenize(encoder, text) for text in texts), first, window):
        vectors: dict[int, np.ndarray] = {}
        for batch in plan_batches([len(sentence.ids) for sentence in sentences], limit=encoder.max_tokens):
            ids, mask = pad([sentences[i].ids for i in batch.indices], batch.rows, batch.columns)
            found = _embed_batch(encoder.params, ids, mask, config=encoder.config, normalize=encoder.normalize)
            vectors.update(zip(batch.indices, np.asarray(found), strict=False))  # the rows left over are padding
        for index, sentence in enumerate(sentences):
            yield Embedding(sentence, vectors[index])


def embed_by_specification(encoder: SentenceEncoder, sentence: Tokens) -> np.ndarray:
    """The embedding (M,) of one sentence in plain NumPy: the same weights, no batch, no padding, no compiler."""
    params = jax.tree.map(np.asarray, encoder.params)
    ids = np.array([sentence.ids], np.int32)
    hidden = encode(params, ids, config=encoder.config, twin=spec)
    return mean_pool(hidden, np.ones(ids.shape, bool), normalize=encoder.normalize)[0]


def mean_pool(hidden: Any, mask: Any, *, normalize: bool = True) -> Any:
    """Average the hidden states of the real tokens, then scale to length 1 (Reimers and Gurevych 2019, section 3).

    e = mean over {t : mask_t} of h_t;  e / max(|e|, 1e-12)

    Args:
        hidden: (B, T, M), NumPy or JAX; what stands at padded positions does not matter, NaN included.
        mask: (B, T) boolean, True = a real token.
        normalize: whether to scale.

    Returns:
        (B, M), the kind of array that came in; zeros for a row without a real token.

    Raises:
        TypeError: ``hidden`` is no array, or ``mask`` no array of booleans.
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


def plan_batches(lengths: list[int], *, limit: int, token_budget: int = TOKEN_BUDGET) -> list[Batch]:
    """Group texts of similar length, longest first, into batches of about ``token_budget`` tokens.

    All shapes come from a fixed set: a column count from the ladder, and for each the full number of rows or, in the
    last batch, a power of four below it.

    Example:
        >>> plan_batches([5, 300, 7, 6], limit=512)
        [Batch(indices=(1, 2), rows=2, columns=384), Batch(indices=(3, 0), rows=4, columns=8)]
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches = []
    start = 0
    while start < len(order):
        columns = padded_length(lengths[order[start]], limit)
        full = max(1, token_budget // columns)
        indices = tuple(order[start : start + full])
        batches.append(Batch(indices, _padded_rows(len(indices), full), columns))
        start += full
    return batches


def padded_length(length: int, limit: int) -> int:
    """The number of columns that ``length`` tokens are padded to: the next step of the ladder, or the model's limit."""
    return next((step for step in LADDER if length <= step <= limit), limit)


def _padded_rows(count: int, full: int) -> int:
    """The next power of four, or ``full``."""
    rows = 1
    while rows < count:
        rows *= 4
    return min(rows, full)


def pad(sentences: list[list[int]], rows: int, columns: int, pad_id: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and padding mask, both (rows, columns); any id of the vocabulary may stand in the padding.

    Example:
        >>> ids, mask = pad([[7, 8, 9], [7, 9]], rows=3, columns=4)
        >>> ids.tolist()
        [[7, 8, 9, 0], [7, 9, 0, 0], [0, 0, 0, 0]]
        >>> mask.sum(axis=1).tolist()
        [3, 2, 0]
    """
    ids = np.full((rows, columns), pad_id, np.int32)
    mask = np.zeros((rows, columns), bool)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = sentence
        mask[row, : len(sentence)] = True
    return ids, mask


@partial(jax.jit, static_argnames=("config", "normalize"))
def _embed_batch(params: EncoderParams, ids: Any, mask: Any, *, config: EncoderConfig, normalize: bool) -> jax.Array:
    return mean_pool(encode(params, ids, config=config, mask=mask), mask, normalize=normalize)


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
