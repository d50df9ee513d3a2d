"""The weights of layers of attention, as the law has them: ``W_Q`` (M, N·D), ``b_Q`` (N·D,), ..., and ``num_heads``."""

from typing import Any

import numpy as np

NAMES = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "num_heads")


def checked(found: Any) -> dict[str, np.ndarray]:
    """Check the weights that a function ``heads`` gave; as arrays in float64.

    Raises:
        ValueError: names are missing or unknown, or sizes disagree.
    """
    missing = [name for name in ("W_Q", "W_K", "W_V", "W_O", "num_heads") if found.get(name) is None]
    unknown = sorted(set(found) - set(NAMES))
    if missing or unknown:
        said = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}"
        raise ValueError(f"check_model: heads gives a mapping that {said}, expected {', '.join(NAMES)}")
    arrays = {name: np.asarray(x, np.float64) for name, x in found.items() if x is not None}
    count, of_out = int(arrays["num_heads"]), arrays["W_O"].shape
    widths = {name: arrays[name].shape[-1] for name in ("W_Q", "W_K", "W_V")}
    size = widths["W_Q"] // count if count > 0 else 0
    fits = size and widths["W_Q"] % count == 0 and widths["W_K"] % size == 0 and count % (widths["W_K"] // size) == 0
    groups = widths["W_K"] // size if fits else 1
    if not fits or widths["W_V"] % groups or of_out[0] != widths["W_V"] // groups * count:
        shapes = ", ".join(f"{name} {arrays[name].shape}" for name in ("W_Q", "W_K", "W_V", "W_O"))
        raise ValueError(f"check_model: heads gives {shapes} for num_heads {count}, which do not fit each other")
    return arrays


def of_flax(layer: Any) -> dict[str, Any]:
    """``MultiHeadAttention`` of nnx, or of linen bound to its variables: kernels (M, N, D) and (N, D, M)."""
    if getattr(layer, "normalize_qk", False):
        raise NotImplementedError("normalize_qk: queries and keys have a norm of their own")
    parts = {"Q": "query", "K": "key", "V": "value", "O": "out"}
    read = layer.variables["params"] if type(layer).__module__.startswith("flax.linen") else None
    if read is None:
        read = {n: {"kernel": getattr(layer, n).kernel, "bias": getattr(layer, n).bias} for n in parts.values()}
    return _named(parts, {name: (_array(x["kernel"]), _array(x.get("bias"))) for name, x in read.items()},
                  layer.num_heads)  # fmt: skip


def of_keras(layer: Any) -> dict[str, Any]:
    """``MultiHeadAttention`` of keras, which calls its own parts."""
    if getattr(layer, "_use_gate", False):
        raise NotImplementedError("use_gate: results are multiplied by a gate")
    parts = {"Q": "_query_dense", "K": "_key_dense", "V": "_value_dense", "O": "_output_dense"}
    dense = {name: getattr(layer, name) for name in parts.values()}
    read = {name: (_array(x.kernel), _array(x.bias)) for name, x in dense.items()}
    return _named(parts, read, layer.num_heads)


def of_equinox(layer: Any) -> dict[str, Any]:
    """``MultiheadAttention`` of equinox: linear layers (out, in)."""
    parts = {"Q": "query_proj", "K": "key_proj", "V": "value_proj", "O": "output_proj"}
    linear = {name: getattr(layer, name) for name in parts.values()}
    read = {name: (_array(x.weight).T, _array(x.bias)) for name, x in linear.items()}
    return _named(parts, read, layer.num_heads)


def of_torch(layer: Any) -> dict[str, Any]:
    """``nn.MultiheadAttention``: one matrix (3 M, M), or three."""
    if layer.bias_k is not None or layer.add_zero_attn:
        raise NotImplementedError("add_bias_kv and add_zero_attn: there is one more key")
    together = layer.in_proj_weight
    split = _array(together).reshape(3, -1, together.shape[-1]) if together is not None else None
    apart = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights = list(split) if split is not None else [_array(x) for x in apart]
    biases = [None] * 3 if layer.in_proj_bias is None else list(_array(layer.in_proj_bias).reshape(3, -1))
    read = {name: (w.T, b) for name, w, b in zip("QKV", weights, biases, strict=True)}
    read["O"] = (_array(layer.out_proj.weight).T, _array(layer.out_proj.bias))
    return _named(dict(zip("QKVO", "QKVO", strict=True)), read, layer.num_heads)


def _named(parts: dict[str, str], read: dict[str, tuple[Any, Any]], count: int) -> dict[str, Any]:
    """Kernels with an axis of heads become matrices."""
    found: dict[str, Any] = {"num_heads": count}
    for name, part in parts.items():
        kernel, bias = read[part]
        found[f"W_{name}"] = kernel.reshape(-1, kernel.shape[-1]) if name == "O" else kernel.reshape(len(kernel), -1)
        found[f"b_{name}"] = None if bias is None else bias.reshape(-1)
    return found


def _array(x: Any) -> Any:
    """NumPy's, of any framework; None stays."""
    x = x.get_value() if hasattr(x, "get_value") else x
    if x is None:
        return None
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
