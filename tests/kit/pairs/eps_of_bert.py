"""huggingface/transformers#532: BERT has 1e-12, ERNIE 1e-5."""

from . import parts

EXPECTED = ("eps", "1e-12", "1e-05")
LAYER = True


def a(params, x):
    y = parts.layer_norm(x, params, 2, 1e-12)
    return x + parts.gelu(y @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]


def b(params, x):
    y = parts.layer_norm(x, params, 2, 1e-5)
    return x + parts.gelu(y @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]
