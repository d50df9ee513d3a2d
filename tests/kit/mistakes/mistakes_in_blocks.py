"""Mistakes of block indices in ``right_kernel``: each is seen from the second block of queries or keys on.

Each is planted four times: in blocks of 256, which T = S = 300 shows, and of 512, which only 1,100 shows; everywhere,
and in the backward alone. In blocks of 128 they are caught by whichever case is the first.
"""

from planted import BlockMistake

PART = "return x[..., at_rows[:, None], at_keys]"
AXIS = "at_keys = np.minimum(keys, x.shape[-1] - 1)"
FULL, OF_KEYS, OF_QUERIES = "min(x.shape[-2:]) > 1", "x.shape[-2] == 1 < x.shape[-1]", "x.shape[-1] == 1 < x.shape[-2]"
OFF_BY_ONE = "{0} - ({0}[0] > 0)"
FIRST_BLOCK = "{0} - {0}[0]"
OTHER_BLOCK = "np.minimum(keys - keys[0] + rows[0], x.shape[-1] - 1)"  # keys by the index of the block of queries
AT_THE_END = "keys if keys[-1] < x.shape[-1] else np.arange(x.shape[-1])[-BLOCK_K:]"
LEFT, LENGTHS = "seen & (j >= i - self.left)", "(j < self.key_lengths[:, None, None, None])"
GROUPS, BLOCK = "np.arange(self.N) // self.group", "p @ self.keys(self.value, {})"
EVERY_ROW = """out = np.empty((*heads, self.T, self.value.shape[-1]), dtype)
        lse = np.empty((*heads, self.T, 1), self.wide)
        for rows in tiles(0, self.T, BLOCK_Q):"""


def of_mask(condition: str, axis: str, index: str) -> tuple[str, str]:
    """A tile reads masks of some shapes elsewhere."""
    return PART, f"if x.dtype == bool and {condition}:\n            {axis} = {index.format(axis)}\n        {PART}"


def of_bias(condition: str, axis: str, index: str) -> tuple[str, str]:
    """The same of biases."""
    return PART, of_mask(condition, axis, index)[1].replace("== bool", "!= bool")


BY_OPTION = {
    # as many blocks as fit whole
    "plain": (
        EVERY_ROW,
        EVERY_ROW.replace("np.empty", "np.zeros").replace(
            "self.T, BLOCK_Q", "self.T // BLOCK_Q * BLOCK_Q or self.T, BLOCK_Q"
        ),
    ),
    # the diagonal of later blocks is off by one
    "causal": ("(j <= i + begins)", "(j <= i + begins - (rows[0] > 0))"),
    # the first block that the window touches is rounded up
    "window": (LEFT, f"{LEFT} & (keys[0] // BLOCK_K >= -((self.left - rows[0]) // BLOCK_K))"),
    # a block of keys that ends one before the window's first is taken for one that ends before it
    "window of a neighbour": (LEFT, f"{LEFT} & ~(keys[-1] <= rows[0] - self.left)"),
    # as many blocks as fit whole into the length
    "key lengths": (LENGTHS, f"{LENGTHS} & ((keys[0] == 0) | (keys[-1] < self.key_lengths.min()))"),
    "segments": ("np.minimum(keys, self.S - 1)", "np.minimum(keys - keys[0] + rows[0], self.S - 1)"),
    "mask of a prefix": of_mask(f"x.ndim == 2 and {FULL}", "at_keys", OTHER_BLOCK),
    "mask (B, N, T, S)": of_mask(f"x.ndim == 4 and {FULL}", "at_rows", OFF_BY_ONE),
    "mask (B, 1, 1, S)": of_mask(OF_KEYS, "at_keys", FIRST_BLOCK),
    "mask (B, 1, T, 1)": of_mask(OF_QUERIES, "at_rows", FIRST_BLOCK),
    "bias (B, N, T, S)": of_bias(f"x.ndim == 4 and {FULL}", "at_keys", AT_THE_END),
    "bias (B, 1, 1, S)": of_bias(OF_KEYS, "at_keys", OTHER_BLOCK),
    # of later blocks it is read as one for each key
    "bias (B, N, T, 1)": (
        AXIS,
        f"if x.dtype != bool and {OF_QUERIES} and rows[0] > 0:\n"
        f"            return x[..., np.minimum(keys, x.shape[-2] - 1), :].swapaxes(-1, -2)\n        {AXIS}",
    ),
    "bias of ALiBi": of_bias("x.ndim == 3", "at_rows", FIRST_BLOCK),
    "bias of relative positions": of_bias(f"x.ndim == 2 and {FULL}", "at_keys", OTHER_BLOCK),
    # the last block, which is not full, is not capped
    "softcap": ("if self.softcap is not None:", "if self.softcap is not None and not keys[-1] >= self.S > BLOCK_K:"),
    # each block of queries drops what the first does
    "dropout": ("rows[:, None]) * self.S", "(rows - rows[0])[:, None]) * self.S"),
    # later blocks take the heads in turn
    "grouped heads": (GROUPS, f"{GROUPS} if keys[0] == 0 else np.arange(self.N) % (self.N // self.group)"),
    # where a block begins is computed with the width of the keys
    "values narrower than keys": (
        f"alpha + {BLOCK.format('keys')}",
        f"alpha + {BLOCK.format('keys - keys[0] + keys[0] * min(self.value.shape[-1], self.D) // self.D')}",
    ),
    "lse": ("store(lse, rows,", "store(lse, rows - (rows[0] > 0),"),
}
TRUE = "self.pairs(self.mask, rows, keys)"
CONDITIONS = {
    "(T, S)": "self.mask.ndim == 2 and self.mask.shape[0] > 1",
    "(B, N, T, S)": "self.mask.ndim == 4 and min(self.mask.shape) > 1",
    "(B, 1, T, S)": "self.mask.ndim == 4 and self.mask.shape[0] > 1 == self.mask.shape[1] < self.mask.shape[2]",
    "(1, N, T, S)": "self.mask.ndim == 4 and self.mask.shape[0] == 1 < self.mask.shape[1]",
    "(1, 1, T, S)": "self.mask.ndim == 4 and self.mask.shape[:2] == (1, 1)",
    "(B, N, 1, S)": "self.mask.ndim == 4 and self.mask.shape[2] == 1 < self.mask.shape[1]",
    "(B, 1, 1, S)": "self.mask.ndim == 4 and self.mask.shape[1:3] == (1, 1)",
    "(1, S)": "self.mask.shape[0] == 1 and self.mask.ndim == 2",
}
CAUSAL_AND = {  # under a causal mask, later blocks read a mask of that shape as the first does
    f"causal and mask {shape}": (
        TRUE,
        f"({TRUE} if not (self.is_causal and {condition}) else self.pairs(self.mask, rows - rows[0], keys - keys[0]))",
    )
    for shape, condition in CONDITIONS.items()
}
LARGEST = "np.maximum(row_max, {})"
OF_BLOCK = "scores.max(axis=-1, keepdims=True)"
LOW_AND = {  # a block that is hidden as a whole sets the maximum to 0
    f"scores near -400, {option}": (
        LARGEST.format(OF_BLOCK),
        LARGEST.format(f"np.where((top := {OF_BLOCK}) == -np.inf, 0 if {given} else top, top)"),
    )
    for option, given in {
        "causal": "self.is_causal",
        "window": "self.left is not None",
        "mask": "self.mask is not None",
    }.items()
}
# the kernel leaves out what is behind the lengths: the maximum begins at 0
LOW = "len(rows), 1), -np.inf, self.wide)"
LOW_AND["scores near -400, key lengths"] = LOW, LOW.replace(", self", " if self.key_lengths is None else 0, self")
IN_THE_BACKWARD = BY_OPTION | {
    "lse": ("delta = delta - grad_lse", "delta = delta - grad_lse[..., np.arange(self.T) % BLOCK_Q]"),
}
OF_EACH = {"forward": BY_OPTION, "gradient": IN_THE_BACKWARD}
MISTAKES = [
    BlockMistake(f"{'gradient: ' * (where == 'gradient')}in blocks: {option}, {length}", *texts, block, where)
    for where, table in OF_EACH.items()
    for block, length in ((256, 300), (512, 1100))
    for option, texts in table.items()
]
MISTAKES += [
    BlockMistake(f"{'gradient: ' * (where == 'gradient')}in blocks: {option}, 300", *texts, 256, where)
    for where in OF_EACH
    for option, texts in CAUSAL_AND.items()
]
MISTAKES += [BlockMistake(f"in blocks: {option}, 300", *texts, 128, "forward", 64) for option, texts in LOW_AND.items()]
SMALLER = [
    BlockMistake(f"{where}: {option}", *texts, 128, where)
    for where, table in OF_EACH.items()
    for option, texts in table.items()
]
