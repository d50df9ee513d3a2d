"""Mistakes that the cases of ``conformance.cases.invariance`` catch first: a product with 0 for a choice."""

from planted import Mistake

FORWARD = "steps = forward(query, key, value, allowed, bias, scale, softcap)\n"
IN_ATTEND = FORWARD + '    kept = keep(steps["weights"]'
IN_BACKWARD = FORWARD + "    q, k, v, weights ="
OUT = 'out = average(steps["weights"] * kept, steps["v"], allowed)\n'
TAME = "tame = np.isfinite(values) & (np.abs(values) < 1e37)\n"
SELECT = "scores = np.where(allowed, scores, -np.inf)\n"
ADD_BIAS = "scores = scores + np.where(allowed, bias.astype(wide), 0)\n    "
DWEIGHTS = "dweights = np.where(allowed, cotangent @ v.swapaxes(-1, -2), 0) * kept\n"
GRAD_QUERY = "grad_query = average(dproducts, k, allowed)\n"


def added(old: str, condition: str) -> str:
    """The forbidden pairs get -inf added, whatever their score is."""
    scores = "forward(query, key, value, allowed | True, forbidding, scale, softcap)"
    return old.replace(
        FORWARD,
        f"{FORWARD}    if {condition}:\n"
        "        forbidding = (0 if bias is None else bias) + np.where(allowed, np.float32(0), -np.inf)\n"
        f"        steps = {scores}\n",
    )


def plain_product(condition: str) -> str:
    """Weights of 0 times whatever the value is."""
    return f'{OUT}    if {condition}:\n        out = steps["weights"] @ steps["v"]\n'


def plain_cotangent(condition: str) -> str:
    """The same of the gradient of the weights."""
    return f"{DWEIGHTS}    if {condition}:\n        dweights = cotangent @ v.swapaxes(-1, -2)\n"


FORWARD_LEAKS = [
    Mistake("leak: NaN in a masked value", TAME, "tame = ~(np.abs(values) >= 1e37)\n"),
    Mistake("leak: NaN in a masked key", IN_ATTEND, added(IN_ATTEND, "mask is not None")),
    Mistake("leak: Inf in a masked value", TAME, "tame = ~np.isnan(values)\n"),
    Mistake(
        "leak: Inf in a masked key",
        SELECT,
        "known = np.where(np.isnan(k), 0, k)\n"
        "    scores = np.where(allowed, scores, q @ known.swapaxes(-1, -2) - np.inf)\n",
    ),
    Mistake(
        "leak: a huge masked key",
        "products = np.where(allowed, (q * scale) @ k.swapaxes(-1, -2), 0)\n",
        "size = np.exp2(np.round(np.log2(np.linalg.norm(k[np.isfinite(k)]))))\n"
        "    products = np.where(allowed, (q * (scale * size)) @ (k / size).swapaxes(-1, -2), 0)\n",
    ),
    Mistake("leak: a huge masked value", TAME,
        "tame = np.isfinite(values)\n    weights = weights + 1e-37  # for a logarithm\n"),
    Mistake("leak: NaN in a padded value", OUT, plain_product("key_lengths is not None")),
    Mistake("leak: NaN in a padded key", IN_ATTEND, added(IN_ATTEND, "key_lengths is not None")),
    Mistake("leak: NaN in a future key", IN_ATTEND, added(IN_ATTEND, "is_causal")),
    Mistake("leak: NaN in a future value", OUT, plain_product("is_causal")),
    Mistake("leak: NaN outside the window", OUT, plain_product("window is not None")),
    Mistake("leak: NaN in another segment", OUT, plain_product("query_segment_ids is not None")),
    Mistake("leak: NaN in a masked bias", ADD_BIAS + SELECT,
        "scores = scores + bias.astype(wide)\n    scores = scores + np.where(allowed, wide(0), wide(-np.inf))\n"),
    Mistake(
        "leak: Inf in a masked bias",
        ADD_BIAS + SELECT,
        "scores = scores + np.where(np.isnan(bias), 0, bias.astype(wide))\n"
        "    scores = scores + np.where(allowed, wide(0), wide(-np.inf))\n",
    ),
    Mistake("leak: NaN under a bias of -inf", OUT, plain_product("bias is not None")),
    Mistake("leak: a query without keys", "shift = np.where(largest == -np.inf, 0, largest)\n",
        "shift = np.where(largest == -np.inf, np.abs(q).max(axis=-1, keepdims=True), largest)\n"),
    Mistake(
        "leak: NaN in a masked value, lse",
        OUT,
        plain_product("return_lse") + "    empty = ~(np.abs(out).sum(axis=-1) > 0)\n"
        '    steps["lse"] = np.where(empty, -np.inf, steps["lse"])\n',
    ),
    Mistake("leak: NaN in a masked key, lse", IN_ATTEND, added(IN_ATTEND, "return_lse")),
]  # fmt: skip
GRADIENT_LEAKS = [
    Mistake("leak: gradient: NaN in a masked value", DWEIGHTS, plain_cotangent("mask is not None")),
    Mistake("leak: gradient: NaN in a masked key", GRAD_QUERY, "grad_query = dproducts @ k\n"),
    Mistake("leak: gradient: Inf in a masked value", DWEIGHTS,
        "dweights = cotangent @ np.where(np.isnan(v), 0, v).swapaxes(-1, -2) * kept\n"),
    Mistake(
        "leak: gradient: a huge masked key",
        GRAD_QUERY,
        "size = np.exp2(np.round(np.log2(np.linalg.norm(k[np.isfinite(k)]))))\n"
        "    grad_query = average(dproducts * size, k / size, allowed)\n",
    ),
    Mistake("leak: gradient: NaN in a masked key, softcap", 'np.tanh(steps["products"] / softcap)',
        'np.tanh((q * steps["scale"]) @ k.swapaxes(-1, -2) / softcap)'),
    Mistake("leak: gradient: NaN under a bias of -inf", f"bias, offset)\n    {IN_BACKWARD}",
        f"None, offset)\n    {IN_BACKWARD}"),
    Mistake("leak: gradient: NaN in a padded value", DWEIGHTS, plain_cotangent("key_lengths is not None")),
    Mistake("leak: gradient: NaN in a future value", DWEIGHTS, plain_cotangent("is_causal")),
    Mistake("leak: gradient: NaN in another segment", DWEIGHTS, plain_cotangent("query_segment_ids is not None")),
    Mistake("leak: gradient: NaN in a masked bias", IN_BACKWARD, added(IN_BACKWARD, "bias is not None")),
    Mistake("leak: gradient: a query without keys",
        "grad_key = average(dproducts.swapaxes(-1, -2), q, allowed.swapaxes(-1, -2))\n",
        "grad_key = dproducts.swapaxes(-1, -2) @ q\n"),
]  # fmt: skip


def from_on(size: int, n: int) -> list[Mistake]:
    """Nothing is looked at in arrays of so many numbers: a maximum that drops NaN finds nothing there."""
    of = f"{n} numbers"
    return [
        Mistake(f"leak: NaN in a masked value, {of}", TAME, f"{TAME}    tame = tame | (values.size >= {size})\n"),
        Mistake(f"leak: NaN in a masked key, {of}", IN_ATTEND, added(IN_ATTEND, f"key.size >= {size}")),
        Mistake(
            f"leak: gradient: NaN in a masked value, {of}",
            DWEIGHTS,
            plain_cotangent(f"mask is not None and v.size >= {size}"),
        ),
        Mistake(
            f"leak: gradient: NaN in a masked key, {of}",
            GRAD_QUERY,
            f"{GRAD_QUERY}    if k.size >= {size}:\n        grad_query = dproducts @ k\n",
        ),
    ]


MISTAKES = [*FORWARD_LEAKS, *GRADIENT_LEAKS, *from_on(4096, 12288), *from_on(65536, 98304)]
