"""ml-explore/mlx-lm#767: silu(up) gate, where silu(gate) up was meant."""

from . import parts

EXPECTED = ("what the activation is of", "gate", "up")
LAYER = True


def a(params, x):
    return parts.silu(x @ params["gate_kernel"]) * (x @ params["up_kernel"]) @ params["down_kernel"]


def b(params, x):
    return parts.silu(x @ params["up_kernel"]) * (x @ params["gate_kernel"]) @ params["down_kernel"]
