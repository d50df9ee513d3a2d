"""mlfoundations/open_clip#771: OpenAI's CLIP has x sigmoid(1.702 x), open_clip's models GELU."""

from . import parts

EXPECTED = ("activation", "1.702", "erf")
LAYER = True


def a(params, x):
    y = parts.layer_norm(x, params, 2, 1e-5)
    return (
        x + parts.quick_gelu(y @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]
    )


def b(params, x):
    y = parts.layer_norm(x, params, 2, 1e-5)
    return x + parts.gelu(y @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]
