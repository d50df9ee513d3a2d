"""huggingface/transformers#311: GPT-2's Conv1D has kernels (in, out), Linear (out, in)."""

from . import parts

EXPECTED = ("kernels", "(in, out)", "(out, in)")
LAYER = True


def a(params, x):
    x = x + parts.self_attention(params, x, 2)
    return x + parts.mlp(params, x)


def b(params, x):
    return a({name: y.T if name.endswith("kernel") else y for name, y in params.items()}, x)
