"""Functions of x and the weights by which queries, keys and values are made of it: x W_q, x W_k, x W_v, or x W_qkv.

They are asked with x of one-hot rows, one for each token: then the weights (C, N·D) are the queries, keys and values
themselves, and C is the number of tokens. Square weights, of layouts with M, are padded with zeros.
"""

import itertools
import re
from collections.abc import Mapping, Sequence

MOST_HEADS = "max(N, -(-B * T // D))"  # of square weights, so that they have a row for each token
HEADS_JOINED = "{x}.swapaxes(-3, -2).reshape(-1, {x}.shape[-3] * {x}.shape[-1])"
WEIGHTS = {  # a layout of weights: the axes of the result, and a line of Python
    "C(ND)": ("BT(ND) BTND BNTD T(ND)", HEADS_JOINED),
    "CND": ("BTND BNTD BT(ND)", f"{HEADS_JOINED}.reshape(-1, *{{x}}.shape[-3::2])"),
    "CD": ("BTD TD", "{x}.reshape(-1, {x}.shape[-1])"),
    "M(ND)": (
        "BT(ND) BTND BNTD T(ND)",
        f"(lambda w, eye: eye[: len(w)].T @ w @ eye[: w.shape[1]])({HEADS_JOINED}, "
        f"xp.eye({MOST_HEADS} * D, dtype={{x}}.dtype))",
    ),
    "MD": ("TD", "xp.eye(D, dtype={x}.dtype)[:T].T @ {x}"),
    "M(B)D": ("BTD", "xp.eye(D, dtype={x}.dtype)[: B * T].T @ {x}.reshape(-1, D)"),
}
WEIGHTS |= {x[1:] + x[0]: (gives, f"({line}).T") for x, (gives, line) in WEIGHTS.items() if x != "CND"}
PACKED_WEIGHTS = {1: "qkv W", 2: "kv W"}  # by the number of weights: some side by side in one
ROLES = {  # of a projection, by its name
    **dict.fromkeys(("qkv", "c_attn", "in_proj"), "qkv"),
    "kv": "kv",
    **{x: x[0] for x in ("query", "key", "value", "output", "out", "q", "k", "v", "o")},
    **dict.fromkeys(("out_proj", "c_proj", "proj"), "o"),
}
ROLE = "|".join(ROLES)
WEIGHT = re.compile(  # of a projection, or its bias
    rf"(?P<kind>w|b|weight)_?(?P<role>{ROLE})|(?P<of>{ROLE})_?(?P<is>w|b|weight|bias|proj|kernel)"
    rf"|to_(?P<to>{ROLE})|(?P<own>c_attn|c_proj)",
    re.I,
)
READ_AT = r"""\b{}((?:\[["']\w+["']\]|\.\w+\b(?!\())+)"""  # an item of a dict, or an attribute of an object
READ_AS = r"^\s*\(?([\w, ]+,[\w, ]+)\)?\s*=\s*{}\s*$"  # the items of a tuple


def role_of(name: str) -> tuple[str, str]:
    """The projection of a weight or its bias, q, k, v, qkv or o, and whether it is "w" or "b"; else nothing."""
    found = WEIGHT.fullmatch(name)
    if not found:
        return "", ""
    if role := found["to"] or found["own"]:
        return ROLES[role.lower()], "w"
    role, kind = (found[x] or found[y] for x, y in (("role", "of"), ("kind", "is")))
    return ROLES[role.lower()], "b" if kind[0].lower() == "b" else "w"


def unchanging(name: str, *, merged: bool, apart: bool = False, axis: int = 0) -> str:
    """Python for the weight of a projection that changes nothing; one of three ``apart`` arrays has three parts."""
    role, kind = role_of(name)
    if apart and role == "qkv" and kind == "w":
        own = f"xp.eye({'N * ' * merged}D, dtype=query.dtype)"
        return f"xp.concatenate([{own}, {own}, {own}], {axis})"
    width = {"qkv": "3 * ", "kv": "2 * "}.get(role, "") + "N * " * merged + ("V" if role in "vo" else "D")
    return f"xp.{'eye' if kind == 'w' else 'zeros'}({width}, dtype=query.dtype)"


def packed(weights: Sequence[str]) -> str:
    """The pack of the weights of queries, keys and values; empty if each has its own."""
    return PACKED_WEIGHTS.get(len(weights), "")


def contained(names: Sequence[str], source: str) -> dict[str, dict[str, str]]:
    """The parameters that are dicts, objects or tuples of weights, as the source reads them: the place of each weight.

    Nothing if something else is read there, or not all the weights of queries, keys and values.
    """
    found = {x: _places(x, source) for x in names}
    found = {x: places for x, places in found.items() if places and not {"", *names} & {*places}}
    roles = {role for x in itertools.chain(names, *found.values()) for role, kind in [role_of(x)] if kind == "w"}
    return found if "qkv" in roles or {"q", "kv"} <= roles or {"q", "k", "v"} <= roles else {}


def _places(name: str, source: str) -> dict[str, str]:
    """The place in a parameter of each weight that is read there; "" is the name of what is none."""
    places = {x: [name, *re.findall("[a-zA-Z_]\\w*", x)] for x in re.findall(READ_AT.format(name), source)}
    if re.search(rf"\*\*\s*{name}\b", source):  # of a helper linear(x, w, b), as for GPT-2's checkpoints
        places |= {f"['{x}']": [name, x] for x in "wb"}
    if read := re.search(READ_AS.format(name), source, re.MULTILINE):
        places = {f"[{k}]": [x.strip()] for k, x in enumerate(read[1].split(",")) if x.strip()}
    weights = {}
    for at, parts in places.items():
        ways = ["_".join(parts[k:]) for k in range(len(parts))[::-1]]
        ways += [f"{parts[-1]}_weight"] * bool(re.search("param|weight", name))
        weights[next(filter(WEIGHT.fullmatch, ways), "")] = at
    return weights


def container(places: Mapping[str, str]) -> str:
    """Python for what has a value at each place, such as "['attn']['w']", ".wq" or "[0]"."""
    if "" in places:
        return places[""]
    parts: dict[str, dict[str, str]] = {}
    for at, value in places.items():
        first = re.findall(r"^(?:\[.*?\]|\.\w+)", at)[0]
        parts.setdefault(first, {})[at.removeprefix(first)] = value
    inner = {first: container(some) for first, some in parts.items()}
    if at[0] == ".":
        return f"types.SimpleNamespace({', '.join(f'{k[1:]}={x}' for k, x in inner.items())})"
    if at[1].isdigit():
        return f"({', '.join(inner.values())})"
    return f"{{{', '.join(f'{k[1:-1]}: {x}' for k, x in inner.items())}}}"


def by_name(weights: Mapping[str, Mapping[str, str]]) -> str:
    """Python that lets ``fn`` be called by names alone with weights that are in other parameters; empty if none are."""
    if not weights:
        return ""
    taken = ((name, {at: f"options.pop({x!r})" for x, at in places.items()}) for name, places in weights.items())
    given = ", ".join(f"{name}={container(values)}" for name, values in taken)
    own = ", ".join(f"{x!r}" for places in weights.values() for x in places)
    call = f"call(*arrays, {given}, **options) if {{{own}}} & {{*options}} else call(*arrays, **options)"
    line = f"fn = lambda *arrays, call=fn, **options: {call}"
    return "import types\n" * ("types." in line) + line


ONE_HOT = tuple(f"xp.eye({size}, dtype=query.dtype)" for size in "TS")  # for queries and for keys, of one text


def one_hot(layout: str, returned: str, size: str) -> str:
    """Python for x: a row of the identity for each of T or S tokens."""
    rows = f"B * {size}" if "B" in returned else size
    width = rows if "M" not in layout else f"{MOST_HEADS} * D" if "N" in layout else "D"
    eye = f"xp.eye({width}, dtype=query.dtype)" + f"[: {rows}]" * (width != rows)
    return eye + f".reshape(B, {size}, -1)" * ("B" in returned)


def projected(meant: Mapping[str, str]) -> list[str]:
    """The parameters that are x, of the required ones."""
    return [name for name, value in meant.items() if value.startswith("xp.eye") and not WEIGHT.fullmatch(name)]
