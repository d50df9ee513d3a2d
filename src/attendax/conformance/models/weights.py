"""The weights of layers of attention, as the law has them: ``W_Q`` (M, N·D), ``b_Q`` (N·D,), ..., and ``num_heads``."""

from typing import Any

import numpy as np

NAMES = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "num_heads")


def checked(found: Any) -> dict[str, np.ndarray]:
    """Check the weights that a function ``heads`` gave; as arrays in float64."""
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
    parts = ("query", "key", "value", "out")
    if not type(layer).__module__.startswith("flax.linen"):
        return _named(layer, [(x.kernel, x.bias) for x in (getattr(layer, part) for part in parts)])
    params = layer.variables["params"]
    return _named(layer, [(params[part]["kernel"], params[part].get("bias")) for part in parts])


def of_keras(layer: Any) -> dict[str, Any]:
    """``MultiHeadAttention`` of keras, which calls its own parts."""
    if getattr(layer, "_use_gate", False):
        raise NotImplementedError("use_gate: results are multiplied by a gate")
    parts = (layer._query_dense, layer._key_dense, layer._value_dense, layer._output_dense)
    return _named(layer, [(x.kernel, x.bias) for x in parts])


def of_equinox(layer: Any) -> dict[str, Any]:
    """``MultiheadAttention`` of equinox: linear layers (out, in)."""
    parts = (layer.query_proj, layer.key_proj, layer.value_proj, layer.output_proj)
    return _named(layer, [(x.weight.T, x.bias) for x in parts])


def of_torch(layer: Any) -> dict[str, Any]:
    """``nn.MultiheadAttention``: one matrix (3 M, M), or three."""
    if layer.bias_k is not None or layer.add_zero_attn:
        raise NotImplementedError("add_bias_kv and add_zero_attn: there is one more key")
    together, biases = layer.in_proj_weight, layer.in_proj_bias
    apart = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights = [*(apart if together is None else together.chunk(3)), layer.out_proj.weight]
    biases = [*((None,) * 3 if biases is None else biases.chunk(3)), layer.out_proj.bias]
    return _named(layer, [(weight.T, bias) for weight, bias in zip(weights, biases, strict=True)])


def _named(layer: Any, read: list[tuple[Any, Any]]) -> dict[str, Any]:
    """The kernels, of which an axis of heads is joined to the other, and the biases, of any framework."""
    found: dict[str, Any] = {"num_heads": layer.num_heads}
    for name, (kernel, bias) in zip("QKVO", read, strict=True):
        kernel, bias = _array(kernel), _array(bias)
        found[f"W_{name}"] = kernel.reshape(-1, kernel.shape[-1]) if name == "O" else kernel.reshape(len(kernel), -1)
        found[f"b_{name}"] = None if bias is None else bias.reshape(-1)
    return found


def _array(x: Any) -> Any:
    """NumPy's, of any framework; None stays."""
    x = x.get_value() if hasattr(x, "get_value") else x
    return x if x is None else np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)
