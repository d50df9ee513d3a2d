"""Two layers: where they differ, how far, and the adapter: what is done to weights, so that B reads them as A does."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..conventions.table import python
from ..worker.errors import Failed
from . import layers
from .asking import TOLERANCE, Equality
from .comparing import Difference
from .describing_layers import BIASES, SMALL_SCALES, CandidateLayer, case, far, of_size
from .layers import LAW, LAYER_AXES, OUT_IN, PACKINGS, SEARCH, SPLITS, first_row
from .remote import IMPORTS, import_line

VALUE_WORDS: dict[str, dict[Any, str]] = {
    "rotary": {
        "halves": "pairs the halves", "neighbours": "pairs neighbours",
        "half a head apart": "pairs columns half a head apart",
    },
    "part": {1.0: "the whole", 0.5: "half", 0.25: "a quarter"},
}  # fmt: skip
JOINT = {  # conventions that are one
    "scaling": ("scaling", "factor", "trained"), "rotary": ("rotary", "part"), "frequencies": ("part", "frequencies"),
}  # fmt: skip
SCALES = (1.0, *SMALL_SCALES)  # sizes of x
ALL_CASES = len(layers.SIZES) * len(SCALES)
TURN = "params = {k: w.T if k.endswith('_kernel') else w for k, w in params.items()}"
FLAGS, COUNT_VALUES = (True, False), (0, 1, 2)  # values of keywords
ACTIVATION_NAMES = "gelu", "gelu_new", "gelu_tanh", "tanh", "none", "relu", "silu", "erf"


def differences(a: CandidateLayer, b: CandidateLayer) -> Iterator[Difference]:
    """Each convention by which two layers differ, with the smallest input that shows it."""
    for name, axis in LAYER_AXES.items():
        told = _told(a.how, name), _told(b.how, name)
        has = (not axis.needs or any(k.startswith(axis.needs) for k in x.parts) for x in (a, b))
        differ = axis.words and told[0] != told[1] and all(has)
        if differ and (shown := _shown(a, b, name)):  # without it no input tells the two apart
            yield Difference(axis.words, *told, shown)
    alone = [sorted(x.reads - y.reads) for x, y in ((a, b), (b, a))]
    if any(alone):
        yield Difference("weights", *(f"alone reads {', '.join(x)}" if x else "reads no others" for x in alone))


def _told(how: Mapping[str, Any], name: str) -> str:
    value = how[name]
    if name == "scaling" and value:
        return f"{value} by {how['factor']:g}" + f", trained on {how['trained']}" * (value == "YaRN")
    return VALUE_WORDS.get(name, {}).get(value, f"{value:g}" if isinstance(value, float) else str(value)) or "none"


def _shown(a: CandidateLayer, b: CandidateLayer, name: str) -> str:
    """The shortest text that shows a convention alone: A's layer, and the same with B's convention."""
    tries = [(case(4, a.heads, 1e-2 if name == "eps" else 1.0), "random x")]
    if name == "eps":
        tries += [(case(4, a.heads, x).but(BIASES), f"random x of about {x:g}, with biases of 0") for x in SMALL_SCALES]
    for (whole, drawing), length in itertools.product(tries, range(1, SEARCH.T + 1)):
        at = whole._replace(x=whole.x[:1, :length])
        one, other = (a.but({k: y.how[k] for k in JOINT.get(name, (name,))}).reference(at) for y in (a, b))
        if name == "kernels":
            try:
                other = b.fn(a.given(at.params), at.x, **b.keywords())[0]
            except Failed as failed:
                return f"with A's kernels, B raises {failed.said}"
        if far(other, one) > TOLERANCE:
            place = np.unravel_index(int(np.argmax(np.abs(one - other))), one.shape)
            said = f"a text of {length} token{'s' * (length > 1)}, {drawing}: A gives {one[place]:.6g}"
            return f"{said}; with B's convention A would give {other[place]:.6g}"
    return ""


def equality(a: CandidateLayer, other: Callable[..., tuple[np.ndarray, ...]], cases: int = ALL_CASES) -> Equality:
    """The distance of another function from A's layer, at sizes in turn; calls that A refuses do not count."""
    most, worst, asked = 0.0, "", list[tuple[layers.LayerSizes, float]]()
    for k in range(cases):
        sizes, draw = layers.SIZES[k % len(layers.SIZES)], SCALES[(k + k // len(SCALES)) % len(SCALES)]
        at = of_size(20 + k, a.count(sizes), draw, sizes)
        try:
            right = a.call(at)
        except Failed:
            continue
        said = f"x {sizes[:3]}, F={sizes.F}" + f", {a.count(sizes)} heads" * bool(a.keyword)
        try:
            apart = far(other(a.given(at.params), at.x, **a.keywords(sizes))[0], right)
            said += f" (by {apart:.2g} of the largest number)"
        except Failed as failed:
            apart, said = np.inf, f"{said} ({failed.said})"
        most, worst = max(most, apart), worst or said * (apart > TOLERANCE)
        asked.append((sizes, draw))
    found = {axis: {getattr(sizes, axis) for sizes, _ in asked} for axis in "BTMF"}
    found |= {"heads": {a.count(sizes) for sizes, _ in asked}, "x of about": {draw for _, draw in asked}}
    varied = [f"{axis} {', '.join(f'{x:g}' for x in sorted(some))}" for axis, some in found.items() if some]
    return Equality(len(asked), most, worst or None, f"sizes {'; '.join([*varied, 'in float32'])}")


def adapter(a: CandidateLayer, b: CandidateLayer) -> tuple[str, str]:
    """Python under which B's layer answers as A's, and what it calls: "B", or "" where that is A's formula alone."""
    lines = _around(a, b)
    numbers = tuple(a.how[name] for name in ("base", "factor", "part"))
    of_kind: dict[type, tuple[Any, ...]] = {  # values for a keyword, by the kind of its default
        bool: FLAGS, str: ACTIVATION_NAMES, float: LAYER_AXES["eps"].values + numbers,
        int: (*COUNT_VALUES, *map(int, numbers), a.how["trained"]),
    }  # fmt: skip
    defaults = {k: of_kind.get(type(x), FLAGS + ACTIVATION_NAMES) for k, x in b.fn.defaults.items() if k != b.keyword}
    options = {k: tuple(dict.fromkeys(values)) for k, values in defaults.items()}
    for names in itertools.chain.from_iterable(itertools.combinations(options, count) for count in range(3)):
        for values in itertools.product(*(options[name] for name in names)):
            code = _code(a, b, lines, dict(zip(names, values, strict=True)))
            if equality(a, b.fn.adapted(code), 2 if names else ALL_CASES).worst is None:
                return code, "B"
    return formula(a), ""


def _code(a: CandidateLayer, b: CandidateLayer, lines: Sequence[str], options: Mapping[str, Any]) -> str:
    words = "".join(f", {k}={v!r}" for k, v in options.items())
    heads = f", {b.keyword}=heads" if b.keyword else ""
    body = [f"heads = {a.keyword or a.heads}"] * (a.keyword != "heads" and bool(a.keyword or b.keyword))
    sizes = [f"M, N = x.shape[-1], {'heads' if a.keyword else a.heads}", "D = M // N"]
    body += sizes if any("N" in line or "D" in line for line in lines) else []
    body += [*(["params = dict(params)"] if lines else []), *lines, f"return fn(params, x{heads}{words})"]
    head = f"def adapted(params, x{_heads(a)}):"
    text = "\n".join([head, *("    " + line for part in body for line in part.split("\n"))])
    return f"{IMPORTS[b.fn.kind()]}\n{import_line(b.fn.path)}\n\n\n{text}\n"


def _around(a: CandidateLayer, b: CandidateLayer) -> list[str]:
    """Changes of weights, so that B reads them as A does."""
    one, other, lines = a.how, b.how, []
    if one["kernels"] == OUT_IN:
        lines.append(TURN)
    packed = [x.how["packing"] if "qkv_kernel" in x.reads else x.how["split"] + "*" for x in (a, b)]
    rotary = {one["rotary"], other["rotary"]} == {"halves", "neighbours"} and one["part"] == other["part"] == 1
    plain = packed[0] == packed[1] and not rotary and one["scale"] == other["scale"]
    if not plain and all({"query_kernel", "qkv_kernel"} & x.reads for x in (a, b)):
        lines += _columns(a, b, rotary)
    if {one["norm"], other["norm"]} == {"RMS norm", "RMS norm times (1 + scale)"}:
        sign = "+" if "1 +" in one["norm"] else "-"
        names = tuple(sorted({"norm1_scale", "norm2_scale"} & a.reads))
        lines.append(f"for name in {names!r}:\n    params[name] = params[name] {sign} 1")
    if one["gated"] != other["gated"] and {"gate_kernel", "up_kernel"} <= a.reads & b.reads:
        for kind in [x for x in ("kernel", "bias") if f"gate_{x}" in a.reads]:
            up, gate = f"params['up_{kind}']", f"params['gate_{kind}']"
            lines.append(f"{up}, {gate} = {gate}, {up}")
    mine, theirs = (first_row(x["positions"]) for x in (one, other))
    if mine is not None and theirs is not None and mine != theirs:
        back, table = theirs - mine, "params['positions']"
        shifted = f"{table}[{-back}:]" if back < 0 else f"xp.concatenate([{table}[:{back}], {table}])"
        lines.append(f"{table} = {shifted}")
    if other["kernels"] == OUT_IN:
        lines.append(TURN)
    return [] if lines == [TURN, TURN] else lines


def _columns(a: CandidateLayer, b: CandidateLayer, rotary: bool) -> list[str]:
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
        lines.append(f"q = q * (({python(a.how['scale'])}) / ({python(b.how['scale'])}))")
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
    one, other = (x.how["split"] if "qkv_kernel" not in x.reads else "side by side" for x in (a, b))
    if one != other and "out_kernel" in a.reads:
        rows = f"params['out_kernel'].reshape({SPLITS[one][0]}, M).swapaxes(0, 1).reshape(M, M)"
        lines.append(f"params['out_kernel'] = {rows}")
    return lines


def _heads(a: CandidateLayer) -> str:
    """The keyword for the number of heads, as A has it."""
    default = a.fn.defaults.get(a.keyword)
    return f", {a.keyword}" * bool(a.keyword) + (f"={default}" if default is not None else "")


def formula(a: CandidateLayer) -> str:
    """Python of what was found of a layer, which calls no other."""
    how = {k: v for k, v in a.how.items() if LAW[k] != v}
    reads = ", ".join(repr(x) for x in sorted(a.reads))
    turn = "    " + TURN + "\n" if a.how["kernels"] == OUT_IN else ""
    return (
        "from attendax.conformance.against.layers import LAW, layer\n\n"
        f"READS = {{{reads}}}\nHOW = LAW | {how | ({'kernels': LAW['kernels']} if turn else {})!r}\n\n\n"
        f"def adapted(params, x{_heads(a)}):\n{turn}"
        "    read = {k: v for k, v in params.items() if k in READS}\n"
        f"    return layer(read, x, HOW, {a.keyword or a.heads}).astype(x.dtype)\n"
    )
