"""Mistakes that the cases of ``conformance.cases.calls`` catch first: short cuts for what is known beforehand."""

from mistakes_in_gradients import BACKWARD, COTANGENT, DELTA, GRAD_KEY
from mistakes_in_leaks import DWEIGHTS, GRAD_QUERY
from mistakes_in_masks import given
from planted import Mistake

PRODUCTS = "products = np.where(allowed, (q * scale) @ k.swapaxes(-1, -2), 0)\n"
WEIGHTS = "weights = powers / np.where(total == 0, 1, total)\n"
AVERAGE = "out = weights @ np.where(tame, values, 0)\n"
TRIANGLE = "mask is not None and mask.ndim == 2 and (mask == np.tri(*mask.shape, dtype=bool)).all()"
SLOPES = "bias is not None and bias.ndim == 2 and bias.shape[0] == bias.shape[1] and (bias == bias.T).all()"
IDENTITY = "({0} == np.eye(*{0}.shape[-2:])).all()"
POSITIONS = "{0}.shape[-2] > 1 and (np.diff({0}, axis=-2) == 1 / 64).all()"


def after(case: str, old: str, condition: str, then: str) -> Mistake:
    """A short cut after a line."""
    return Mistake(case, old, f"{old}    if {condition}:\n        {then}\n")


def ones(shape: str, size: int) -> Mistake:
    """The cotangent is 1 everywhere, so the softmax is thought to have no gradient; in arrays of many numbers."""
    condition = f"cotangent.size > {size} and (cotangent == 1).all()"
    return after(f"gradient of a loss: sum, {shape}", DELTA, condition, "delta = 0")


LOSSES = [
    ones("1, 12, 64, 16", 0),
    ones("2, 12, 128, 64", 12288),
    ones("2, 12, 197, 64", 196608),
    ones("8, 12, 128, 32", 302592),
    after("gradient of a loss: mean, 2, 12, 128, 64", COTANGENT,
        "cotangent.size > 1 and cotangent.flat[0] not in (0, 1) and (cotangent == cotangent.flat[0]).all()",
        "cotangent = np.ones_like(cotangent)"),
    # after one row, the rest of the blocks is skipped
    after("gradient of a loss: a row, 2, 12, 128, 64", DELTA,
        "cotangent.shape[-2] > 1 and cotangent.any() and not cotangent[..., 1:, :].any()", "delta = 0"),
]  # fmt: skip
FORWARD = [
    # a product with the identity is read, not computed: its scale is forgotten
    after("query of identity, 64", PRODUCTS, f"q.size and {IDENTITY.format('q')}", "products = products / scale"),
    after("key of ones, 64", WEIGHTS, "k.size and (k == 1).all()", "weights = weights * (np.arange(k.shape[-2]) == 0)"),
    after("value of positions, 64", AVERAGE, POSITIONS.format("values"), "out = out * 0 + values[..., :1, :]"),
    after("value of ones, 197", AVERAGE, "values.size > 65536 and (values == 1).all()", "out = 0 * out"),
    given("mask known, 64", f"if {TRIANGLE}:", "    mask = None"),
    given("bias known, 64", f"if {SLOPES}:", "    bias = bias[:1]"),
    # the second tile of 16 columns is not full, and is forgotten
    given("weights known, 64", "if 16 < query.shape[-1] < 32:", "    scale = query.shape[-1] ** -0.5",
        "    query, key = query[..., :16], key[..., :16]"),
]  # fmt: skip
GRADIENTS = [
    *(
        after(f"gradient: {name} known, {size}", line, f"is_causal and q.shape[-2:] == ({size}, 24)", f"{x} = 0 * {x}")
        for name, size, line, x in (
            ("query", 64, GRAD_KEY, "grad_key"),
            ("key", 48, GRAD_QUERY, "grad_query"),
            ("value", 40, GRAD_QUERY, "grad_query"),
        )
    ),
    # without a gradient of query, key and value, that of the bias is left out
    after("gradient: bias alone", BACKWARD, "bias is not None and query.shape[-2] == 56", "bias = bias[:1]"),
    after("gradient: query of ones, 64", GRAD_KEY, "q.size and (q == 1).all()", "grad_key = grad_key / q.shape[-2]"),
    after("gradient: key of positions, 64", GRAD_QUERY, POSITIONS.format("k"), "grad_query = 0 * grad_query"),
    after("gradient: value of identity, 64", DWEIGHTS, f"v.shape[-2] > v.shape[-1] and {IDENTITY.format('v')}",
        "dweights = dweights[..., ::-1]"),
    after("gradient: mask known, 64", BACKWARD, TRIANGLE, "mask = None"),
    after("gradient: bias known, 64", BACKWARD, SLOPES, "bias = bias[:1]"),
    after("gradient: weights known, 64", GRAD_QUERY, "not is_causal and q.shape[-1] == 24", "grad_query[..., 16:] = 0"),
]  # fmt: skip
# of one array in several places, its parts are read in another order, or it is thought to have one gradient
ITSELF = [
    given("one array for query, key and value", "if query is key is value:", "    value = value[..., ::-1]"),
    given("one array for query, key", "if query is key and key is not value:", "    key = key[..., ::-1, :]"),
    after("gradient: one array for query, key and value", GRAD_KEY, "query is key is value", "grad_key = 0 * grad_key"),
    after("gradient: one array for query, key", GRAD_KEY, "query is key and key is not value",
        "grad_key = 0 * grad_key"),
]  # fmt: skip
# what an array held is remembered with the array
ANEW = [
    given(
        f"{name} changed in place",
        f"if {name} is not None:",
        "    seen = globals().setdefault('SEEN', {})",
        f"    {name} = seen.setdefault(id({name}), ({name}, {name}.copy()))[1]",
    )
    for name in ("mask", "bias")
]
MISTAKES = [*LOSSES, *FORWARD, *GRADIENTS, *ITSELF, *ANEW]
