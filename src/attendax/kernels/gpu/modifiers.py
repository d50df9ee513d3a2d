"""Score modifiers, bias, bits of the mask and dropout as the kernels take them: ``pairs.of_head`` reads them."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.scores import ScoreModifier

from ..operands import Operands, Plan

KINDS = {"softcap": "softcap", "alibi": "ALiBi", "relative_bias": "relative bias"}


def why_not(operands: Operands) -> str:
    """The reason why the kernels cannot take the modifiers or the bias of a call; nothing where they can."""
    parts = [] if operands.score_mod is None else operands.score_mod.parts()
    kinds = [part.kind for part in parts]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        return f"a score modifier of the kind {unknown[0]!r}; it takes {', '.join(KINDS.values())}"
    if twice := [KINDS[kind] for kind in KINDS if kinds.count(kind) > 1]:
        return f"two score modifiers of one kind: {twice[0]}"
    if "softcap" in kinds[1:]:
        return "a softcap after another score modifier"
    if any(not np.can_cast(x.dtype, np.int32) for part in parts for x in part.arrays[1:]):
        return "an offset of more than 32 bits"
    if any(x.dtype == np.float64 for x in operands.differentiable()):
        return "float64 with narrower queries"
    return ""


def is_plain(operands: Operands) -> bool:
    """Tell whether scores are products and no weight is dropped."""
    return operands.bias is None and operands.score_mod is None and operands.dropout_keys is None


def arrays_of(operands: Operands, plan: Plan, scale: Array, bits: Array | None) -> dict[str, Array]:
    """The arrays of ``launches.MODIFIERS``, and the factors."""
    parts = {} if operands.score_mod is None else {part.kind: part for part in operands.score_mod.parts()}
    caps, batch, lead = parts.get("softcap"), len(plan.batch), plan.leading(operands)
    factor = 1.0 if plan.rate in (0, 1) else 1 / (1 - plan.rate)
    factor = 0.0 if plan.rate == 1 else factor
    arrays = {"alibi": jnp.zeros((1, 1, 2), jnp.float32), "table": jnp.zeros((1, 1, 1), jnp.float32)}
    arrays |= {"places": jnp.zeros((1, 1), jnp.int32), "words": jnp.zeros((1, 1, 2), jnp.int32)}
    arrays |= {"bias": jnp.zeros((1,) * 4, jnp.float32), "bits": jnp.zeros((1,) * 4, jnp.int32)}
    options = dict.fromkeys(OPTIONS, 0) | {"radius": -1}
    if (part := parts.get("alibi")) is not None:
        slopes, place = _with_place(part, batch, lead)
        both = jnp.stack([slopes[..., 0], jnp.broadcast_to(place, slopes.shape[:-1]).astype(jnp.float32)], -1)
        arrays["alibi"] = flat(both, 2, lead)
        options |= {"alibi_b": len(arrays["alibi"]) > 1, "alibi_n": True}
    if (part := parts.get("relative_bias")) is not None:
        table, place = _with_place(part, batch, lead)
        arrays["table"] = flat(table, 2, lead)
        arrays["places"] = flat(jnp.broadcast_to(place, (*table.shape[:-2], 1)), 1, lead)
        options |= {"table_b": len(arrays["table"]) > 1, "radius": table.shape[-1] // 2}
    for name, array in (("bias", operands.bias), ("bits", bits)):
        if array is not None:
            arrays[name] = flat(array.astype(arrays[name].dtype), 3, lead)
            axes = dict(zip("bnts", (n > 1 for n in arrays[name].shape), strict=True))
            options |= {name: True} | {f"{name}_{axis}": there for axis, there in axes.items()}
    if operands.dropout_keys is not None:
        words = jnp.stack([word[..., 0, 0] for word in operands.dropout_keys], -1)
        words = jnp.broadcast_to(words, (*lead, *words.shape[-2:]))
        arrays["words"] = lax.bitcast_convert_type(words, jnp.int32).reshape(-1, *words.shape[-2:])
        threshold = np.uint32(min(round(plan.rate * 2**32), 2**32 - 1)).view(np.int32)
        options |= {"drops": True, "threshold": int(threshold)}
    cap = float(caps.settings[0]) if caps is not None else 0.0
    arrays["factors"] = jnp.stack([jnp.asarray(x, jnp.float32) for x in (scale, cap, factor)])
    arrays["options"] = jnp.array([int(options[name]) for name in OPTIONS], jnp.int32)
    return arrays


OPTIONS = (
    *("alibi_b", "alibi_n", "table_b", "radius", "bias", "bias_b", "bias_n", "bias_t", "bias_s"),
    *("bits", "bits_b", "bits_n", "bits_t", "drops", "threshold"),
)  # in the order in which ``pairs.of_head`` reads them: whether something is there, and whether it has an axis


def flat(x: Array, own: int, lead: tuple[int, ...]) -> Array:
    """An array with axes of its own, and the leading axes of a call as one, of size 1 if it is alike in all texts."""
    if math.prod(x.shape[:-own]) > 1:
        x = jnp.broadcast_to(x, (*lead, *x.shape[-own:]))
    return x.reshape(-1, *x.shape[-own:])


def _with_place(part: ScoreModifier, batch: int, lead: tuple[int, ...]) -> tuple[Array, Any]:
    """Slopes (..., N, 1) or a table (..., N, 2R + 1) in the axes of a call, and its offset (..., 1)."""
    array = part.arrays[0].astype(jnp.float32)
    array = array if part.kind == "relative_bias" else array[..., None]
    array = array.reshape(*array.shape[:batch], *(1 for _ in lead[batch:]), *array.shape[batch:])
    place = part.arrays[1][..., 0, 0] if len(part.arrays) > 1 else jnp.full((1,), part.settings[0], jnp.int32)
    place = place.reshape(*(1 for _ in range(len(lead) + 1 - place.ndim)), *place.shape).astype(jnp.int32)
    texts = jnp.broadcast_shapes(array.shape[:-2], place.shape[:-1])
    return jnp.broadcast_to(array, (*texts, *array.shape[-2:])), jnp.broadcast_to(place, (*texts, 1))
