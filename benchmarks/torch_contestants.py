"""torch: scaled_dot_product_attention, eager, and flex_attention, compiled; on as many threads as everyone."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from harness import Unable, threads
from program import Program, fits, refuse
from workload import CAP, WINDOW, Case

torch.set_num_threads(threads())
DEVICE = "cuda" if jax.default_backend() == "gpu" else "cpu"  # where JAX computes


def tensor(array: Any) -> torch.Tensor:
    """A copy; NumPy's bfloat16 goes by way of float32, which torch can read. An array on the device stays there."""
    if not isinstance(array, np.ndarray):
        return torch.from_dlpack(array).clone()
    wide = np.float32 if str(array.dtype) == "bfloat16" else array.dtype
    return torch.from_numpy(array.astype(wide)).to(DEVICE, getattr(torch, str(array.dtype)))


def program(attend: Callable, case: Case, measure: str, *, by_parts: bool, note: str = "") -> Program:
    """``attend(tensors)`` in one direction; ``by_parts``: on the kernel that has every derivative."""

    if DEVICE == "cuda" and not torch.cuda.is_available():
        raise Unable("this torch knows no GPU")

    def own_layout(arrays: tuple[np.ndarray, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor(x).requires_grad_(measure == "backward") for x in arrays)

    cotangent, tangents = tensor(case.cotangent), tuple(tensor(x) for x in case.tangents)

    def gradients(*tensors: torch.Tensor) -> Any:
        return torch.func.vjp(lambda *a: attend(a), *tensors)[1](cotangent)

    def forward(tensors: Any) -> Any:
        with torch.inference_mode():
            return (attend(tensors),)

    def backward(tensors: Any) -> Any:
        out = attend(tensors)
        return (out.detach(), *torch.autograd.grad(out, tensors, cotangent))

    directions = {
        "forward": forward,
        "backward": backward,
        "jvp": lambda tensors: torch.func.jvp(lambda *a: attend(a), tensors, tangents),
        "hvp": lambda tensors: torch.func.jvp(gradients, tensors, tangents)[1],
    }

    def run(tensors: Any) -> Any:
        if by_parts:
            with sdpa_kernel(SDPBackend.MATH):
                return directions[measure](tensors)
        results = directions[measure](tensors)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return results

    def to_numpy(results: Any) -> list[np.ndarray]:
        return [x.detach().float().cpu().numpy() for x in results]

    return Program(run, own_layout(case.arrays), to_numpy, own_layout, None, note)


def sdpa(case: Case, measure: str) -> Program:
    refuse(case, {"softcap": "torch's scaled_dot_product_attention has no score modifier"})
    by_parts = measure in ("jvp", "hvp")
    B, N, _, T, S = case.shape[:5]
    if by_parts:
        fits(8 * 4 * B * N * T * S, "its math kernel holds eight arrays of all scores")
    alone = case.shape.variant not in ("padding", "window", "segments", "alibi")
    mask = None if alone else case.allowed
    if case.added is not None:
        allowed = True if case.allowed is None else case.allowed
        mask = np.where(allowed, case.added, -np.inf).astype(case.added.dtype)
    given = None if mask is None else tensor(mask)
    options = {"is_causal": case.shape.causal and alone, "dropout_p": case.rate}
    options |= {"enable_gqa": case.shape.N != case.shape.G}

    def attend(tensors: Any) -> torch.Tensor:
        query, key, value, *bias = tensors
        return scaled_dot_product_attention(query, key, value, bias[0] if bias else given, **options)

    note = "on its math kernel: the fused one has no forward derivative" if by_parts else ""
    return program(attend, case, measure, by_parts=by_parts, note=note)


def flex(case: Case, measure: str) -> Program:
    if measure in ("jvp", "hvp"):
        raise Unable("torch's flex_attention has no forward derivative")
    if measure == "backward" and DEVICE == "cpu":
        raise Unable("torch's flex_attention has no backward on a CPU")
    refuse(case, {"dropout": "torch's flex_attention has no dropout"})
    torch.compiler.reset()  # or the next shape would be compiled for every shape
    compiled = torch.compile(flex_attention, dynamic=False)
    block_mask = None
    rule = mask_rule(case)
    if rule:
        batch = case.shape.B if case.shape.variant in ("padding", "segments") else None
        block_mask = create_block_mask(rule, batch, None, case.shape.T, case.shape.S, device=DEVICE)
    grouped = case.shape.N != case.shape.G

    def attend(tensors: Any) -> torch.Tensor:
        query, key, value, *bias = tensors
        options = {"score_mod": score_rule(case, bias), "block_mask": block_mask, "enable_gqa": grouped}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of its own internals
            return compiled(query, key, value, **options)

    return program(attend, case, measure, by_parts=False)


def mask_rule(case: Case) -> Callable | None:
    rules: list[Callable] = [lambda b, h, i, j: i >= j] * case.shape.causal
    if case.shape.variant == "window":
        rules.append(lambda b, h, i, j: (i - j <= WINDOW) & (j - i <= WINDOW))
    if case.shape.variant == "padding":
        lengths = tensor(case.lengths)
        rules.append(lambda b, h, i, j: j < lengths[b])
    if case.shape.variant == "segments":
        ids = tensor(case.ids)
        rules.append(lambda b, h, i, j: ids[b, i] == ids[b, j])
    return functools.reduce(torch.nn.attention.flex_attention.and_masks, rules) if rules else None


def score_rule(case: Case, bias: list[torch.Tensor]) -> Callable | None:
    if bias:
        return lambda score, b, h, i, j: score + bias[0][0, h, i, j]
    if case.shape.variant == "softcap":
        return lambda score, b, h, i, j: CAP * torch.tanh(score / CAP)
    if case.shape.variant == "alibi":
        slopes = tensor(case.slopes)
        return lambda score, b, h, i, j: score - slopes[h] * (i - j).abs()
    return None
