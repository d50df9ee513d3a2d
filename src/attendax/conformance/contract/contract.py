"""A contract: how a function is called and what it means by it, in words, as TOML and as an adapter."""

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..adapters.implementation import OPTIONS as PROTOCOL_OPTIONS
from ..against import options
from ..against.dropout import AFTER, BEFORE, BOTH, DIVIDED, IN_INFERENCE, OF_ALL_QUERIES, OTHER_MEAN, UNASKED, UNSCALED
from ..against.forms import BY_LAW, Form, Option, order_of
from ..against.options import ADDED, BEGINS, MASKED, MASKING, OR_ADDED, PAIR, REACH, WIDE, WORD, axes_of
from ..against.plain_call import OF_PLAIN
from ..against.reading import ON_BOTH_SIDES
from ..against.weights import WEIGHT, WEIGHTS, projected
from ..conventions.table import ADDED_INSTEAD, CONVENTION, DECLARED, DEFECT, EQUAL_LENGTHS, INSTEAD, TABLE, UNUSUAL
from ..conventions.values import Conventions
from . import asides, docstrings, fitting

AS_THE_LAWS = "It follows the laws."
FRAMEWORKS = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX"}

OF_DROPOUT = {  # the kind of what is not the law's, words, and a source
    UNSCALED: (DEFECT, "dropout does not multiply what it keeps by 1/(1 - rate)", ""),
    DIVIDED: (DEFECT, "dropout divides what it keeps by the rate, not by 1 - rate", ""),
    OTHER_MEAN: (DEFECT, "dropout changes the mean of the results", ""),
    IN_INFERENCE: (DEFECT, "dropout acts in inference as well: the mode is ignored", ""),
    BEFORE: (UNUSUAL, "dropout is of the scores, before the softmax", "Li et al. 2022, DropKey"),
    OF_ALL_QUERIES: (CONVENTION, "dropout drops the same keys for all queries", "T5X, dot_product_attention"),
    AFTER: (UNUSUAL, "dropout is of the result, not of the weights", ""),
    BOTH: (CONVENTION, "dropout is of the weights, and of the result", "CausalSelfAttention of nanoGPT"),
    UNASKED: (UNUSUAL, "dropout acts in every call that does not give 0: nothing else switches it off", ""),
}


SHOWING = re.compile("(?<!in)(valid|visible)|keep")  # in the name of a mask: where it is True, a key is seen


class Meaning(NamedTuple):
    """A value that is not the law's."""

    axis: str
    value: str
    kind: str  # convention, unusual or defect; empty where nobody has to care
    words: str  # of the function, a sentence
    source: str = ""  # that documents it


@dataclasses.dataclass(frozen=True)
class Contract:
    """All that is known of an attention function: each value was tried by calls that could have refuted it.

    Attributes:
        path: path of the function.
        form: how it is called, and which of the known conventions it follows.
        unread: parameters without a known meaning, and why.
        dropout: parameters that are a dropout rate.
        no_limit: Python for no limit in a window of two sides; empty if unknown or not needed.
        square: whether it only takes as many queries as keys.
        short: whether it takes at most as many queries as keys, if it is causal to the end of the keys.
        alike: options that it only takes with as many queries as keys.
        whole: options whose arrays need all of their axes: it raises if one of them is 1.
        names: all of its parameters.
        idle: parameters whose other values did not change its first result, and what they did, in words.
        calls: number of calls that were made.
        seconds: CPU seconds of these calls.
        cut: whether the time limit ended the description.
        rough: whether its results are only near those of its form, as with half precision.
        documentation: its name and its docstring, which may say that an unusual value is meant.
        source: its text, which may say so as well.
        faults: wrong parameters that no case tests, and what they do, in words.
        widths: whether it only takes values as wide as keys: with others it raises no error, and gives another shape.
    """

    path: str
    form: Form
    unread: Mapping[str, str]
    dropout: tuple[str, ...] = ()
    no_limit: str = ""
    square: bool = False
    short: bool = False
    alike: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    calls: int = 0
    seconds: float = 0.0
    cut: bool = False
    rough: bool = False
    faults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    documentation: str = ""
    source: str = ""
    widths: bool = False

    def means(self, axis: str) -> str:
        """The value of an axis of conventions, by the names of its table."""
        return self.form.how[axis]

    @property
    def conventions(self) -> Conventions:
        """Its value of each axis of the table."""
        how = {axis: self.form.how[axis] for axis in TABLE} | MASKING[self.form.how["masking"]]
        how |= {"causal": self.form.word} if self.form.word else {}
        if (mask := self.form.options.get("mask")) and "/True drops" in mask.form and how["mask"] == BY_LAW["mask"]:
            how["mask"] = "True drops"
        if how["joins"] == INSTEAD and mask and mask.form.endswith((ADDED, OR_ADDED)):
            how["joins"] = ADDED_INSTEAD
        how |= {} if MASKED & set(self.form.options) or self.form.how["always"] else {"empty": BY_LAW["empty"]}
        return Conventions().but(**how)

    def meanings(self) -> Iterator[Meaning]:
        """Each value that is not the law's."""
        of_plain = any(self.conventions.kind(axis) == DEFECT for axis in OF_PLAIN)
        contrary = dict(self._contrary())
        for axis, value in self.conventions.off:
            line = self.conventions.line(axis)
            if axis == "mask" and value in contrary:
                line = line._replace(kind=UNUSUAL, words=contrary.pop(value), source="")
            if of_plain and axis not in OF_PLAIN and line.kind == DEFECT:
                continue  # what is off in the plain call may look like it
            documented = self._by_default(axis, value) or self._stated(axis, value) or self._replaces_causal(axis)
            if documented and (line.kind == UNUSUAL or axis == "heads"):
                line = line._replace(kind=CONVENTION, source=documented)
            yield Meaning(axis, value, line.kind, line.words, line.source)
        yield from (Meaning("mask", value, UNUSUAL, words) for value, words in contrary.items())
        yield from self._miscounted()
        causal = self.conventions.value("causal")
        if "is_causal" in self.form.options and causal in FROM_THE_START and docstrings.says_newest(self.documentation):
            words = f"causal is {causal}, and by its docstring queries are the newest tokens of a cache"
            yield Meaning("causal", causal, UNUSUAL, words)
        used, names = self.form.order.split(", "), self._by_names().order.split(", ")
        moved = [(x, y) for x, y in zip(names, used, strict=True) if x != y and not self.form.pack]
        if moved:
            words = " and ".join(f"its {x} is used as the {y}" for x, y in moved)
            yield Meaning("arrays", ", ".join(f"{x} as {y}" for x, y in moved), DEFECT, words)
        if always := self.form.how["always"]:
            kind, words = Conventions().but(causal=always).kind("causal"), f"it is causal without being asked, {always}"
            switch = self.form.options.get("is_causal", Option(""))
            asked = switch.name * (switch.form != WORD)
            meant = self._means_causal(always) * (kind in ("law", CONVENTION) and not asked)
            words = f"it is causal, {always}, even if {asked} is False" if asked else words
            kind = DEFECT if kind == DEFECT or asked else CONVENTION if meant else UNUSUAL
            yield Meaning("always", always, kind, words, meant)
        if self.rough:
            words = "its results are as far off as half precision is, for float32 arrays"
            yield Meaning("results", "half precision", DEFECT, words)
        if (dropout := self.form.how["dropout"]) in OF_DROPOUT:
            yield Meaning("dropout", dropout, *OF_DROPOUT[dropout])
        if self.form.how["negative"] == ON_BOTH_SIDES:
            words = "-1 on one side of a window counts as a number: only -1 on both sides removes the limits"
            yield Meaning("negative", ON_BOTH_SIDES, DEFECT, words)
        for name, words in self.faults.items():
            yield Meaning(name, words, DEFECT, words)
        if (large := self.form.how["large"]) != BY_LAW["large"]:
            kind = UNUSUAL if large.startswith("clips") else DEFECT
            yield Meaning("large", large, kind, f"of large scores it {large}")
        if "return_lse" in self.form.options and (empty := self.form.how["empty_lse"]) not in ("", BY_LAW["empty_lse"]):
            yield Meaning("empty_lse", empty, "", f"the log-sum-exp of a query without any key is {empty}")

    def _contrary(self) -> Iterator[tuple[str, str]]:
        """The meaning of True in masks whose docstring, or else whose name, says the contrary, and words for it.

        An ``attention_mask`` of two axes shows keys in transformers. One of four hides pairs in Megatron.
        """
        does = {"True attends": "shows", "True drops": "hides"}
        for ours in (x for x in ("mask", "key_lengths") if x in self.form.options):
            name, kind = self.form.options[ours]
            for value in (x for x in does if x in kind):
                hides, texts = value == "True drops", {"docstring": self.documentation.partition("\n")[2]}
                texts["comment"] = docstrings.comments(self.source)
                said = ((place, docstrings.says_hides(x, name)) for place, x in texts.items())
                place, stated = next((x for x in said if x[1] is not None), ("", None))
                shown = SHOWING.search(name) or (name == "attention_mask" and kind.startswith("BS/"))
                if stated not in (None, hides):
                    other = next(words for x, words in does.items() if x != value)
                    yield value, f"True in {name} {does[value]} a key, and by its {place} it {other} one"
                elif stated is None and hides and shown and ours == "mask":
                    yield value, f"True in {name} hides a key, and by that name it shows one"

    def _miscounted(self) -> Iterator[Meaning]:
        """The keys of a window of one number, if its docstring counts others."""
        name, kind = self.form.options.get("window", Option(""))
        stated = docstrings.says_reach(self.documentation.partition("\n")[2], name) if name else ""
        reach = self.form.how["reach"]
        if stated and kind != WIDE["window"] and REACH[reach] != stated:
            other = next(words for words, line in REACH.items() if line == stated)
            yield Meaning("reach", reach, UNUSUAL, f"{name} counts {reach}, and by its docstring {other}")

    def _stated(self, axis: str, value: str) -> str:
        has_switch = any("is_causal" in options.named(x) for x in self.names)
        return docstrings.stated(axis, value, self.documentation, self.names, "" if has_switch else self.source)

    def _by_default(self, axis: str, value: str) -> str:
        """Words for a scale that its default documents, a known bias, or keys that are the values; else nothing."""
        scale, bias = self.form.options.get("scale"), self.form.options.get("bias")
        if bias and bias.name == "ab" and (axis, value) == ("order", asides.SCALED):
            return "ab of JAX's flash attention for TPU"
        if self.form.pack in options.SHARED and (axis, value) == ("scale", "1"):
            return "the score `dot` of Luong et al. 2015"
        default = self.form.defaults.get(scale.name) if scale else None
        if not scale or not isinstance(default, int | float):
            return ""
        words = f"{scale.name} is {default:.6g} by default"
        own = [f"{x:.6g}" for x in (default, 1 / default, default**-0.5)] if default > 0 else []
        if axis == "scale" and value in own:
            return words + ", as in JAX's flash attention for TPU" * (default == 1)
        return words if default == 1 and (axis, value) == ("given_scale", "times 1/√D") else ""

    def _means_causal(self, always: str) -> str:
        """Words for what says that it is meant to be causal without being asked; else nothing."""
        if {*options.OPEN_POSITIONS} & {*self.form.meant}:
            return "it is given positions"
        if "cache_len" in self.form.meant:
            return "it is given the length of a cache"
        self_evident = "attention_forward of llm.c" * self.form.pack.startswith("qkv")
        if "window" in self.form.options and self.form.how["side"] == "before":
            self_evident = "its window has keys before a query alone, as in Mistral"
        return self._stated("always", always) or self._replaces_causal("joins") or self_evident

    def _replaces_causal(self, axis: str) -> str:
        """The source of a mask of pairs in place of causal, which nobody asked for; empty for a mask of padding."""
        mask, how = self.form.options.get("mask"), self.form.how
        of_pairs = mask and not mask.form.startswith("BS/") and how["always"] and how["joins"] == INSTEAD
        return "scaled_dot_product_attention of LitGPT" if axis == "joins" and of_pairs else ""

    def judged_by(self) -> Conventions:
        """The conventions under which `attendax check` judges it: those that no adapter translates, and no defect."""
        kept = {x.axis: x.value for x in self.meanings() if x.kind in JUDGED and x.axis in TABLE}
        conventions = Conventions().but(**{axis: x for axis, x in kept.items() if axis not in TRANSLATED})
        always = PAIRS_IF_ALWAYS.get(self.form.how["always"])
        return conventions.but(pairs=always) if always else conventions

    def lines(self) -> Iterator[str]:
        """Words for how it is called and what it means, line by line."""
        form = self.form
        took = f"found by {self.calls} calls, {self.seconds:.1f} CPU seconds"
        took = took if self.calls else "as its contract file says"
        yield f"{self.path}   {FRAMEWORKS[form.arrays]}"
        yield ""
        yield f"How it is called ({took}{', the limit' * self.cut})"
        packs = [x for x in form.meant if x in BEGINS or x in options.LONGEST_NAMES]
        of_x = projected(form.meant) if form.layout in WEIGHTS else []
        left_out = {*packs, *of_x, *(x.name for x in form.options.values()), *(x.partition(":")[0] for x in self.idle)}
        said = {options.MODULE_STUB: "an object with num_heads = N, head_dim = D, scale = D ** -0.5 and the like"}
        said |= {x: "the identity" if "eye" in x else "0" for k, x in form.meant.items() if WEIGHT.fullmatch(k)}
        said |= {x: "the keys or values before these, with room for more" for x in form.meant.values() if "S - T)" in x}
        said |= {x: "no rotation, which is not tested" for values in options.OPEN_ROTATIONS.values() for x in values}
        meant = {k: said.get(x, x) for k, x in form.meant.items() if k not in left_out}
        more = [f"{k} = {x}" for k, x in meant.items() if k not in form.defaults]
        more += [f"{', '.join(packs)}: of sequences of any lengths"] if packs else []
        heads = {form.heads: "the number of heads"} if form.heads else {}
        has_default = form.heads in form.defaults
        more += [f"{k} = {x}" for k, x in heads.items() if not has_default]
        yield from _rows("arrays", [arrays_of(form)])
        takes = ["T = S only: as many queries as keys"] * self.square
        takes += ["V = D only: values as wide as keys"] * self.widths
        when = "" if form.how["always"] else ", if it is causal"
        takes += [f"T <= S only{when}"] * self.short
        takes += [f"{self.form.options[x].name} only if T = S" for x in self.alike if not self.square]
        takes += [f"{self.form.options[x].name} with all of its axes: none may be 1" for x in self.whole]
        yield from _rows("takes", takes)
        yield from _rows("returns", [_gives(form)])
        yield from _rows("required", more)
        own = {**form.given, **(heads if has_default else {}), **{k: meant[k] for k in meant if k in form.defaults}}
        own_lines = [f"{k} = {x}; its own default is {form.defaults.get(k)}" for k, x in own.items()]
        yield from _rows("set", own_lines)
        limit = {"window": f", {self.no_limit} is no limit" * bool(self.no_limit)}
        of_number = (window := form.options.get("window")) and window.form != WIDE["window"]
        if of_number and self.conventions.kind("window") != DEFECT:
            limit = {"window": f": {form.how['reach']}, {form.how['side']}"}
        keywords = [_option(ours, x, form.outcome) + limit.get(ours, "") for ours, x in form.options.items() if x.name]
        dropout = [f"{x}: {self._of_dropout()}" for x in self.dropout]
        yield from _rows("keywords", [*keywords, *dropout, *self.idle])
        if form.word:
            yield from _rows("", [f"{form.options['mask'].name} may be the word 'causal', {form.word}"])
        meanings = list(self.meanings())
        for title, kinds in SECTION_TITLES.items():
            found = [x for x in meanings if x.kind in kinds]
            yield from ["", title] * bool(found)
            for x in found:
                words = of_width(x.words, self.form)
                yield from _rows(x.axis, [words + (f"   ({x.source})" if x.source else "")])
        if not meanings:
            yield from ("", AS_THE_LAWS)
        if self.unread:
            yield from ("", "Not understood")
            yield from (f"  {name}: {why}" for name, why in self.unread.items())

    def _of_dropout(self) -> str:
        """Words for its dropout, by a call at a rate of 0.5."""
        seen = self.form.how["dropout"]
        return "dropout" + f", {seen}" * bool(seen) if seen != "drops nothing" else "changes nothing"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def tables(self) -> dict[str, dict[str, object]]:
        """It as tables ``called``, ``keywords``, ``required``, ``means`` and ``unread``."""
        form = self.form
        called: dict[str, object] = {
            "arrays": form.arrays, "layout": form.layout, "order": form.order, "pack": form.pack,
            "key_layouts": list(form.of_keys) or "",
            "returns": form.outcome, "first_of_several": form.first, "grouped_heads": form.grouped,
            "heads": form.heads, "equal_lengths": self.square, "queries_at_most_keys": self.short,
            "equal_lengths_with": list(self.alike) or "", "whole_axes_of": list(self.whole) or "",
            "lacks": ["V != D"] * self.widths or "",
        }  # fmt: skip
        keywords: dict[str, object] = {name: ours + f": {kind}" * bool(kind) for ours, name, kind in _keywords(form)}
        means: dict[str, object] = {x.axis: x.value for x in self.meanings()}
        means |= {"mask_word": form.word} if form.word else {}
        if "window" in form.options and form.options["window"].form != WIDE["window"]:
            means |= {axis: form.how[axis] for axis in ("reach", "side")}
        found: dict[str, dict[str, object]] = {
            "called": called, "keywords": keywords, "required": dict(form.meant), "means": means,
            "unread": dict(self.unread),
        }  # fmt: skip
        return {title: {k: x for k, x in table.items() if x not in ("", False)} for title, table in found.items()}

    def toml(self) -> str:
        """It as TOML."""
        lines = [f"function = {_toml(self.path)}"]
        for title, table in self.tables().items():
            lines += ["", f"[{title}]", *(f"{_key(k)} = {_toml(x)}" for k, x in table.items())] if table else []
        return "\n".join(lines) + "\n"

    def adapter(self) -> str:
        """Python that defines ``adapted``, the function by the protocol of `attendax check`; empty if it follows that.

        It keeps all conventions except the layout, the kinds of options, and the base of the log-sum-exp.
        """
        form = self._by_names()
        flags = any(isinstance(form.defaults.get(x), bool) for x in ("mask", "bias"))  # that are none of the protocol
        read = {*fitting.PASSED, *itertools.chain(*form.options.values())}
        limited = self.short or self.alike or self.whole or flags or ({*self.names} & {*PROTOCOL_OPTIONS}) - read
        return "" if fitting.is_of_protocol(form, self.no_limit) and not limited else self.fitted()

    def fitted(self) -> str:
        """Python that defines ``adapted`` in any case."""
        form, alike, whole = self._by_names(), self.alike, self.whole
        return fitting.fit(form, self.no_limit, self.names, short=self.short, alike=alike, whole=whole)

    def _by_names(self) -> Form:
        """The form in which each array is what the name of its parameter says."""
        return dataclasses.replace(self.form, order=order_of(self.form.by_name or self.names[:3]) or self.form.order)


JUDGED = CONVENTION, UNUSUAL
FROM_THE_START = DECLARED["start"], DECLARED["decode"]  # values of causal
TRANSLATED = "mask", "lse"
PAIRS_IF_ALWAYS = {  # values of the axis of pairs
    "aligned to the start": "causal", "aligned to the end": "causal to the end",
    "without its own key": "causal except for its own key",
    "aligned to the end, without its own key": "causal to the end except for its own key",
    DECLARED["decode"]: "causal except for a single query",
    EQUAL_LENGTHS: "causal with as many queries as keys",
}  # fmt: skip
SECTION_TITLES = {
    "Conventions that differ from the laws": ("convention", ""),
    "Unusual: right only if you mean it": ("unusual",),
    "Defects: no library or paper documents this behaviour": ("defect",),
}


def _rows(title: str, entries: list[str]) -> Iterator[str]:
    """Entries below a title that stands before the first."""
    for k, entry in enumerate(entries):
        yield f"  {title if not k else '':<9} {entry}"


def arrays_of(form: Form) -> str:
    """The arrays that it takes, and their axes, in words."""
    pack = form.pack.partition(" ")[0]
    axes, grouped = axes_of(form.layout, form.pack), ", fewer key heads allowed" * form.grouped
    if form.layout in WEIGHTS:
        x, weights = " and ".join(projected(form.meant)), ", ".join(form.by_name)
        return f"{x} of one-hot rows, so that the weights {weights} {axes} are {form.order}{grouped}"
    if form.pack in options.SHARED:
        both = axes_of((form.of_keys or (form.layout,))[0].replace("T", "S"))
        return f"query as {axes}; keys, which are the values, as {both}"
    if pack == "kv":
        both = form.order.removeprefix("query, ")
        return f"query as {axes_of(form.layout)}; {both} in one array as {axes}{grouped}"
    if form.of_keys:
        own = dict(zip(("key", "value"), (x.replace("T", "S") for x in form.of_keys), strict=True))
        own = {k: x.replace("N", "G") for k, x in own.items()} if form.layout in options.IN_GROUPS else own
        return ", ".join(f"{x} as {axes_of(own.get(x, form.layout))}" for x in form.order.split(", "))
    if pack == options.CACHED:
        return f"query as {axes}; key, value alike, the last T of them{grouped}"
    return f"{form.order}{' in one array' if pack else ''} as {axes}{grouped}"


def of_width(words: str, form: Form) -> str:
    """Words in which the width of x has its own letter: of one-hot rows it is the number of tokens."""
    is_width = form.layout in WEIGHTS and "C" in form.layout
    return words.replace("√T", "√C, with C the width of x") if is_width else words


def _gives(form: Form) -> str:
    first = ", the first of several results; the others are not judged" * form.first
    lse = form.options.get("return_lse")
    own = axes_of("".join(x for x in lse.form if x in f"(){form.outcome}")) if lse else ""  # of the axes that it has
    always = f", and always the log-sum-exp as {own}" if lse and not lse.name else ""
    return f"{axes_of(form.outcome)}{first}{always}"


def _option(ours: str, option: Option, layout: str) -> str:
    """A keyword, what it is, and how its value is given."""
    if ours == "segments":
        if option.form == PAIR:
            return f"{option.name}: segment ids of queries and of keys, {PAIR} of a named tuple"
        both = ", the same for queries and keys" * (option.name == option.form)
        return f"{' and '.join(dict.fromkeys(filter(None, option)))}: segment ids{both}"
    rank, _, meaning = option.form.partition("/")
    axes = axes_of("".join(x for x in rank.replace("(BN)", "&") if x in f"1&TS{layout}"))  # of those that it has
    given = f"{axes}, {meaning}" if meaning else axes if set(rank) <= {*"BNTS()1"} and rank else option.form
    named = "" if option.name == ours else OPTION_WORDS.get(ours, ours.replace("_", " "))
    said = ", ".join(filter(None, (named, given)))
    return f"{option.name}: {said}" if said else option.name


SEGMENTS = "query_segment_ids", "key_segment_ids"
OPTION_WORDS = {"is_causal": "causal", "return_lse": "gives the log-sum-exp as well", "key_lengths": "lengths of keys"}


def _keywords(form: Form) -> Iterator[tuple[str, str, str]]:
    """The name of each option here and there, and its kind; segment ids are two."""
    for ours, option in form.options.items():
        if ours == "segments":
            names = list(dict.fromkeys(filter(None, option)))
            yield from ((ours, name, "") for ours, name in zip(SEGMENTS, names, strict=False))
        elif option.name:
            yield ours, option.name, option.form


def _key(x: str) -> str:
    return x if re.fullmatch(r"[\w-]+", x, re.ASCII) else _toml(x)


def _toml(x: object) -> str:
    return json.dumps(x, ensure_ascii=False)
