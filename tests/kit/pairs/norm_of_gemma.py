"""linkedin/Liger-Kernel#74: The scale of Gemma's RMS norm is 1 + weight."""

from . import parts

EXPECTED = ("norm", "RMS norm of 1 + scale", "RMS norm")
LAYER = True


def a(params, x):
    shifted = params | {name: params[name] + 1 for name in ("norm1_scale", "norm2_scale")}
    return b(shifted, x)


def b(params, x):
    x = x + parts.self_attention(params, parts.rms_norm(x, params, 1, 1e-6), 2)
    return x + parts.mlp(params, parts.rms_norm(x, params, 2, 1e-6))
