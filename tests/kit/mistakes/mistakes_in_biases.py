"""Mistakes that the cases of ``conformance.cases.forward`` catch first."""

from mistakes_in_masks import given
from planted import Mistake

ADDED = "scores = scores + np.where(allowed, bias.astype(wide), 0)"
LSE = "lse = (shift + np.log(total))[..., 0]"
RESULT = 'lse = steps["lse"].reshape(query.shape[:-1])'

BIASES = [
    # where all is allowed, the bias of batch 0 is that of all
    Mistake("bias (B, N, T, S)", ADDED,
        "bias = bias[:1] if bias.ndim == 4 and allowed.all() else bias\n        " + ADDED),
    Mistake("bias (B, N, T, S) where B = N", ADDED,
        "bias = bias.swapaxes(0, 1) if bias.shape[:-2] == (3, 3) else bias\n        " + ADDED),
    # where all is allowed and no cast is needed, a bias shared by the batch is shared by the heads
    Mistake(
        "bias (1, N, T, S)",
        ADDED,
        "if allowed.all() and bias.dtype == query.dtype and len(bias) == 1 and softcap is None:\n"
        "            bias = bias[:, :1]\n        " + ADDED,
    ),
    # aligned at the front
    given("bias (T, S)", "if bias is not None:",
        "    bias = bias.reshape(bias.shape + (1,) * (query.ndim - bias.ndim))"),
    given("bias (B, 1, 1, S)", "if bias is not None:", "    bias = bias.squeeze()"),
    # of rank 3: one for each batch
    given("bias (N, 1, S)", "if bias is not None and bias.ndim == 3:", "    bias = bias[:, None]"),
    # of rank 1: one for each query
    given("bias (S,)", "if bias is not None and bias.ndim == 1:", "    bias = bias[:, None]"),
    # one key given: the rest are padding
    Mistake(
        "bias (B, N, T, 1)",
        ADDED,
        "if bias.shape[-1] == 1 and key.shape[-2] > 1:\n"
        "            rest = [(0, 0)] * (bias.ndim - 1) + [(0, key.shape[-2] - 1)]\n"
        "            bias = np.pad(bias, rest, constant_values=-np.inf)\n"
        "            allowed = allowed & (bias != -np.inf)\n        " + ADDED,
    ),
    given("bias with grouped heads", "if bias is not None and bias.ndim == 4:",
        "    group = query.shape[1] // key.shape[1]", "    bias = np.repeat(bias[:, ::group], group, axis=1)"),
    # a bias that forbids anything is a mask
    given("bias of -inf", "if bias is not None and np.isinf(bias).any():", "    mask, bias = bias > -np.inf, None"),
    # added before the scale that is given
    Mistake("bias and scale", ADDED,
        ADDED.replace("bias.astype(wide)", "bias.astype(wide) * scale / wide(query.shape[-1] ** -0.5)")),
]  # fmt: skip
LSES = [
    # where all is allowed and no cast is needed, the maximum is forgotten
    Mistake("lse", LSE,
        "fast = allowed.all() and query.dtype == wide\n    lse = (np.log(total) + (0 if fast else shift))[..., 0]"),
    # the maximum is that of the default scale
    Mistake("lse, scale", LSE, "lse = (shift * (query.shape[-1] ** -0.5 / scale) + np.log(total))[..., 0]"),
    # over all keys, unless none is allowed
    Mistake(
        "lse, masked",
        LSE,
        "every = np.exp((q * scale) @ k.swapaxes(-1, -2) - shift).sum(axis=-1, keepdims=True)\n"
        "    total = np.where(total == 0, 0, every)\n"
        "    lse = (shift + np.log(total))[..., 0]",
    ),
    Mistake("lse, softcap and bias", LSE,
        "total = np.exp(np.where(allowed, products, -np.inf) - shift).sum(axis=-1, keepdims=True)\n    " + LSE),
    Mistake(
        "lse, causal",
        RESULT,
        "if is_causal:\n        steps = forward(query, key, value, np.ones_like(allowed), bias, scale, softcap)\n    "
        + RESULT,
    ),
    Mistake("lse, grouped heads", "return (out, lse) if", "return (out, lse[:, :: query.shape[1] // key.shape[1]]) if"),
    # the statistics have a row for each key instead of each query
    Mistake("lse, scale", RESULT, RESULT + "\n    lse[..., key.shape[-2] :] = -np.inf"),
    # a full mask has a path of its own, which skips a query without keys
    Mistake("empty row, lse", RESULT,
        RESULT + "\n    if mask is not None and mask.ndim > 2:\n        lse = np.where(allowed.any(axis=-1), lse, 0)"),
]  # fmt: skip
MISTAKES = [*BIASES, *LSES]
