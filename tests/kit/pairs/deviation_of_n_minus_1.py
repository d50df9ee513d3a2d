"""harvardnlp/annotated-transformer#119: torch.std divides by N - 1, and eps is beside it."""

from . import parts

EXPECTED = ("norm", "N - 1", "layer norm")
LAYER = True


def a(params, x):
    mean, std = x.mean(-1, keepdims=True), x.std(-1, keepdims=True, ddof=1)
    y = params["norm2_scale"] * (x - mean) / (std + 1e-6) + params["norm2_bias"]
    return x + parts.mlp(params, y)


def b(params, x):
    return x + parts.mlp(params, parts.layer_norm(x, params, 2, 1e-6))
