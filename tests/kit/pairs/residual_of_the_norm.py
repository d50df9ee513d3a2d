"""pytorch/pytorch#61165: The residual was added to the normalised input, for the input had no other name left."""

from . import parts

EXPECTED = ("place of the norms", "before", "the residual after")
LAYER = True


def a(params, x):
    x = x + parts.self_attention(params, parts.layer_norm(x, params, 1, 1e-5), 2)
    return x + parts.mlp(params, parts.layer_norm(x, params, 2, 1e-5))


def b(params, x):
    x = parts.layer_norm(x, params, 1, 1e-5)
    x = x + parts.self_attention(params, x, 2)
    x = parts.layer_norm(x, params, 2, 1e-5)
    return x + parts.mlp(params, x)
