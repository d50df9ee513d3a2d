"""Masks of every legal rank, causal, windows, padding, segments, and rows without any key (L3, L4, L5)."""

from .case import Case


def mask_of(shape: str, about: str, **more) -> Case:
    """A random mask of a shape; key 2 is always allowed, so that no row is empty."""
    lines = f"mask = rng.random({shape}) < 0.5; mask[..., 2 % mask.shape[-1]] = True"
    return Case(f"mask {shape}", "L3", about, lines=lines, call="mask=mask", **more)


MASKS = [
    mask_of("(T, S)", "the same for all heads"),
    mask_of("(B, N, T, S)", "of the full shape"),
    mask_of("(1, 1, T, S)", "rank 4, broadcast"),
    mask_of("(B, 1, 1, S)", "padding as a mask"),
    mask_of("(B, 1, T, S)", "one for each batch"),
    mask_of("(1, N, T, S)", "one for each head"),
    mask_of("(B, N, 1, S)", "one for each batch and head"),
    mask_of("(1, S)", "rank 2, the same for all queries"),
    Case(
        "mask with grouped heads",
        "L3",
        "its heads are the query heads",
        sizes={"N": 6},
        call="mask=mask",
        lines="mask = rng.random((1, N, T, S)) < 0.5; mask[..., 2] = True",
    ),
    Case(
        "mask that allows one key",
        "L3",
        "the result is its value",
        call="mask=mask",
        lines="mask = np.arange(S)[None] == 4",
    ),
    Case(
        "mask (T, S) where B = T",
        "L3",
        "rows are queries, not batches",
        lines="mask = rng.random((T, S)) < 0.5; mask[:, 2] = True",
        call="mask=mask",
        sizes={"B": 3, "T": 3},
    ),
    Case(
        "mask with T = S",
        "L3",
        "rows are queries, not keys",
        sizes={"T": 7},
        call="mask=mask",
        lines="mask = (np.arange(T)[:, None] + 2 * np.arange(S)) % 5 < 2; mask[:, 0] = True",
    ),
    Case(
        "mask with bias",
        "L2",
        "both count",
        call="mask=mask, bias=bias",
        lines="mask = rng.random((T, S)) < 0.5; mask[:, 2] = True\n"
        "bias = rng.standard_normal((1, N, T, S)).astype(dtype)",
    ),
    Case(
        "mask without a batch axis",
        "L3",
        "full rank is 3",
        leading="",
        call="mask=mask",
        lines="mask = rng.random((N, T, S)) < 0.5; mask[..., 2] = True",
    ),
]
CAUSAL = [
    Case("causal", "L4", "T = S", sizes={"T": 7}, call="is_causal=True"),
    Case("causal, fewer queries", "L4", "T = 5, S = 7: aligned to the start", call="is_causal=True"),
    Case(
        "causal, more queries",
        "L4",
        "T = 9, S = 4: aligned to the start",
        sizes={"T": 9, "S": 4},
        call="is_causal=True",
    ),
    Case("causal, one query", "L4", "T = 1: it sees key 0 only", sizes={"T": 1}, call="is_causal=True"),
    Case(
        "causal and a mask",
        "L4",
        "both count",
        call="mask=mask, is_causal=True",
        lines="mask = rng.random((B, 1, T, S)) < 0.5; mask[..., 0] = True",
    ),
    Case(
        "causal, lengths that no block divides", "L4", "T = S = 131", sizes={"T": 131, "S": 131}, call="is_causal=True"
    ),
    Case("causal with grouped heads", "L4", "N = 6, G = 3", sizes={"N": 6}, call="is_causal=True"),
    Case(
        "causal with bias",
        "L4",
        "both count",
        call="bias=bias, is_causal=True",
        lines="bias = rng.standard_normal((B, N, T, S)).astype(dtype)",
    ),
]
WINDOWS = [
    Case("window", "L4", "two keys back, one ahead", sizes={"T": 7}, call="window=(2, 1)"),
    Case("window to the left", "L4", "no bound ahead", sizes={"T": 7}, call="window=(2, None)"),
    Case("window to the right", "L4", "no bound back", sizes={"T": 7}, call="window=(None, 1)"),
    Case("window of one", "L4", "each query sees its own key", sizes={"T": 7}, call="window=(0, 0)"),
    Case("window wider than the keys", "L4", "changes nothing", call="window=(20, 20)"),
    Case("window, causal", "L4", "both count", sizes={"T": 7}, call="window=(3, 2), is_causal=True"),
    Case(
        "window with a mask",
        "L3",
        "both count",
        call="window=(2, 2), mask=mask",
        lines="mask = (np.arange(T)[:, None] + np.arange(S)) % 2 == 0",
    ),
    Case(
        "window, lengths that no block divides", "L4", "T = S = 131", sizes={"T": 131, "S": 131}, call="window=(37, 5)"
    ),
]
PADDING = [
    Case(
        "key lengths",
        "L3",
        "the keys beyond are padding",
        call="key_lengths=key_lengths",
        lines='key_lengths = np.array([4, 6], "int32")',
    ),
    Case(
        "key lengths, one full",
        "L3",
        "a full row is no special case",
        call="key_lengths=key_lengths",
        lines='key_lengths = np.array([7, 3], "int32")',
    ),
    Case(
        "key lengths, causal",
        "L4",
        "both count",
        sizes={"T": 7},
        call="key_lengths=key_lengths, is_causal=True",
        lines='key_lengths = np.array([3, 5], "int32")',
    ),
    Case(
        "key lengths with bias",
        "L3",
        "both count",
        call="key_lengths=key_lengths, bias=bias",
        lines='key_lengths = np.array([3, 5], "int32")\nbias = rng.standard_normal((1, N, T, S)).astype(dtype)',
    ),
    Case(
        "segments",
        "L3",
        "a query sees the keys of its own segment",
        call="query_segment_ids=q_ids, key_segment_ids=k_ids",
        lines='q_ids = np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 2]], "int32")\n'
        'k_ids = np.array([[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 2, 2, 2, 2]], "int32")',
    ),
    Case(
        "segments, in any order",
        "L3",
        "ids need not be sorted",
        call="query_segment_ids=q_ids, key_segment_ids=k_ids",
        lines='q_ids = np.array([[2, 0, 1, 0, 2], [1, 0, 1, 1, 0]], "int32")\n'
        'k_ids = np.array([[0, 2, 1, 0, 1, 2, 2], [1, 1, 0, 1, 0, 1, 0]], "int32")',
    ),
    Case(
        "segments, T = S",
        "L3",
        "ids of queries and of keys differ, as lengths do not",
        sizes={"T": 7},
        call="query_segment_ids=q_ids, key_segment_ids=k_ids",
        lines='q_ids = np.array([[0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 1]], "int32")\n'
        'k_ids = np.array([[0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1]], "int32")',
    ),
    Case(
        "segments, causal",
        "L4",
        "both count",
        sizes={"T": 7},
        call="query_segment_ids=ids, key_segment_ids=ids, is_causal=True",
        lines='ids = np.array([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2]], "int32")',
    ),
]
EMPTY = [
    Case(
        "empty row by a mask",
        "L5",
        "a query that may look at no key gets 0",
        call="mask=mask",
        lines="mask = rng.random((T, S)) < 0.5; mask[:, 2] = True; mask[3] = False",
    ),
    Case(
        "empty row of one head",
        "L5",
        "0 there, and nowhere else",
        needs=("heads apart",),
        call="mask=mask",
        lines="mask = np.ones((B, N, T, S), bool); mask[1, 2, 0] = False",
    ),
    Case("all rows empty", "L5", "everything is 0", call="mask=mask", lines="mask = np.zeros((1, 1, T, S), bool)"),
    Case(
        "empty row by a length of 0",
        "L5",
        "a batch without any key gets 0",
        call="key_lengths=key_lengths",
        lines='key_lengths = np.array([0, 6], "int32")',
    ),
    Case(
        "empty row by a window",
        "L5",
        "queries beyond the last key and the window",
        sizes={"T": 11, "S": 4},
        call="window=(2, 0)",
    ),
    Case(
        "empty row by a segment",
        "L5",
        "a segment without keys",
        call="query_segment_ids=q_ids, key_segment_ids=k_ids",
        lines='q_ids = np.array([[0, 0, 1, 9, 9]] * 2, "int32")\n'
        'k_ids = np.array([[0, 0, 0, 1, 1, 1, 1]] * 2, "int32")',
    ),
    Case(
        "empty row by a bias of -inf",
        "L5",
        "forbids like a mask",
        call="bias=bias",
        lines="bias = np.zeros((1, 1, T, S), dtype); bias[..., 1, :] = -np.inf; bias[..., 4, :3] = -np.inf",
    ),
    Case(
        "empty row, lse",
        "L5",
        "lse is -inf",
        call="mask=mask, return_lse=True",
        lines="mask = np.ones((T, S), bool); mask[2] = False",
    ),
    Case(
        "empty row, causal and a mask",
        "L5",
        "the past is masked",
        call="mask=mask, is_causal=True",
        lines="mask = np.ones((T, S), bool); mask[:, :2] = False",
    ),
]
CASES = [*MASKS, *CAUSAL, *WINDOWS, *PADDING, *EMPTY]
