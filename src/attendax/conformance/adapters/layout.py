"""Functions that follow the protocol but for their layout, their names, or the meaning of True in a mask.

Some take packed sequences: the tokens of all on one axis, and where each begins, as kernels for training have it.
``fn(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, ...)`` takes (tokens, N, D) and gives
(tokens, N, V), the lse as (N, tokens): the signature of ``flash_attn_varlen_func``, by name.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..cases import kinds
from ..frameworks import framework
from ..frameworks.text import import_line, printed, source_of
from .implementation import OPTIONS, Implementation, keywords

PACKED = "packed"
NO_AXIS = ("mask", "bias", "key_lengths", "query_segment_ids", "key_segment_ids", "offset")
LACKS_OF_PACKS = {name: "packed sequences have no axis for it" for name in NO_AXIS}
LACKS_OF_PACKS |= {f"rank {rank}": "sequences are packed from (B, N, T, D)" for rank in (2, 3, 5)}
LACKS_OF_PACKS |= {"empty arrays": "a packed sequence has tokens"}
LAYOUTS = ("BNTD", "BTND", "NTD", "TND", "TD", PACKED)
TOOLS = {  # of a framework, as its name and as text
    "stack": {"jax": "jnp.stack", "torch": "torch.stack", "numpy": "np.stack"},
    "concat": {"jax": "jnp.concatenate", "torch": "torch.cat", "numpy": "np.concatenate"},
    "ints": {"jax": "jnp.int32", "torch": "functools.partial(torch.tensor, dtype=torch.int32)", "numpy": "np.int32"},
}


def in_layout(fn, query, key, value, *, layout, names, mask_drops, lse_base, stack, **options):
    """Arrays (B, N, T, D) in another layout and back; axes that the function does not have are looped over."""
    import math

    missing = 4 - len(layout)
    if mask_drops and "mask" in options:
        options["mask"] = ~options["mask"]

    def part(name, x, index):  # of an option, for one place on the missing axes
        if name in ("mask", "bias") and x.ndim > 4 - missing:
            first = index[missing - (x.ndim - (4 - missing)) :]
            return x[tuple(min(k, size - 1) for k, size in zip(first, x.shape, strict=False))]
        return x[index[0]] if missing and name in ("key_lengths", "query_segment_ids", "key_segment_ids") else x

    def call(index):
        swapped = layout.index("T") < layout.index("N") if "N" in layout else False
        views = {id(x): x[index] if missing else x for x in (query, key, value)}  # what is one array stays one
        views = {k: x.swapaxes(-3, -2) if swapped else x for k, x in views.items()}
        arrays = [views[id(x)] for x in (query, key, value)]
        found = fn(*arrays, **{names.get(k, k): part(k, x, index) for k, x in options.items()})
        out, *rest = found if isinstance(found, (tuple, list)) else (found,)
        rest = rest[:1] if "return_lse" in options else []  # else weights, or None
        return [out.swapaxes(-3, -2) if swapped else out, *(x * math.log(lse_base) for x in rest)]

    def looped(index):
        if len(index) == missing:
            return call(index)
        return [
            stack(list(x)) for x in zip(*(looped((*index, k)) for k in range(query.shape[len(index)])), strict=True)
        ]

    results = looped(())
    return tuple(results) if "return_lse" in options else results[0]


def in_packs(fn, query, key, value, *, names, lse_base, stack, concat, ints, **options):
    """Arrays (B, N, T, D) as packed sequences and back; a short filler sequence lies between two of them."""
    import math

    batch, lengths, begins = query.shape[0], (query.shape[2], key.shape[2]), []
    short = [min(length, k) for k, length in enumerate(lengths, start=1)]
    for length, more in zip(lengths, short, strict=True):
        ends = [0]
        for _ in range(batch):
            ends += [ends[-1] + length, ends[-1] + length + more]
        begins.append(ends)

    def packed(x, more):
        rows = [x[b].swapaxes(0, 1) for b in range(batch)]
        return concat([part for row in rows for part in (row, row[:more])])

    arrays = [packed(query, short[0]), packed(key, short[1]), packed(value, short[1])]
    where = {f"cu_seqlens_{of}": ints(ends) for of, ends in zip("qk", begins, strict=True)}
    where |= {f"max_seqlen_{of}": length for of, length in zip("qk", lengths, strict=True)}
    found = fn(*arrays, **where, **{names.get(k, k): x for k, x in options.items()})
    out, *rest = found if isinstance(found, (tuple, list)) else (found,)
    parts = [slice(start, start + lengths[0]) for start in begins[0][:-1:2]]
    out = stack([out[part].swapaxes(0, 1) for part in parts])
    if "return_lse" not in options:
        return out
    return out, stack([rest[0][:, part] * math.log(lse_base) for part in parts])


def plain(
    fn: Callable[..., Any], name: str, arrays: str, *, path: str | None = None,
    backward: Callable[..., Any] | None = None, causal: str = "start", empty_rows: str = "zero",
    lacks: Mapping[str, str] | None = None, eager: bool = False, device: str = "",
    means: tuple[tuple[str, str], ...] = (), **settings: Any,
) -> Implementation:  # fmt: skip
    """A function without an adapter: as it is where nothing about it is special."""
    attend, lines = fn, [import_line(fn, path), "attend = fn"]
    try:
        hash(attend)
    except TypeError:  # jax.jit takes it as a static argument
        attend = functools.partial(attend)
        lines = ["import functools", *lines, "attend = functools.partial(attend)"]
    made = Implementation(
        attend, name, arrays, None, causal, empty_rows, lacks or {}, "\n".join(lines), eager, device=device, means=means
    )
    made = laid_out(made, **settings)
    if backward is None:
        return made
    by_hand = import_line(backward, name="backward")
    if arrays == "numpy":
        lines = ["import functools", by_hand, "attend = functools.partial(attend)", "attend.backward = backward"]
        return dataclasses.replace(made, source="\n".join([made.source, *lines]), backward=backward)
    lines = ["", "", printed(arrays, ("with_backward",)), "", "", by_hand, "attend = with_backward(attend, backward)"]
    attend = framework(arrays).with_backward(made.attend, backward)
    return dataclasses.replace(made, attend=attend, source="\n".join([made.source, *lines]))


def laid_out(
    made: Implementation, *, layout: str = "BNTD", names: Mapping[str, str] | None = None, mask_true: str = "attend",
    lse_base: float | None = None,
) -> Implementation:  # fmt: skip
    """Fit the protocol to a function of another layout, of other names, or of another meaning of True."""
    layout, names = layout.replace("H", "D"), dict(names or {})
    if layout not in LAYOUTS:
        raise ValueError(f"check: layout got {layout!r}, expected one of {', '.join(LAYOUTS)} (H for D)")
    kinds.checked("mask_true", mask_true, ("attend", "drop"))
    kinds.checked("names", sorted(names), OPTIONS)
    if layout == "BNTD" and not names and mask_true == "attend" and lse_base is None:
        return made
    given: dict[str, Any] = {"names": names, "lse_base": lse_base or math.e}
    run: Any = in_packs
    if layout != PACKED:
        run, given = in_layout, given | {"layout": layout, "mask_drops": mask_true == "drop"}
    tools = TOOLS if layout == PACKED else {"stack": TOOLS["stack"]}
    attend = functools.partial(run, made.attend, **given, **{k: getattr(framework(made.arrays), k) for k in tools})
    words = ", ".join([*(f"{k}={x[made.arrays]}" for k, x in tools.items()), *(f"{k}={x!r}" for k, x in given.items())])
    lines = [made.source, "", "", source_of(run), "", "", "import functools", "within = attend"]
    lines.append(f"attend = functools.partial({run.__name__}, within, {words})")
    accepted, theirs = keywords(made.attend), {k: names.get(k, k) for k in OPTIONS}
    lacks = {k: f"no argument {name}" for k, name in theirs.items() if accepted is not None and name not in accepted}
    if layout == PACKED:
        lacks |= LACKS_OF_PACKS
    elif layout != "BNTD":
        ruled_out = [f"rank {rank}" for rank in (2, 3, 5)] + ["batch", "empty arrays"] * ("B" not in layout)
        ruled_out += ["heads", "grouped heads", "sinks"] * ("N" not in layout)
        lacks |= dict.fromkeys(ruled_out, f"its layout is {layout}")
    lacks |= made.lacks
    return dataclasses.replace(made, attend=attend, source="\n".join(lines), lacks=lacks, layout=layout)
