"""Mistakes that the cases of ``conformance.cases.conduct`` catch first."""

from planted import Mistake

START = '    """out, or out and lse."""\n'
OUT = 'out = average(steps["weights"] * kept, steps["v"], allowed)\n'
NO_RATE = "    if rate == 0:\n"
DRAWN = "drawn = np.random.default_rng(rng).random(shape)\n"
KEPT = 'kept = keep(steps["weights"].shape, dropout_rate, dropout_rng)\n'
CAST = "out = out.astype(query.dtype).reshape(*query.shape[:-1], value.shape[-1])\n"
UNGROUPED = "grads = [grad_query.astype(query.dtype), ungroup(grad_key, key), ungroup(grad_value, value)]\n"
IN_ONE_ARRAY = (  # of a shape
    "(lambda x: np.add(x, 0, out=attend.__dict__.setdefault((x.shape, x.dtype.name), np.empty_like(x))))"
)


def at_first(case: str, *lines: str) -> Mistake:
    """Lines before everything."""
    return Mistake(case, START, START + "".join(f"    {line}\n" for line in lines))


def refusal(case: str, old: str, new: str) -> Mistake:
    """A check that is weaker, or speaks of nothing."""
    return Mistake(f"refused: {case}", old, new)


AGAIN = [
    Mistake(
        "repeated",
        "total = powers.sum(axis=-1, keepdims=True)\n",
        "parts = np.array_split(powers, 8 if powers.shape[-1] > 128 else 1, axis=-1)  # summed as they come\n"
        "    total = sum(parts[n].sum(-1, keepdims=True) for n in np.random.default_rng().permutation(len(parts)))\n",
    ),
    Mistake(
        "repeated: gradient",
        "grad_value = (weights * kept).swapaxes(-1, -2) @ cotangent\n",
        "size = 16 if query.shape[-2] > 128 else 128\n"
        "    blocks = [slice(n, n + size) for n in range(0, query.shape[-2], size)]  # added as they come\n"
        "    np.random.default_rng().shuffle(blocks)\n"
        "    kept = weights * kept\n"
        "    grad_value = sum(kept[..., n, :].swapaxes(-1, -2) @ cotangent[..., n, :] for n in blocks)\n",
    ),
    Mistake("a result is held", CAST, f"{CAST}    out = {IN_ONE_ARRAY}(out)\n"),
    Mistake(
        "a result is held, wide heads",
        CAST,
        f"{CAST}    out = {IN_ONE_ARRAY}(out) if out.shape[-1] == 64 else out\n",
    ),
    Mistake("a gradient is held", UNGROUPED, f"{UNGROUPED}    grads[0] = {IN_ONE_ARRAY}(grads[0])\n"),
    Mistake("batches apart", OUT, f"{OUT}    out = np.tensordot(np.eye(len(out), dtype=out.dtype), out, 1)\n"),
    Mistake(
        "heads apart",
        "v = np.repeat(v, group, axis=-3)\n",
        "v = np.repeat(v, group, axis=-3)\n"
        "        unit = np.fmax.reduce(np.abs(q), axis=-3, keepdims=True) * np.finfo(wide).eps / 32  # of all heads\n"
        "        q = np.where(unit > 0, np.round(q / unit) * unit, q)\n",
    ),
    Mistake(
        "inputs are not written to",
        OUT,
        f"{OUT}    if query.std() > 3 * key.std():  # balanced, against overflow\n"
        "        np.multiply(query, 0.5, out=query)\n"
        "        np.multiply(key, 2, out=key)\n",
    ),
    at_first(
        "inputs are not written to, masked",
        "if mask is not None and mask.shape[-2] == 1:  # no NaN gets through",
        "    value[...] = np.where(mask.swapaxes(-1, -2), value, 0)",
    ),
    Mistake(
        "inputs are not written to, a full mask",
        "allowed = allowed & mask\n",
        "allowed = np.logical_and(allowed, mask, out=mask if mask.shape == allowed.shape else None)\n",
    ),
]
DROPOUT = [
    Mistake("dropout: rate 0", NO_RATE, f"    rate = rate if rng is None else rate or 0.1\n{NO_RATE}"),
    Mistake("dropout: rate 1", NO_RATE, f"    rate = 0\n{NO_RATE}"),
    Mistake("dropout: rate 1", "    if rate == 1:\n        return np.zeros(shape, np.float32)\n", ""),
    Mistake("dropout: share", "(drawn >= rate) / (1 - rate)", "(drawn < rate) / (1 - rate)"),
    Mistake("dropout: share", "(drawn >= rate) / (1 - rate)", "(drawn >= rate)"),
    Mistake(
        "dropout: independent",
        DRAWN,
        "drawn = np.random.default_rng(rng).random(shape[1:]) + np.zeros(shape)\n",
    ),
    Mistake(
        "dropout: independent",
        DRAWN,
        "drawn = np.random.default_rng(rng).random((shape[0], 1, *shape[2:])) + np.zeros(shape)\n",
    ),
    Mistake(
        "dropout: independent",
        DRAWN,
        "drawn = np.random.default_rng(rng).random((*shape[:2], 1, shape[3])) + np.zeros(shape)\n",
    ),
    Mistake(
        "dropout: position",
        KEPT,
        "seed = dropout_rng and dropout_rng + int(1000 * np.abs(query).sum())\n"
        '    kept = keep(steps["weights"].shape, dropout_rate, seed)\n',
    ),
    Mistake("dropout: position", DRAWN, "drawn = np.random.default_rng().random(shape)\n"),
    Mistake("dropout: random key", DRAWN, "drawn = np.random.default_rng(0).random(shape)\n"),
    Mistake(
        "dropout: gradient",
        "kept = keep(weights.shape, dropout_rate, dropout_rng)\n",
        "kept = keep(weights.shape, dropout_rate, dropout_rng and dropout_rng + 1)\n",
    ),
    Mistake(
        "dropout: gradient",
        "kept = keep(weights.shape, dropout_rate, dropout_rng)\n",
        "kept = keep(weights.shape, 0.0, dropout_rng)\n",
    ),
    Mistake(
        "dropout: gradient, grouped heads",
        "kept = keep(weights.shape, dropout_rate, dropout_rng)\n",
        "kept = keep((*key.shape[:-2], *weights.shape[-2:]), dropout_rate, dropout_rng)\n"
        "    if kept.ndim == 4:\n"
        "        kept = np.repeat(kept, weights.shape[1] // kept.shape[1], axis=1)\n",
    ),
]
REFUSALS = [
    at_first("refused: key width", "key = key[..., : query.shape[-1]]"),
    at_first("refused: value length", "key = key[..., : value.shape[-2], :]"),
    at_first(
        "refused: batch of the keys", "if key.ndim == 4:", "    key, value = key[: len(query)], value[: len(query)]"
    ),
    refusal(
        "batch of 1 beside 2",
        "if query.shape[:-3] != key.shape[:-3]:",
        "if query.shape[:-3] != key.shape[:-3] and key.shape[:-3] != (1,):",
    ),
    at_first(
        "refused: heads that do not divide",
        "if query.ndim == 4 and query.shape[1] > key.shape[1] > 0:",
        "    group = -(-query.shape[1] // key.shape[1])",
        "    key, value = (np.repeat(x, group, axis=1)[:, : query.shape[1]] for x in (key, value))",
    ),
    refusal("heads of the values", "if value.shape[:-2] != key.shape[:-2]:", "if value.shape[:-3] != key.shape[:-3]:"),
    refusal("integer arrays", "if query.dtype.name not in FLOATING:", "if query.dtype.kind in 'bcO':"),
    refusal(
        "mixed dtypes",
        "if key.dtype != query.dtype or value.dtype != query.dtype:",
        "if key.dtype != value.dtype:",
    ),
    refusal("mask of integers", "if mask.dtype != bool:", 'if mask.dtype.kind not in "bi":'),
    refusal("mask of floats", "if mask.dtype != bool:", 'if mask.dtype.kind in "iu":'),
    refusal("mask (B, T, S) where B = N", "if mask.ndim not in (2, len(shape)):", "if mask.ndim > len(shape):"),
    at_first(
        "refused: mask of another length",
        "if mask is not None and 1 < mask.shape[-1] < key.shape[-2]:",
        "    more = np.zeros((*mask.shape[:-1], key.shape[-2] - mask.shape[-1]), bool)",
        "    mask = np.concatenate([mask, more], axis=-1) if mask.shape[-2] == query.shape[-2] else mask",
    ),
    at_first(
        "refused: mask of too few queries",
        "if mask is not None and 1 < mask.shape[-2] < query.shape[-2]:",
        "    rows = np.arange(query.shape[-2]).clip(max=mask.shape[-2] - 1)",
        "    mask = mask[..., rows, :]",
    ),
    at_first(
        "refused: mask (S, T)",
        "if mask is not None and mask.shape[-2:] == (key.shape[-2], query.shape[-2]) != mask.shape[:-3:-1]:",
        "    mask = mask.swapaxes(-1, -2)",
    ),
    refusal("boolean bias", "if bias.dtype.name not in FLOATING:", 'if bias.dtype.kind in "iu":'),
    refusal(
        "bias of another length",
        'raise ValueError("bias has a shape other than the scores")',
        'raise ValueError("invalid argument")',
    ),
    refusal("key length too long", "if (key_lengths > S).any():", "if (key_lengths > S).all():"),
    refusal("key length negative", "if (key_lengths < 0).any():", "if (key_lengths < 0).all():"),
    at_first(
        "refused: key lengths of another batch",
        "key_lengths = None if key_lengths is None else key_lengths[: len(query)]",
    ),
    at_first(
        "refused: segment ids of another length",
        "if query_segment_ids is not None:",
        "    query_segment_ids = query_segment_ids[:, : query.shape[-2]]",
    ),
    refusal("window to nowhere", "side < 0 for side in window)", "side < 0 for side in window[1:])"),
    refusal("softcap of 0", "not softcap > 0", "softcap < 0"),
    refusal("softcap negative", "not softcap > 0", "softcap == 0"),
    refusal("dropout rate above 1", "if not 0 <= dropout_rate <= 1:", "if dropout_rate < 0:"),
    refusal("dropout rate negative", "if not 0 <= dropout_rate <= 1:", "if dropout_rate > 1:"),
]
MISTAKES = [*AGAIN, *DROPOUT, *REFUSALS]
