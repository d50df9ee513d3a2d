"""The pool that the ladder draws from: the values of each axis, what every run has, and the case of a row."""

import functools
import itertools
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from .case import FORWARD, GRADIENT, GRADIENT_HELD, HELD, Case
from .given import CAUSAL, LSE, NOTHING, Given, bias, case, mask, words


class Asked(NamedTuple):
    """A demand on a call beyond its arrays: an option, or several."""

    options: tuple[str, ...]  # of ``OPTIONS``
    given: Given  # of the case
    holds: str  # as many numbers as it has, by the sizes
    from_the_first: bool  # whether queries that begin at key 0 see the keys beside them alone
    hides: bool  # whether some keys are hidden


AND = " and "  # between the options of a combination
SHAPES = {
    f"({', '.join(x)})": " * ".join(x).replace("1 * ", "")
    for x in ("B1TS", "B11S", "1NTS", "BNTS", "TS", "11TS", "1N1S", "111S")
}
OF_KEYS = 'key_lengths = rng.integers(S // 2, S + 1, B).astype("{}"); key_lengths[2:3] = 1'
SEGMENTS = """key_segment_ids = rng.integers(0, 3, (B, S)); key_segment_ids[:, :3] = 0, 1, 2
key_segment_ids.sort(); query_segment_ids = key_segment_ids if T == S else np.sort(rng.integers(0, 3, (B, T)))
query_segment_ids, key_segment_ids = (x.astype("int32") for x in (query_segment_ids, key_segment_ids))"""
MIXED = """\
key_segment_ids = rng.integers(0, min(12, S), (B, S)); key_segment_ids[:, : min(12, S)] = np.arange(min(12, S))
key_segment_ids = rng.permuted(key_segment_ids, axis=1)
query_segment_ids = key_segment_ids if T == S else rng.integers(0, min(12, S), (B, T))
query_segment_ids, key_segment_ids = ((37 * x).astype("int32") for x in (query_segment_ids, key_segment_ids))"""
IDS = "query_segment_ids=query_segment_ids, key_segment_ids=key_segment_ids"
CACHE = 'offset = rng.integers(S // 2, S - T + 1, B).astype("int32"); key_lengths = offset + np.int32(T)'
SINKS = "sinks = (np.log(S) + rng.standard_normal(N)).astype(dtype)"  # a part that can be seen
SIDE = "max(T - S, 0) + S // 4 + 1"  # which leaves no row empty
SEEN = "mask[..., ::3] = True"  # so that no row is empty, beside a window either
EXPANDED = f"rng.random((B, 1, 1, S)) < 0.6; {SEEN}; mask = np.broadcast_to(mask, (B, N, T, S))"
PADDED = "np.arange(S) >= rng.integers(0, 3 * S // 4 + 1, (B, 1, 1, 1)); mask[0, ..., : 3 * S // 4] = False"
LONGER, PART = "(B, 1, T + 3, S + 5)", "[:, :, 3:, 5:]"
MADE: dict[str, Given] = {  # each name begins with its option
    "plain": NOTHING,
    "causal": CAUSAL,
    "key lengths": Given(OF_KEYS.format("int32"), "key_lengths=key_lengths"),
    "key lengths of 64 bits": Given(OF_KEYS.format("int64"), "key_lengths=key_lengths"),
    **{f"mask {x}": mask(f"rng.random({x}) < 0.6; {SEEN}") for x in SHAPES},
    "mask cut from a longer one": mask(f"(rng.random({LONGER}) < 0.6){PART}; {SEEN}"),
    "mask expanded": mask(EXPANDED),
    "left padding": mask(PADDED),
    **{f"bias {x}": bias(f"2 * rng.standard_normal({x}); bias = bias.astype(dtype)") for x in SHAPES},
    "bias cut from a longer one": bias(f"(2 * rng.standard_normal({LONGER})).astype(dtype){PART}"),
    "softcap": words("softcap=1.5"),
    "softcap of 50": words("softcap=50.0"),
    "scale": words("scale=1.7 * D**-0.5"),
    "scale below 0": words("scale=-0.3"),
    "window": words(f"window=({SIDE}, {SIDE})"),
    "window to the left": words(f"window=({SIDE}, 0)"),
    "window to the right": words("window=(max(T - S, 0) + 2, S // 2 + 3)"),
    "segments": Given(SEGMENTS, IDS),
    "segments in any order": Given(MIXED, IDS),  # of twelve, each among the keys
    "sinks": Given(SINKS, "sinks=sinks"),
    "lse": LSE,
    "held": NOTHING,
    "cache": Given(CACHE, "is_causal=True, offset=offset, key_lengths=key_lengths"),
}
OPTIONS = (  # of which each run has some in each dtype and beside many keys
    "plain", "causal", "key lengths", "mask", "left padding", "bias", "softcap", "scale", "window", "segments", "sinks",
    "lse", "held", "cache",
)  # fmt: skip
FIRST, HIDING = "is_causal|window", "mask|window|segment"
HOLDS = SHAPES | {"cut from a longer one": "B * T * S", "expanded": "B * N * T * S"}


@functools.cache
def asked_of(name: str) -> Asked:
    """The demand of a row: an option, or several."""
    names = name.split(AND)
    given = functools.reduce(Given.__and__, (MADE[one] for one in names))
    options = tuple(option for one in names for option in OPTIONS if one.startswith(option))
    holds = " + ".join(HOLDS.get(one.partition(" ")[2], "0") for one in names)
    return Asked(options, given, holds, *(bool(re.search(x, given.call)) for x in (FIRST, HIDING)))


ASKED = {name: asked_of(name) for name in MADE}
ALONE = ("plain", "held")
APART = (  # a row might see no key
    {"key lengths", "segments"}, {"key lengths", "window"}, {"cache", "segments"},
    {"cache", "causal"}, {"cache", "key lengths"}, {"left padding", "mask"},  # these say the same
    *({"left padding", x} for x in ("causal", "key lengths", "window", "segments", "cache")),
)  # fmt: skip
COTANGENT = "rng.standard_normal(query.shape[:-1] + value.shape[-1:])"
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
    "scores near -200": "query[..., -1] = 20; key[..., -1] = -10 * D**0.5",
    "cotangents below 1e-5": f"cotangent = (1e-6 * {COTANGENT}).astype(dtype)",
    "cotangents beyond 10,000": f"cotangent = (1e5 * {COTANGENT}).astype(dtype)",
    "cotangents of 0": f"cotangent = {COTANGENT}.astype(dtype); cotangent[..., ::2, :] = 0",
}
OF_GRADIENTS = tuple(x for x in NUMBERS if "cotangent" in x)
LOW = "scores near -200"
OF_FLOAT32 = ("scores beyond 3,000",)  # a narrow dtype has no digits for them
NOT_IN_FLOAT16 = (  # nor this one the range
    "values beyond 10,000", "numbers below 0.01", "cotangents below 1e-5", "cotangents beyond 10,000",
)  # fmt: skip
IN_ORDER = "in order"
MEMORY = {  # what lies between the numbers is not theirs
    "tokens before heads": "np.ascontiguousarray({0}.swapaxes(1, 2)).swapaxes(1, 2)",
    "widths before tokens": "np.ascontiguousarray({0}.swapaxes(2, 3)).swapaxes(2, 3)",
    "every second token": "np.repeat({0}, 2, 2)[:, :, ::2]",
    "a part of each row": "np.concatenate([{0}, {0}[..., ::-1]], -1)[..., : {0}.shape[-1]]",
}
OF_QUERY, OF_VALUE = (f"{x} = {MEMORY[order].format(x)}" for x, order in zip(("query", "value"), MEMORY, strict=False))
LAYOUTS = {
    IN_ORDER: "",
    **{x: f"query, key, value = ({made.format('x')} for x in (query, key, value))" for x, made in MEMORY.items()},
    "each in an order of its own": f"{OF_QUERY}; {OF_VALUE}",
}
SHORT = (8, 16, 32, 48)
LONG, FAR, SQUARE, OTHER, ODD = "from 2,048", "from 8,192", "T = S", "T != S", "odd"
LENGTHS = {"below 1,024": (64, 1023), "from 1,024": (1024, 2047), LONG: (2048, 4096), FAR: (8192, 36864)}
FEW, MANY = (1, 4, 16, 80), "from 4,608"
QUERIES = {MANY: (4608, 16384)}  # beside few keys
BESIDE_MANY = (*SHORT, "below 1,024")
MODEL = "of a model"  # several heads, and more than a tile of queries and keys
WIDTHS = (64, 16, 32, 40, 48, 72, 80, 96, 100, 112, 128, 160, 192, 256, 320, 512, 576)
OWN = {"B": range(5, 97), "D": range(8, 577, 8), "N": range(2, 97)}  # each run has some that no list names
Row = dict[str, Any]
Axes = dict[str, tuple[Any, ...]]
AXES: Axes = {  # the first value of each is the one that most implementations take
    "direction": (FORWARD, GRADIENT),
    "dtype": (None, "bfloat16", "float16"),  # None: that of the run
    "asked": tuple(ASKED),
    "numbers": tuple(NUMBERS),
    "layout": tuple(LAYOUTS),
    "B": (1, 2, 3, 4, 8, 16, 32),
    "N": (16, 1, 4, 5, 7, 8, 10, 12, 20, 24, 28, 32, 40, 48, 64, 80, 128),
    "groups": (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64),  # query heads for each key head
    "queries": (SQUARE, OTHER, *FEW, MANY),
    "keys": (*LENGTHS, *SHORT),
    "edge": (0, -1, 1, ODD),  # how far lengths are from a multiple of a block; None where they are given
    "D": WIDTHS,
    "V": ("D", *WIDTHS),
}
POOL = "; ".join(f"{axis} {', '.join(map(str, values))}" for axis, values in AXES.items())
TOGETHER = tuple(x for x in itertools.combinations([x for x in OPTIONS if x not in ALONE], 2) if {*x} not in APART)
USES: tuple[Row, ...] = (  # in each direction a run has each value of each axis, and these
    {"queries": SQUARE, "keys": LONG, "asked": "causal", "edge": 0},
    {"queries": SQUARE, "keys": LONG, "asked": "causal", "edge": 1},
    {"queries": 16, "keys": LONG},
    {"queries": 1, "keys": LONG},
    {"queries": 4, "keys": LONG, "asked": "cache", "dtype": "float16"},  # whose positions it does not hold
    {"B": 8, "N": 64},
    *({"keys": "below 1,024", "queries": SQUARE, "numbers": LOW, "asked": x} for x in ("causal", "left padding")),
    {"keys": LONG, "dtype": "bfloat16", "numbers": "values about 1", "asked": "plain"},
    {"keys": LONG, "dtype": "bfloat16", "numbers": "normal", "queries": SQUARE},
    *({"queries": SQUARE, "keys": S} for S in SHORT),
    *({"option": option, "keys": "from 1,024", "numbers": "normal"} for option in OPTIONS),  # where it shows
    *({"option": option, "dtype": dtype} for option in OPTIONS for dtype in AXES["dtype"]),
    *({"option": option, "shape": MODEL} for option in OPTIONS),
    *({"dtype": dtype, "shape": MODEL, "asked": asked} for dtype in AXES["dtype"] for asked in ("plain", "causal")),
    *({"groups": groups, "shape": MODEL} for groups in AXES["groups"]),
    *({"option": option, "queries": 1} for option in OPTIONS if option not in ("causal", "window")),
    *({"together": pair, "queries": 1} for pair in TOGETHER if "cache" in pair),  # a window, too, which sees some keys
)


def fit(options: Collection[str]) -> bool:
    """Tell whether options can be asked together."""
    return len(options) == len(set(options)) and not any(pair.issubset(options) for pair in APART)


def can_be(row: Row) -> bool:
    """Tell whether a row makes sense.

    Few queries are not causal: from key 0 on, they would see few of the keys. A cache is for them alone, and so are the
    most keys. The most queries have few keys. The rest of a segment has to be seen. A scale below 0 is asked where
    no key is hidden: nobody runs both, and "scale negative, causal" is a case of the profile robust.
    """
    asked, queries, keys, numbers = asked_of(row["asked"]), row["queries"], row["keys"], row["numbers"]
    few, is_given = queries in FEW, isinstance(keys, int)
    cache, masked = "cache" in asked.options, "mask" in asked.options
    in_segments = "segments" in asked.options and len(asked.options) > 1
    return not (
        row["N"] % row["groups"]
        or not is_held_by(row["dtype"], numbers)
        or cannot(row)
        or (not few and (cache or keys == FAR))
        or (queries == MANY and keys not in BESIDE_MANY)
        or (cache and is_given and keys < 2 * queries)
        or (few and asked.from_the_first and not cache)
        or (in_segments and asked.from_the_first and (queries != SQUARE or masked))
        or (in_segments and masked and (is_given or "any order" in row["asked"]))
        or (numbers in OF_FLOAT32 and asked.hides)
        or (numbers == LOW and "sinks" in asked.options)  # which would have all of the weight
        or ("scale=-" in asked.given.call and (numbers in (*OF_FLOAT32, LOW) or asked.hides or asked.from_the_first))
    )


def cannot(part: Row) -> bool:
    """Tell whether no row has a part: a gradient that should be 0 is rounding, and large by the size of scores."""
    never = {GRADIENT: (*OF_FLOAT32, LOW), FORWARD: OF_GRADIENTS}
    return part.get("numbers") in never.get(part.get("direction", ""), ())


def is_held_by(dtype: str | None, numbers: str) -> bool:
    """Tell whether a dtype has digits and range for them; None is float32 or wider."""
    has_digits = dtype is None or numbers not in (*OF_FLOAT32, LOW)
    return has_digits and (dtype != "float16" or numbers not in NOT_IN_FLOAT16)


def case_of(
    direction: str, asked: str, numbers: str, sizes: Mapping[str, int], dtype: str | None = None, layout: str = IN_ORDER
) -> Case:
    """The case of a row at its sizes."""
    memory = layout if LAYOUTS[layout] else None
    said = [f"ladder: {asked}", numbers, memory, " ".join(f"{axis}={size}" for axis, size in sizes.items()), dtype]
    name, judge = "gradient: " * (direction == GRADIENT) + ", ".join(filter(None, said)), "value"
    if asked == "held":
        direction, judge = {FORWARD: HELD, GRADIENT: GRADIENT_HELD}[direction], "held"
    given = Given(NUMBERS[numbers]) & Given(LAYOUTS[layout]) & asked_of(asked).given
    return case("L11", name, "sizes as people run them", given, direction, judge=judge, dtype=dtype, **sizes)


ONE_ASKED, ONE_OF_NUMBERS, ONE_LAYOUT = (f"(?:{'|'.join(map(re.escape, x))})" for x in (ASKED, NUMBERS, LAYOUTS))
NAME = re.compile(
    rf"(gradient: )?ladder: ({ONE_ASKED}(?:{AND}{ONE_ASKED})*), ({ONE_OF_NUMBERS})(?:, ({ONE_LAYOUT}))?, "
    r"(B=\d+(?: [NGTSDV]=\d+)+)(?:, (bfloat16|float16))?"
)


def named(name: str) -> Case | None:
    """The case of a name."""
    if not (found := NAME.fullmatch(name)) or not fit(asked_of(found[2]).options):
        return None
    gradient, asked, numbers, layout, sizes, dtype = found.groups()
    given = {axis: int(size) for axis, _, size in (pair.partition("=") for pair in sizes.split())}
    return case_of(GRADIENT if gradient else FORWARD, asked, numbers, given, dtype, layout or IN_ORDER)


SMALL = {"B": 1, "N": 2, "G": 2, "T": 128, "S": 128, "D": 64, "V": 64}
EXAMPLES = tuple(case_of(way, "plain", "normal", SMALL) for way in AXES["direction"])  # of what a run draws
