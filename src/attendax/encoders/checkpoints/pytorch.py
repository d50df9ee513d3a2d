"""PyTorch's own attention and encoder modules, or their state dicts, in and out. PyTorch is not imported."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from attendax import checks
from attendax.extras import require
from attendax.params import EncoderBlockParams, EncoderParams, MultiHeadParams

from ..stack import unstacked
from .files import check_names

NAME = "load_torch"
LAYER = {
    "W1": "linear1.weight", "b1": "linear1.bias", "W2": "linear2.weight", "b2": "linear2.bias",
    "gamma1": "norm1.weight", "beta1": "norm1.bias", "gamma2": "norm2.weight", "beta2": "norm2.bias",
}  # fmt: skip
PARTS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
Tensors = dict[str, np.ndarray]


def load_torch(
    module: Any,
    *,
    num_heads: int | None = None,
    norm: str | None = None,
    activation: str | None = None,
    eps: float | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Read an ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` or ``nn.TransformerEncoder``: weights, options.

    With the options, ``multi_head_attention`` and ``encoder_block`` of ``ops`` and ``spec``, and
    ``ops.stack_encoder_blocks``, compute what the module computes in evaluation, batch first. A module has its
    options. A state dict does not: pass all of them except ``eps``. Keys and values may have other widths (``kdim``,
    ``vdim``). Read files with ``torch.load(path, weights_only=True)``.

    Args:
        module: the module, or its state dict: names and tensors, of PyTorch or NumPy.
        num_heads: with a state dict, ``nhead`` of the module.
        norm: with a state dict of layers, "pre" for ``norm_first=True``, "post" for False (PyTorch's default).
        activation: with a state dict of layers, "relu" (PyTorch's default), "gelu", "gelu_tanh" or "silu".
        eps: with a state dict of layers, ``layer_norm_eps`` (default: PyTorch's 1e-5).

    Returns:
        ``(params, options)``. ``params``: ``MultiHeadParams``, ``EncoderBlockParams``, or ``EncoderParams`` without
        embeddings: ``blocks``, and ``gamma`` and ``beta`` of the last norm, if there is one. NumPy arrays, at least
        float32; biases that a module does not have are 0 or None. ``options``: a dict with ``num_heads`` and, of
        layers, ``norm``, ``activation`` and ``eps``.

    Raises:
        TypeError: the argument is neither such a module nor a mapping of names to tensors; or a tensor is not floating.
            Or an option of a state dict is missing, or one is given beside a module.
        ValueError: a tensor is missing, unexpected, or does not fit the others, or an option is not among its choices.
        NotImplementedError: ``add_bias_kv=True``, ``add_zero_attn=True``, an unsupported activation, or layers whose
            options differ.

    Example:
        >>> weights = {"in_proj_weight": np.ones((18, 6)), "out_proj.weight": np.ones((6, 6))}
        >>> params, options = load_torch(weights, num_heads=3)
        >>> params.W_Q.shape, options
        ((6, 6), {'num_heads': 3})
    """
    given = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    is_module = callable(getattr(module, "state_dict", None))
    said = [name for name, value in given.items() if value is not None]
    if is_module and said:
        raise TypeError(f"{NAME}: a module has its own options; leave out {', '.join(said)}")
    options = _options_of(module) if is_module else {}
    params = _params(module.state_dict() if is_module else module)
    return params, options or _said(params, given)


def _options_of(module: Any) -> dict[str, Any]:
    """The options of a module; of an encoder, those of all its layers."""
    if layers := list(getattr(module, "layers", ())):
        first, *others = map(_options_of, layers)
        final = {} if getattr(module, "norm", None) is None else {"eps": _eps(module.norm)}
        if any(other != first for other in (*others, first | final)):
            raise NotImplementedError(f"{NAME}: the layers and the last norm must have the same options")
        return first
    attention = getattr(module, "self_attn", module)
    if not hasattr(attention, "num_heads") or not hasattr(attention, "in_proj_weight"):
        raise TypeError(
            f"{NAME}: module must be an nn.MultiheadAttention, nn.TransformerEncoderLayer or nn.TransformerEncoder, "
            f"or a state dict of one, got {type(module).__name__}"
        )
    if attention.add_zero_attn:
        raise NotImplementedError(f"{NAME}: add_zero_attn=True is not supported")
    options = {"num_heads": attention.num_heads}
    if attention is module:
        return options
    eps, other = map(_eps, (module.norm1, module.norm2))
    if eps != other:
        raise NotImplementedError(f"{NAME}: norm1 and norm2 must have the same eps")
    norm = "pre" if module.norm_first else "post"
    return options | {"norm": norm, "activation": _activation(module.activation), "eps": eps}


def _eps(norm: Any) -> float:
    """The eps of an ``nn.LayerNorm``; other norms, and one without a scale, are refused."""
    if all(kind.__name__ != "LayerNorm" for kind in type(norm).__mro__) or norm.weight is None:
        raise NotImplementedError(f"{NAME}: norms must be nn.LayerNorm with a weight, got {norm}")
    return float(norm.eps)


def _activation(function: Any) -> str:
    """Our name for a function of ``torch.nn.functional`` or a module of ``torch.nn``."""
    name = getattr(function, "__name__", type(function).__name__).lower()
    if name == "gelu" and getattr(function, "approximate", "none") == "tanh":
        return "gelu_tanh"
    if name not in ("relu", "gelu", "silu"):
        raise NotImplementedError(f"{NAME}: activation {name[:80]!r} is not supported; supported are relu, gelu, silu")
    return name


def _said(params: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The options that the caller gives for a state dict."""
    block: Any = params.blocks[0] if isinstance(params, EncoderParams) else params
    is_layer = isinstance(block, EncoderBlockParams)
    names = tuple(given) if is_layer else ("num_heads",)
    if missing := [name for name in names if given[name] is None and name != "eps"]:
        example = "num_heads=8" + (', norm="post", activation="relu"' if is_layer else "")
        raise TypeError(
            f"{NAME}: a state dict does not say {', '.join(missing)}\n"
            f"Write load_torch(module), or load_torch(state_dict, {example}) with what the module was made with."
        )
    if over := [name for name in given if name not in names and given[name] is not None]:
        raise TypeError(f"{NAME}: an nn.MultiheadAttention has no {', '.join(over)}; leave it out")
    options = {name: given[name] for name in names}
    if is_layer:
        options["eps"] = 1e-5 if given["eps"] is None else given["eps"]
        checks.block_options(NAME, options["norm"], options["activation"], options["eps"])
    checks.heads(NAME, (block.attention if is_layer else block).W_Q.shape[1], options["num_heads"])
    return options


def _params(state_dict: Any) -> Any:
    """The weights in a state dict; which of the three modules it is of, its names say."""
    if not isinstance(state_dict, Mapping) or not all(isinstance(name, str) for name in state_dict):
        got = type(state_dict).__name__
        raise TypeError(f"{NAME}: state_dict must map names to tensors, got {got}; see module.state_dict()")
    tensors = {name: _array(name, value) for name, value in state_dict.items()}
    if any(name.endswith(("bias_k", "bias_v")) for name in tensors):
        raise NotImplementedError(f"{NAME}: bias_k and bias_v (add_bias_kv=True) are not supported")
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


def _encoder(tensors: Tensors, used: set[str]) -> EncoderParams:
    numbers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    if numbers != {str(number) for number in range(len(numbers))}:
        shown = ", ".join(sorted(numbers)[:4])
        raise ValueError(f"{NAME}: the state dict has layers {shown[:80]}, expected 0 to {len(numbers) - 1}")
    blocks = tuple(_layer(tensors, f"layers.{number}.", used) for number in range(len(numbers)))
    gamma = _taken(tensors, "norm.weight", used, (len(blocks[0].gamma1),), optional=True)
    beta = _taken(tensors, "norm.bias", used, (len(blocks[0].gamma1),), optional=True)
    return EncoderParams(None, blocks, gamma, np.zeros_like(gamma) if gamma is not None and beta is None else beta)  # type: ignore[arg-type]


def _layer(tensors: Tensors, prefix: str, used: set[str]) -> EncoderBlockParams:
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


def _attention(tensors: Tensors, prefix: str, used: set[str]) -> MultiHeadParams:
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


def _taken(tensors: Tensors, name: str, used: set[str], shape: tuple[int, ...], *, optional: bool = False) -> Any:
    if name not in tensors:
        if optional:
            return None
        raise ValueError(f"{NAME}: the state dict lacks {name}")
    used.add(name)
    if tensors[name].shape != shape:
        raise ValueError(f"{NAME}: tensor {name} has shape {tensors[name].shape}, the others say {shape}")
    return tensors[name]


def to_torch(params: Any) -> dict[str, Any]:
    """The state dict with which PyTorch's own modules compute what ``params`` do: what ``load_torch`` reads, back.

    ``module.load_state_dict(to_torch(params))``, of an ``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` or
    ``nn.TransformerEncoder``. If the projections have no biases (None) and all other biases are 0, the state dict is
    for a module with ``bias=False``. Otherwise biases that are None become 0.

    Args:
        params: ``MultiHeadParams``, ``EncoderBlockParams``, or ``EncoderParams`` without embeddings; NumPy or JAX.

    Returns:
        Names and PyTorch tensors, copies in the dtypes of the weights.

    Raises:
        TypeError: the params are of another type or traced, or a weight is not floating.
        ValueError: no such module has these shapes (grouped heads, a gate) or embeddings.
        ModuleNotFoundError: ``torch`` is not installed.
    """
    if any(map(checks.is_traced, jax.tree.leaves(params))):
        checks.fail(TypeError, "to_torch", "the weights are traced; call it outside jit and grad.")
    if isinstance(params, MultiHeadParams):
        tensors = _tensors_of_attention(params, any(bias is not None for bias in params[4:]))
    elif isinstance(params, EncoderBlockParams):
        tensors = _tensors_of_layer(params)
    else:
        checks.instance("to_torch", "params", params, EncoderParams)
        tensors = _tensors_of_encoder(params)
    torch = require("torch", "to_torch", extra=None)
    return {name: _tensor(torch, x) for name, x in tensors.items()}


def _tensors_of_encoder(params: EncoderParams) -> dict[str, Any]:
    if params.embeddings is not None:
        sentence = "params have embeddings, which nn.TransformerEncoder does not have."
        advice = "Write to_torch(params._replace(embeddings=None)), or save_bert for a whole checkpoint."
        checks.fail(ValueError, "to_torch", sentence, advice=advice)
    tensors = {}
    for number, block in enumerate(unstacked(params.blocks)):
        tensors |= {f"layers.{number}.{name}": x for name, x in _tensors_of_layer(block).items()}
    last = {"norm.weight": params.gamma, "norm.bias": params.beta}
    return tensors | (last if params.gamma is not None else {})


def _tensors_of_layer(params: EncoderBlockParams) -> dict[str, Any]:
    checks.instance("to_torch", "params.attention", params.attention, MultiHeadParams)
    weights = {name: x for name, x in params._asdict().items() if name != "attention"}
    checks.check("to_torch", params.attention._asdict() | weights, signature="encoder_block")
    biases = *params.attention[4:], params.b1, params.b2, params.beta1, params.beta2
    has_bias = any(bias is not None for bias in biases[:4]) or any(np.any(bias) for bias in biases[4:])
    tensors = {f"self_attn.{name}": x for name, x in _tensors_of_attention(params.attention, has_bias).items()}
    named = {name: (x.T if field in ("W1", "W2") else x) for field, name in LAYER.items() for x in [weights[field]]}
    return tensors | {name: x for name, x in named.items() if has_bias or not name.endswith("bias")}


def _tensors_of_attention(params: MultiHeadParams, has_bias: bool) -> dict[str, Any]:
    """One matrix (3M, M) for queries, keys and values of one width; else three."""
    M = checks.check("to_torch", params._asdict(), signature="multi_head_attention")["M"]
    inputs = [np.asarray(W).T for W in params[:3]]
    if {W.shape for W in inputs} == {(M, M)}:
        tensors = {"in_proj_weight": np.concatenate(inputs)}
    else:
        tensors = dict(zip(PARTS, inputs, strict=True))
    tensors["out_proj.weight"] = np.asarray(params.W_O).T
    if has_bias:
        biases = [np.zeros(M, params.W_O.dtype) if bias is None else np.asarray(bias) for bias in params[4:]]
        tensors |= {"in_proj_bias": np.concatenate(biases[:3]), "out_proj.bias": biases[3]}
    return tensors


def _tensor(torch: Any, x: Any) -> Any:
    if str(x.dtype) == "bfloat16":
        return torch.from_numpy(np.array(x, np.float32)).bfloat16()
    return torch.from_numpy(np.array(x, order="C"))
