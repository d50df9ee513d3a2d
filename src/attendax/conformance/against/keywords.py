"""The keywords of one function from those of another, as lines of Python."""

import math
import re

import numpy as np

from ..conventions.table import DECLARED, OF_KEYS
from . import forms
from .forms import BY_LAW, PREFIX, UNKNOWN, Form, Option, text_of
from .options import ADDED, AXIS, MASKED, MEANINGS, OF_EACH_BATCH, PAIR, REACH, RULES, WIDE, WORD, back, to
from .weights import MOST_HEADS

ALWAYS_WORDS = {  # axes of every call, in words
    "pairs": "keys", "norm": "norms of queries and keys", "split": "split into heads", "join": "joining of heads",
    "width": "numbers of a head", "weights": "weights", "cap": "cap of scores", "alibi": "ALiBi of its own",
    "rotary": "rotary positions of its own",
}  # fmt: skip
OF_RULES = "joins", "fill"  # axes of what is masked
NO_MAXIMUM = "without the maximum"
ONE_TEXT_RANKS = "BS/", "BTS/"  # ranks of a mask that has no axis of heads in a call of one text or one head
LEAST_SCORE = "-1e30"  # of a score where a product with 0 has to stay 0


class NoAdapter(ValueError):
    """Nothing around the function can make it answer so; why not."""


def steps(form: Form, other: Form) -> str:
    """The steps from products to scores, of those that both offer."""
    offered = {"scale"} | ({"softcap", "bias"} & form.options.keys() & other.options.keys())
    offered |= {"mask"} if all(MASKED & x.options.keys() for x in (form, other)) else set()
    return ", ".join(step for step in form.how["order"].split(", ") if step in offered)


def two(option: Option) -> tuple[str, str]:
    """The segment ids of queries and of keys, as two keywords or as a pair."""
    if option.form == PAIR:
        return f"{option.name}.q", f"{option.name}.kv"
    return (option.name, option.form) if option.form else (f"{option.name}[0]", f"{option.name}[1]")


class Keywords:
    """Arguments that B has to be given, from those that A is given."""

    def __init__(self, whole: Form, a: Form, b: Form) -> None:
        """``a`` is ``whole`` without the options that mean nothing."""
        self.whole, self.a, self.b = whole, a, b
        # always given; others are put into ``options``
        self.words = {**b.meant, **{name: repr(x) for name, x in b.given.items()}}
        self.lse = a.options.get("return_lse") if "return_lse" in b.options else None
        self.repeats = a.grouped and (a.how["heads"] != b.how["heads"] or not b.grouped)
        self.unlike = self._unlike()
        self.told = self._told()
        self.own_scores = self._takes_other_scores() or self._needs_own_scores()
        if self.own_scores and forms.bounds(b.how["large"]) != forms.UNCLIPPED:
            raise NoAdapter("B clips the scores, and those that it would be given")
        self.unlike |= self.own_scores and self._empties_lse()  # a row of scores that are all LEAST has a finite one
        scores = DECLARED["mean"] if self.own_scores else b.how["empty"]  # a row of scores that are all LEAST is a mean
        self.fills = a.how["empty"] not in (scores, *OF_KEYS) and bool(MASKED & set(a.options))
        self.empties = self.fills or self.unlike
        same = (a.layout, a.outcome, a.order, a.of_keys) == (b.layout, b.outcome, b.order, ())
        same = same and not (a.pack or b.pack)
        plain = same and "(" not in a.layout and not (b.heads and "N" not in a.layout)  # its sizes are those of axes
        # whether the lines have the arrays as (B, N, T, D), and the axes that are looped over
        self.canonical = not plain or self.empties or self.own_scores or self.repeats
        self.loops = [x for x in "BN" if x not in b.outcome and self.canonical]
        self.words |= {b.heads: MOST_HEADS if "M" in b.layout else "N"} if b.heads else {}
        self.taken: set[str] = set()  # keywords of ``b`` that an option of ``a`` is given by

    def _unlike(self) -> bool:
        """Tell whether a query without any key has another log-sum-exp in ``a``."""
        one, other = (x.how["empty_lse"] for x in (self.a, self.b))
        moved = self.a.how["lse"] != self.b.how["lse"] and one not in ("-inf", "inf", "nan")
        return self._empties_lse() and (one != other or moved)

    def _empties_lse(self) -> bool:
        """Tell whether ``a`` may be asked for the log-sum-exp of a query without any key, and it is known."""
        return bool(self.lse and MASKED & set(self.a.options)) and self.a.how["empty_lse"] != UNKNOWN

    def _told(self) -> list[str]:
        """The rules of ``a`` that ``b`` is told by a mask: it lacks them, or means other keys by them."""
        names = [x for x in (*RULES, "key_lengths", "segments") if x in self.a.options]
        told = [x for x in names if self._differs(x)]
        moved = "offset" in self.a.options and (self._differs("offset") or set(RULES) & set(told))
        return [x for x in names if x in told or (moved and x in RULES)]

    def _differs(self, name: str) -> bool:
        """Tell whether ``b`` lacks an option of ``a``, or means something else by it than another number."""
        a, b = self.a, self.b
        if name not in b.options or a.options[name].form == WIDE.get(name) != b.options[name].form:
            return True
        if name != "window":
            return a.how[AXIS[name]] != b.how[AXIS[name]]
        two_sides = "negative", "none"
        unlike = a.options[name].form == WIDE[name] and any(a.how[x] not in (UNKNOWN, b.how[x]) for x in two_sides)
        return unlike or any(a.how[x] != b.how[x] for x in ("side", "window"))

    def _takes_other_scores(self) -> bool:
        """Tell whether ``a`` and ``b`` take large scores otherwise; the adapter then clips or subtracts."""
        one, other = (x.how["large"] for x in (self.a, self.b))
        if one == other:
            return False
        if one in forms.LARGE_VALUES[1:]:
            raise NoAdapter(f"of large scores A {one}, which no argument of B asks for")
        if forms.bounds(other) != forms.UNCLIPPED:
            raise NoAdapter("no argument of B changes the scores that it clips")
        if self.lse and other != forms.AS_THEY_ARE:
            raise NoAdapter("B subtracts no largest score of a row, which its log-sum-exp lacks")
        return True

    def _needs_own_scores(self) -> bool:
        """Tell whether ``b`` cannot be asked for the scores of ``a``: it is given them, with the identity for keys."""
        a, b = self.a, self.b
        if b.how["always"] and a.how["always"] != b.how["always"]:
            raise NoAdapter("B is causal whatever it is given")
        own = np.arange(4)
        moved = (np.any(eval(x, {"n": own, "N": 4, "G": 4}) != own) for x in forms.heads_of(b.how["heads"]))
        if a.how["heads"] != b.how["heads"] and any(moved):
            raise NoAdapter("no argument of B changes the heads of keys that it reads")
        if unlike := [words for axis, words in ALWAYS_WORDS.items() if a.how[axis] != b.how[axis]]:
            raise NoAdapter(f"no argument of B changes the {unlike[0]} that it takes")
        if any(a.how[x] != b.how[x] for x in OF_RULES):
            if any(a.how[x] != BY_LAW[x] for x in OF_RULES) or b.how["fill"] == "0 and 1":  # added without a mask, too
                raise NoAdapter("no argument of B asks for what A does with its rules")
            return True
        if a.how["masking"] != b.how["masking"] and {"mask", "is_causal"} & set(a.options):
            if a.how["masking"] != BY_LAW["masking"]:
                raise NoAdapter(f"A has {a.how['masking']}, which no argument of B asks for")
            return True
        if any(a.how[x] != b.how[x] for x in ("softcap", "bias", "mask") if x in a.options):
            return True
        bases = {x.how["lse"] for x in (a, b)}
        maximum = bool(self.lse) and len(bases) > 1 and NO_MAXIMUM in bases
        empties = a.how["empty"] != b.how["empty"] and bool(MASKED & set(a.options))
        told = empties or self.unlike or bool(self.told) or a.how["always"] != b.how["always"]
        deaf = told and not {"mask", "bias"} & set(b.options)
        lacking = ({"softcap", "bias"} & set(a.options)) - set(b.options)
        return bool(lacking) or maximum or deaf or steps(a, b) != steps(b, a)

    def _give(self, name: str, value: str, mine: Option | None = None) -> list[str]:
        """Give ``b`` a keyword: always, or where ``a`` is given one."""
        default = self.a.defaults.get(mine.name) if mine else None
        theirs = self.b.meant.get(name, repr(self.b.defaults.get(name)))
        is_first, self.taken = name not in self.taken, self.taken | {name}
        passed = mine and value == mine.name and repr(default) == theirs and is_first
        passed = passed and not (self.loops or self.b.has_one_key_head)
        if mine is None or passed or default is not None:
            self.words[name] = value
            return []
        return self.if_given(name, value, f"{mine.name} is not None")

    def if_given(self, name: str, value: str, condition: str) -> list[str]:
        """Give ``b`` a keyword if a condition holds, in place of what it is given otherwise."""
        own = [f"options[{name!r}] = {self.words.pop(name)}"] if name in self.words else []
        return [*own, f"if {condition}:\n    options[{name!r}] = {value}"]

    def _options(self) -> list[str]:
        a, b = self.a, self.b
        rules = self._rules(everything=self.empties)
        whole = bool(rules) or (self.empties and "mask" in a.options)
        lines = self._allowed(rules) if whole else []
        if whole or "mask" in a.options:
            lines += self._mask(whole)
        positions = (*RULES, "key_lengths", "segments", "offset")
        by_mask = set(positions) if self.empties else {*self.told, *(["offset"] if set(self.told) & set(RULES) else [])}
        by_mask |= {"bias"} if whole and "mask" not in b.options else set()
        for name in ("bias", "softcap", *positions, *(x for x in a.options if x.startswith(PREFIX))):
            if name in a.options and name in b.options and name not in by_mask:
                one, other = a.options[name], b.options[name]
                if name == "segments" and other.form == PAIR:
                    pair = f"collections.namedtuple('SegmentIds', 'q kv')({', '.join(two(one))})"
                    lines += self._give(other.name, pair, one)
                    continue
                both = zip(two(other), two(one), strict=True) if name == "segments" else ()
                for theirs, mine in both or [(other.name, self._as_theirs(name))]:
                    lines += self._give(theirs, mine, one._replace(name=mine) if both and one.form else one)
        return [*lines, *self._scale()]

    def _as_theirs(self, name: str, x: str = "") -> str:
        """The value of an option of ``a``, or another one, as ``b`` takes it, which may count a window otherwise."""
        mine, theirs = self.a.options.get(name), self.b.options[name].form
        if self.loops and name in ("mask", "bias") and not theirs.startswith(ONE_TEXT_RANKS):
            theirs = "/".join(["BNTS", *theirs.split("/")[1:]])
        one, other = (REACH[form.how["reach"]] if name == "window" else "" for form in (self.a, self.b))
        if mine and not x:
            if (mine.form, one) == (theirs, other):
                return mine.name
            x = back(name, mine.form, mine.name)
        if one != other:
            other_way = {"w": "{r}", "w - 1": "{r} + 1", "w // 2": "2 * ({r})"}[other]
            x = other_way.format(r=re.sub(r"\bw\b", x, one)).replace("- 1 + 1", "").strip()
        line = to(name, theirs, x).replace("~~", "")
        if theirs == WORD:
            line = line.replace("None", repr(self.b.defaults.get(self.b.options[name].name)))
        return self.cast(f"({line})", "query.dtype") if name == "mask" and "True" not in theirs else line

    def cast(self, x: str, dtype: str) -> str:
        """An array in a dtype."""
        return f"{x}.{'to' if self.b.arrays == 'torch' else 'astype'}({dtype})"

    def _rules(self, everything: bool) -> list[str]:
        """Lines for the keys that ``b`` has to be told of by a mask, for its own rules are others."""
        a, lines = self.a, []
        names = [x for x in (*RULES, "key_lengths", "segments") if x in a.options and (everything or x in self.told)]
        always = bool(a.how["always"]) and (everything or a.how["always"] != self.b.how["always"])
        offset = a.options.get("offset")
        if offset and (always or set(RULES) & set(names)):
            default = a.defaults.get(offset.name)
            each = offset.name if default is None else f"xp.atleast_1d(xp.asarray({offset.name}))"
            x = OF_EACH_BATCH.format(x=each) if offset.form == WIDE["offset"] else offset.name
            own = re.sub(r"\boffset\b", x, text_of("offset", a.how["offset"]))
            lines.append(f"if {offset.name} is not None:\n    i = i + {own}")
        lines += [f"allowed = allowed & ({text_of('causal', a.how['always'])})"] * always
        for name in names:
            option = a.options[name]
            asked = option.name if name == "is_causal" else f"{option.name} is not None"
            if name == "window":
                rule = forms.window_rule(a.how, option.name, pair=option.form == WIDE["window"])
            else:
                text = text_of(AXIS[name], a.how[AXIS[name]]).replace("rows", "xp.arange(T)[:, None]")
                lengths = option if name == "key_lengths" else a.options.get("key_lengths")
                given = OF_EACH_BATCH.format(x=lengths.name) if lengths else "S"
                if name == "is_causal" and lengths:
                    given = f"(S if {lengths.name} is None else {given})"
                rule = re.sub(r"\blengths\b", given, text)
                for ids, x in zip(("of_queries", "of_keys"), two(option), strict=True) if name == "segments" else ():
                    rule = rule.replace(ids, f"{x}[:, None]")
            lines.append(f"if {asked}:\n    allowed = allowed & ({rule})")
        return lines

    def _allowed(self, rules: list[str]) -> list[str]:
        """One mask of all that forbids."""
        lines = [f"allowed = xp.ones((1, 1, T, S), dtype={'xp.bool' if self.b.arrays == 'torch' else 'bool'})"]
        if mask := self.a.options.get("mask"):
            read = text_of("mask", self.a.how["mask"]).replace("mask", back("mask", mask.form, mask.name))
            lines.append(f"if {mask.name} is not None:\n    allowed = allowed & {read.replace('np.', 'xp.')}")
        return lines + rules

    def _mask(self, whole: bool) -> list[str]:
        """The mask of ``a``, or the whole of all that forbids, as ``b`` takes it; a bias where it takes no mask."""
        mine, theirs = None if whole else self.a.options["mask"], self.b.options.get("mask")
        if theirs:
            return self._give(theirs.name, self._as_theirs("mask", "allowed" if whole else ""), mine)
        x = back("mask", mine.form, mine.name) if mine else "allowed"
        added = MEANINGS[ADDED][0].format(x=self._as_theirs("bias", x))
        name, bias = self.b.options["bias"].name, self.a.options.get("bias") if whole else None
        if bias is None:
            return self._give(name, added, mine)
        lines = [f"added = {added}", f"if {bias.name} is not None:\n    added = added + {self._as_theirs('bias')}"]
        return lines + self._give(name, "added")

    def _scale(self) -> list[str]:
        (one, given), (other, theirs_given) = ((x.how["scale"], x.how["given_scale"]) for x in (self.a, self.b))
        mine, theirs = (form.options.get("scale") for form in (self.a, self.b))
        if one == other and (mine is None or (theirs and given == theirs_given)):
            return self._give(theirs.name, self._as_theirs("scale"), mine) if mine and theirs else []
        lines = [self._own_scale(mine)]
        if theirs and given == theirs_given == BY_LAW["given_scale"]:
            return lines + self._give(theirs.name, to("scale", theirs.form, "scale"))
        factor = "scale" if other == "1" else f"(scale / ({text_of('scale', other)}))"
        return [*lines, f"query = query * {factor}"]

    def _own_scale(self, option: Option | None) -> str:
        own = text_of("scale", self.a.how["scale"])
        if option is None:
            return f"scale = {own}"
        own_way = text_of("given_scale", self.a.how["given_scale"])
        given = re.sub(r"\bgiven\b", back("scale", option.form, option.name), own_way)
        free = self.a.defaults.get(option.name) is None
        line = f"scale = {own} if {option.name} is None else {given}" if free else f"scale = {given}"
        return "" if line == "scale = scale" else line

    def _clipped(self) -> list[str]:
        low, high = forms.bounds(self.a.how["large"])
        words = (f"{x:g}" if math.isfinite(x) else "None" for x in (low, high))
        return [f"scores = xp.clip(scores, {', '.join(words)})"] * ((low, high) != forms.UNCLIPPED)

    def _scores(self) -> list[str]:
        """All scores by the rule of ``a``; ``b`` is left with the softmax, on queries that are scores."""
        a, b = self.a, self.b
        lines = [self._own_scale(a.options.get("scale")), "scores = query @ key.swapaxes(-1, -2)"]
        rules = self._rules(everything=True)
        for step in a.how["order"].split(", "):
            option = a.options.get(step)
            if step == "scale":
                lines += ["scores = scores * scale", *self._clipped()]
            elif step == "mask" and (rules or option):
                lines += [*self._allowed(rules), f"scores = xp.where(allowed, scores, {LEAST_SCORE})"]
            elif step == "bias" and option:
                bias = re.sub(r"\bbias\b", back("bias", option.form, option.name), text_of(step, a.how[step]))
                lines.append(f"if {option.name} is not None:\n    scores = scores + {bias}")
            elif step == "softcap" and option:
                capped = re.sub(r"\bcap\b", option.name, re.sub(r"\bs\b", "scores", text_of(step, a.how[step])))
                lines.append(f"if {option.name} is not None:\n    scores = {capped.replace('np.', 'xp.')}")
        if b.how["large"] in forms.LARGE_VALUES[1:] and a.how["large"] != b.how["large"]:
            lines.append("scores = scores - xp.amax(scores, -1)[..., None]")
        theirs, factor = b.options.get("scale"), text_of("scale", b.how["scale"])
        if theirs and b.how["given_scale"] == BY_LAW["given_scale"]:
            lines += self._give(theirs.name, "1.0")
            factor = "1"
        factor = re.sub(r"\bD\b", "S", factor)
        query = "scores" if factor == "1" else f"scores / ({factor})"
        for name in (x for x in a.options if x.startswith(PREFIX) and x in b.options):
            lines += self._give(b.options[name].name, a.options[name].name, a.options[name])
        lines.append("eye = xp.zeros_like(scores[..., :1, :]) + xp.eye(S, dtype=scores.dtype)")
        return [*lines, f"query, key = {query}, eye"]
