"""Every option at lengths of several blocks, 300 and 1,100: a block reads its own part of mask, bias and ids (L11)."""

from .case import Case

SIZES = {  # no power of two divides them: the last block is never full
    300: {"B": 1, "N": 2, "G": 2, "T": 300, "S": 300, "D": 8, "V": 8},
    1100: {"B": 1, "N": 1, "G": 1, "T": 1100, "S": 1100, "D": 8, "V": 8},
}
LONG, EMPTY = ("causal",), "mask (B, 1, T, 1)"
ONE_HOT = "value = np.eye(S, dtype=dtype) + np.zeros((B, G, 1, 1), dtype); question = "


def lengths(share: float) -> str:
    """Python that makes key lengths, a share of the keys."""
    return f'key_lengths = np.full(B, int({share} * S), "int32")'


def bias(what: str) -> dict:
    """A bias, and how it is given."""
    return dict(lines=f"bias = ({what}).astype(dtype)", call="bias=bias")


def mask(what: str) -> dict:
    """A mask, and how it is given."""
    return dict(lines=f"mask = {what}", call="mask=mask")


MASKS = {
    "(T, S)": "rng.random((T, S)) < 0.5",
    "(B, N, T, S)": "rng.random((B, N, T, S)) < 0.5",
    "(B, 1, T, S)": "rng.random((B, 1, T, S)) < 0.5",
    "(1, N, T, S)": "rng.random((1, N, T, S)) < 0.5",
    "(1, 1, T, S)": "rng.random((1, 1, T, S)) < 0.5",
    "(B, N, 1, S)": "rng.random((B, N, 1, S)) < 0.5",
    "(B, 1, 1, S)": "rng.random((B, 1, 1, S)) < 0.5",
    "(1, S)": "rng.random((1, S)) < 0.5",
}
CAUSAL_AND = {  # no row is empty: key 0 is seen
    f"causal and mask {shape}": (
        "both count in every block",
        dict(lines=f"mask = {what}; mask[..., 0] = True", call="mask=mask, is_causal=True", sizes={"B": 2}),
    )
    for shape, what in MASKS.items()
}
OPTIONS = {
    "plain": ("every block of queries and keys counts once", {}),
    "causal": ("the diagonal runs through later blocks", dict(call="is_causal=True")),
    "window": ("its edges run through later blocks", dict(call="window=(150, 20)")),
    "window of a neighbour": (
        "the first query of a block sees the last key of the one before",
        dict(call="window=(1, 0)"),
    ),
    "key lengths": ("padding begins inside a later block", dict(lines=lengths(0.93), call="key_lengths=key_lengths")),
    "segments": (
        "ids are read at the block's own positions",
        dict(
            lines='q_ids, k_ids = (np.sort(rng.integers(0, 7, (B, n))).astype("int32") for n in (T, S))',
            call="query_segment_ids=q_ids, key_segment_ids=k_ids",
        ),
    ),
    "mask of a prefix": (
        "causal after the first third",
        mask("(np.arange(S) <= np.arange(T)[:, None]) | (np.arange(S) < S // 3)"),
    ),
    "mask (B, N, T, S)": ("of the full shape", mask("rng.random((B, N, T, S)) < 0.5")),
    "mask (B, 1, 1, S)": ("one for each key", mask("rng.random((B, 1, 1, S)) < 0.5")),
    "mask (B, 1, T, 1)": ("some queries see nothing", mask("rng.random((B, 1, T, 1)) < 0.5")),
    "bias (B, N, T, S)": ("of the full shape", bias("rng.standard_normal((B, N, T, S))")),
    "bias (B, 1, 1, S)": ("one for each key", bias("rng.standard_normal((B, 1, 1, S))")),
    "bias (B, N, T, 1)": ("changes nothing, and has no gradient", bias("rng.standard_normal((B, N, T, 1))")),
    "bias of ALiBi": (
        "falls with the distance, a slope for each head",
        bias("-np.abs(np.arange(T)[:, None] - np.arange(S)) / 2.0 ** np.arange(4, 4 + N)[:, None, None]"),
    ),
    "bias of relative positions": (
        "(T, S), one number for each distance",
        bias("rng.standard_normal(T + S - 1)[np.arange(S) - np.arange(T)[:, None] + T - 1]"),
    ),
    "softcap": ("in every block", dict(lines="query = 3 * query", call="softcap=2.0")),
    "dropout": (
        "blocks do not keep the same sets",
        dict(lines=f"{ONE_HOT}'independent in blocks'", call="dropout_rate=0.4, dropout_rng=3", needs=("V != D",)),
    ),
    "grouped heads": ("a block of keys is that of its key head", dict(sizes={"N": 4, "G": 2})),
    "values narrower than keys": ("V = 5, D = 8", dict(sizes={"V": 5})),
    "lse": ("over all blocks", dict(call="return_lse=True")),
}


def case_of(option: str, length: int, direction: str) -> Case:
    """An option at a length."""
    about, given = (OPTIONS | CAUSAL_AND)[option]  # what is read elsewhere is off by far more than any rounding
    given = dict(given, slack=4.0, law="L11", about=f"T = S = {length}: {about}", direction=direction)
    given["sizes"] = SIZES[length] | given.get("sizes", {})
    name = f"in blocks: {option}, {length}"
    if option == "dropout":
        given |= dict(judge="dropped", dtype="float32", sizes=given["sizes"] | {"V": length})
    given["least"] = "robust" if option == EMPTY else "law" if length > 300 and option not in LONG else "numbers"
    if direction == "gradient":
        name = f"gradient: {name}"
        if option == "dropout":
            given["lines"] = f"{ONE_HOT}'gradient'"
        if "bias=" in given.get("call", ""):
            given["needs"] = ("gradient of bias",)
    return Case(name=name, **given)


CASES = [case_of(o, length, how) for how in ("forward", "gradient") for length in SIZES for o in OPTIONS]
CASES += [case_of(o, 300, how) for how in ("forward", "gradient") for o in CAUSAL_AND]
