"""The checks of ``encode``: weights that do not fit the configuration, ids and masks that do not fit each other."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax import checks
from attendax.checks.advice import on_kind
from attendax.params import EmbeddingParams, EncoderBlockParams, EncoderParams, MultiHeadParams

from .config import EncoderConfig, encoder_shapes
from .stack import LayerStack


def in_numpy(function: str, arrays: Any) -> Any:
    """Convert every leaf to a NumPy array, so that no operation on it is traced; refuse one that is traced already."""
    if any(map(checks.is_traced, jax.tree.leaves(arrays))):
        checks.fail(TypeError, function, "it computes in NumPy and got a traced array; call it outside jit and grad.")
    return jax.tree.map(np.asarray, arrays)


def check_params(params: EncoderParams, config: EncoderConfig, function: str = "encode") -> None:
    """Refuse weights that are not those of ``config``: missing, left over, or of another shape."""
    checks.instance(function, "params", params, EncoderParams)
    checks.instance(function, "config", config, EncoderConfig)
    checks.instance(function, "params.embeddings", params.embeddings, EmbeddingParams)
    stacks: list[Any] = [part for part in params.blocks if isinstance(part, LayerStack)]
    count = len(params.blocks) + sum(len(stack.layers) * stack.repeats - 1 for stack in stacks)
    if count != config.num_layers:
        sentence = f"params has {count} blocks but config has num_layers={config.num_layers}."
        checks.fail(ValueError, function, sentence)
    wanted = encoder_shapes(config)
    _check_shapes(function, "the table {}", params.embeddings._asdict(), wanted.embeddings._asdict())
    found_last, last = ({name: getattr(owner, name) for name in ("gamma", "beta")} for owner in (params, wanted))
    _check_shapes(function, "the last table {}", found_last, last)
    place = 0
    for part in params.blocks:
        layers, repeats = (part.layers, (part.repeats,)) if isinstance(part, LayerStack) else ((part,), ())
        for number, block in enumerate(layers, start=place):
            checks.instance(function, f"params.blocks, layer {number},", block, EncoderBlockParams)
            checks.instance(function, f"the attention of layer {number}", block.attention, MultiHeadParams)
            weights, shapes = _weights(block), _weights(wanted.blocks[number])
            _check_shapes(function, f"{{}} of layer {number}", weights, shapes, repeats)
        place += len(layers) * (repeats[0] if repeats else 1)


def _weights(block: EncoderBlockParams) -> dict[str, Any]:
    return block.attention._asdict() | {name: x for name, x in block._asdict().items() if name != "attention"}


def _check_shapes(
    function: str, which: str, found: dict[str, Any], wanted: dict[str, Any], leading: tuple[int, ...] = ()
) -> None:
    for name, leaf in wanted.items():
        got = None if found[name] is None else np.shape(found[name])
        shape = None if leaf is None else leading + leaf.shape
        if got != shape:
            row = (name, str(got), f"{shape} from config")
            checks.fail(ValueError, function, f"{which.format(name)} of params is not that of config.", [row])


def operand_dtype(dtype: Any, params: EncoderParams) -> Any:
    """The dtype of the operands of products, or None; refused unless floating and no wider than the weights."""
    if dtype is None:
        return None
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if str(found) not in checks.FLOATING:
        checks.fail(TypeError, "encode", f"dtype must be a floating dtype, such as 'bfloat16', got {dtype!r}.")
    stored = params.embeddings.token.dtype
    if str(stored) in checks.FLOATING and not checks.is_wider(stored, found):
        checks.fail(ValueError, "encode", f"dtype={found} is wider than the weights, {stored}; dtype narrows products.")
    return found


def check_inputs(x: Any, config: EncoderConfig, **others: Any) -> None:
    """Refuse ids, masks, token types and segments that do not fit each other or ``config``."""
    shape = tuple(getattr(x, "shape", ()))
    for name, value in {"x": x, **others}.items():
        kind = "boolean" if name == "mask" else "integer"
        if value is None and name != "x":
            continue
        dtype = getattr(value, "dtype", None)
        got = f"{tuple(getattr(value, 'shape', ()))} {dtype}" if dtype is not None else type(value).__name__
        row = (name, got, f"{shape if len(shape) == 2 and name != 'x' else '(B, T)'} {kind}")
        said = on_kind(name, value, "bool" if kind == "boolean" else "")
        if dtype is None or said or not np.issubdtype(dtype, np.integer if kind == "integer" else np.bool_):
            said = said or ("If the numbers are 0 and 1, write mask.astype(bool)." if name == "mask" and dtype else "")
            checks.fail(TypeError, "encode", f"{name} must be an array of {kind} dtype, got {got}.", [row], advice=said)
        if len(value.shape) != 2 or tuple(value.shape) != shape:
            checks.fail(ValueError, "encode", f"{name} has the wrong shape.", [row])
    if shape[1] > config.max_positions:
        sentence = f"x has T={shape[1]} tokens but the encoder has max_positions={config.max_positions}."
        checks.fail(ValueError, "encode", sentence)
    _check_range("x", x, config.vocab_size)
    if others["token_types"] is not None and not config.num_token_types:
        checks.fail(ValueError, "encode", "token_types are given but the encoder has num_token_types=0.")
    _check_range("token_types", others["token_types"], config.num_token_types)


def _check_range(name: str, ids: Any, rows: int) -> None:
    """Refuse ids outside 0 .. rows - 1, where they have values to look at."""
    if ids is None or checks.is_traced(ids) or ids.size == 0:
        return
    known = np.asarray(ids)  # a JAX array that jit closes over would be traced by its own operations
    low, high = int(known.min()), int(known.max())
    if low < 0 or high >= rows:
        outside = low if low < 0 else high
        checks.fail(ValueError, "encode", f"{name} holds {outside} but its table has rows 0 to {rows - 1}.")
