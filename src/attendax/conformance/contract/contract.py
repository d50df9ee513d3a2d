"""A contract: how a function is called and what it means by it, in words, as TOML and as an adapter."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..against import writing
from ..against.forms import LAW, Form, Option
from ..against.options import MASKED, MASKING, NUMBER, WIDE, first_kind
from ..conventions.form import Form as Conventions
from ..conventions.table import DEFECT, TABLE, UNUSUAL

NO_LIMIT = "window = window and tuple(-1 if x is None else x for x in window)"
FRAMEWORKS = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX"}
OF_PROTOCOL = {"mask": "BNTS/True attends", "window": WIDE["window"], "offset": WIDE["offset"]}  # kinds of the protocol
SEGMENTS = Option("query_segment_ids", "key_segment_ids")


class Meaning(NamedTuple):
    """A value that is not the law's."""

    axis: str
    value: str
    kind: str  # convention, unusual or defect; empty where nobody has to care
    words: str  # of the function, a sentence
    source: str = ""  # that documents it
    flag: str = ""  # of ``attendax check``, that declares it


@dataclasses.dataclass(frozen=True)
class Contract:
    """All that is known of an attention function: each value was tried by calls that could have refuted it.

    Attributes:
        path: of the function.
        form: how it is called, and its value of each axis of conventions.
        unread: its parameters of which no meaning was found, and why.
        dropout: its parameters that are a rate of dropout.
        no_limit: Python for no limit in a window of two sides; empty where it is not known, or has none.
        square: whether it takes as many queries as keys alone.
        calls: the number of calls that were made.
        seconds: CPU seconds that they took.
        cut: whether the limit of time ended it.
    """

    path: str
    form: Form
    unread: Mapping[str, str]
    dropout: tuple[str, ...] = ()
    no_limit: str = ""
    square: bool = False
    calls: int = 0
    seconds: float = 0.0
    cut: bool = False

    def means(self, axis: str) -> str:
        """The value of an axis of conventions, by the names of its table."""
        return self.form.how[axis]

    def meanings(self) -> Iterator[Meaning]:
        """Each value that is not the law's."""
        how = {axis: self.form.how[axis] for axis in TABLE} | MASKING[self.form.how["masking"]]
        how |= {"causal": self.form.word} if self.form.word else {}
        conventions = Conventions().but(**how)
        mask = self.form.options.get("mask")
        if mask and mask.form.endswith("/True drops") and how["mask"] == LAW["mask"]:
            conventions = conventions.but(mask="True drops")
        if not MASKED & set(self.form.options):
            conventions = conventions.but(empty=LAW["empty"])
        for axis, value in conventions.off:
            line = conventions.line(axis)
            yield Meaning(axis, value, line.kind, line.words, line.source, line.flag)
        if always := self.form.how["always"]:
            kind = DEFECT if Conventions().but(causal=always).kind("causal") == DEFECT else UNUSUAL
            yield Meaning("always", always, kind, f"it is causal whatever it is asked, {always}")
        if "return_lse" in self.form.options and (empty := self.form.how["empty_lse"]) not in ("", LAW["empty_lse"]):
            yield Meaning("empty_lse", empty, "", f"the log-sum-exp of a query without any key is {empty}")

    def lines(self) -> Iterator[str]:
        """Words for how it is called and what it means, line by line."""
        form, took = self.form, f"{self.calls} calls, {self.seconds:.1f} CPU seconds"
        yield f"{self.path}   {FRAMEWORKS[form.arrays]}"
        yield ""
        yield f"How it is called ({took}{', the limit' * self.cut})"
        more = [f"{k} = {x} unless given" for k, x in form.meant.items()]
        more += [f"{form.heads} = the number of heads"] if form.heads else []
        yield from _rows("arrays", [arrays_of(form)])
        yield from _rows("takes", ["as many queries as keys alone"] * self.square)
        yield from _rows("gives", [_gives(form)])
        yield from _rows("required", more)
        limit = {"window": f", {self.no_limit} is no limit" * bool(self.no_limit)}
        if (window := form.options.get("window")) and window.form == NUMBER:
            limit = {"window": f": {form.how['reach']}, {form.how['side']}"}
        keywords = [_option(ours, x, form.layout) + limit.get(ours, "") for ours, x in form.options.items() if x.name]
        yield from _rows("keywords", [*keywords, *(f"{x}: dropout, random" for x in self.dropout)])
        if form.word:
            yield from _rows("", [f"{form.options['mask'].name} may be the word 'causal', {form.word}"])
        meanings = list(self.meanings())
        for title, kinds in TITLES.items():
            found = [x for x in meanings if x.kind in kinds]
            yield from ["", title] * bool(found)
            for x in found:
                yield from _rows(x.axis, [x.words + (f"   ({x.source})" if x.source else "")])
        if not meanings:
            yield from ("", "Its meaning is that of the laws.")
        if self.unread:
            yield from ("", "Not understood")
            yield from (f"  {name}: {why}" for name, why in self.unread.items())

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def toml(self) -> str:
        """It as TOML: tables ``called``, ``keywords``, ``required``, ``means`` and ``unread``."""
        form = self.form
        called = {
            "arrays": form.arrays, "layout": form.layout, "order": form.order, "pack": form.pack,
            "returns": form.outcome, "first_of_several": form.first, "grouped_heads": form.grouped,
            "heads": form.heads, "equal_lengths": self.square,
        }  # fmt: skip
        keywords = {name: ours + f": {kind}" * bool(kind) for ours, name, kind in _keywords(form)}
        means = {x.axis: x.value for x in self.meanings()} | ({"mask_word": form.word} if form.word else {})
        if "window" in form.options and form.options["window"].form == NUMBER:
            means |= {axis: form.how[axis] for axis in ("reach", "side")}
        tables: dict[str, Mapping[str, object]] = {
            "called": called, "keywords": keywords, "required": form.meant, "means": means, "unread": self.unread,
        }  # fmt: skip
        lines = [f"function = {_toml(self.path)}"]
        for title, table in tables.items():
            given = {k: x for k, x in table.items() if x not in ("", False)}
            lines += ["", f"[{title}]", *(f"{k} = {_toml(x)}" for k, x in given.items())] if given else []
        return "\n".join(lines) + "\n"

    def called_as_protocol(self) -> bool:
        """Tell whether `attendax check` can call it as it is."""
        form, ours = self.form, _of_protocol(self.form)
        names = "layout", "order", "pack", "outcome", "first", "heads", "meant"
        return all(getattr(form, name) == getattr(ours, name) for name in names)

    def command(self, module: str = "adapter") -> str:
        """The command that judges its adapter, in a file ``module``.py; it declares conventions that have a flag."""
        flags = sorted({x.flag for x in self.meanings() if x.flag.startswith(("--causal", "--empty-rows"))})
        return " ".join([f"attendax check {module}:adapted", *flags])

    def adapter(self, module: str = "adapter") -> str:
        """Python that defines ``adapted``, the function under the protocol of ``attendax check``.

        It keeps its conventions; its first line has the ``command`` that judges it. Raises ``writing.NoAdapter`` if no
        adapter can be written.
        """
        text = writing.adapter(_of_protocol(self.form), self.form)
        if self.no_limit == "-1":
            text = re.sub(r"(def adapted.*\n)", rf"\1    {NO_LIMIT}\n", text)
        return f"# Judge it by: {self.command(module)}\n{text}"


TITLES = {
    "What it means, where the laws say something else": ("convention", ""),
    "Unusual: right only if you mean it": ("unusual",),
    "Defects: no library or paper documents this": ("defect",),
}


def _rows(title: str, entries: list[str]) -> Iterator[str]:
    """Entries below a title that stands before the first."""
    for k, entry in enumerate(entries):
        yield f"  {title if not k else '':<9} {entry}"


def _axes(layout: str, pack: str = "") -> str:
    axes = ["N·D" if x == "*" else x for x in layout.replace("(ND)", "*")]
    name, _, axis = pack.partition(" ")
    if name:
        axes.insert(int(axis), {"qkv": "3", "kv": "2"}[name])
    return f"({', '.join(axes)})"


def arrays_of(form: Form) -> str:
    """The arrays that it takes, and their axes, in words."""
    pack = form.pack.partition(" ")[0]
    axes, grouped = _axes(form.layout, form.pack), ", fewer heads of keys allowed" * form.grouped
    if pack == "kv":
        both = form.order.removeprefix("query, ")
        return f"query as {_axes(form.layout)}; {both} in one array as {axes}{grouped}"
    return f"{form.order}{' in one array' if pack else ''} as {axes}{grouped}"


def _gives(form: Form) -> str:
    first = ", the first of several results" * form.first
    lse = form.options.get("return_lse")
    always = f", and always the log-sum-exp as ({', '.join(lse.form)})" if lse and not lse.name else ""
    return f"{_axes(form.outcome)}{first}{always}"


def _option(ours: str, option: Option, layout: str) -> str:
    """A keyword, what it is, and how its value is given."""
    if ours == "segments":
        return f"{' and '.join(filter(None, option))}: segment ids"
    rank, _, meaning = option.form.partition("/")
    axes = _axes("".join(x for x in rank if x in f"TS{layout}"))  # of those that it has
    given = f"{axes}, {meaning}" if meaning else axes if set(rank) <= {*"BNTS"} and rank else option.form
    named = "" if option.name == ours else WORDS.get(ours, ours.replace("_", " "))
    said = ", ".join(filter(None, (named, given)))
    return f"{option.name}: {said}" if said else option.name


WORDS = {"is_causal": "causal", "return_lse": "gives the log-sum-exp as well", "key_lengths": "lengths of keys"}


def _keywords(form: Form) -> Iterator[tuple[str, str, str]]:
    """The name of each option here and there, and its kind; segment ids are two."""
    for ours, option in form.options.items():
        if ours == "segments":
            yield from (("query_segment_ids", option.name, ""), ("key_segment_ids", option.form, ""))[
                : 1 + bool(option.form)
            ]
        elif option.name:
            yield ours, option.name, option.form


def _toml(x: object) -> str:
    return json.dumps(x, ensure_ascii=False)


def _of_protocol(form: Form) -> Form:
    """The form of the protocol, with the conventions of another form and those options that it offers."""
    options = {k: Option(k, OF_PROTOCOL.get(k, first_kind(k))) for k in form.options}
    for name in ("window", "offset"):
        if name in options and form.options[name].form != WIDE[name]:  # one number
            options[name] = Option(name, NUMBER)
    if "segments" in options:
        options["segments"] = SEGMENTS
    if form.word:
        options["is_causal"] = Option("is_causal")
    lse = form.how["lse"] if form.how["lse"] != "base 2" else LAW["lse"]
    how = {**form.how, "lse": lse, "causal": form.word or form.how["causal"]}
    return Form(options=options, how=how, grouped=form.grouped, defaults={"is_causal": False, "return_lse": False})
