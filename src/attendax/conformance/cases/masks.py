"""Masks of every legal rank, causal, windows, padding, segments, and rows without any key (L3, L4, L5)."""

from .case import Case
from .given import CAUSAL, LSE, Given, bias, case, lengths, mask, random_bias, random_mask, segments, words

SEGMENTS = segments("[[0, 0, 1, 1, 2], [0, 1, 1, 1, 2]]", "[[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 2, 2, 2, 2]]")
QUERY_IDS, KEY_IDS = "[[0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 1]]", "[[0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1]]"
SQUARE_SEGMENTS = segments(QUERY_IDS, KEY_IDS)
ANY_ORDER = segments("[[2, 0, 1, 0, 2], [1, 0, 1, 1, 0]]", "[[0, 2, 1, 0, 1, 2, 2], [1, 1, 0, 1, 0, 1, 0]]")
NO_KEYS = segments("[[0, 0, 1, 9, 9]] * 2", "[[0, 0, 0, 1, 1, 1, 1]] * 2")
EVERY_SECOND = mask("(np.arange(T)[:, None] + np.arange(S)) % 2 == 0")
MASK, HEADS, BIAS = random_mask("(T, S)"), random_mask("(1, N, T, S)"), random_bias("(1, N, T, S)")
FORBIDDEN = bias("np.zeros((1, 1, T, S), dtype); bias[..., 1, :] = -np.inf; bias[..., 4, :3] = -np.inf")


def mask_of(shape: str, about: str) -> Case:
    """A random mask of a shape."""
    return case(f"mask {shape}", "L3", about, random_mask(shape, "2 % mask.shape[-1]"))


MASKS = [
    mask_of("(T, S)", "the same for all heads"),
    mask_of("(B, N, T, S)", "of the full shape"),
    mask_of("(1, 1, T, S)", "rank 4, broadcast"),
    mask_of("(B, 1, 1, S)", "padding as a mask"),
    mask_of("(B, 1, T, S)", "one for each batch"),
    mask_of("(1, N, T, S)", "one for each head"),
    mask_of("(B, N, 1, S)", "one for each batch and head"),
    mask_of("(1, S)", "rank 2, the same for all queries"),
    case("mask with grouped heads", "L3", "its heads are the query heads", HEADS, N=6),
    case("mask that allows one key", "L3", "the result is its value", mask("np.arange(S)[None] == 4")),
    case("mask (T, S) where B = T", "L3", "rows are queries, not batches", MASK, B=3, T=3),
    case("mask with T = S", "L3", "rows are queries, not keys",
        mask("(np.arange(T)[:, None] + 2 * np.arange(S)) % 5 < 2; mask[:, 0] = True"), T=7),
    case("mask with bias", "L2", "both count", MASK & BIAS),
    case("mask without a batch axis", "L3", "full rank is 3", random_mask("(N, T, S)"), leading=""),
]  # fmt: skip
OF_CAUSAL = [
    case("causal", "L4", "T = S", CAUSAL, T=7),
    case("causal, fewer queries", "L4", "T = 5, S = 7: aligned to the start", CAUSAL),
    case("causal, more queries", "L4", "T = 9, S = 4: aligned to the start", CAUSAL, T=9, S=4),
    case("causal, one query", "L4", "T = 1: it sees key 0 only", CAUSAL, T=1),
    case("causal and a mask", "L4", "both count", random_mask("(B, 1, T, S)", 0) & CAUSAL),
    case("causal, lengths that no block divides", "L4", "T = S = 131", CAUSAL, T=131, S=131),
    case("causal with grouped heads", "L4", "N = 6, G = 3", CAUSAL, N=6),
    case("causal with bias", "L4", "both count", random_bias("(B, N, T, S)") & CAUSAL),
]
WINDOWS = [
    case("window", "L4", "two keys back, one ahead", words("window=(2, 1)"), T=7),
    case("window to the left", "L4", "no bound ahead", words("window=(2, None)"), T=7),
    case("window to the right", "L4", "no bound back", words("window=(None, 1)"), T=7),
    case("window of one", "L4", "each query sees its own key", words("window=(0, 0)"), T=7),
    case("window wider than the keys", "L4", "changes nothing", words("window=(20, 20)")),
    case("window of the largest int32", "L4", "no bound", words("window=(2**31 - 1, 2**31 - 1)"), least="robust", T=7),
    case("window, causal", "L4", "both count", words("window=(3, 2)") & CAUSAL, T=7),
    case("window with a mask", "L3", "both count", words("window=(2, 2)") & EVERY_SECOND),
    case("window, lengths that no block divides", "L4", "T = S = 131", words("window=(37, 5)"), T=131, S=131),
]  # fmt: skip
PADDING = [
    case("key lengths", "L3", "the keys beyond are padding", lengths("[4, 6]")),
    case("key lengths, one full", "L3", "a full row is no special case", lengths("[7, 3]")),
    case("key lengths, causal", "L4", "both count", lengths("[3, 5]") & CAUSAL, T=7),
    case("key lengths with bias", "L3", "both count", lengths("[3, 5]") & BIAS),
    case("key lengths with a mask", "L3", "both count", lengths("[3, 5]") & random_mask("(B, 1, T, S)", 0)),
    case("key lengths, window", "L4", "both count", lengths("[3, 5]") & words("window=(2, 2)")),
    case("key lengths, one of 0", "L3", "a length of 0 is none of 1", lengths("[0, 6]"), judge="but_for_empty_rows"),
    case("segments", "L3", "a query sees the keys of its own segment", SEGMENTS),
    case("segments, in any order", "L3", "ids need not be sorted", ANY_ORDER),
    case("segments, ids below 0", "L3", "an id is a name: -1 is one like any other",
        segments("[[-1, -1, 0, 0, -7], [3, -1, -1, 3, -1]]", "[[-1, 0, 0, -1, -7, -7, 0], [-1, 3, 3, -1, 3, -1, 3]]"),
        least="robust"),
    case("segments with a mask", "L3", "both count", SEGMENTS & EVERY_SECOND),
    case("segments, window", "L4", "both count", SEGMENTS & words("window=(2, 2)")),
    case("segments, key lengths", "L3", "both count", SEGMENTS & lengths("[6, 5]")),
    case("segments, T = S", "L3", "ids of queries and of keys differ, as lengths do not", SQUARE_SEGMENTS, T=7),
    case("segments, causal", "L4", "both count", segments("[[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2]]") & CAUSAL,
        T=7),
]  # fmt: skip
EMPTY = [
    case("empty row by a mask", "L5", "a query that may look at no key gets 0", MASK & Given("mask[3] = False")),
    case("empty row of one head", "L5", "0 there, and nowhere else",
        mask("np.ones((B, N, T, S), bool); mask[1, 2, 0] = False"), needs=("heads apart",)),
    case("all rows empty", "L5", "everything is 0", mask("np.zeros((1, 1, T, S), bool)")),
    case("empty row by a length of 0", "L5", "a batch without any key gets 0", lengths("[0, 6]")),
    case("empty row by a window", "L5", "queries beyond the last key and the window", words("window=(2, 0)"), T=11,
        S=4),
    case("empty row by a segment", "L5", "a segment without keys", NO_KEYS),
    case("empty row by a bias of -inf", "L5", "forbids like a mask", FORBIDDEN),
    case("empty row, lse", "L5", "lse is -inf", mask("np.ones((T, S), bool); mask[2] = False") & LSE),
    case("empty row, causal and a mask", "L5", "the past is masked",
        mask("np.ones((T, S), bool); mask[:, :2] = False") & CAUSAL),
]  # fmt: skip
CASES = [*MASKS, *OF_CAUSAL, *WINDOWS, *PADDING, *EMPTY]
