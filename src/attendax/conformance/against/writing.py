"""The adapter: Python under which one function answers as another does, from what is known of the two."""

import re

from .forms import REFUSED, SOFTMAX, UNCLEAR, Form
from .keywords import Keywords
from .keywords import NoAdapter as NoAdapter
from .remote import IMPORTS, import_line
from .results import Results, cast, key_heads
from .ways import ARRAYS, INTO, OUT_OF


def adapter(a: Form, b: Form) -> str:
    """Python that defines ``adapted``: called as ``a`` is, it answers as ``a`` does, by calling ``b``.

    Raises:
        NoAdapter: there is none.
    """
    return _Adapter(a, b).text()


class _Adapter(Keywords):
    """Lines, as they are found to be needed."""

    def text(self) -> str:
        """The whole of it."""
        arrays = self._arrays()
        of_keys, of_values = key_heads(self.a)
        repeated = [f"heads = {of_keys}", "key, value = key[:, heads], value[:, heads]"]
        if of_keys != of_values:
            repeated = [f"key, value = key[:, {of_keys}], value[:, {of_values}]"]
        options = repeated if self.repeats or (self.own_scores and self.a.grouped) else []
        options = options + (self._scores() if self.own_scores else self._options())
        maybe = any("options[" in line for line in options)
        call = self._call().replace("<rest>", ", **options" if maybe else "")
        rest = [
            *["options = {}"] * (maybe or bool(self.loops)),
            *options,
            *self._casts(),
            call,
            *self._results().lines(),
        ]
        lines = [line for part in [*arrays, *self._sizes("\n".join(rest)), *rest] for line in part.split("\n") if line]
        return "\n".join([*self._head(), *("    " + line for line in lines), ""])

    def _head(self) -> list[str]:
        a = self.whole
        words = [f"{x.name}={a.defaults.get(x.name)!r}" for x in a.options.values() if x.name]
        first = a.order if not a.pack else ARRAYS[a.pack.partition(" ")[0]]
        return [
            IMPORTS[self.b.arrays],
            import_line(self.b.path),
            "",
            "",
            f"def adapted({', '.join([first, *filter(None, [a.heads]), *words])}):",
        ]

    def _arrays(self) -> list[str]:
        """From the arrays of ``a`` to (B, N, T, D), where that is needed."""
        if not self.canonical:
            return []
        pack, _, axis = self.a.pack.partition(" ")
        names = "query, key, value" if pack == "qkv" else "key, value"
        lines = [f"{names} = xp.moveaxis({pack}, {axis}, 0)"] if pack else []
        lines += [f"heads = {self.a.heads}"] if self.a.heads not in ("", "heads") else []
        into = OUT_OF[self.a.layout]
        if into != "{x}":
            lines += ["B = query.shape[0]"] if "B," in into else []
            lines.append(f"query, key, value = ({into.format(x='x')} for x in (query, key, value))")
        return lines

    def _sizes(self, text: str) -> list[str]:
        """The sizes that the lines use."""
        layout = "BNTD" if self.canonical else self.a.layout
        pack, _, where = self.a.pack.partition(" ")
        used = [x for x in "BNTDGSV" if re.search(rf"\b{x}\b", text) or (x in "TS" and re.search(r"\bj\b", text))]
        found = []
        for size in used:
            array, axis = {"G": ("key", "N"), "S": ("key", "T"), "V": ("value", "D")}.get(size, ("query", size))
            place = layout.index(axis)
            if pack and not self.canonical and not (pack == "kv" and array == "query"):
                array, place = pack, place + (place >= int(where))
            found.append(f"{array}.shape[{place}]")
        lines = [f"{', '.join(used)} = {', '.join(found)}"] if found else []
        return lines + (["i, j = xp.arange(T)[:, None], xp.arange(S)[None]"] if re.search(r"\bj\b", text) else [])

    def _casts(self) -> list[str]:
        """Wider arrays, where the softmax of ``b`` is narrower."""
        one, other = self.a.how["softmax"], self.b.how["softmax"]
        if one == other or {REFUSED, UNCLEAR} & {one, other}:
            return []
        if one != SOFTMAX[0]:
            raise NoAdapter(f"A has {one}, which no argument of B asks for")
        names = ARRAYS[self.a.pack.partition(" ")[0] if not self.canonical else ""]
        first = names.partition(",")[0]
        wide = (
            f"({cast(self.b, 'x', 'xp.float32')} for x in ({names}))"
            if "," in names
            else cast(self.b, names, "xp.float32")
        )
        return [f"narrow = {first}.dtype", f"{names} = {wide}"]

    def _results(self) -> Results:
        whole = self.repeats or self.own_scores or not self.a.grouped
        return Results(self.a, self.b, self.canonical, bool(self.loops), self.empties, whole, self.lse)

    def _call(self) -> str:
        b = self.b
        if self.lse and b.options["return_lse"].name:
            self.words[b.options["return_lse"].name] = "True"
        if self.loops:
            return self._looped()
        pack, _, axis = b.pack.partition(" ")
        into = INTO[b.layout] if self.canonical else "{x}"
        lines, arrays = [], b.order
        if not self.canonical:
            arrays = b.order if not pack else ARRAYS[pack]
        elif pack:
            stacked = {"qkv": "query, key, value", "kv": "key, value"}[pack]
            parts = ", ".join(into.format(x=x) for x in stacked.split(", "))
            arrays = f"xp.stack([{parts}], {axis})"
            arrays = arrays if pack == "qkv" else f"{into.format(x='query')}, {arrays}"
        elif into != "{x}":
            lines = ["B = query.shape[0]"] if "(B," in into else []
            lines.append(f"{b.order} = ({into.format(x='x')} for x in ({b.order}))")
            self.words = {k: "heads" if k == b.heads else x for k, x in self.words.items()}
            lines = (["heads = query.shape[1]"] if b.heads else []) + lines
        elif b.heads:
            lines = ["heads = query.shape[1]"]
        words = [f"{k}={x}" for k, x in self.words.items()]
        given = ", ".join([arrays, *words])
        self.results = "out, lse" if self.lse else "out"
        always = b.options.get("return_lse")
        rest = "[0]" if b.first or (always and not always.name and not self.lse) else ""
        return "\n".join([*lines, f"{self.results} = fn({given}<rest>){rest}"])

    def _looped(self) -> str:
        """A call for each text, or each head, where ``b`` has no such axis."""
        b = self.b
        index = {"B": "b", "N": ":, n", "BN": "b, n"}["".join(self.loops)]
        at = {"b": "x[b % len(x)]", "b, n": "x[b % len(x), n % x.shape[1]]", ":, n": "x[:, n % x.shape[1]]"}[index]
        loop = " ".join(f"for {x.lower()} in range({x})" for x in self.loops)
        arrays = ", ".join(INTO[b.layout].format(x=f"{x}[{index}]") for x in b.order.split(", "))
        words = ", ".join(f"{k!r}: {x}" for k, x in self.words.items())
        lines = [f"options |= {{{words}}}"] if words else []
        given = f"**{{k: {at} if getattr(x, 'ndim', 0) else x for k, x in options.items()}}"
        lines.append(f"rows = [fn({arrays}, {given}){'[0]' * b.first} {loop}]")
        lines += ["rows = [x.swapaxes(0, 1) for x in rows]"] if b.layout == "TND" else []
        whole = ".reshape(B, N, T, -1)" if len(self.loops) == 2 else ""
        self.lse = None
        return "\n".join([*lines, f"out = xp.stack(rows, {1 if index == ':, n' else 0}){whole}"])
