"""The last line of an error: the code to write instead (L14). It works as it stands."""

from typing import Any

import numpy as np


def is_mask(value: Any) -> bool:
    """Tell whether it is a mask from ``attendax.masks``; torch tensors also have a ``to_dense``."""
    return hasattr(value, "to_dense") and hasattr(value, "kind")


def on_kind(name: str, value: Any, dtype: str = "") -> str:
    """The code that makes an array of a list, or of a tensor of another library."""
    kind = "list" if isinstance(value, list | tuple) else "torch tensor"
    return f"Convert the {kind} to an array: {array}." if (array := _array_of(name, value, dtype)) else ""


def on_integers(name: str, value: Any) -> str:
    """The code that makes an array of integers of a list, a tensor, or an array of another dtype."""
    if advice := on_kind(name, value):
        return advice
    return f"Convert it: {name}.astype('int32')." if str(getattr(value, "dtype", "")).startswith("float") else ""


def on_part(sign: str, other: Any) -> str:
    """The code that joins a mask with something that is none, by ``&`` or ``|``."""
    if getattr(other, "__module__", "") == "attendax.masks" and callable(other):
        return f"Call it: mask {sign} masks.{other.__name__}(...)."
    if callable(other):
        return f"Write mask {sign} masks.from_function(f)."
    dtype = str(getattr(other, "dtype", ""))
    if dtype.startswith(("float", "bfloat")):
        return "Pass numbers that are added to the scores as bias."
    array = _array_of("array", other, "bool") or ("array" if dtype == "bool" else "array.astype(bool)" if dtype else "")
    return f"Write mask {sign} masks.dense({array})." if array else ""


def on_leading_axes(arrays: dict[str, tuple[Any, int]]) -> str:
    """The code that repeats arrays along the leading axes that they lack, or have as 1.

    Args:
        arrays: name -> an array, and how many axes it has behind the leading ones.
    """
    leads = {name: tuple(x.shape[: len(x.shape) - own]) for name, (x, own) in arrays.items()}
    try:
        lead = np.broadcast_shapes(*leads.values())
    except (TypeError, ValueError):  # sizes that only the calls of an exported program know; sizes that do not fit
        return ""
    moves = []
    for name, (x, own) in arrays.items():
        if leads[name] != lead:
            module = "np" if isinstance(x, np.ndarray) else "jnp"
            moves.append(f"{module}.broadcast_to({name}, {(*lead, *x.shape[len(x.shape) - own :])})")
    return f"Leading axes are not broadcast; write {', '.join(moves)}." if moves else ""


def _array_of(name: str, value: Any, dtype: str = "") -> str:
    """The code that makes an array of a tensor or a list; nothing for anything else."""
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        narrow = str(value.dtype) == "torch.bfloat16"  # NumPy has no such dtype
        return f"jnp.from_dlpack({name}.detach())" if narrow else f"{name}.detach().cpu().numpy()"
    if not isinstance(value, list | tuple):
        return ""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    module = "np" if isinstance(value, bool | int | float | list | tuple | np.generic | np.ndarray) else "jnp"
    return f"{module}.asarray({name}{f', {dtype!r}' if dtype else ''})"


def on_axes(
    name: str, shape: tuple[int, ...], scores: tuple[int, ...], *, heads: bool = True, array: str = "",
    numbers: str = "",
) -> str:  # fmt: skip
    """The code that adds the axes that an array lacks to fit the scores (..., N, T, S), for each reading of its shape.

    Args:
        name: "mask" or "bias".
        shape: of the array.
        scores: their shape.
        heads: whether their axis before T is that of heads; else there is none.
        array: how it is written, where not by its name. numbers: the same before it is made boolean.
    """
    x, (*leading, T, S) = array or name, scores
    batch = tuple(leading[:-1]) if heads else tuple(leading)
    start, rows = ("[:, None", "[:, None]") if len(batch) == 1 else ("[..., None", "[..., None, :, :]")
    readings = []
    if shape == (S,):
        readings.append(f"For one entry per key, (S,), write {x}[None, :].")
    if batch and _alike(shape, (*batch, S)):
        lengths = f", or masks.padding({numbers or x}.sum(-1)) if the real tokens come first"
        said = f"For one entry per key, (B, S), write {x}{start}{', None' if heads else ''}, :]"
        readings.append(f"{said}{lengths if heads and name == 'mask' else ''}.")
    if heads and batch and _alike(shape, (*batch, T, S)):
        readings.append(f"To add the head axis, write {x}{rows}.")
    if heads and batch and _alike(shape, (leading[-1], T, S)):
        readings.append(f"For one {name} per head, (N, T, S), write {x}[{', '.join(['None'] * len(batch))}].")
    return " ".join(readings)


def _alike(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    return len(shape) == len(full) and all(got in (1, size) for got, size in zip(shape, full, strict=True))


PER_BATCH = 'For arrays per text, (B, ...), write masks.from_function(f, *arrays, per="batch").'
NUMBERS_OF_MASKS = {  # the names of their arrays
    "window": ("offset", "left", "right"),
    "padding": ("key_lengths", "query_lengths"),
    "prefix": ("lengths",),
}
ARRAYS_OF_MASKS = NUMBERS_OF_MASKS | {"segments": ("query_ids", "key_ids")}


def on_heads(mask: Any, scores: tuple[int, ...]) -> str:
    """The code that gives a mask a number for each head, where an array looks like one without saying so."""
    found = []
    for part in [] if mask is None else mask.parts():
        for name, array in zip(NUMBERS_OF_MASKS.get(part.kind, ()), part.arrays, strict=False):
            lead = getattr(array, "shape", ())[:-1]
            by_head = len(scores) > 2 and array is not None and array.shape[-1:] == scores[-3:-2]
            if by_head and len(lead) <= len(scores) - 3 and _alike(lead, scores[len(scores) - 3 - len(lead) : -3]):
                found.append(f"If {name} has one entry per head, write {name}[..., None, None].")
    return " ".join(found)


def on_functions(mask: Any) -> str:
    """The code that maps a function over texts, where a mask has one with arrays that look like those of many."""
    if mask is None:
        return ""
    import jax  # a mask has loaded it

    functions = [part for part in mask.parts() if part.kind == "function" and not hasattr(part.settings[0], "f")]
    return PER_BATCH if any(getattr(x, "ndim", 0) > 1 for x in jax.tree.leaves(functions)) else ""


def on_mask(value: Any, scores: tuple[int, ...], *, heads: bool = True) -> str:
    """The line to write in place of something that is not a mask."""
    if getattr(value, "__module__", "") == "attendax.masks" and callable(value):
        return f"Call it: mask=masks.{value.__name__}(...)."
    if callable(value):
        return "Make a mask of the function of positions: masks.from_function(f)."
    if hasattr(value, "kind"):
        return "Pass a score modifier as score_mod."
    if isinstance(value, str):
        return f"A mask is not a name: write mask=masks.{'window(left, right)' if 'window' in value else 'causal()'}."
    if isinstance(value, list | tuple) and value and all(map(is_mask, value)):
        return f"Join the masks: mask={' & '.join(f'mask[{k}]' for k in range(len(value)))}."
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if dtype.startswith(("float", "bfloat")):
        return "Pass numbers that are added to the scores as bias."
    try:
        shape = tuple(np.shape(value))
    except ValueError:
        return "The rows differ in length: pad them with False."
    numbers = _array_of("mask", value)
    if len(scores) == 4 and len(shape) == 1 and scores[0] == shape[0] != scores[-1]:
        return f"For lengths, (B,), write masks.padding({numbers or 'mask'})."
    if not (numbers or dtype):
        return ""
    array = _array_of("mask", value, "bool") if isinstance(value, list | tuple) else f"{numbers or 'mask'}.astype(bool)"
    said = on_axes("mask", shape, scores, heads=heads, array=array, numbers=numbers or "mask")
    return said or f"{'Make it an array: ' if numbers else 'If the numbers are 0 and 1, write '}{array}."
