"""Texts in, embeddings out, as a stream: batches of few shapes, results in the order of the texts.

Every new shape costs a compilation (0.5 to 0.9 s for six layers), every padded token costs its share of the
arithmetic. So lengths are rounded up to a short ladder, texts of similar length share a batch, and a batch holds about
1,024 tokens: with larger ones the allocator, not the arithmetic, sets the pace.

A row of packed texts is full, and a token sees only its own text. By XLA's count, all-MiniLM-L6-v2 then needs 0.85 of
the operations for 1,000 texts of 3 to 20 words, and 0.97 for texts of 5 to 200.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attendax import checks, spec
from attendax.params import EncoderParams

from .config import EncoderConfig
from .encoder import encode, first_tokens
from .sentences import SentenceEncoder, Tokens, tokenize

# Of 1,000 texts with 5 to 200 words, 1.40 times the real tokens ran with windows of 256 texts and a ladder of 10 steps
# up to 256; windows of 1,024 leave 1.25, and the steps 40, 80 and 160 beside them 1.18.
LADDER = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144)
TOKEN_BUDGET = 1024
ROW = 128  # tokens in a row of packed texts, unless a text has more
SHORTEST = 4  # tokens of a text, on average, in a row that is full
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
    vectors: dict[int, np.ndarray] = {}
    for batch in plan_batches([len(ids) for ids in texts], limit=encoder.max_tokens):
        ids, mask = pad([texts[i] for i in batch.indices], batch.rows, batch.columns)
        options: Any = {"config": encoder.config, "normalize": encoder.normalize, "pooling": encoder.pooling}
        found = _embed_batch(encoder.params, ids, mask, **options)
        vectors.update(zip(batch.indices, np.asarray(found), strict=False))  # the rows left over are padding
    return vectors


def _run_packed(encoder: SentenceEncoder, texts: list[list[int]]) -> dict[int, np.ndarray]:
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


class Batch(NamedTuple):
    """Texts that run together, and the shape they are padded to."""

    indices: tuple[int, ...]
    rows: int
    columns: int


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
        batches.append(Batch(indices, padded_rows(len(indices), full), columns))
        start += full
    return batches


def padded_length(length: int, limit: int) -> int:
    """The number of columns that ``length`` tokens are padded to: the next step of the ladder, or the model's limit."""
    return next((step for step in LADDER if length <= step <= limit), limit)


def padded_rows(count: int, full: int) -> int:
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


def plan_rows(lengths: list[int], *, limit: int) -> list[tuple[int, list[list[int]]]]:
    """Rows of texts, by their number of columns: the longest first, each where it leaves the least room.

    Example:
        >>> plan_rows([100, 30, 20, 200], limit=256)
        [(256, [[3]]), (128, [[0, 2], [1]])]
    """
    plans: dict[int, list[list[int]]] = {}
    room: list[tuple[int, int, list[int]]] = []  # how much, of how many columns, and the texts
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        columns = padded_length(max(lengths[index], min(ROW, limit)), limit)
        fitting = [
            k for k, (left, of, row) in enumerate(room)
            if of == columns and left >= lengths[index] and len(row) < columns // SHORTEST
        ]  # fmt: skip
        if not fitting:
            row: list[int] = []
            plans.setdefault(columns, []).append(row)
            room.append((columns, columns, row))
            fitting = [len(room) - 1]
        best = min(fitting, key=lambda k: room[k][0])
        left, of, row = room[best]
        row.append(index)
        room[best] = (left - lengths[index], of, row)
    return list(plans.items())


def pack(rows: list[list[list[int]]], count: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and the number of the text of each token, from 1; both (count, columns), 0 in the padding.

    Example:
        >>> ids, segments = pack([[[7, 8, 9], [5]]], count=1, columns=5)
        >>> ids.tolist(), segments.tolist()
        ([[7, 8, 9, 5, 0]], [[1, 1, 1, 2, 0]])
    """
    ids, segments = np.zeros((count, columns), np.int32), np.zeros((count, columns), np.int32)
    for r, row in enumerate(rows):
        place = 0
        for number, text in enumerate(row, start=1):
            ids[r, place : place + len(text)] = text
            segments[r, place : place + len(text)] = number
            place += len(text)
    return ids, segments
