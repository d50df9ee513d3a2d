"""huggingface/candle#271: LLaMA's code has 1e-5, its checkpoints 1e-6."""

from . import parts

EXPECTED = ("eps", "1e-06", "1e-05")
LAYER = True


def a(params, x):
    y = parts.rms_norm(x, params, 2, 1e-6)
    return x + parts.silu(y @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]


def b(params, x, eps=1e-5):
    y = parts.rms_norm(x, params, 2, eps)
    return x + parts.silu(y @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]
