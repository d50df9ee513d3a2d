"""What the ladder draws from: the values of each axis, what every run has, and the case of a row."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .case import FORWARD, GRADIENT, GRADIENT_HELD, HELD, Case
from .given import CAUSAL, LSE, NOTHING, Given, bias, case, mask, words


class Asked(NamedTuple):
    """What a call is asked for beyond its arrays.

    Attributes:
        option: its kind, of which each run has some in each dtype and beside many keys.
        given: of the case.
        holds: as many numbers as it has, by the sizes.
    """

    option: str
    given: Given = NOTHING
    holds: str = "0"


SHAPES = {f"({', '.join(x)})": " * ".join(x).replace("1 * ", "") for x in ("B1TS", "B11S", "1NTS", "BNTS", "TS")}
LENGTHS_OF_KEYS = Given('key_lengths = rng.integers(S // 2, S + 1, B).astype("int32")', "key_lengths=key_lengths")
SEGMENTS = Given(
    """key_segment_ids = rng.integers(0, 3, (B, S)); key_segment_ids[:, :3] = 0, 1, 2
key_segment_ids.sort(); query_segment_ids = key_segment_ids if T == S else np.sort(rng.integers(0, 3, (B, T)))
query_segment_ids, key_segment_ids = (x.astype("int32") for x in (query_segment_ids, key_segment_ids))""",
    "query_segment_ids=query_segment_ids, key_segment_ids=key_segment_ids",
)
CACHE = Given(
    'offset = rng.integers(S // 2, S - T + 1, B).astype("int32"); key_lengths = offset + np.int32(T)',
    "is_causal=True, offset=offset, key_lengths=key_lengths",
)
SINKS = Given("sinks = (np.log(S) + rng.standard_normal(N)).astype(dtype)", "sinks=sinks")  # a part that can be seen
SIDE = "max(T - S, 0) + S // 4 + 1"  # which leaves no row empty
SOFTCAP, SCALE, TO_THE_LEFT = map(words, ("softcap=1.5", "scale=1.7 * D**-0.5", f"window=({SIDE}, 0)"))
MASKS = {x: mask(f"rng.random({x}) < 0.6; mask[..., 0] = True") for x in SHAPES}  # no row is empty
BIASES = {x: bias(f"2 * rng.standard_normal({x}); bias = bias.astype(dtype)") for x in SHAPES}
EACH, PADDING = "(B, 1, T, S)", "(B, 1, 1, S)"
ASKED = {
    "plain": Asked("plain"),
    "causal": Asked("causal", CAUSAL),
    "key lengths": Asked("key lengths", LENGTHS_OF_KEYS),
    **{f"mask {x}": Asked("mask", MASKS[x], n) for x, n in SHAPES.items()},
    **{f"bias {x}": Asked("bias", BIASES[x], n) for x, n in SHAPES.items()},
    "softcap": Asked("softcap", SOFTCAP),
    "scale": Asked("scale", SCALE),
    "window": Asked("window", words(f"window=({SIDE}, {SIDE})")),
    "window to the left": Asked("window", TO_THE_LEFT),
    "segments": Asked("segments", SEGMENTS),
    "sinks": Asked("sinks", SINKS),
    "lse": Asked("lse", LSE),
    "held": Asked("held"),
    "cache": Asked("cache", CACHE),
    "causal and window": Asked("several", CAUSAL & TO_THE_LEFT),
    "causal and softcap": Asked("several", CAUSAL & SOFTCAP),
    "causal and segments": Asked("several", CAUSAL & SEGMENTS),
    f"causal and mask {PADDING}": Asked("several", CAUSAL & MASKS[PADDING], SHAPES[PADDING]),
    f"mask and bias {EACH}": Asked("several", MASKS[EACH] & BIASES[EACH], SHAPES[EACH]),
    "key lengths and softcap and scale": Asked("several", LENGTHS_OF_KEYS & SOFTCAP & SCALE),
}
FROM_THE_FIRST = {name for name, asked in ASKED.items() if re.search("is_causal|window", asked.given.call)}
HIDING = {name for name, asked in ASKED.items() if re.search("mask|window|segment", asked.given.call)}  # some keys
MATCHING = "np.repeat(key, N // G, 1)[:, :, np.arange(T) % max(S // 2, 1)]"  # a key that each query may look at
NUMBERS = {
    "normal": "",
    "logits to 60": 'query = (3 if dtype == "bfloat16" else 12) * query',  # it has no digits for more
    "values about 1": "value = value + 1",  # a sum of so many in bfloat16 stops early
    "equal keys": "key[..., ::2, :] = key[..., :1, :]",
    "heavy tails": "key, value = (x * np.exp(rng.standard_normal(x.shape)).astype(dtype) for x in (key, value))",
    "a value that stands out": "value[..., S // 2, :] = 100",
    "exact zeros": "query[..., ::2, :], key[..., ::3, :], value[..., ::5, :] = 0, 0, 0",
    "values beyond 10,000": "value = 1e5 * value; value = value.astype(dtype)",
    "numbers below 0.01": "query, key, value = ((1e-3 * x).astype(dtype) for x in (query, key, value))",
    "scores beyond 3,000": f"query = (4000 / D**0.5 * {MATCHING}).astype(dtype)",  # each query takes one key
}
OF_FLOAT32 = ("scores beyond 3,000",)  # a narrow dtype has no digits for them
NOT_IN_FLOAT16 = ("values beyond 10,000", "numbers below 0.01")  # nor this one the range
SHORT = (8, 16, 32, 48)
LENGTHS = {"below 1,024": (64, 1023), "from 1,024": (1024, 2047), "from 2,048": (2048, 4096)}
LONG, SQUARE, OTHER, ODD = "from 2,048", "T = S", "T != S", "odd"
FEW = (1, 4, 16)
WIDTHS = (64, 16, 32, 40, 48, 80, 96, 100, 112, 128, 160, 192, 256, 320)
Row = dict[str, Any]
Axes = dict[str, tuple[Any, ...]]
AXES: Axes = {  # the first value of each is the one that most implementations take
    "direction": (FORWARD, GRADIENT),
    "dtype": (None, "bfloat16", "float16"),  # None: that of the run
    "asked": tuple(ASKED),
    "numbers": tuple(NUMBERS),
    "B": (1, 2, 3, 4, 8, 16),
    "N": (16, 1, 4, 5, 7, 8, 10, 12, 20, 24, 28, 32, 40, 48, 64, 80),
    "groups": (1, 2, 3, 4, 5, 6, 7, 8, 16),  # query heads for each key head
    "queries": (SQUARE, OTHER, *FEW),
    "keys": (*LENGTHS, *SHORT),
    "edge": (0, -1, 1, ODD),  # how far lengths are from a multiple of a block; None where they are given
    "D": WIDTHS,
    "V": ("D", *WIDTHS),
}
POOL = "; ".join(f"{axis} {', '.join(map(str, values))}" for axis, values in AXES.items())
OPTIONS = tuple(dict.fromkeys(asked.option for asked in ASKED.values()))
USES: tuple[Row, ...] = (  # in each direction a run has each value of each axis, and these
    {"queries": SQUARE, "keys": LONG, "asked": "causal", "edge": 0},
    {"queries": SQUARE, "keys": LONG, "asked": "causal", "edge": 1},
    {"queries": 16, "keys": LONG},
    {"queries": 1, "keys": LONG},
    {"B": 8, "N": 64},
    {"keys": LONG, "dtype": "bfloat16", "numbers": "values about 1", "asked": "plain"},
    {"keys": LONG, "dtype": "bfloat16", "numbers": "normal", "queries": SQUARE},
    *({"queries": SQUARE, "keys": S} for S in SHORT),
    *({"option": option, "keys": "from 1,024", "numbers": "normal"} for option in OPTIONS),  # where it shows
    *({"option": option, "dtype": dtype} for option in OPTIONS for dtype in AXES["dtype"]),
)


def can_be(row: Row) -> bool:
    """Whether a row makes sense.

    Few queries are not causal: from key 0 on, they would see few of the keys. A cache is for them alone.
    """
    asked, few = row["asked"], row["queries"] in FEW
    if row["N"] % row["groups"] or not is_held_by(row["dtype"], row["numbers"]):
        return False
    if asked == "cache":
        return few and (not isinstance(row["keys"], int) or row["keys"] >= 2 * row["queries"])
    if (few and asked in FROM_THE_FIRST) or (asked == "causal and segments" and row["queries"] != SQUARE):
        return False
    return row["numbers"] not in OF_FLOAT32 or (asked not in HIDING and row["direction"] == FORWARD)


def cannot(part: Row) -> bool:
    """Whether no row has a part: a gradient that is 0 in truth is rounding, and large by the size of the scores."""
    return part.get("direction") == GRADIENT and part.get("numbers") in OF_FLOAT32


def is_held_by(dtype: str | None, numbers: str) -> bool:
    """Whether a dtype has digits and range for them; None is float32 or wider."""
    return (dtype is None or numbers not in OF_FLOAT32) and (dtype != "float16" or numbers not in NOT_IN_FLOAT16)


def case_of(direction: str, asked: str, numbers: str, sizes: Mapping[str, int], dtype: str | None = None) -> Case:
    """The case of a row at its sizes."""
    said = [f"ladder: {asked}", numbers, " ".join(f"{axis}={size}" for axis, size in sizes.items()), dtype]
    name, judge = "gradient: " * (direction == GRADIENT) + ", ".join(filter(None, said)), "value"
    if asked == "held":
        direction, judge = {FORWARD: HELD, GRADIENT: GRADIENT_HELD}[direction], "held"
    given = Given(NUMBERS[numbers]) & ASKED[asked].given
    return case(name, "L11", "sizes as people run them", given, direction, judge=judge, dtype=dtype, **sizes)


NAME = re.compile(
    rf"(gradient: )?ladder: ({'|'.join(map(re.escape, ASKED))}), ({'|'.join(map(re.escape, NUMBERS))}), "
    r"(B=\d+(?: [NGTSDV]=\d+)+)(?:, (bfloat16|float16))?"
)


def named(name: str) -> Case | None:
    """The case of a name."""
    if not (found := NAME.fullmatch(name)):
        return None
    gradient, asked, numbers, sizes, dtype = found.groups()
    given = {axis: int(size) for axis, _, size in (pair.partition("=") for pair in sizes.split())}
    return case_of(GRADIENT if gradient else FORWARD, asked, numbers, given, dtype)


SMALL = {"B": 1, "N": 2, "G": 2, "T": 128, "S": 128, "D": 64, "V": 64}
EXAMPLES = tuple(case_of(way, "plain", "normal", SMALL) for way in AXES["direction"])  # of what a run draws
