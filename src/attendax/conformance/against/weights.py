"""Functions of x and the weights by which queries, keys and values are made of it: x W_q, x W_k, x W_v, or x W_qkv.

They are asked with x of one-hot rows, one for each token: then the weights (C, N·D) are the queries, keys and values
themselves, and C is the number of tokens. Square weights, of layouts with M, are padded with zeros.
"""

import re
from collections.abc import Mapping

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
PACKED_WEIGHT = "qkv W"  # the weights of queries, keys and values side by side in one
ROLES = {  # of a projection, by its name
    **dict.fromkeys(("qkv", "c_attn", "in_proj"), "qkv"),
    **{x: x[0] for x in ("query", "key", "value", "output", "out", "q", "k", "v", "o")},
    **dict.fromkeys(("out_proj", "c_proj", "proj"), "o"),
}
ROLE = "|".join(ROLES)
WEIGHT = re.compile(  # of a projection, or its bias; of both in a dict of "w" and "b", as in GPT-2's checkpoints
    rf"(?P<kind>w|b|weight)_?(?P<role>{ROLE})|(?P<of>{ROLE})_?(?P<is>w|b|weight|bias|proj|kernel)|(?P<both>c_attn|c_proj)",
    re.I,
)


def role_of(name: str) -> tuple[str, str]:
    """The projection of a weight or its bias, q, k, v, qkv or o, and whether it is "w" or "b"; else nothing."""
    found = WEIGHT.fullmatch(name)
    if not found:
        return "", ""
    if found["both"]:
        return ROLES[name.lower()], "w"
    role, kind = (found[x] or found[y] for x, y in (("role", "of"), ("kind", "is")))
    return ROLES[role.lower()], "b" if kind[0].lower() == "b" else "w"


def unchanging(name: str, *, merged: bool) -> str:
    """Python for the weight of a projection that changes nothing."""
    role, kind = role_of(name)
    width = "3 * " * (role == "qkv") + "N * " * merged + ("V" if role in "vo" else "D")
    weight, bias = (f"xp.{x}({width}, dtype=query.dtype)" for x in ("eye", "zeros"))
    return f"dict(w={weight}, b={bias})" if is_dict(name) else weight if kind == "w" else bias


def is_dict(name: str) -> bool:
    """Tell whether a parameter has a weight and its bias in a dict."""
    found = WEIGHT.fullmatch(name)
    return bool(found and found["both"])


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
