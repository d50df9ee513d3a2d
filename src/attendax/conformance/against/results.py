"""The last lines of an adapter: from the results of one function to those of another."""

import re
from typing import NamedTuple

from .forms import EMPTY, LSE, REFUSED, UNCLEAR, Form, Option, heads_of
from .ways import BACK, FIRST, GIVEN, INTO, LSE_LAYOUTS, OUT_OF

NO_MAXIMUM = "without the maximum"
LN_2 = "0.6931471805599453"


class Results(NamedTuple):
    """What there is when B has answered.

    Attributes:
        a, b: the two.
        canonical: whether query, key and value are no longer those of A.
        looped: whether out is (B, N, T, V) already.
        empties: whether rows without any key have to be filled.
        whole: whether there are as many heads of values as of queries.
        lse: the keyword of A that asks for it, where there is one.
    """

    a: Form
    b: Form
    canonical: bool
    looped: bool
    empties: bool
    whole: bool
    lse: Option | None

    def lines(self) -> list[str]:
        """The results, from the form of B to that of A."""
        lines, out = [], "out"
        if self.canonical:
            back = "out" if self.looped else BACK[self.b.outcome].format(x="out")
            lines += [f"out = {back}"] if back != "out" else []
            layout = self.a.outcome
            out = f"out{FIRST[layout]}" if layout in FIRST else GIVEN[layout].format(x="out")
        lines += [self._filled()] if self.empties else []
        lines += self._narrowed()
        if not self.lse:
            return [*lines, f"return {out}"]
        asked = self.lse.name
        return [*lines, *self._logs(), f"return ({out}, lse) if {asked} else {out}" if asked else f"return {out}, lse"]

    def _filled(self) -> str:
        """What a query without any key gets."""
        how, some = self.a.how["empty"], "allowed.any(-1)[..., None]"
        if how != EMPTY[1]:
            return f"out = xp.where({some}, out, {'0.0' if how == '0' else 'xp.nan'})"
        value = "value"
        if INTO[self.b.layout] != "{x}" and not self.b.pack and not self.looped:  # it was given to B
            value = f"({OUT_OF[self.b.layout].format(x='value')})"
        value += "" if self.whole else f"[:, {key_heads(self.a)[1]}]"
        return f"out = xp.where({some}, out, {value}.mean(-2)[..., None, :])"

    def _narrowed(self) -> list[str]:
        one, other = self.a.how, self.b.how
        if REFUSED in (one["out"], other["out"]):
            return []
        clear = UNCLEAR not in (one["softmax"], other["softmax"])
        if clear and one["softmax"] != other["softmax"] and one["out"] == "of the query":
            return [f"out = {cast(self.b, 'out', 'narrow')}"]
        if one["out"] == other["out"]:
            return []
        dtype = "query.dtype" if one["out"] == "of the query" else f"xp.{one['out']}"
        return [f"out = {cast(self.b, 'out', dtype)}"]

    def _logs(self) -> list[str]:
        a, b = self.a, self.b
        one, other = (LSE_LAYOUTS[x.options["return_lse"].form] for x in (a, b))
        if a.how["lse"] == b.how["lse"]:
            return [f"lse = {LSE_LAYOUTS['BTN'].format(x='lse')}"] if one != other else []
        lines = ["largest = xp.amax(scores, -1)"] if NO_MAXIMUM in (a.how["lse"], b.how["lse"]) else []
        natural = {"base e": "{x}", "base 2": f"{{x}} * {LN_2}", NO_MAXIMUM: "({x} + largest)"}[b.how["lse"]]
        x = LSE[a.how["lse"]].format(x=natural.format(x=other.format(x="lse")))
        return [*lines, f"lse = {one.format(x=x if one == '{x}' else f'({x})')}"]


def key_heads(form: Form) -> tuple[str, str]:
    """The head of keys, and that of values, of each query head."""
    of_keys, of_values = (
        re.sub(r"\bn\b", "xp.arange(N)", x).replace("np.", "xp.") for x in heads_of(form.how["heads"])
    )
    return of_keys, of_values


def cast(form: Form, x: str, dtype: str) -> str:
    """An array in another dtype, as the arrays of that form are cast."""
    return f"{x}.{'to' if form.arrays == 'torch' else 'astype'}({dtype})"
