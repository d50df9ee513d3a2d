"""A cache of keys: a block of queries that begins at an offset among them (L4)."""

from .case import Case

ENDS = 'offset = np.full(B, S - T, "int32")'
FILLED = 'key_lengths = np.resize([S - 2, S - 1], B).astype("int32"); offset = key_lengths - np.int32(T)'  # not full
GIVEN = "is_causal=True, offset=offset"
LONG = {"T": 3, "S": 300}
CASES = [
    Case("cache: one query at the end", "L4", "it sees every key", sizes={"T": 1, "S": 9}, lines=ENDS, call=GIVEN),
    Case(
        "cache: a block of queries at the end",
        "L4",
        "j <= i + S - T",
        sizes={"T": 3, "S": 9},
        lines=ENDS,
        call=GIVEN,
    ),
    Case(
        "cache: a block in the middle",
        "L4",
        "later keys are not seen, whatever the length of the cache",
        sizes={"T": 3, "S": 9},
        lines='offset = np.full(B, (S - T) // 2, "int32")',
        call=GIVEN,
    ),
    Case(
        "cache: filled in part",
        "L4",
        "each batch has its own length, and its queries are the last of it",
        sizes={"T": 3, "S": 9},
        lines=FILLED,
        call=f"{GIVEN}, key_lengths=key_lengths",
    ),
    Case(
        "cache: grouped heads",
        "L4",
        "N = 6, G = 3",
        sizes={"T": 1, "S": 9, "N": 6},
        lines=FILLED,
        call=f"{GIVEN}, key_lengths=key_lengths",
    ),
    Case(
        "cache: longer than a block",
        "L4",
        "keys of later blocks are seen, whose indices are beyond those of the queries",
        sizes=LONG,
        lines=ENDS,
        call=GIVEN,
        slack=4.0,
    ),
    Case(
        "gradient: cache: a block of queries at the end",
        "L4",
        "through what is seen",
        direction="gradient",
        sizes={"T": 3, "S": 9},
        lines=ENDS,
        call=GIVEN,
    ),
    Case(
        "gradient: cache: longer than a block",
        "L4",
        "through keys of later blocks",
        direction="gradient",
        sizes=LONG,
        lines=ENDS,
        call=GIVEN,
        slack=4.0,
    ),
]
