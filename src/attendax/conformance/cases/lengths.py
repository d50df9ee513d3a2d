"""Lengths of several blocks, 300 and 1,100: every option reads its part of masks and biases (L11). Caches of keys (L4).

A cache has more keys than queries: a block of queries begins at an offset among them.
"""

from typing import Any

from .case import FORWARD, GRADIENT, Case
from .given import CAUSAL, LSE, NOTHING, Given, bias, case, gradient, mask, random_bias, segments, words

SIZES = {  # no power of two divides them: the last block is never full
    300: {"B": 1, "N": 2, "G": 2, "T": 300, "S": 300, "D": 8, "V": 8},
    1100: {"B": 1, "N": 1, "G": 1, "T": 1100, "S": 1100, "D": 8, "V": 8},
}
SHAPES = ("(T, S)", "(B, N, T, S)", "(B, 1, T, S)", "(1, N, T, S)", "(1, 1, T, S)", "(B, N, 1, S)", "(B, 1, 1, S)",
          "(1, S)")  # fmt: skip
SORTED = 'q_ids, k_ids = (np.sort(rng.integers(0, 7, (B, n))).astype("int32") for n in (T, S))'
SLOPES = "-np.abs(np.arange(T)[:, None] - np.arange(S)) / 2.0 ** np.arange(4, 4 + N)[:, None, None]"
RELATIVE = "rng.standard_normal(T + S - 1)[np.arange(S) - np.arange(T)[:, None] + T - 1].astype(dtype)"
PADDED = 'key_lengths = np.full(B, int(0.93 * S), "int32")'
ONE_HOT = "value = np.eye(S, dtype=dtype) + np.zeros((B, G, 1, 1), dtype); question = "
OPTIONS: dict[str, tuple[str, Given]] = {
    "plain": ("every block of queries and keys counts once", NOTHING),
    "causal": ("the diagonal runs through later blocks", CAUSAL),
    "window": ("its edges run through later blocks", words("window=(150, 20)")),
    "window of a neighbour": ("the first query of a block sees the last key of the one before", words("window=(1, 0)")),
    "key lengths": ("padding begins inside a later block", Given(PADDED, "key_lengths=key_lengths")),
    "segments": ("ids are read at the block's own positions",
        Given(SORTED, "query_segment_ids=q_ids, key_segment_ids=k_ids")),
    "mask of a prefix": ("causal after the first third",
        mask("(np.arange(S) <= np.arange(T)[:, None]) | (np.arange(S) < S // 3)")),
    "mask (B, N, T, S)": ("of the full shape", mask("rng.random((B, N, T, S)) < 0.5")),
    "mask (B, 1, 1, S)": ("one for each key", mask("rng.random((B, 1, 1, S)) < 0.5")),
    "mask (B, 1, T, 1)": ("some queries see nothing", mask("rng.random((B, 1, T, 1)) < 0.5")),
    "bias (B, N, T, S)": ("of the full shape", random_bias("(B, N, T, S)")),
    "bias (B, 1, 1, S)": ("one for each key", random_bias("(B, 1, 1, S)")),
    "bias (B, N, T, 1)": ("changes nothing, and has no gradient", random_bias("(B, N, T, 1)")),
    "bias of ALiBi": ("falls with the distance, a slope for each head",
        bias(SLOPES) & Given("bias = bias.astype(dtype)")),
    "bias of relative positions": ("(T, S), one number for each distance", bias(RELATIVE)),
    "softcap": ("in every block", Given("query = 3 * query", "softcap=2.0")),
    "dropout": ("blocks do not keep the same sets", words("dropout_rate=0.4, dropout_rng=3")),
    "grouped heads": ("a block of keys is that of its key head", NOTHING),
    "values narrower than keys": ("V = 5, D = 8", NOTHING),
    "lse": ("over all blocks", LSE),
}  # fmt: skip
CAUSAL_AND = {  # no row is empty: key 0 is seen
    f"causal and mask {x}": ("both count in every block", mask(f"rng.random({x}) < 0.5; mask[..., 0] = True") & CAUSAL)
    for x in SHAPES
}
LOW = Given("query[..., -1] = 40; key[..., -1] = -10 * D**0.5")  # the last: a sum in order rounds it once
LOW_AND = {  # hides whole blocks: no maximum of what was seen before may stay above the scores
    f"scores near -400, {x}": ("a block that is hidden as a whole has no largest score", LOW & given)
    for x, given in {
        "causal": CAUSAL,
        "window": words("window=(30, 20)"),
        "mask": mask("abs(np.arange(T)[:, None] - np.arange(S)) < 40"),
        "key lengths": Given('key_lengths = np.full(B, S // 3, "int32")', "key_lengths=key_lengths"),
    }.items()
}
MORE: dict[str, dict[str, Any]] = {
    "grouped heads": {"N": 4, "G": 2}, "values narrower than keys": {"V": 5}, "mask (B, 1, T, 1)": {"least": "robust"},
    "causal": {"least": "numbers"}, **{x: {"B": 2} for x in CAUSAL_AND},
    **{x: {"dtype": "float32"} for x in LOW_AND},
}  # fmt: skip


def in_blocks(option: str, length: int, direction: str) -> Case:
    """An option at a length."""
    about, given = (OPTIONS | CAUSAL_AND | LOW_AND)[option]
    more: dict[str, Any] = {"least": "law" if length > 300 else "numbers"} | SIZES[length] | MORE.get(option, {})
    if option == "dropout":
        question = GRADIENT if direction == GRADIENT else "independent in blocks"
        given &= Given(f"{ONE_HOT}{question!r}")
        more |= {"judge": "dropped", "dtype": "float32", "needs": ("V != D",), "V": length}
    name = f"{'gradient: ' * (direction == GRADIENT)}in blocks: {option}, {length}"
    return case("L11", name, f"T = S = {length}: {about}", given, direction, slack=4.0, **more)  # else off by far more


IN_BLOCKS = [in_blocks(o, length, how) for how in (FORWARD, GRADIENT) for length in SIZES for o in OPTIONS]
IN_BLOCKS += [in_blocks(o, 300, how) for how in (FORWARD, GRADIENT) for o in CAUSAL_AND]
IN_BLOCKS += [in_blocks(o, 300, FORWARD) for o in LOW_AND]


def offset(made: str) -> Given:
    """Causal, where the queries of each batch begin at one of its keys."""
    return Given(f"offset = {made}", "is_causal=True, offset=offset")


AT_THE_END, IN_THE_MIDDLE = offset('np.full(B, S - T, "int32")'), offset('np.full(B, (S - T) // 2, "int32")')
NOT_FULL = Given('key_lengths = np.resize([S - 2, S - 1], B).astype("int32")')
FILLED, AHEAD = (
    NOT_FULL & offset(f"key_lengths - np.int32({n})") & words("key_lengths=key_lengths") for n in ("T", "T + 2")
)
WINDOW, SINKS = words("window=(2, 0)"), Given("sinks = rng.standard_normal(N).astype(dtype)", "sinks=sinks")
BLOCK: dict[str, Any] = {"T": 3, "S": 9}
LONG: dict[str, Any] = {"T": 3, "S": 300, "slack": 4.0}
ONE: dict[str, Any] = {"T": 1, "S": 9, "N": 4, "G": 4}
BESIDE_ONE = {  # options beside one query that begins at an offset: what they are, and what is given
    "window": ("two keys back from where it stands", WINDOW),
    "window beyond it": ("causal hides what is ahead", words("window=(3, 2)")),
    "mask": ("a row of it", mask("rng.random((B, N, 1, S)) < 0.5; mask[..., 1] = True")),
    "bias": ("a row of it", random_bias("(B, N, 1, S)")),
    "softcap": ("of its scores", Given("query = 3 * query", "softcap=2.0")),
    "scale": ("of its scores", words("scale=0.9")),
    "segments": ("its own", segments("[[1], [0]]", "[[0, 1, 1, 1, 1, 0, 2, 2, 2], [1, 0, 0, 1, 1, 1, 0, 0, 2]]")),
    "sinks": ("one for each head", SINKS),
    "lse": ("of what it sees", LSE),
}
LATER = "keys of later blocks are seen, whose indices are beyond those of the queries"
EACH = "each batch has its own length, and its queries are the last of it"
UNSEEN = "later keys are not seen, whatever the length of the cache"
IN_CACHES = [
    case("L4", "cache: one query at the end", "it sees every key", AT_THE_END, T=1, S=9),
    case("L4", "cache: a block of queries at the end", "j <= i + S - T", AT_THE_END, **BLOCK),
    case("L4", "cache: a block in the middle", UNSEEN, IN_THE_MIDDLE, **BLOCK),
    case("L4", "cache: each batch at its own place", "the queries of another batch begin elsewhere",
        offset('np.arange(3, 3 + B, dtype="int32")'), **BLOCK),
    case("L4", "cache: filled in part", EACH, FILLED, **BLOCK),
    case("L4", "cache: filled beyond the block", "what follows the queries is filled, and not seen", AHEAD, **BLOCK),
    case("L4", "cache: grouped heads", "N = 6, G = 3", FILLED, T=1, S=9, N=6),
    case("L4", "cache: longer than a block", LATER, AT_THE_END, **LONG),
    *(case("L4", f"cache: {x}, one query", about, IN_THE_MIDDLE & y, **ONE) for x, (about, y) in BESIDE_ONE.items()),
    case("L4", "cache: window that looks ahead, one query", "from where it stands, without causal",
        Given('offset = np.full(B, 4, "int32")', "window=(1, 2), offset=offset"), **ONE),
    case("L4", "cache: window and sinks, one query", "both count", IN_THE_MIDDLE & WINDOW & SINKS, **ONE),
    gradient("cache: a block of queries at the end", "through what is seen", AT_THE_END, "L4", **BLOCK),
    gradient("cache: longer than a block", "through keys of later blocks", AT_THE_END, "L4", **LONG),
]  # fmt: skip
