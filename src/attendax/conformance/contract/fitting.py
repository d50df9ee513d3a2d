"""The adapter by which `attendax check` calls a function: Python that defines ``adapted``, by the kit's protocol.

It raises NotImplementedError for calls that the function cannot be asked: those cases are not offered.
"""

from collections.abc import Collection, Iterable
from typing import Any

from ..adapters.implementation import OPTIONS as PROTOCOL
from ..against.completing import BEGINS
from ..against.forms import Form
from ..against.options import BACK, INTO, MEANINGS, NUMBER, OR_ADDED, REACH, VARLEN, WIDE, WORD, back, to
from ..against.remote import IMPORTS, reached
from ..against.writing import LN_2, joining
from ..conventions.form import LAW as BY_LAW

PASSED = "sinks", "dropout_rate", "dropout_rng"  # keywords of the protocol that are passed on under the same name
FLAGS = "is_causal", "return_lse"
ADDED = "added, -inf drops"
RAISE = "raise NotImplementedError({!r})"
RANKS = {  # of a mask or a bias that is not whole: what rules it out, its shape, its place there, and its axes in words
    "BTS": ("{x}.shape[1] != 1", "(B, 1, T, S)", "[:, 0]", "(B, T, S)"),
    "NTS": ("{x}.shape[0] != 1", "(1, N, T, S)", "[0]", "(N, T, S)"),
    "TS": ("{x}.shape[0] != 1 or {x}.shape[1] != 1", "(1, 1, T, S)", "[0, 0]", "(T, S)"),
    "BS": ("{x}.shape[1] != 1 or {x}.shape[2] != 1", "(B, 1, 1, S)", "[:, 0, 0]", "(B, S)"),
    "(BN)1S": ("{x}.shape[2] != 1", "(B, N, 1, S)", ".reshape(B * N, 1, S)", "(B·N, 1, S)"),
}
WIDTHS = {x: y for x, y in zip(REACH.values(), ("left + 1", "left", "2 * left"), strict=True)}
SIDES = {  # of a window that is one number: what rules it out, and why
    "before": ("right != 0", "its window looks back alone"),
    "on both sides": ("right != left", "its window is as wide on both sides"),
    "before, and all that comes after": ("right is not None", "its window has no end"),
}


def is_of_protocol(form: Form, no_limit: str) -> bool:
    """Tell whether `attendax check` can call a function as it is."""
    kinds = {"mask": "BNTS/True attends", "bias": "BNTS", "scale": "a factor", "return_lse": "BNT", **WIDE}
    segments = "query_segment_ids", "key_segment_ids"
    called = (form.layout, form.outcome, form.pack, form.order) == ("BNTD", "BNTD", "", "query, key, value")
    named = all(tuple(x) == (segments if k == "segments" else (k, kinds.get(k, ""))) for k, x in form.options.items())
    plain = not (form.first or form.heads or form.meant or form.by_name or form.by_position or form.word or form.given)
    return called and plain and named and form.how["lse"] != "base 2" and no_limit != "-1"


def fit(form: Form, no_limit: str = "", names: Collection[str] = (), **limits: Any) -> str:
    """Python that defines ``adapted``; ``names`` are the function's parameters, the others are as of ``Contract``."""
    return _Fit(form, no_limit, names, **limits).text()


def lacks(form: Form) -> dict[str, str]:
    """The traits that a function of that form does not offer, and why."""
    said = f"its layout is {form.layout}{f', packed {form.pack}' if form.pack else ''}"
    found = dict.fromkeys(("rank 2", "rank 3", "rank 5"), "its adapter is of rank 4")
    if (segments := form.options.get("segments")) and segments.name == segments.form:
        found["segments apart"] = f"{segments.name} is of queries and of keys"
    found |= dict.fromkeys(["batch", "empty arrays"] * ("B" not in form.layout), said)
    found |= dict.fromkeys(["empty arrays"] * (form.layout == VARLEN), "a packed sequence has tokens")
    found |= dict.fromkeys(["heads", "grouped heads", "sinks"] * ("N" not in form.layout), said)
    found |= dict.fromkeys(["grouped heads"] * ("(ND)" in form.layout and not form.grouped), said)
    found |= dict.fromkeys(["grouped heads", "V != D"] * form.pack.startswith("qkv"), said)
    return found | dict.fromkeys(["V != D"] * form.pack.startswith("kv"), said)


def _when(condition: str, lines: Iterable[str]) -> list[str]:
    return [f"if {condition}:", *(f"    {line}" for line in lines)]


class _Fit:
    def __init__(
        self, form: Form, no_limit: str, names: Collection[str], *, short: bool = False, alike: Collection[str] = ()
    ) -> None:
        self.form, self.no_limit, self.names, self.short, self.alike = form, no_limit, names, short, alike
        self.offered: list[str] = []
        self.loops = [x for x in "BN" if x not in form.layout]

    def text(self) -> str:
        """The whole of it."""
        lines = [
            *self._square(),
            *self._short(),
            *self._given(),
            *self._masks(),
            *self._rules(),
            *self._numbers(),
            *self._call(),
        ]
        used = "\n".join(lines)
        sizes = ["(B, N, T, D), (G, S) = query.shape, key.shape[1:3]"]
        keywords = [f"{x}={'False' if x in FLAGS else None}" for x in PROTOCOL if x in self.offered]
        head = ", ".join(["query, key, value", *(["*"] if keywords else []), *keywords])
        imports = ["import types"] * ("types." in used)
        imports += [IMPORTS[self.form.arrays], reached(self.form)]
        return "\n".join([*imports, "", "", f"def adapted({head}):", *(f"    {x}" for x in sizes + lines), ""])

    def _square(self) -> list[str]:
        if self.form.layout == VARLEN and len({*BEGINS} & {*self.form.meant}) == 1:
            return _when("T != S", [RAISE.format("sequences begin at one list: as many queries as keys")])
        if not self.form.pack.startswith("qkv"):
            return []
        said = "query, key and value are one array: as many queries as keys"
        return _when("query.shape != key.shape or key.shape != value.shape", [RAISE.format(said)])

    def _short(self) -> list[str]:
        causal = "" if self.form.how["always"] else "is_causal and "
        said = "it takes as many queries as keys at most" + ", if it is causal" * bool(causal)
        lines = _when(f"{causal}T > S", [RAISE.format(said)]) if self.short else []
        for x in self.alike:
            said = f"with {self.form.options[x].name} it takes as many queries as keys alone"
            lines += _when(f"{x} is not None and T != S", [RAISE.format(said)])
        return lines

    def _given(self) -> list[str]:
        """The options that it is always given."""
        given = {**self.form.meant, **{k: repr(x) for k, x in self.form.given.items()}}
        given |= {self.form.heads: "N"} if self.form.heads else {}
        return [f"options = {{{', '.join(f'{k!r}: {x}' for k, x in given.items())}}}"]

    def _lifted(self, name: str, kind: str) -> list[str]:
        """A mask or a bias, whole or as the function takes it."""
        lines = [f"{name} = {name}.reshape((1,) * (4 - {name}.ndim) + tuple({name}.shape))"]
        rank = kind.partition("/")[0]
        if self.loops or rank not in RANKS:
            return [*lines, *[f"{name} = xp.broadcast_to({name}, (B, N, T, S))"] * bool(self.loops)]
        ruled_out, shape, _, axes = RANKS[rank]
        lines += _when(ruled_out.format(x=name), [RAISE.format(f"its {name} has the axes {axes} alone")])
        return [*lines, f"{name} = xp.broadcast_to({name}, {shape})"]

    def _placed(self, name: str, kind: str) -> str:
        rank = kind.partition("/")[0]
        return name if self.loops or rank not in RANKS else name + RANKS[rank][2]

    def _cast(self, x: str) -> str:
        return f"({x}).{'to' if self.form.arrays == 'torch' else 'astype'}(query.dtype)"

    def _masks(self) -> list[str]:
        """Lines for a mask, a bias, and for lengths of keys where a mask of keys tells them."""
        options, lines = self.form.options, []
        mask, bias = options.get("mask"), options.get("bias")
        if self.form.word:
            self.offered.append("is_causal")
            word = options["is_causal"].name if "is_causal" in options else options["mask"].name
            self.offered += ["mask"] * bool(mask)
            lines += _when("is_causal" + " and mask is None" * bool(mask), [f"options[{word!r}] = 'causal'"])
            if mask:
                rule = BY_LAW.but(causal=self.form.word).line("causal").text
                lines += _when("is_causal and mask is not None", [
                    "i, j = xp.arange(T)[:, None], xp.arange(S)", f"mask = mask & ({rule})"])  # fmt: skip
        rank, _, meaning = mask.form.partition("/") if mask else ("", "", "")
        either, meaning = meaning.endswith(OR_ADDED), meaning.removesuffix(OR_ADDED)
        if mask and rank == "BS" and "key_lengths" not in options and not self.loops:
            self.offered.append("key_lengths")
            of_lengths = ["of_keys = (xp.arange(S) < key_lengths[:, None])[:, None, None]"]
            lines += _when(
                "key_lengths is not None", [*of_lengths, "mask = of_keys if mask is None else mask & of_keys"]
            )
        if mask:
            self.offered.append("mask")
            value = self._placed("mask", rank)
            if meaning != "True attends":
                value = self._meant(value, meaning)
            lines += _when("mask is not None", [*self._lifted("mask", rank), f"options[{mask.name!r}] = {value}"])
        if mask and (either or meaning == ADDED) and not bias:  # it is a bias as well
            bias = mask
        if bias:
            self.offered.append("bias")
            kind = bias.form or "BNTS"
            own = [*self._lifted("bias", kind), f"of_bias = {self._placed('bias', kind)}"]
            if mask and bias.name == mask.name:
                both = (
                    RAISE.format(f"its {mask.name} is a mask or a bias")
                    if either
                    else f"of_bias = of_bias + options[{mask.name!r}]"
                )
                own += _when("mask is not None", [both])
            lines += _when("bias is not None", [*own, f"options[{bias.name!r}] = of_bias"])
        return lines

    def _meant(self, x: str, meaning: str) -> str:
        line = MEANINGS[meaning][0].format(x=x)
        return line if meaning == "True drops" else self._cast(line)

    def _rules(self) -> list[str]:
        """Lines for causal, windows, lengths, segments and offsets."""
        options, lines = self.form.options, []
        if (causal := options.get("is_causal")) and causal.form != WORD:
            self.offered.append("is_causal")
            lines.append(f"options[{causal.name!r}] = is_causal")
        if window := options.get("window"):
            self.offered.append("window")
            lines += _when("window is not None", self._window(window.name, window.form))
        if (lengths := options.get("key_lengths")) and "B" not in self.loops:
            self.offered.append("key_lengths")
            lines += _when("key_lengths is not None", [f"options[{lengths.name!r}] = key_lengths"])
        if (segments := options.get("segments")) and "B" not in self.loops:
            self.offered += ["query_segment_ids", "key_segment_ids"]
            names = [(k, x) for k, x in zip(self.offered[-2:], segments, strict=True) if x]
            pair = "query_segment_ids, key_segment_ids"
            own = (
                [f"options[{x!r}] = {k}" for k, x in names]
                if len(names) > 1
                else [f"options[{segments[0]!r}] = {pair}"]
            )
            lines += _when("query_segment_ids is not None", own)
        if (offset := options.get("offset")) and (offset.form == WIDE["offset"] or self.form.arrays != "jax"):
            self.offered.append("offset")
            one = [
                f"if len(set(offset.tolist())) > 1: {RAISE.format('its offset is one number')}",
                "offset = int(offset[0])",
            ]
            own = [] if offset.form == WIDE["offset"] else one
            lines += _when("offset is not None", [*own, f"options[{offset.name!r}] = offset"])
        return lines

    def _window(self, name: str, kind: str) -> list[str]:
        if kind == NUMBER:
            ruled_out, said = SIDES[self.form.how["side"]]
            ruled_out += " and not is_causal" * (ruled_out == "right != 0" and "is_causal" in self.offered)
            width = WIDTHS[REACH[self.form.how["reach"]]]
            beside = _when(f"left is None or {ruled_out}", [RAISE.format(said)])
            return ["left, right = window", *beside, f"options[{name!r}] = {width}"]
        if self.no_limit == "-1":
            return [f"options[{name!r}] = tuple(-1 if x is None else x for x in window)"]
        two = _when("None in window", [RAISE.format("its window has two numbers")]) if not self.no_limit else []
        return [*two, f"options[{name!r}] = window"]

    def _numbers(self) -> list[str]:
        """Lines for the scale, the softcap, and for what is passed on."""
        options, lines = self.form.options, []
        for ours in ("scale", "softcap"):
            if option := options.get(ours):
                self.offered.append(ours)
                lines += _when(f"{ours} is not None", [f"options[{option.name!r}] = {to(ours, option.form, ours)}"])
        for name in (x for x in PASSED if x in self.names and not self.loops):
            self.offered.append(name)
            lines += _when(f"{name} is not None", [f"options[{name!r}] = {name}"])
        return lines

    def _call(self) -> list[str]:
        form, lines = self.form, []
        lse = form.options.get("return_lse")
        if form.how["lse"] not in ("base e", "base 2"):
            lse = None
        if lse and not self.loops:
            self.offered.append("return_lse")
            lines += [f"options[{lse.name!r}] = return_lse"] if lse.name else []
        if self.loops:
            return [*lines, *self._looped()]
        pack, _, axis = form.pack.partition(" ")
        parts = [INTO[form.layout].format(x=x) for x in form.order.split(", ")]
        if pack:
            alone = 1 if pack == "kv" else 0
            given = ", ".join([*parts[:alone], f"{joining(axis)}([{', '.join(parts[alone:])}], {axis})"])
        elif form.by_name:
            given = ", ".join(f"{k}={x}" for k, x in zip(form.by_name, parts, strict=True))
        else:
            given = ", ".join(parts)
        out = BACK[form.outcome].format(x="out")
        lines += [f"found = fn({given}, **options)"]
        lines += [f"found = [*{form.container}]"] if form.container else []
        lines += ["out = found[0] if isinstance(found, (tuple, list)) else found"]
        lines += [f"out = {out}"] if out != "out" else []
        if not (lse and not self.loops):
            return [*lines, "return out"]
        told = back("return_lse", lse.form, "found[1]") + (f" * {LN_2}" if form.how["lse"] == "base 2" else "")
        return [*lines, f"return (out, {told}) if return_lse else out"]

    def _looped(self) -> list[str]:
        """A call for each text, or each head, where the function has no such axis."""
        form, index = self.form, {"B": "b", "N": ":, n", "BN": "b, n"}["".join(self.loops)]
        arrays = []
        for x in form.order.split(", "):
            where = index.replace("n", "n * G // N") if "N" in self.loops and x != "query" else index
            arrays.append(INTO[form.layout].format(x=f"{x}[{where}]"))
        given = arrays if not form.by_name else [f"{k}={x}" for k, x in zip(form.by_name, arrays, strict=True)]
        loop = " ".join(f"for {x.lower()} in range({x})" for x in self.loops)
        own = f"{{k: x[{index}] if getattr(x, 'ndim', 0) == 4 else x for k, x in options.items()}}"
        lines = [f"rows = [fn({', '.join(given)}, **{own}) {loop}]"]
        lines += [f"rows = [[*{form.container}] for found in rows]"] if form.container else []
        lines += ["rows = [x[0] if isinstance(x, (tuple, list)) else x for x in rows]"]
        lines += ["rows = [x.swapaxes(0, 1) for x in rows]"] if form.layout == "TND" else []
        whole = ".reshape(B, N, T, -1)" if len(self.loops) == 2 else ""
        return [*lines, f"return xp.stack(rows, {1 if index == ':, n' else 0}){whole}"]
