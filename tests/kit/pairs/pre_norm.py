"""facebookresearch/detr#93: The figure of a paper has the norm after each part, the code before it."""

from . import parts

EXPECTED = ("place of the norms", "before", "after")
LAYER = True


def a(params, x):
    x = x + parts.self_attention(params, parts.layer_norm(x, params, 1, 1e-5), 2)
    return x + parts.mlp(params, parts.layer_norm(x, params, 2, 1e-5))


def b(params, x):
    x = parts.layer_norm(x + parts.self_attention(params, x, 2), params, 1, 1e-5)
    return parts.layer_norm(x + parts.mlp(params, x), params, 2, 1e-5)
