"""Mistakes that the cases of ``conformance.cases.forward`` catch first."""

from planted import Mistake

CALL = "*ids, dropout_rate)"  # the end of the line of ``attend`` that looks for mistakes of the caller
WEIGHTS = "weights = powers / np.where(total == 0, 1, total)"
LSE = "lse = (shift + np.log(total))[..., 0]"
MASK, CAUSAL = "allowed = allowed & mask", "allowed = allowed & (j <= i + begins)\n"
LENGTHS = "allowed = allowed & (j < key_lengths[:, None, None, None])"
SEGMENTS = "query_ids[:, None, :, None] == key_ids[:, None, None, :]"


def given(case: str, *lines: str) -> Mistake:
    """Lines that change the arguments before anything is computed of them."""
    return Mistake(case, CALL, "\n    ".join([CALL, *lines]))


def masked(case: str, *lines: str) -> Mistake:
    """Lines before the mask is looked at."""
    return Mistake(case, MASK, "\n        ".join([*lines, MASK]))


def joined_by_or(case: str, option: str, line: str) -> Mistake:
    """A line that hides keys shows them where another option is given, too."""
    pairs = line.removeprefix("allowed = allowed & ")
    return Mistake(case, line, f"allowed = allowed | {pairs} if {option} is not None else allowed & {pairs}")


MASKS = [
    # without modifiers, a mask is taken for padding: its first row is the only one
    given("mask (T, S)", "if mask is not None and bias is None and softcap is None and not is_causal:",
        "    mask = mask[..., :1, :]"),
    masked("mask (B, N, T, S)", "mask = mask[:1] if mask.ndim > 2 else mask"),
    masked("mask (B, N, T, S)", "mask = mask[:, :1] if mask.ndim > 2 else mask"),
    masked("mask (1, 1, T, S)", "mask = mask.reshape(allowed.shape) if mask.ndim > 2 else mask"),
    masked("mask (B, 1, 1, S)", "mask = mask.squeeze()"),
    # without heads of its own, and no padding: shared by the batch, too
    masked("mask (B, 1, T, S)", "if mask.ndim > 2 and mask.shape[1] == 1 < mask.shape[2]:", "    mask = mask[:1]"),
    masked("mask (1, N, T, S)", "if mask.ndim > 2 and len(mask) == 1:", "    mask = mask[:, :1]"),
    masked("mask (T, S) where B = T", "if query.ndim == 4 and mask.shape == (len(query), S):",
        "    mask = mask[:, None, None, :]"),
    masked("mask (B, N, T, S) where B = N", "mask = mask.swapaxes(0, 1) if mask.shape[:-2] == (3, 3) else mask"),
    masked("mask (B, N, 1, S)", "if mask.ndim > 2 and mask.shape[2] == 1:", "    mask = mask[:, :1]"),
    # keys that are allowed are packed to the front; values and mask are not
    given("mask (1, S)", "if mask is not None and mask.shape[:-1] == (1,):",
        "    key = key[..., np.argsort(~mask[0]), :]"),
    masked("mask with grouped heads", "if mask.ndim > 2:", "    group = query.shape[1] // key.shape[1]",
        "    mask = np.repeat(mask[:, ::group], group, axis=1)"),
    # the list of allowed keys loses its axis where it has one entry
    given("mask that allows one key", "if mask is not None and mask.shape[:-1] == (1,):",
        "    seen = np.flatnonzero(mask).squeeze()",
        "    key, value, mask = key[..., seen, :], value[..., seen, :], None"),
    masked("mask with T = S", "if mask.shape[-2] == S:", "    mask = mask.swapaxes(-1, -2)"),
    # joined in an array without an axis for the heads
    given("mask with bias", "if mask is not None and bias is not None:",
        "    bias, mask = np.where(mask, bias[:, :1], -np.inf), None"),
    # of rank 3: one for each batch
    masked("mask without a batch axis", "mask = mask[:, None] if mask.ndim == 3 else mask"),
]  # fmt: skip
TRIANGLES = [
    # with as many queries as keys, the tiles on the diagonal are seen whole
    Mistake("causal", CAUSAL, "allowed = allowed & ((j <= i) if T != S else (j // 4 <= i // 4))\n"),
    # keys that no query sees are cut off, but from the other end
    given("causal, fewer queries",
        "if is_causal and mask is None and bias is None and query.shape[-2] < key.shape[-2]:",
        "    key, value = key[..., -query.shape[-2] :, :], value[..., : query.shape[-2], :]"),
    Mistake("causal, more queries", CAUSAL, "allowed = allowed & (j <= i + min(S - T, 0))\n"),
    Mistake("causal, one query", "if is_causal:", "if is_causal and T > 1:"),
    # the triangle is kept by the number of queries, and longer rows are filled up
    Mistake(
        "causal, after fewer keys",
        CAUSAL,
        "seen = vars(pairs).setdefault(str(T), j <= i)[:, :S]\n"
        "        seen = np.pad(seen, ((0, 0), (0, S - seen.shape[1])), constant_values=True)\n"
        "        allowed = allowed & (seen if np.ndim(begins) == 0 else j <= i + begins)\n",
    ),
    # a table of positions ends there
    Mistake("causal, few queries of many keys", CAUSAL, "allowed = allowed & (j <= i + (S > 2048 > T))\n"),
    Mistake("causal, from 2,048 on", CAUSAL,
        "allowed = allowed & ((j <= i + begins) | ((i >= 2048) & (j == i + begins + 1)))\n"),
    # a mask of full rank is thought to hold the triangle
    Mistake("causal and a mask", "if is_causal:", "if is_causal and (mask is None or mask.ndim == 2):"),
    # blocks of 128 keys, rounded down
    Mistake("causal, lengths that no block divides", CAUSAL,
        CAUSAL + "        allowed = allowed & (j < np.maximum(i // 128, 1) * 128)\n"),
    # rows are the queries of a group, numbered query by query instead of head by head
    Mistake(
        "causal with grouped heads",
        CAUSAL,
        "group = query.shape[-3] // key.shape[-3]\n"
        "        rows = np.arange(group * T).reshape(group, T, 1) // group\n"
        "        allowed = allowed & (j <= np.tile(rows, (key.shape[-3], 1, 1)))\n",
    ),
    Mistake("causal with bias", "if is_causal:", "if is_causal and (bias is None or bias.shape[-2] == 1):"),
]  # fmt: skip
WINDOWS = [
    Mistake("window", "left, right = window\n", "right, left = window\n"),
    Mistake("window", "(j >= i - left)", "(j > i - left)"),
    Mistake("window to the left", "left, right = window\n", "left, right = window[0], window[1] or 0\n"),
    Mistake("window to the right", "left, right = window\n", "left, right = window[0] or 0, window[1]\n"),
    Mistake(
        "window, one query",
        "    if window is not None:\n",
        "    if window is not None and (T > 1 or np.ndim(begins)):\n",
    ),
    Mistake("window of one", "if left is not None:", "if left:"),
    Mistake("window wider than the keys", "side is not None and side < 0", "side is not None and not 0 <= side < S"),
    # positions of 32 bits
    Mistake(
        "window of the largest int32",
        "left, right = window\n",
        "left, right = window\n        i, j = i.astype(np.int32), j.astype(np.int32)\n",
    ),
    Mistake("window, causal", "if is_causal:", "if is_causal and window is None:"),
    Mistake("window with a mask", "    if window is not None:\n", "    if window is not None and mask is None:\n"),
    Mistake("window with a mask", "left, right = window\n", "left, right = window\n        i = i + S - T\n"),
    # no block but the query's own
    Mistake("window, lengths that no block divides", "(j >= i - left)", "(j >= i - left) & (j // 128 == i // 128)"),
]
PADDING = [
    Mistake("key lengths", LENGTHS, LENGTHS.replace("j <", "j <=")),
    Mistake("key lengths", LENGTHS, LENGTHS.replace("key_lengths[", "key_lengths[:1][")),
    Mistake("key lengths, one full", "    if key_lengths is not None:\n        allowed",
        "    if key_lengths is not None and (key_lengths < S).all():\n        allowed"),
    Mistake("key lengths, causal", "    if is_causal:", "    if is_causal and key_lengths is None:"),
    # padding becomes a bias, in place of the one that is given
    given("key lengths with bias", "if key_lengths is not None:", "    j = np.arange(key.shape[-2])",
        "    key_lengths, bias = None, np.where(j < key_lengths[:, None, None, None], 0, -np.inf)"),
    joined_by_or("key lengths with a mask", "key_lengths", MASK),
    joined_by_or("key lengths, window", "window", LENGTHS),
    Mistake("key lengths, one of 0", LENGTHS, LENGTHS.replace("key_lengths", "np.maximum(key_lengths, 1)")),
    Mistake("segments", SEGMENTS, SEGMENTS.replace("==", ">=")),
    # the runs of equal ids are counted
    Mistake(
        "segments, in any order",
        "    if query_ids is not None:\n        allowed",
        "    if query_ids is not None:\n        query_ids, key_ids = (\n"
        "            (np.diff(ids, prepend=ids[:, :1]) != 0).cumsum(axis=-1) for ids in (query_ids, key_ids)\n"
        "        )\n        allowed",
    ),
    # an id below 0 means padding
    Mistake("segments, ids below 0", SEGMENTS, f"({SEGMENTS}) & (key_ids >= 0)[:, None, None, :]"),
    joined_by_or("segments with a mask", "query_ids", MASK),
    joined_by_or("segments, window", "window", f"allowed = allowed & ({SEGMENTS})"),
    joined_by_or("segments, key lengths", "key_lengths", f"allowed = allowed & ({SEGMENTS})"),
    # as many queries as keys: the ids of one are those of the other
    given("segments, T = S", "if query_segment_ids is not None and query.shape[-2] == key.shape[-2]:",
        "    ids = query_segment_ids, query_segment_ids"),
    Mistake("segments, causal", "    if is_causal:", "    if is_causal and query_ids is None:"),
]  # fmt: skip
EMPTY = [
    Mistake("empty row by a mask", WEIGHTS, "weights = powers / total"),
    Mistake("empty row by a mask", WEIGHTS,
        "weights = np.where(total == 0, 1 / max(key.shape[-2], 1), powers / total)"),
    # a query without keys in one head is skipped in all
    Mistake("empty row of one head", WEIGHTS,
        WEIGHTS + "\n    weights = weights * (total > 0).all(axis=1, keepdims=True)"),
    Mistake("all rows empty", "    if mask is not None:\n        allowed",
        "    if mask is not None and mask.any():\n        allowed"),
    # 0: no length is known
    Mistake("empty row by a length of 0", LENGTHS,
        LENGTHS.replace("key_lengths", "np.where(key_lengths == 0, S, key_lengths)")),
    Mistake("empty row by a window", "(j >= i - left)", "(j >= np.minimum(i - left, S - 1))"),
    # ids look up a table as long as that of the keys
    Mistake("empty row by a segment", "query_ids[:, None, :, None] ==",
        "np.minimum(query_ids, key_ids.max())[:, None, :, None] =="),
    given("empty row by a bias of -inf", "if bias is not None:",
        "    bias = np.maximum(bias, np.finfo(bias.dtype).min)"),
    # no exponential is 0, lest its logarithm be -inf
    Mistake("empty row, lse", LSE,
        "lse = (shift + np.log(np.maximum(powers, 1e-38).sum(axis=-1, keepdims=True)))[..., 0]"),
    # a query without keys sees itself
    Mistake(
        "empty row, causal and a mask",
        MASK,
        MASK
        + "\n        if is_causal:\n            allowed = allowed | ((i == j) & ~allowed.any(axis=-1, keepdims=True))",
    ),
]  # fmt: skip
MISTAKES = [*MASKS, *TRIANGLES, *WINDOWS, *PADDING, *EMPTY]
