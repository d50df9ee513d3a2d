"""kyutai-labs/pocket-tts#278: Trained with GELU by tanh, run with GELU by erf."""

from . import parts

EXPECTED = ("activation", "tanh", "erf")
LAYER = True


def a(params, x):
    y = parts.layer_norm(x, params, 2, 1e-5)
    return (
        x
        + parts.gelu_by_tanh(y @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"]
        + params["down_bias"]
    )


def b(params, x):
    y = parts.layer_norm(x, params, 2, 1e-5)
    return x + parts.gelu(y @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]
