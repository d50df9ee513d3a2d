"""State dicts of PyTorch's own attention and encoder modules. PyTorch is not imported."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attendax.params import EncoderBlockParams, EncoderParams, MultiHeadParams

from .files import check_names

NAME = "load_torch"
LAYER = {
    "W1": "linear1.weight",
    "b1": "linear1.bias",
    "W2": "linear2.weight",
    "b2": "linear2.bias",
    "gamma1": "norm1.weight",
    "beta1": "norm1.bias",
    "gamma2": "norm2.weight",
    "beta2": "norm2.bias",
}
PARTS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def load_torch(state_dict: Mapping[str, Any]) -> Any:
    """Read the state dict of an ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` or ``nn.TransformerEncoder``.

    Which of them it is, its names say. A state dict has no options: say ``num_heads``, ``norm="pre"`` for
    ``norm_first=True`` and ``"post"`` otherwise, ``activation`` and ``eps=1e-5`` (PyTorch's) when you call
    ``ops.multi_head_attention``, ``ops.encoder_block`` or ``ops.stack_encoder_blocks``. Keys and values of other widths
    (``kdim``, ``vdim``) are fine. Read files with ``torch.load(path, weights_only=True)``.

    Args:
        state_dict: names and tensors, of PyTorch or NumPy.

    Returns:
        ``MultiHeadParams``, ``EncoderBlockParams``, or ``EncoderParams`` without embeddings: ``blocks``, and ``gamma``
        and ``beta`` of the last norm, if there is one. NumPy arrays, at least float32; biases that a module lacks are 0
        or None.

    Raises:
        TypeError: no mapping of names to tensors, or tensors that are not floating.
        ValueError: a tensor is missing, unexpected, or of a shape that does not fit the others.
        NotImplementedError: ``add_bias_kv=True``.

    Example:
        >>> weights = {"in_proj_weight": np.ones((18, 6)), "out_proj.weight": np.ones((6, 6))}
        >>> load_torch(weights).W_Q.shape
        (6, 6)
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(name, str) for name in state_dict):
        got = type(state_dict).__name__
        raise TypeError(f"{NAME}: state_dict must map names to tensors, got {got}; see module.state_dict()")
    tensors = {name: _array(name, value) for name, value in state_dict.items()}
    if any(name.endswith(("bias_k", "bias_v")) for name in tensors):
        raise NotImplementedError(f"{NAME}: bias_k and bias_v (add_bias_kv=True) have no place here")
    used: set[str] = set()
    if any(name.startswith("layers.") for name in tensors):
        params: Any = _encoder(tensors, used)
    elif any(name.startswith("self_attn.") for name in tensors):
        params = _layer(tensors, "", used)
    else:
        params = _attention(tensors, "", used)
    check_names(NAME, used, set(tensors), "the state dict")
    return params


def _array(name: str, value: Any) -> np.ndarray:
    """A tensor as a NumPy array, at least float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) in ("torch.float16", "torch.bfloat16") else value).numpy()
    dtype = getattr(value, "dtype", None)
    if dtype is None or (not np.issubdtype(dtype, np.floating) and str(dtype) != "bfloat16"):
        raise TypeError(f"{NAME}: {name[:80]} must be a floating tensor, got {dtype or type(value).__name__}")
    return np.asarray(value, np.promote_types(dtype, np.float32))


def _encoder(tensors: dict[str, np.ndarray], used: set[str]) -> EncoderParams:
    numbers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    if numbers != {str(number) for number in range(len(numbers))}:
        shown = ", ".join(sorted(numbers)[:4])
        raise ValueError(f"{NAME}: the state dict has layers {shown[:80]}, expected 0 to {len(numbers) - 1}")
    blocks = tuple(_layer(tensors, f"layers.{number}.", used) for number in range(len(numbers)))
    gamma = _taken(tensors, "norm.weight", used, (len(blocks[0].gamma1),), optional=True)
    beta = _taken(tensors, "norm.bias", used, (len(blocks[0].gamma1),), optional=True)
    return EncoderParams(None, blocks, gamma, np.zeros_like(gamma) if gamma is not None and beta is None else beta)  # type: ignore[arg-type]


def _layer(tensors: dict[str, np.ndarray], prefix: str, used: set[str]) -> EncoderBlockParams:
    attention = _attention(tensors, f"{prefix}self_attn.", used)
    M = attention.W_Q.shape[0]
    hidden = tensors.get(f"{prefix}linear1.weight", np.empty((0, 0)))
    F = hidden.shape[0] if hidden.ndim == 2 else 0
    shapes = {"W1": (F, M), "b1": (F,), "W2": (M, F)}
    found: dict[str, Any] = {}
    for field, name in LAYER.items():
        shape = shapes.get(field, (M,))
        value = _taken(tensors, prefix + name, used, shape, optional=field.startswith("b"))
        found[field] = np.zeros(shape, attention.W_Q.dtype) if value is None else value
    found |= {field: np.ascontiguousarray(found[field].T) for field in ("W1", "W2")}
    return EncoderBlockParams(attention, **found)


def _attention(tensors: dict[str, np.ndarray], prefix: str, used: set[str]) -> MultiHeadParams:
    """One matrix (3M, M) for all three, or, with keys and values of other widths, three (M, width)."""
    output = tensors.get(f"{prefix}out_proj.weight")
    M = 0 if output is None else output.shape[0]
    if f"{prefix}q_proj_weight" in tensors:
        widths = (tensors.get(prefix + name, np.empty((0, 0))).shape[-1] for name in PARTS)
        inputs = [_taken(tensors, prefix + name, used, (M, n)) for name, n in zip(PARTS, widths, strict=True)]
    else:
        together = _taken(tensors, f"{prefix}in_proj_weight", used, (3 * M, M))
        inputs = [together[k * M : (k + 1) * M] for k in range(3)]
    matrices = [*inputs, _taken(tensors, f"{prefix}out_proj.weight", used, (M, M))]
    bias = _taken(tensors, f"{prefix}in_proj_bias", used, (3 * M,), optional=True)
    biases = [None if bias is None else bias[k * M : (k + 1) * M] for k in range(3)]
    biases.append(_taken(tensors, f"{prefix}out_proj.bias", used, (M,), optional=True))
    return MultiHeadParams(*(np.ascontiguousarray(W.T) for W in matrices), *biases)


def _taken(
    tensors: dict[str, np.ndarray], name: str, used: set[str], shape: tuple[int, ...], *, optional: bool = False
) -> Any:
    """A tensor, which is used then."""
    if name not in tensors:
        if optional:
            return None
        raise ValueError(f"{NAME}: the state dict lacks {name}")
    used.add(name)
    if tensors[name].shape != shape:
        raise ValueError(f"{NAME}: tensor {name} has shape {tensors[name].shape}, the others say {shape}")
    return tensors[name]
