"""The adapter: Python under which one function answers as another does, from what is known of the two."""

import itertools
import re

from ..conventions.table import DECLARED
from .forms import LSE, SOFTMAX, UNKNOWN, Form, Option, heads_of
from .keywords import NO_MAXIMUM, Keywords
from .keywords import NoAdapter as NoAdapter
from .options import (
    ARRAY_NAMES,
    BACK,
    CACHED,
    INTO,
    JOINED,
    KEYS,
    OF_KEYS,
    ONE_QUERY,
    OPTIONS,
    OUT_OF,
    PAIR,
    RESULT_LAYOUTS,
    SHARED,
)
from .remote import IMPORTS, PERHAPS, reached

ARRAYS = "query", "key", "value"
LN_2 = "0.6931471805599453"
AS_TUPLES = "[x if isinstance(x, (tuple, list)) else (x,) for x in rows]"  # results with lse where it is asked for
OF_SIZE = {"G": ("key", "N"), "S": ("key", "T"), "V": ("value", "D")}  # the array and the axis that has a size


def adapter(a: Form, b: Form) -> str:
    """Python that defines ``adapted``: called as ``a`` is, it answers as ``a`` does, by calling ``b``, or NoAdapter."""
    return Adapter(a, a.heard(), b.heard()).text()


class Adapter(Keywords):
    """Lines, as they are found to be needed."""

    def __init__(self, whole: Form, a: Form, b: Form, star: str = "") -> None:
        """``star`` if ``whole`` takes its options by name alone."""
        super().__init__(whole, a, b)
        self.star = star
        self.before, self.after = list[str](), list[str]()  # more lines on the arguments; on the options of ``b``

    def text(self) -> str:
        """The whole of it."""
        arrays, (of_keys, of_values) = self._arrays(), self._key_heads()
        lines = [f"key, value = key[:, {of_keys}], value[:, {of_values}]"]
        lines = lines if self.repeats or (self.own_scores and self.a.grouped) else []
        lines += self._scores() if self.own_scores else self._options()
        lines = [*self.before, *self._one_query(), *lines, *self.after, *self._shared()]
        self.maybe = any("options[" in line for line in lines)
        lines = ["options = {}"] * self.maybe + lines + [*self._casts(), *self._call(), *self._answer()]
        body = [line for part in [*arrays, *self._sizes("\n".join(lines)), *lines] for line in part.split("\n") if line]
        return "\n".join([*self._head(), *("    " + line for line in body), ""])

    def _shared(self) -> list[str]:
        """Lines for keys that are the values: queries do not see their second quarter, which the result has."""
        if self.b.pack not in SHARED:
            return []
        empty = "xp.zeros_like(query)"
        query = f"query = xp.concatenate([{SHARED[self.b.pack]}, {empty}, {empty}, {empty}], -1)"
        return ["key = xp.concatenate([key, value, xp.zeros_like(key), xp.zeros_like(key)], -1)", query]

    def _one_query(self) -> list[str]:
        """Lines that make each query a text of its own, where ``b`` takes one query."""
        if not self.takes_one_query:
            return []
        if self.own_scores or self.lse:
            raise NoAdapter("B takes one query")
        lines = ["tokens, texts = T, xp.arange(B * T) // T", "key, value = key[texts], value[texts]"]
        lines += ["query = query.swapaxes(1, 2).reshape(B * T, N, 1, -1)"]
        cut = "xp.broadcast_to({x}, (B, *{x}.shape[1:2], T, S)).swapaxes(1, 2).reshape(B * T, -1, 1, S)"
        of_rows = {"mask": cut, "bias": cut, "key_lengths": "{x}[texts]"}
        given = [(self.a.options[x].name, line) for x, line in of_rows.items() if x in self.a.options]
        lines += [f"{x} = {x} if {x} is None else {line.format(x=x)}" for x, line in given]
        return [*lines, "B, T = B * T, 1"]

    @property
    def takes_one_query(self) -> bool:
        """Tell whether ``b`` takes one query for each text and head, and ``a`` several."""
        return self.canonical and self.b.layout in ONE_QUERY

    def _head(self) -> list[str]:
        a = self.whole
        apart = "segments" if a.options.get("segments", Option("")).form != PAIR else ""
        both = [(x.name, x.form) if k == apart else (x.name,) for k, x in a.options.items()]
        words = [f"{x}={a.defaults.get(x)!r}" for x in dict.fromkeys(itertools.chain(*both)) if x]
        first = a.order if not a.pack else ARRAY_NAMES[a.pack.partition(" ")[0]]
        given = ", ".join([first, *filter(None, [a.heads, self.star if words else ""]), *words])
        of_pair = self.b.options.get("segments", Option("")).form == PAIR
        imports = ["import collections"] * of_pair + ["import types"] * any("types." in x for x in self.words.values())
        imports += ["import jax"] * (self.b.arrays == "jax" and bool(self.loops))
        return [*imports, IMPORTS[self.b.arrays], reached(self.b), "", "", f"def adapted({given}):"]

    def _arrays(self) -> list[str]:
        """Lines from the arrays of ``a`` to (B, N, T, D), where they are needed."""
        if not self.canonical:
            return []
        a = self.a
        pack, _, axis = a.pack.partition(" ")
        if a.pack in (*SHARED, CACHED):
            raise NoAdapter("the keys of A are its values" if a.pack in SHARED else "earlier keys of A lie in a cache")
        names = a.order if pack == "qkv" else a.order.removeprefix("query, ")
        into, merged = OUT_OF[a.layout], a.layout.replace("(ND)", "M")
        lines = [f"{names} = xp.moveaxis({pack}, {axis}, 0)"] if pack and axis not in JOINED else []
        if axis in JOINED:
            at, count = merged.index("M") if axis == "N" else JOINED[axis], len(names.split(", "))
            part = f"{':, ' * at}n * ({pack}.shape[{at}] // {count}) : (n + 1) * ({pack}.shape[{at}] // {count})"
            lines = [f"{names} = ({pack}[{part}] for n in range({count}))"]
        own = [f"heads = {a.heads}"] if a.heads not in ("", "heads") else []
        if axis == "D":
            each = ["query"] * (pack == "kv") + [pack]
            own += [f"B = {pack}.shape[{merged.find('B')}]"] * ("B," in into)
            return own + [f"{x} = {into.format(x=x)}" for x in each if into != "{x}"] + lines
        lines += own + [f"B = query.shape[{merged.find('B')}]"] * ("B," in into)
        if a.of_keys:
            each = [into, *(KEYS[x][1] if x in KEYS else OUT_OF[x] for x in a.of_keys)]
            given = (line.format(x=x) for line, x in zip(each, ARRAYS, strict=True))
            return [*lines, f"query, key, value = {', '.join(given)}"]
        return lines + [f"query, key, value = ({into.format(x='x')} for x in (query, key, value))"] * (into != "{x}")

    def _sizes(self, text: str) -> list[str]:
        """The sizes of which some line tells."""
        layout = "BNTD" if self.canonical else self.a.layout
        positions = bool(re.search(r"\bj\b", text))
        used = [x for x in "BNTDGSV" if re.search(rf"\b{x}\b", text) or (x in "TS" and positions)]
        arrays = {size: OF_SIZE.get(size, ("query", size)) for size in used}
        found = [f"{array}.shape[{layout.index(axis)}]" for array, axis in arrays.values()]
        lines = [f"{', '.join(used)} = {', '.join(found)}"] if found else []
        lines += ["i, j = xp.arange(T)[:, None], xp.arange(S)[None]"] * positions
        window = self.a.options["window"].name if "window" in self.a.options else ""
        pair = f"{window} = ({window}, {window}) if isinstance({window}, int) else {window}"
        return lines + [pair] * bool(window and f"{window}[1]" in text)

    def _casts(self) -> list[str]:
        """Wider arrays, where the softmax of ``b`` is narrower."""
        one, other = self.a.how["softmax"], self.b.how["softmax"]
        if one == other or UNKNOWN in (one, other):
            return []
        if one != SOFTMAX[0]:
            raise NoAdapter(f"A has {one}, which no argument of B asks for")
        wide = f"({self.cast('x', 'xp.float32')} for x in (query, key, value))"
        return ["narrow = query.dtype", f"query, key, value = {wide}"]

    def _key_heads(self) -> list[str]:
        """The head of keys, and that of values, of each query head."""
        return [re.sub(r"\bn\b", "xp.arange(N)", x) for x in heads_of(self.a.how["heads"])]

    def _call(self) -> list[str]:
        b = self.b
        if self.lse and b.options["return_lse"].name:
            self.words[b.options["return_lse"].name] = self.lse.name or "True"
        into = INTO[b.layout] if self.canonical else "{x}"
        words = [f"{k}={x}" for k, x in self.words.items()]
        if self.loops:
            return self._looped(into, words)
        pack, _, axis = b.pack.partition(" ")
        new = "[:, :, S - T :]" * (b.pack == CACHED)
        given = {x: x + new * (x != "query") for x in self._order()}
        parts, before = [self._given(x, into).format(x=line) for x, line in given.items()], list[str]()
        if b.has_one_key_head:
            return self._by_groups(parts, words)
        alone = parts[: pack == "kv"]
        if b.pack in SHARED:
            arrays = parts
        elif axis in JOINED:
            joined = f"xp.concatenate([{b.order.removeprefix('query, ' * len(alone))}], {JOINED[axis]})"
            before, arrays = [f"{pack} = {joined}"], [*alone, into.format(x=pack)]
        elif axis == "W":
            arrays = self._weights(parts)
        elif b.pack == CACHED:
            before = ["if T > S:\n    raise ValueError('its queries have keys: T <= S only')"]
            arrays = [f"{k}={x}" for k, x in zip(b.by_name, parts, strict=True)] if b.by_name else parts
        elif pack:
            arrays = [*alone, f"xp.stack([{', '.join(parts[len(alone) :])}], {axis})"]
        elif b.by_name:
            arrays = [f"{k}={x}" for k, x in zip(b.by_name, parts, strict=True)]
        elif b.of_keys:
            arrays = parts
        else:
            arrays = [b.order if into == "{x}" else f"*({into.format(x='x')} for x in ({b.order}))"]
        call = f"fn({', '.join([*arrays, *words, *['**options'] * self.maybe])})"
        cut = ["out = out[..., : N * D]"] * (b.layout in ("M(ND)", "(ND)M"))
        if not (b.container or self.lse):
            return [*before, f"out = {call}", *cut]
        return [
            *before,
            f"found = {self._parts(call)}",
            "out = found[0] if isinstance(found, (tuple, list)) else found",
            *cut,
        ]

    def _order(self) -> list[str]:
        """The arrays that ``b`` is given."""
        return self.b.order.split(", ")[: 2 if self.b.pack in SHARED else None]

    def _weights(self, parts: list[str]) -> list[str]:
        """The weights, of which the last is of several in one."""
        alone, side = len(self.b.by_name) - 1, -1 if self.b.layout[0] in "CM" else 0
        given = [*parts[:alone], f"xp.concatenate([{', '.join(parts[alone:])}], {side})"]
        return [f"{name}={x}" for name, x in zip(self.b.by_name, given, strict=True)]

    def _given(self, name: str, into: str) -> str:
        """The line to an array as ``b`` is given it."""
        own = dict(zip(ARRAYS[1:], self.b.of_keys, strict=False)).get(name, "")
        return KEYS[own][0] if own in KEYS else INTO.get(own, into)

    def _by_groups(self, parts: list[str], words: list[str]) -> list[str]:
        """A call for each head of keys, where ``b`` takes one without an axis."""
        b, group = self.b, "[:, g * (N // G) : (g + 1) * (N // G)]"
        of_group = {x: f"{x}{group if x == 'query' else '[:, g : g + 1]'}" for x in ARRAYS}
        arrays = [re.sub("|".join(ARRAYS), lambda x: of_group[x[0]], part) for part in parts]
        arrays = [f"{name}={x}" for name, x in zip(b.by_name, arrays, strict=True)] if b.by_name else arrays
        words = [re.sub(r"\bN\b", "(N // G)", x) if x.partition("=")[0] in (*b.meant, b.heads) else x for x in words]
        of_heads = f"x{group} if getattr(x, 'ndim', 0) == 4 and x.shape[1] == N > 1 else x"
        if "bias" in b.options and b.options["bias"].form == OF_KEYS:
            one = f"x.reshape(B, N, 1, S){group}.reshape(-1, 1, S)"
            of_heads = f"{one} if k == {b.options['bias'].name!r} else {of_heads}"
        each = [f"**{{k: {of_heads} for k, x in options.items()}}"] * self.maybe
        axis = b.outcome.replace("(ND)", "N").index("N") if "(" in b.outcome else b.outcome.index("N")
        call = f"fn({', '.join([*arrays, *words, *each])})"
        rows = f"[{self._parts(call)} for g in range(G)]"
        if not self.lse:
            return [f"out = xp.concatenate([x[0] if isinstance(x, (tuple, list)) else x for x in {rows}], {axis})"]
        lines = [f"rows = {rows}", f"rows = {AS_TUPLES}"]
        axes = f"({axis}, {b.options['return_lse'].form.index('N')})"
        return [*lines, f"found = [xp.concatenate(x, k) for x, k in zip(zip(*rows), {axes})]", "out = found[0]"]

    def _parts(self, found: str) -> str:
        """A result, or what it has in it."""
        return found if self.b.container in ("", PERHAPS) else f"[*{self.b.container.replace('found', found)}]"

    def _looped(self, into: str, words: list[str]) -> list[str]:
        """A call for each text, or each head, where ``b`` has no such axis."""
        b, index = self.b, {"B": "b", "N": ":, n", "BN": "b, n"}["".join(self.loops)]
        at = {"b": "x[b % len(x)]", "b, n": "x[b % len(x), n % x.shape[1]]", ":, n": "x[:, n % x.shape[1]]"}[index]
        at += " if getattr(x, 'ndim', 0) == 4 else " + "x[b % len(x)] if getattr(x, 'ndim', 0) else " * ("b" in index)
        names, (pack, _, packed_on) = [f"{x}[{index}]" for x in self._order()], b.pack.partition(" ")
        arrays = [self._given(x, into).format(x=one) for x, one in zip(self._order(), names, strict=True)]
        alone = int(pack == "kv")
        if packed_on == "W":
            arrays = self._weights(arrays)
        elif packed_on in JOINED:
            joined = f"xp.concatenate([{', '.join(names[alone:])}], {JOINED[packed_on] - 4})"
            arrays[alone:] = [f"(lambda x: {into.format(x='x')})({joined})" if into != "{x}" else joined]
        elif pack and b.pack not in SHARED:
            arrays[alone:] = [f"xp.stack([{', '.join(arrays[alone:])}], {packed_on})"]
        elif b.by_name:
            arrays = [f"{name}={x}" for name, x in zip(b.by_name, arrays, strict=True)]
        each = f"**{{k: {at}x for k, x in options.items()}}"
        call = f"fn({', '.join([*arrays, *words, *[each] * self.maybe])})"
        axis, shape = (1 if index == ":, n" else 0), "B, N, T" * (len(self.loops) == 2)
        turned = ".swapaxes(1, 2)" * (b.outcome == "TND")
        turned = ".reshape(B, T, N, -1).swapaxes(1, 2)" if b.outcome == "T(ND)" else turned
        turned = "[:, :, :, :, :].reshape(B, T, N, -1).swapaxes(1, 2)" if b.outcome == "TGND" else turned
        turned = "[:, :, None]" if b.outcome in ("ND", "BD") else turned
        turned = ".reshape(B, N, 1, -1)" if b.outcome == "(ND)" else turned
        turned = ".swapaxes(-2, -1)" if b.outcome in ("BDT", "DT") else turned
        lines = self._rows(self._parts(call) if self.lse or b.container else call)
        if self.lse:
            whole = f".reshape({shape}, *x[0].shape[1:])" * bool(shape)
            lines += [f"rows = {AS_TUPLES}", f"found = [xp.stack(x, {axis}){whole} for x in zip(*rows)]"]
            return [*lines, f"out = found[0]{turned}"]
        if b.container:
            lines += ["rows = [x[0] if isinstance(x, (tuple, list)) else x for x in rows]"]
        return [*lines, f"out = xp.stack(rows, {axis}){turned}" + f".reshape({shape}, -1)" * bool(shape)]

    def _rows(self, call: str) -> list[str]:
        """Lines for the results of all calls; JAX compiles one call, and not as many as there are texts and heads."""
        loop, names = " ".join(f"for {x.lower()} in range({x})" for x in self.loops), ", ".join(self.loops).lower()
        if self.b.arrays != "jax":
            return [f"rows = [{call} {loop}]"]
        return [
            f"row, count = lambda {names}: {call}, {' * '.join(self.loops)}",
            "if isinstance(query, jax.core.Tracer):",
            f"    every = jax.lax.map(lambda i: row({'i // N, i % N' if self.loops[1:] else 'i'}), xp.arange(count))",
            "    rows = [jax.tree.map(lambda x: x[i], every) for i in range(count)]",
            "else:",
            f"    rows = [row({names}) {loop}]",
        ]

    def _answer(self) -> list[str]:
        lines, out = [], "out"
        if self.canonical:
            back = "out" if self.loops else BACK[self.b.outcome].format(x="out")
            lines += [f"out = {back}"] if back != "out" else []
            lines += ["out = out[..., D : 2 * D]"] * (self.b.pack in SHARED)
            lines += ["out = out.reshape(-1, tokens, N, out.shape[-1]).swapaxes(1, 2)"] * self.takes_one_query
            out = RESULT_LAYOUTS[self.a.outcome].format(x="out")
        lines += [self._filled()] if self.fills else []
        lines += self._narrowed()
        if not self.lse:
            return [*lines, f"return {out}"]
        asked, lse = self.lse.name, self._log()
        lines += ["largest = xp.amax(scores, -1)"] * ("largest" in lse)
        return [*lines, f"return ({out}, {lse}) if {asked} else {out}" if asked else f"return {out}, {lse}"]

    def _filled(self) -> str:
        how, some = self.a.how["empty"], "allowed.any(-1)[..., None]"
        if how != DECLARED["mean"]:
            return f"out = xp.where({some}, out, {'0.0' if how == '0' else 'xp.nan'})"
        fewer = self.a.grouped and not (self.repeats or self.own_scores)  # heads of values than of queries
        value = f"value[:, {self._key_heads()[1]}]" if fewer else "value"
        return f"out = xp.where({some}, out, {value}.mean(-2)[..., None, :])"

    def _narrowed(self) -> list[str]:
        one, other = self.a.how, self.b.how
        if UNKNOWN in (one["out"], other["out"]):
            return []
        clear = UNKNOWN not in (one["softmax"], other["softmax"])
        if clear and one["softmax"] != other["softmax"] and one["out"] == "of the query":
            return [f"out = {self.cast('out', 'narrow')}"]
        if one["out"] == other["out"]:
            return []
        return [f"out = {self.cast('out', 'query.dtype' if one['out'] == 'of the query' else 'xp.' + one['out'])}"]

    def _log(self) -> str:
        """The log-sum-exp of ``a``, by the second result."""
        a, b = self.a, self.b
        one, other = (OPTIONS["return_lse"].kinds[x.options["return_lse"].form][0] for x in (a, b))
        if (a.how["lse"], one, self.unlike) == (b.how["lse"], other, False):
            return "found[1]"
        x = other.format(x="found[1]")
        if a.how["lse"] != b.how["lse"]:
            natural = {"base e": "{x}", "base 2": f"{{x}} * {LN_2}", NO_MAXIMUM: "({x} + largest)"}[b.how["lse"]]
            x = LSE[a.how["lse"]].format(x=natural.format(x=x))
        if self.unlike:
            x = f"xp.where(allowed.any(-1), {x}, float({a.how['empty_lse']!r}))"
        return one.format(x=x if one == "{x}" else f"({x})")
