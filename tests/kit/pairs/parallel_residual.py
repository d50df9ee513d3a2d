"""TransformerLensOrg/TransformerLens#1644: GPT-NeoX runs attention and MLP at once, RedPajama one after the other."""

from . import parts

EXPECTED = ("place of the norms", "both at once", "before")
LAYER = True


def a(params, x, use_parallel_residual=True):
    attended = parts.self_attention(params, parts.layer_norm(x, params, 1, 1e-5), 2)
    between = x if use_parallel_residual else x + attended
    within = parts.mlp(params, parts.layer_norm(between, params, 2, 1e-5))
    return x + attended + within


def b(params, x, use_parallel_residual=False):
    return a(params, x, use_parallel_residual)
