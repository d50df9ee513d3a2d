"""A cache of keys: a block of queries that begins at an offset among them (L4)."""

from typing import Any

from .given import LSE, Given, case, gradient, mask, random_bias, segments, words


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
CASES = [
    case("cache: one query at the end", "L4", "it sees every key", AT_THE_END, T=1, S=9),
    case("cache: a block of queries at the end", "L4", "j <= i + S - T", AT_THE_END, **BLOCK),
    case("cache: a block in the middle", "L4", UNSEEN, IN_THE_MIDDLE, **BLOCK),
    case("cache: filled in part", "L4", EACH, FILLED, **BLOCK),
    case("cache: filled beyond the block", "L4", "what follows the queries is filled, and not seen", AHEAD, **BLOCK),
    case("cache: grouped heads", "L4", "N = 6, G = 3", FILLED, T=1, S=9, N=6),
    case("cache: longer than a block", "L4", LATER, AT_THE_END, **LONG),
    *(case(f"cache: {x}, one query", "L4", about, IN_THE_MIDDLE & y, **ONE) for x, (about, y) in BESIDE_ONE.items()),
    case("cache: window that looks ahead, one query", "L4", "from where it stands, without causal",
        Given('offset = np.full(B, 4, "int32")', "window=(1, 2), offset=offset"), **ONE),
    case("cache: window and sinks, one query", "L4", "both count", IN_THE_MIDDLE & WINDOW & SINKS, **ONE),
    gradient("cache: a block of queries at the end", "through what is seen", AT_THE_END, "L4", **BLOCK),
    gradient("cache: longer than a block", "through keys of later blocks", AT_THE_END, "L4", **LONG),
]  # fmt: skip
