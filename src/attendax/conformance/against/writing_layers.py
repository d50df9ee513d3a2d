"""The adapter of a layer: what is done to weights, so that B reads them as A does; or the keywords that B is given."""

import itertools
from collections.abc import Mapping
from typing import Any

from .describing_layers import Layer, equality
from .layers import AXES, LAW, PACKINGS, POSITIONS, SCALES, SPLITS, TURNED
from .remote import IMPORTS, import_line

TURN = "params = {k: x.T if k.endswith('_kernel') else x for k, x in params.items()}"
SWITCHES = (
    (True, False),
    AXES["eps"].values,
    (0, 1, 2),
    ("gelu", "gelu_new", "gelu_tanh", "tanh", "none", "relu", "silu", "erf"),
)


def adapter(a: Layer, b: Layer) -> tuple[str, str]:
    """Python under which B's layer answers as A's, and what it calls: "B", or "" where that is A's formula alone."""
    lines = _around(a, b)
    code = _code(a, b, lines)
    if equality(a, b.fn.adapted(code)).worst is None:
        return code, "B"
    options = {k: x for k, x in b.fn.defaults.items() if k != b.keyword}
    for k in (1, 2):
        for names in itertools.combinations(options, k):
            pools = [_values(options[n], a.how) for n in names]
            for values in itertools.product(*pools):
                code = _code(a, b, lines, dict(zip(names, values, strict=True)))
                if equality(a, b.fn.adapted(code), 2).worst is None:
                    return code, "B"
    return _formula(a), ""


def _values(default: Any, how: Mapping[str, Any]) -> tuple[Any, ...]:
    """Values for a keyword: of the kind of its default, and the numbers of a layer."""
    numbers = tuple(how[name] for name in ("base", "factor", "part"))
    more = {float: numbers, int: (*map(int, numbers), how["trained"])}.get(type(default), ())
    known = next((p for p in SWITCHES if type(default) is type(p[0])), sum(SWITCHES[:1] + SWITCHES[3:], ()))
    return tuple(dict.fromkeys((*known, *more)))


def _code(a: Layer, b: Layer, lines: list[str], options: Mapping[str, Any] = {}) -> str:
    words = "".join(f", {k}={v!r}" for k, v in options.items())
    heads = f", {b.keyword}=heads" if b.keyword else ""
    sizes = [f"M, N = x.shape[-1], {'heads' if a.keyword else a.heads}", "D = M // N"]
    sizes = sizes if any("N" in line or "D" in line for line in lines) else []
    body = [*sizes, *(["params = dict(params)"] if lines else []), *lines, f"return fn(params, x{heads}{words})"]
    if b.keyword and not a.keyword:
        body.insert(0, f"heads = {a.heads}")
    head = f"def adapted(params, x{_heads(a)}):"
    body = [f"heads = {a.keyword}"] * (bool(a.keyword) and a.keyword != "heads") + body
    text = "\n".join([head, *("    " + line for part in body for line in part.split("\n"))])
    return f"{IMPORTS[b.fn.kind()]}\n{import_line(b.fn.path)}\n\n\n{text}\n"


def _around(a: Layer, b: Layer) -> list[str]:
    """Changes of weights, so that B reads them as A does."""
    one, other, lines = a.how, b.how, []
    if one["kernels"] == TURNED:
        lines.append(TURN)
    packed = [one["packing"] if "qkv_kernel" in a.reads else one["split"] + "*"]
    packed.append(other["packing"] if "qkv_kernel" in b.reads else other["split"] + "*")
    rotary = {one["rotary"], other["rotary"]} == {"halves", "neighbours"} and one["part"] == other["part"] == 1
    plain = packed[0] == packed[1] and not rotary and one["scale"] == other["scale"]
    if not plain and _has_attention(a) and _has_attention(b):
        lines += _columns(a, b, bool(rotary))
    if {a.how["norm"], b.how["norm"]} == {"RMS norm", "RMS norm of 1 + scale"}:
        sign = "+" if "1 +" in one["norm"] else "-"
        names = tuple(sorted(name for name in a.reads if name in ("norm1_scale", "norm2_scale")))
        lines.append(f"for name in {names!r}:\n    params[name] = params[name] {sign} 1")
    if one["gated"] != other["gated"] and {"gate_kernel", "up_kernel"} <= a.reads & b.reads:
        for kind in [x for x in ("kernel", "bias") if f"gate_{x}" in a.reads]:
            up, gate = f"params['up_{kind}']", f"params['gate_{kind}']"
            lines.append(f"{up}, {gate} = {gate}, {up}")
    starts = [POSITIONS[x["positions"]] for x in (one, other)]
    if starts[0] != starts[1] and all(isinstance(x, int) for x in starts):
        back, table = int(starts[1] or 0) - int(starts[0] or 0), "params['positions']"
        shifted = f"{table}[{-back}:]" if back < 0 else f"xp.concatenate([{table}[:{back}], {table}])"
        lines.append(f"{table} = {shifted}")
    if other["kernels"] == TURNED:
        lines.append(TURN)
    return [] if lines == [TURN, TURN] else lines


def _has_attention(x: Layer) -> bool:
    return any(k in x.reads for k in ("query_kernel", "qkv_kernel"))


def _columns(a: Layer, b: Layer, rotary: bool) -> list[str]:
    """Columns of the projections: from A's order to query, key and value with heads (.., N, D), and to B's."""
    source = "qkv" if "qkv_kernel" in a.reads else "query"
    kinds = tuple(kind for kind in ("kernel", "bias") if f"{source}_{kind}" in a.reads)
    lines = []
    if source == "qkv":
        axes, three = PACKINGS[a.how["packing"]]
        lines.append(f"qkv = xp.moveaxis(params[f'qkv_{{kind}}'].reshape(-1, {axes}), {three + 1}, 0)")
        lines.append("q, k, v = qkv[0], qkv[1], qkv[2]")
    else:
        axes, head = SPLITS[a.how["split"]]
        part = f"params[f'{{name}}_{{kind}}'].reshape(-1, {axes})" + (".swapaxes(1, 2)" if head else "")
        lines.append(f"q, k, v = ({part} for name in ('query', 'key', 'value'))")
    if rotary:
        pairs = "2, D // 2" if a.how["rotary"] == "halves" else "D // 2, 2"
        lines.append(f"q, k = (y.reshape(-1, N, {pairs}).swapaxes(-1, -2).reshape(-1, N, D) for y in (q, k))")
    if a.how["scale"] != b.how["scale"]:
        lines.append(f"q = q * (({SCALES[a.how['scale']]}) / ({SCALES[b.how['scale']]}))")
    shape = f"*params[f'{source}_{{kind}}'].shape[:-1], -1"
    if "qkv_kernel" in b.reads:
        axes, three = PACKINGS[b.how["packing"]]
        lines.append(f"qkv = xp.moveaxis(xp.stack([q, k, v]), 0, {three + 1})")
        lines.append(f"params[f'qkv_{{kind}}'] = qkv.reshape({shape})")
    else:
        turned = ".swapaxes(1, 2)" if SPLITS[b.how["split"]][1] else ""
        lines.append("for name, y in (('query', q), ('key', k), ('value', v)):")
        lines.append(f"    params[f'{{name}}_{{kind}}'] = y{turned}.reshape({shape})")
    lines = [f"for kind in {kinds!r}:", *("    " + line for line in lines)]
    one, other = (x.how["split"] if "qkv_kernel" not in x.reads else "head after head" for x in (a, b))
    if one != other and "out_kernel" in a.reads:
        rows = f"params['out_kernel'].reshape({SPLITS[one][0]}, M).swapaxes(0, 1).reshape(M, M)"
        lines.append(f"params['out_kernel'] = {rows}")
    return lines


def _heads(a: Layer) -> str:
    """The keyword for the number of heads, as A has it."""
    default = a.fn.defaults.get(a.keyword)
    return f", {a.keyword}" * bool(a.keyword) + (f"={default}" if default is not None else "")


def _formula(a: Layer) -> str:
    """A's layer without B: no argument of B makes it A's."""
    how = {k: v for k, v in a.how.items() if LAW[k] != v}
    reads = ", ".join(repr(x) for x in sorted(a.reads))
    turn = "    " + TURN + "\n" if a.how["kernels"] == TURNED else ""
    return (
        "from attendax.conformance.against.layers import LAW, layer\n\n"
        f"READS = {{{reads}}}\nHOW = LAW | {how | ({'kernels': LAW['kernels']} if turn else {})!r}\n\n\n"
        f"def adapted(params, x{_heads(a)}):\n{turn}"
        "    read = {k: v for k, v in params.items() if k in READS}\n"
        f"    return layer(read, x, HOW, {a.keyword or a.heads}).astype(x.dtype)\n"
    )
