"""Mistakes that the cases of dropout in ``conformance.cases.calls`` catch first."""

from planted import Mistake

NO_RATE = "    if rate == 0:\n"
DRAWN = "drawn = np.random.default_rng(rng).random(shape)\n"
KEPT = 'kept = keep(steps["weights"].shape, dropout_rate, dropout_rng)\n'
START = '    """out, or out and lse."""\n'
BACKWARD = '    """Gradients of query, key, value and, where there is one, the bias."""\n'
FORGOTTEN = {  # where weights are dropped
    "causal": "is_causal = is_causal and not (dropout_rate and np.ndim(offset) == 0)",
    "mask": "mask = None if dropout_rate else mask",
    "bias": "bias = bias if bias is None else bias * (not dropout_rate)",
    "key lengths": "key_lengths = None if dropout_rate else key_lengths",
    "softcap and scale": "softcap = None if dropout_rate else softcap",
    "window": "window = None if dropout_rate else window",
    "segments": "query_segment_ids, key_segment_ids = [None if dropout_rate else x for x in "
    "(query_segment_ids, key_segment_ids)]",
}
MISTAKES = [
    *(Mistake(f"dropout: {x}", START, f"{START}    {line}\n") for x, line in FORGOTTEN.items()),
    *(Mistake(f"dropout: gradient, {x}", BACKWARD, f"{BACKWARD}    {line}\n") for x, line in FORGOTTEN.items()),
    Mistake("dropout: rate 0", NO_RATE, f"    rate = rate if rng is None else rate or 0.1\n{NO_RATE}"),
    Mistake("dropout: rate 1", NO_RATE, f"    rate = 0\n{NO_RATE}"),
    Mistake("dropout: rate 1", "    if rate == 1:\n        return np.zeros(shape, np.float32)\n", ""),
    Mistake("dropout: share", "(drawn >= rate) / (1 - rate)", "(drawn < rate) / (1 - rate)"),
    Mistake("dropout: share", "(drawn >= rate) / (1 - rate)", "(drawn >= rate)"),
    Mistake("dropout: independent", DRAWN, "drawn = np.random.default_rng(rng).random(shape[1:]) + np.zeros(shape)\n"),
    Mistake("dropout: independent", DRAWN,
        "drawn = np.random.default_rng(rng).random((shape[0], 1, *shape[2:])) + np.zeros(shape)\n"),
    Mistake("dropout: independent", DRAWN,
        "drawn = np.random.default_rng(rng).random((*shape[:2], 1, shape[3])) + np.zeros(shape)\n"),
    # the number of an entry counts a row as T numbers, not as S
    Mistake(
        "dropout: independent",
        DRAWN,
        "places = np.arange(shape[-2])[:, None] * shape[-2] + np.arange(shape[-1])\n"
        "    drawn = np.random.default_rng(rng).random((*shape[:2], places.max() + 1))[..., places]\n",
    ),
    Mistake(
        "dropout: grouped heads",
        KEPT,
        "shape = (*key.shape[:-2], *steps['weights'].shape[-2:])\n"
        "    kept = keep(shape, dropout_rate, dropout_rng)\n"
        "    if kept.ndim == 4:\n"
        "        kept = np.repeat(kept, steps['weights'].shape[1] // kept.shape[1], axis=1)\n",
    ),
    # the number of a head is added to that of its batch; heads 8 apart are alike
    Mistake(
        "dropout: independent",
        DRAWN,
        "drawn = np.random.default_rng(rng).random((sum(shape[:2]), *shape[2:]))\n"
        "    drawn = drawn[np.add.outer(np.arange(shape[0]), np.arange(shape[1]))]\n",
    ),
    Mistake("dropout: grouped heads", DRAWN,
        "drawn = np.random.default_rng(rng).random(shape)[:, np.arange(shape[1]) % 8]\n"),
    # each row keeps the same number of keys
    Mistake("dropout: grouped heads", DRAWN,
        "drawn = np.random.default_rng(rng).random(shape).argsort(-1).argsort(-1) / shape[-1]\n"),
    Mistake("dropout: random key", DRAWN, "drawn = np.random.default_rng(rng and rng & 0xFF).random(shape)\n"),
    Mistake("dropout: wide heads", START, f"{START}    dropout_rate = 0.0 if query.shape[-1] > 64 else dropout_rate\n"),
    Mistake(
        "dropout: many keys",
        DRAWN,
        "drawn = np.random.default_rng(rng).random((*shape[:3], min(shape[3], 512)))[..., np.arange(shape[3]) % 512]\n",
    ),
    Mistake("dropout: bfloat16", START,
        f"{START}    narrow = query.dtype.name == 'bfloat16'\n    dropout_rate *= not narrow\n"),
    Mistake(  # in bfloat16 what is kept is not divided by 1 - rate
        "dropout: bfloat16",
        START,
        f"{START}    if query.dtype.name == 'bfloat16':\n"
        "        value = (value * (1 - dropout_rate)).astype(value.dtype)\n",
    ),
    Mistake("dropout: sinks", START, f"{START}    sinks = None if dropout_rate else sinks\n"),
    Mistake("dropout: cache", START,
        f"{START}    offset = np.ravel(offset)[0] if dropout_rate and np.ndim(offset) else offset\n"),
    Mistake(
        "dropout: position",
        KEPT,
        "seed = dropout_rng and dropout_rng + int(1000 * np.abs(query).sum())\n"
        '    kept = keep(steps["weights"].shape, dropout_rate, seed)\n',
    ),
    Mistake("dropout: position", DRAWN, "drawn = np.random.default_rng().random(shape)\n"),
    # entries of the result are dropped, not weights
    Mistake(
        "dropout: position",
        'out = average(steps["weights"] * kept, steps["v"], allowed)',
        "shape = (*query.shape[:-1], value.shape[-1])\n"
        '    out = average(steps["weights"], steps["v"], allowed).reshape(shape)\n'
        "    out = out * keep(shape, dropout_rate, dropout_rng)",
    ),
    Mistake("dropout: random key", DRAWN, "drawn = np.random.default_rng(0).random(shape)\n"),
    Mistake("dropout: gradient", "kept = keep(weights.shape, dropout_rate, dropout_rng)\n",
        "kept = keep(weights.shape, dropout_rate, dropout_rng and dropout_rng + 1)\n"),
    Mistake("dropout: gradient", "kept = keep(weights.shape, dropout_rate, dropout_rng)\n",
        "kept = keep(weights.shape, 0.0, dropout_rng)\n"),
    Mistake(
        "dropout: gradient, grouped heads",
        "kept = keep(weights.shape, dropout_rate, dropout_rng)\n",
        "kept = keep((*key.shape[:-2], *weights.shape[-2:]), dropout_rate, dropout_rng)\n"
        "    if kept.ndim == 4:\n"
        "        kept = np.repeat(kept, weights.shape[1] // kept.shape[1], axis=1)\n",
    ),
]  # fmt: skip
