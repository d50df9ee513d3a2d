"""Mistakes of block indices in ``right_blockwise``: each is seen from the second block of queries or keys on.

Each is planted four times: in blocks of 256, which T = S = 300 shows, and of 512, which only 1,100 shows; everywhere,
and in the backward alone. In blocks of 128 they are caught by whichever case is the first.
"""

from planted import BlockMistake

PART = "return x[..., rows[:, None], keys]"
AXIS = "keys = keys if x.shape[-1] > 1 else np.arange(1)"
FULL, OF_KEYS, OF_QUERIES = "min(x.shape[-2:]) > 1", "x.shape[-2] == 1 < x.shape[-1]", "x.shape[-1] == 1 < x.shape[-2]"
OFF_BY_ONE = "{0} - ({0}[0] > 0)"
FIRST_BLOCK = "{0} - {0}[0]"
OTHER_BLOCK = "np.minimum(keys - keys[0] + rows[0], {}.shape[-1] - 1)"  # keys by the index of the block of queries
AT_THE_END = "keys if len(keys) == BLOCK_K else np.arange(x.shape[-1])[-BLOCK_K:][: len(keys)]"
LEFT, LENGTHS = "allowed & (j >= i - left)", "(j < self.key_lengths[:, None, None, None])"
KEPT, GROUPS = "self.kept[..., rows[:, None], keys]", "np.repeat(x, self.group, axis=-3)"


def of_mask(condition: str, axis: str, index: str) -> tuple[str, str]:
    """A tile reads masks of some shapes elsewhere."""
    return PART, f"if x.dtype == bool and {condition}:\n        {axis} = {index.format(axis)}\n    {PART}"


def of_bias(condition: str, axis: str, index: str) -> tuple[str, str]:
    """The same of biases."""
    return PART, of_mask(condition, axis, index)[1].replace("== bool", "!= bool")


BY_OPTION = {
    # as many blocks as fit whole
    "plain": ("blocks(self.T, BLOCK_Q)", "blocks(self.T // BLOCK_Q * BLOCK_Q or self.T, BLOCK_Q)"),
    # the diagonal of later blocks is off by one
    "causal": ("(j <= i + begins)", "(j <= i + begins - (rows[0] > 0))"),
    # the first block that the window touches is rounded up
    "window": (LEFT, f"{LEFT} & (keys[0] // BLOCK_K >= -((left - rows[0]) // BLOCK_K))"),
    # a block of keys that ends one before the window's first is taken for one that ends before it
    "window of a neighbour": (LEFT, f"{LEFT} & ~(keys[-1] <= rows[0] - left)"),
    # as many blocks as fit whole into the length
    "key lengths": (LENGTHS, f"{LENGTHS} & ((keys[0] == 0) | (keys[-1] < self.key_lengths.min()))"),
    "segments": (
        "self.key_ids[:, None, None, keys]",
        f"self.key_ids[:, None, None, {OTHER_BLOCK.format('self.key_ids')}]",
    ),
    "mask of a prefix": of_mask(f"x.ndim == 2 and {FULL}", "keys", OTHER_BLOCK.format("x")),
    "mask (B, N, T, S)": of_mask(f"x.ndim == 4 and {FULL}", "rows", OFF_BY_ONE),
    "mask (B, 1, 1, S)": of_mask(OF_KEYS, "keys", FIRST_BLOCK),
    "mask (B, 1, T, 1)": of_mask(OF_QUERIES, "rows", FIRST_BLOCK),
    "bias (B, N, T, S)": of_bias(f"x.ndim == 4 and {FULL}", "keys", AT_THE_END),
    "bias (B, 1, 1, S)": of_bias(OF_KEYS, "keys", OTHER_BLOCK.format("x")),
    # of later blocks it is read as one for each key
    "bias (B, N, T, 1)": (
        AXIS,
        f"if x.dtype != bool and {OF_QUERIES} and rows[0] > 0:\n"
        f"        return x[..., keys, :].swapaxes(-1, -2)\n    {AXIS}",
    ),
    "bias of ALiBi": of_bias("x.ndim == 3", "rows", FIRST_BLOCK),
    "bias of relative positions": of_bias(f"x.ndim == 2 and {FULL}", "keys", OTHER_BLOCK.format("x")),
    # the last block, which is not full, is not capped
    "softcap": ("if self.softcap is not None:", "if self.softcap is not None and not len(keys) < BLOCK_K < self.S:"),
    # each block of queries drops what the first does
    "dropout": (KEPT, KEPT.replace("rows[:", "(rows - rows[0])[:")),
    # later blocks take the heads in turn
    "grouped heads": (GROUPS, f"({GROUPS} if keys[0] == 0 else np.concatenate([x] * self.group, axis=-3))"),
    # where a block begins is computed with the width of the keys
    "values narrower than keys": (
        "self.value[..., keys, :]",
        "self.value[..., keys - keys[0] + keys[0] * min(self.value.shape[-1], self.query.shape[-1])"
        " // self.query.shape[-1], :]",
    ),
    "lse": ("lse[..., rows] = (", "lse[..., rows - (rows[0] > 0)] = ("),
}
TRUE = "part(self.mask, rows, keys)"
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
        f"({TRUE} if not (self.is_causal and {condition}) else part(self.mask, rows - rows[0], keys - keys[0]))",
    )
    for shape, condition in CONDITIONS.items()
}
LARGEST = "x.max(axis=-1, keepdims=True, initial=-np.inf) for x in every"
LOW_AND = {  # a block that is hidden as a whole sets the maximum to 0
    f"scores near -400, {option}": (
        LARGEST,
        f"np.where((top := x.max(axis=-1, keepdims=True, initial=-np.inf)) == -np.inf, 0 if {given} else top, top)"
        " for x in every",
    )
    for option, given in {
        "causal": "self.is_causal",
        "window": "self.window is not None",
        "mask": "self.mask is not None",
        "key lengths": "self.key_lengths is not None",
    }.items()
}
IN_THE_BACKWARD = BY_OPTION | {
    "lse": ("weights * grad_lse[..., rows, None]", "weights * grad_lse[..., rows - rows[0], None]"),
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
MISTAKES += [BlockMistake(f"in blocks: {option}, 300", *texts, 128, "forward") for option, texts in LOW_AND.items()]
SMALLER = [
    BlockMistake(f"{where}: {option}", *texts, 128, where)
    for where, table in OF_EACH.items()
    for option, texts in table.items()
]
