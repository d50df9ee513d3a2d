"""The adapter by which `attendax check` calls a function: Python that defines ``adapted``, by the kit's protocol.

It raises NotImplementedError for calls that the function cannot be asked: those cases are not offered.
"""

import dataclasses
from collections.abc import Collection, Mapping

from ..against import options
from ..against.dropout import MODES
from ..against.forms import PREFIX, UNKNOWN, Form, Option, text_of
from ..against.keywords import ONE_TEXT_RANKS
from ..against.options import ADDED, MEANINGS, OR_ADDED, SHARED, WIDE, WITH_CAUSAL, WORD, first_kind
from ..against.weights import MOST_HEADS, WEIGHT, WEIGHTS, projected
from ..against.writing import Adapter
from ..cases.square import ALIKE
from ..conventions.table import ROTARY

PASSED = "sinks", "dropout_rate", "dropout_rng"  # keywords of the protocol that are passed on under the same name
WIDEST_WEIGHT = 2048  # of a projection that changes nothing: its cost is the square
MOST_SCORES = 2**24  # of a call with more heads, so that square weights have a row for each token
MOST_ROWS = 16  # queries of a case, if each is a text of its own, whose keys are repeated
FLAG_DEFAULTS = {"is_causal": False, "return_lse": False}
BESIDE = "w keys beside its own"  # the reach of a window of one number, on the side of the protocol
SIDE_OBJECTIONS = {  # of a window that is one number: what rules it out, and why
    "before": ("right != 0", "its window looks back alone"),
    "on both sides": ("right != left", "its window is as wide on both sides"),
    "before, and all that comes after": ("right is not None", "its window has no end"),
}


def is_of_protocol(form: Form, no_limit: str) -> bool:
    """Tell whether `attendax check` can call a function as it is."""
    kinds = {"mask": "BNTS/True attends", "bias": "BNTS", "scale": "a factor", "return_lse": "BNT", **WIDE}
    segments = "query_segment_ids", "key_segment_ids"
    called = (form.layout, form.outcome, form.pack, form.order) == ("BNTD", "BNTD", "", "query, key, value")
    called = called and not form.of_keys
    named = all(tuple(x) == (segments if k == "segments" else (k, kinds.get(k, ""))) for k, x in form.options.items())
    plain = not (form.first or form.heads or form.meant or form.by_name or form.by_position or form.word or form.given)
    return called and plain and named and form.how["lse"] != "base 2" and no_limit != "-1"


def fit(
    form: Form, no_limit: str = "", names: Collection[str] = (), *,
    short: bool = False, alike: Collection[str] = (), whole: Collection[str] = (),
) -> str:  # fmt: skip
    """Python that defines ``adapted``; ``names`` are the function's parameters, the others are as of ``Contract``."""
    loops, options = {x for x in "BN" if x not in form.outcome}, dict(form.options)
    options |= {PREFIX + x: Option(x) for x in PASSED if x in names and not loops}
    if "bias" not in options and (mask := options.get("mask")) and mask.form.endswith((ADDED, OR_ADDED)):
        options["bias"] = Option(mask.name, mask.form.partition("/")[0])  # it is a bias as well
    asked = {k: _of_protocol(k, x) for k, x in options.items() if _is_asked(k, x, form, loops)}
    how = {**form.how, "reach": BESIDE, "lse": "base e", "empty_lse": UNKNOWN}
    a = Form(options=asked, how=how, grouped=form.grouped or "N" in loops, defaults=FLAG_DEFAULTS)
    more = {k: Option(k) for k in ("is_causal", "key_lengths") if k not in asked and _is_by_mask(k, options, form)}
    made = Adapter(dataclasses.replace(a, options=asked | more), a, dataclasses.replace(form, options=options), "*")
    square, all_axes = ({form.options[k].name for k in some} for some in (alike, whole))
    made.before += _limits(form, short=short, alike={k: x.name for k, x in options.items() if x.name in square})
    made.before += _masks(options, form, made, all_axes)
    made.before += _numbers(asked, form, no_limit)
    if modes := {x: on for x, on in MODES.items() if x in names and PREFIX + "dropout_rate" in options}:
        made.after += _when("dropout_rate", f"options |= {modes}")
    if "is_causal" in more:
        word = options.get("is_causal", options.get("mask", Option("")))
        beside = " and mask is None" * ("mask" in options and options["mask"].name == word.name)
        made.after += made.if_given(word.name, "'causal'", "is_causal" + beside)
    return made.text()


def lacks(form: Form, alike: Collection[str] = ()) -> dict[str, str]:
    """The traits that a function of that form does not offer, and why; options ``alike`` are taken with T = S alone."""
    said = f"its layout is {form.layout}{f', packed {form.pack}' if form.pack else ''}"
    said = "its arrays are weights" if form.layout in WEIGHTS else said
    said = "its keys are its values" if form.pack in SHARED else said
    said = "earlier keys lie in a cache" if form.pack == options.CACHED else said
    found = dict.fromkeys(("rank 2", "rank 3", "rank 5"), "its adapter is of rank 4")
    if (segments := form.options.get("segments")) and segments.name == segments.form:
        found["segments apart"] = f"{segments.name} is of queries and of keys"
    found |= dict.fromkeys(["sinks"] * form.has_one_key_head, said)
    found |= dict.fromkeys(["batch", "empty arrays"] * ("B" not in form.outcome), said)
    found |= dict.fromkeys(["empty arrays"] * (form.layout in (options.VARLEN, options.FLAT)), "a text has tokens")
    found |= dict.fromkeys(["heads", "grouped heads", "sinks"] * ("N" not in form.layout), said)
    found |= dict.fromkeys(["grouped heads"] * ("(ND)" in form.layout and not form.grouped), said)
    found |= dict.fromkeys(["grouped heads", "V != D", "T != S"] * form.pack.startswith("qkv"), said)
    found |= dict.fromkeys(["V != D"] * (form.pack.startswith("kv") or "M" in form.layout), said)
    rotated = {*options.OPEN_ROTATIONS} & {*form.meant} or form.how["rotary"] in ROTARY
    found |= dict.fromkeys(["odd widths"] * bool(rotated), "rotary positions turn pairs")
    square = {form.options[k].name for k in alike}
    limited = [k for k, x in form.options.items() if x.name in square]
    limited += ["bias"] * any(k == "mask" and form.options[k].form.endswith((ADDED, OR_ADDED)) for k in limited)
    found |= {trait: "it raises" for trait, x in ALIKE.items() if x.replace("query_segment_ids", "segments") in limited}
    lacks_others = form.layout in WEIGHTS or form.pack in (*SHARED, options.CACHED)
    return found | dict.fromkeys(["not finite"] * lacks_others, said)


def _of_protocol(ours: str, option: Option) -> Option:
    """An option as the protocol has it; a window and an offset after ``_numbers``."""
    if ours == "segments":
        return Option("query_segment_ids", "key_segment_ids")
    return Option(ours.removeprefix(PREFIX), option.form if ours in WIDE else first_kind(ours))


def _is_asked(ours: str, option: Option, form: Form, loops: Collection[str]) -> bool:
    """Tell whether a function of a form can be given an option by itself."""
    return {
        "is_causal": option.form != WORD,
        "return_lse": form.how["lse"] in ("base e", "base 2"),
        "key_lengths": "B" not in loops,
        "segments": "B" not in loops,
        "offset": option.form == WIDE["offset"] or form.arrays != "jax",
    }.get(ours, True)


def _is_by_mask(ours: str, options: Mapping[str, Option], form: Form) -> bool:
    """Tell whether a mask tells an option."""
    if ours == "is_causal":
        return bool(form.word) or ours in options
    return "mask" in options and options["mask"].form.startswith("BS/") and "B" in form.outcome


def _when(condition: str, *lines: str) -> list[str]:
    return ["\n    ".join([f"if {condition}:", *"\n".join(lines).split("\n")])]


def _rule_out(condition: str, why: str) -> list[str]:
    return _when(condition, f"raise NotImplementedError({why!r})")


def _limits(form: Form, *, short: bool, alike: Mapping[str, str]) -> list[str]:
    """Lines that rule out sizes; of the options ``alike`` by keyword, with other lengths than T = S."""
    lines = list[str]()
    if form.layout == options.VARLEN and len({*options.BEGINS} & {*form.meant}) == 1:
        lines += _rule_out("T != S", "sequences begin at one list: queries and keys of equal lengths alone")
    if form.layout in options.ONE_QUERY:
        lines += _rule_out(f"T > {MOST_ROWS}", "it takes one query at a time: here each is a call of its own text")
    if form.pack.startswith("qkv"):
        why = "query, key and value are one array: T = S only"
        lines += _rule_out("query.shape != key.shape or key.shape != value.shape", why)
    if form.layout in WEIGHTS and len(projected(form.meant)) == 1:
        lines += _rule_out("T != S", "queries, keys and values are made of one array, of one length")
    if "M" in form.layout and "N" not in form.layout:
        lines += _rule_out("B * T > D" if "B" in form.outcome else "T > D", "it takes square weights: at most D tokens")
    elif "M" in form.layout:
        wide = f"{MOST_HEADS} * max(D, V) > {WIDEST_WEIGHT} or {MOST_HEADS} * B * T * T > {MOST_SCORES}"
        lines += _rule_out(wide, "it takes square weights, which would be too large")
    elif form.heads and any(map(WEIGHT.fullmatch, form.meant)):
        lines += _rule_out(f"N * max(D, V) > {WIDEST_WEIGHT}", f"weights of projections wider than {WIDEST_WEIGHT}")
    if short:
        causal, why = ("", "") if form.how["always"] else ("is_causal and ", ", if it is causal")
        lines += _rule_out(f"{causal}T > S", f"it takes T <= S only{why}")
    for x in alike:
        why = f"with {alike[x]} it takes T = S only"
        lines += _rule_out(f"{x}{' is not None' * (x not in FLAG_DEFAULTS)} and T != S", why)
    return lines


def _masks(options: Mapping[str, Option], form: Form, made: Adapter, all_axes: Collection[str]) -> list[str]:
    """Lines by which a mask and a bias have the axes of the function, and what a mask tells as well."""
    lines, mask, bias = list[str](), options.get("mask"), options.get("bias")
    if mask and bias and form.word and mask.name == bias.name:
        lines += _rule_out("is_causal and bias is not None", f"its {mask.name} is a word or a bias")
    if mask and form.word:
        lines += _when("is_causal and mask is not None", f"mask = mask & ({text_of('causal', form.word)})")
    if "key_lengths" in made.whole.options.keys() - made.a.options.keys():
        of_keys = "of_keys = (xp.arange(S) < key_lengths[:, None])[:, None, None]"
        lines += _when("key_lengths is not None", of_keys, "mask = of_keys if mask is None else mask & of_keys")
    for name, option in (("mask", mask), ("bias", bias)):
        if option:
            own = option.form.partition("/")[0]
            rank = "BNTS" if made.loops and not option.form.startswith(ONE_TEXT_RANKS) else own
            lines += _when(
                f"{name} is not None", *_lifted(name, rank, whole=bool(made.loops) or option.name in all_axes)
            )
            if "M" in form.layout and "N" in rank:
                why = f"it takes square weights, here of more heads than its {name} has"
                lines += _rule_out(f"{name} is not None and 1 < {name}.shape[1] < {MOST_HEADS}", why)
    if mask and bias and mask.name == bias.name:
        both = f"mask, bias = None, bias + {made.cast(f'({MEANINGS[ADDED][0]})'.format(x='mask'), 'query.dtype')}"
        if mask.form.endswith(OR_ADDED):
            both = f"raise NotImplementedError({f'its {mask.name} is a mask or a bias'!r})"
        lines += _when("mask is not None and bias is not None", both)
    return lines


def _lifted(name: str, rank: str, *, whole: bool) -> list[str]:
    """A mask or a bias with four axes; ruled out are those that the function does not take."""
    lines = [f"{name} = {name}.reshape((1,) * (4 - {name}.ndim) + tuple({name}.shape))"]
    axes = rank.replace("(BN)", "BN")
    lacking = [f"{name}.shape[{k}] != 1" for k, axis in enumerate("BNTS") if axis not in axes]
    if lacking:
        words = ", ".join(rank.replace("(BN)", "&")).replace("&", "B·N")
        lines += _rule_out(" or ".join(lacking), f"its {name} has the axes ({words}) alone")
    if lacking or whole:
        shape = ", ".join(axis if axis in axes else "1" for axis in "BNTS")
        lines.append(f"{name} = xp.broadcast_to({name}, ({shape}))")
    return lines


def _numbers(asked: Mapping[str, Option], form: Form, no_limit: str) -> list[str]:
    """Lines by which a window, a scale and an offset are of the kinds that the function takes."""
    lines = list[str]()
    if window := asked.get("window"):
        if window.form != WIDE["window"]:
            ruled_out, why = SIDE_OBJECTIONS[form.how["side"]]
            ruled_out += " and not is_causal" * (ruled_out == "right != 0" and "is_causal" in asked)
            own = _rule_out("not is_causal", "its window counts if it is causal") * (window.form == WITH_CAUSAL)
            own += ["left, right = window", *_rule_out(f"left is None or {ruled_out}", why), "window = left"]
        elif no_limit == "-1":
            own = ["window = tuple(-1 if x is None else x for x in window)"]
        else:
            own = _rule_out("None in window", "its window has two numbers") * (not no_limit)
        lines += _when("window is not None", *own) if own else []
    if "scale" in asked:
        name, kind = form.options["scale"]
        default = form.defaults.get(name)
        if isinstance(default, int | float) and default < 0:
            lines += _rule_out("scale is not None and scale < 0", f"{name} below 0 counts as not given")
        if kind == options.UNDER_A_ROOT:
            lines += _rule_out("scale is not None and scale <= 0", f"{name} is a number under a root")
    if (offset := asked.get("offset")) and offset.form != WIDE["offset"]:
        several = _rule_out("len(set(offset.tolist())) > 1", "its offset is one number")
        lines += _when("offset is not None", *several, "offset = int(offset[0])")
    return lines
