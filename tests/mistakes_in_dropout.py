"""Mistakes that the cases of ``conformance.cases.dropout`` catch first."""

from planted import Mistake

NO_RATE = "    if rate == 0:\n"
DRAWN = "drawn = np.random.default_rng(rng).random(shape)\n"
KEPT = 'kept = keep(steps["weights"].shape, dropout_rate, dropout_rng)\n'
MISTAKES = [
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
