"""The keywords of one function from those of another, as lines of Python."""

import re

from ..conventions.table import DECLARED
from .forms import GIVEN, LAW, Form, Option, text_of, window_rule
from .options import AXIS, MASKED, MEANINGS, OF_EACH_BATCH, REACH, RULES, WIDE, back, to

NO_MAXIMUM = "without the maximum"
LEAST = "-1e30"  # of a score where a product with 0 has to stay 0


class NoAdapter(ValueError):
    """Nothing around the function can make it answer so; why not."""


def steps(form: Form, other: Form) -> str:
    """The steps from products to scores, of those that both offer."""
    offered = {"scale"} | ({"softcap", "bias"} & form.options.keys() & other.options.keys())
    offered |= {"mask"} if all(MASKED & x.options.keys() for x in (form, other)) else set()
    return ", ".join(step for step in form.how["order"].split(", ") if step in offered)


class Keywords:
    """Arguments that B has to be given, from those that A is given.

    Attributes:
        words: keywords that are always given; lines may put others into a dict ``options``.
        loops: axes that are looped over.
        canonical: whether the lines have the arrays as (B, N, T, D).
    """

    def __init__(self, a: Form, b: Form) -> None:
        self.whole, self.a, self.b = a, a.heard(), b.heard()
        a, b = self.a, self.b
        self.words = {name: repr(x) for name, x in b.given.items()}
        self.lse = a.options.get("return_lse") if "return_lse" in b.options else None
        self.repeats = a.grouped and (a.how["heads"] != b.how["heads"] or not b.grouped)
        self.told = self._told()
        self.own_scores = self._needs_own_scores()
        scores = DECLARED["mean"] if self.own_scores else b.how["empty"]  # a row of scores that are all LEAST is a mean
        self.empties = a.how["empty"] != scores and bool(MASKED & set(a.options))
        self.loops = [x for x in "BN" if x not in b.layout]
        same = (a.layout, a.outcome, a.order, a.pack) == (b.layout, b.outcome, b.order, b.pack)
        self.canonical = not same or self.empties or self.own_scores or self.repeats
        self.loops = self.loops if self.canonical else []
        if b.heads and not (a.heads and not self.canonical):
            self.words[b.heads] = "query.shape[1]"
        elif b.heads:
            self.words[b.heads] = a.heads

    def _told(self) -> list[str]:
        """The rules of ``a`` that ``b`` is told by a mask: it lacks them, or means other keys by them."""
        names = [x for x in (*RULES, "key_lengths") if x in self.a.options]
        told = [x for x in names if self._differs(x)]
        moved = "offset" in self.a.options and (self._differs("offset") or set(RULES) & set(told))
        return [x for x in names if x in told or (moved and x in RULES)]

    def _differs(self, name: str) -> bool:
        """Tell whether ``b`` lacks an option of ``a``, or means something else by it than another number."""
        a, b = self.a, self.b
        if name not in b.options or a.options[name].form == WIDE.get(name, "") != b.options[name].form:
            return True
        return any(a.how[x] != b.how[x] for x in (("side", "window") if name == "window" else (AXIS[name],)))

    def _needs_own_scores(self) -> bool:
        """Tell whether ``b`` cannot be asked for the scores of ``a``: it is given them, with the identity for keys."""
        a, b = self.a, self.b
        if b.how["always"] and a.how["always"] != b.how["always"]:
            raise NoAdapter("B is causal whatever it is given")
        if a.how["masking"] != b.how["masking"] and {"mask", "is_causal"} & set(a.options):
            if a.how["masking"] != LAW["masking"]:
                raise NoAdapter(f"A has {a.how['masking']}, which no argument of B asks for")
            return True
        if any(a.how[x] != b.how[x] for x in ("softcap", "bias", "mask") if x in a.options):
            return True
        bases = {x.how["lse"] for x in (a, b)}
        maximum = bool(self.lse) and len(bases) > 1 and NO_MAXIMUM in bases
        empties = a.how["empty"] != b.how["empty"] and bool(MASKED & set(a.options))
        told = empties or bool(self.told) or a.how["always"] != b.how["always"]
        deaf = told and not {"mask", "bias"} & set(b.options)
        lacking = ({"softcap", "bias"} & set(a.options)) - set(b.options)
        return bool(lacking) or maximum or deaf or steps(a, b) != steps(b, a)

    def _give(self, name: str, value: str, mine: Option | None = None) -> list[str]:
        """Give ``b`` a keyword: always, or where ``a`` is given one."""
        default = self.a.defaults.get(mine.name) if mine else None
        passed = mine is not None and value == mine.name and default == self.b.defaults.get(name)
        if mine is None or passed or default is not None:
            self.words[name] = value
            return []
        own = [f"options[{name!r}] = {self.words.pop(name)}"] if name in self.words else []
        return [*own, f"if {mine.name} is not None:\n    options[{name!r}] = {value}"]

    def _options(self) -> list[str]:
        a, b, lines = self.a, self.b, []
        rules = self._rules(everything=self.empties)
        whole = bool(rules) or (self.empties and "mask" in a.options)
        bias = a.options.get("bias")
        if whole:
            lines += self._allowed(rules)
        if whole or "mask" in a.options:
            mine = a.options.get("mask")
            lines += self._mask(None if whole else mine)
        if bias and not (whole and "mask" not in b.options):
            lines += self._give(b.options["bias"].name, self._ranked(bias), bias)
        if cap := a.options.get("softcap"):
            lines += self._give(b.options["softcap"].name, cap.name, cap)
        moved = {"offset"} if set(self.told) & set(RULES) else set()
        for name in () if self.empties else (*RULES, "key_lengths", "offset"):
            if name in a.options and name in b.options and name not in {*self.told, *moved}:
                lines += self._give(b.options[name].name, self._number(name), a.options[name])
        for key in (x for x in a.options if x.startswith(GIVEN)):
            lines += self._give(b.options[key].name, a.options[key].name, a.options[key])
        return [*lines, *self._scale()]

    def _ranked(self, bias: Option) -> str:
        one, other = bias.form, self.b.options["bias"].form
        x = bias.name if one == other and not self.loops else back("bias", one, bias.name)
        return x if one == other or self.loops else to("bias", other, x)

    def _rules(self, everything: bool) -> list[str]:
        """Lines for the keys that ``b`` has to be told of by a mask, for its own rules are others."""
        a, lines = self.a, []
        names = [x for x in (*RULES, "key_lengths") if x in a.options and (everything or x in self.told)]
        always = bool(a.how["always"]) and (everything or a.how["always"] != self.b.how["always"])
        offset = a.options.get("offset")
        if offset and (always or set(RULES) & set(names)):
            x = OF_EACH_BATCH.format(x=offset.name) if offset.form == WIDE["offset"] else offset.name
            own = re.sub(r"\boffset\b", x, text_of("offset", a.how["offset"]))
            lines.append(f"if {offset.name} is not None:\n    i = i + {own}")
        lines += [f"allowed = allowed & ({text_of('causal', a.how['always'])})"] * always
        for name in names:
            option = a.options[name]
            asked = option.name if name == "is_causal" else f"{option.name} is not None"
            lines.append(f"if {asked}:\n    allowed = allowed & ({self._rule(name, option)})")
        return lines

    def _rule(self, name: str, option: Option) -> str:
        """The line for which keys an option lets a query see."""
        if name == "window":
            return window_rule(self.a.how, option.name, pair=option.form == WIDE["window"])
        text = text_of(AXIS[name], self.a.how[AXIS[name]]).replace("rows", "xp.arange(T)[:, None]")
        return re.sub(r"\blengths\b", OF_EACH_BATCH.format(x=option.name), text)

    def _allowed(self, rules: list[str]) -> list[str]:
        """One mask of all that forbids."""
        mask = self.a.options.get("mask")
        lines = [f"allowed = xp.ones((1, 1, T, S), dtype={'xp.bool' if self.b.arrays == 'torch' else 'bool'})"]
        if mask:
            lines.append(f"if {mask.name} is not None:\n    allowed = allowed & {self._read(mask)}")
        return lines + rules

    def _read(self, mask: Option) -> str:
        text = text_of("mask", self.a.how["mask"])
        return text.replace("mask", back("mask", mask.form, mask.name)).replace("np.", "xp.")

    def _mask(self, mine: Option | None) -> list[str]:
        """The mask of ``a``, or all that forbids, in the form of ``b``; as a bias where it takes no mask."""
        theirs = self.b.options.get("mask")
        x = "allowed" if mine is None else back("mask", mine.form, mine.name)
        if theirs:
            form = theirs.form if not self.loops else "BNTS/" + theirs.form.split("/")[1]
            same = mine is not None and mine.form == theirs.form and not self.loops
            return self._give(theirs.name, mine.name if same and mine else to("mask", form, x).replace("~~", ""), mine)
        option = self.b.options["bias"]
        added = MEANINGS["added, -inf drops"][0].format(x=x if self.loops else to("bias", option.form, x))
        bias = self.a.options.get("bias") if mine is None else None
        if bias is None:
            return self._give(option.name, added, mine)
        lines = [f"added = {added}", f"if {bias.name} is not None:\n    added = added + {self._ranked(bias)}"]
        return lines + self._give(option.name, "added")

    def _number(self, name: str) -> str:
        """The value of an option of ``a`` as ``b`` takes it: another number, where the two count a window otherwise."""
        mine, theirs = (form.options[name] for form in (self.a, self.b))
        reaches = [REACH[form.how["reach"]] if name == "window" else "" for form in (self.a, self.b)]
        if (mine.form, reaches[0]) == (theirs.form, reaches[1]):
            return mine.name
        x = back(name, mine.form, mine.name)
        if reaches[0] != reaches[1]:
            other_way = {"w": "{r}", "w - 1": "{r} + 1", "w // 2": "2 * ({r})"}[reaches[1]]
            x = other_way.format(r=re.sub(r"\bw\b", x, reaches[0])).replace("- 1 + 1", "").strip()
        return to(name, theirs.form, x)

    def _scale(self) -> list[str]:
        one, other = (form.how["scale"] for form in (self.a, self.b))
        mine, theirs = (form.options.get("scale") for form in (self.a, self.b))
        if mine is None and one == other:
            return []
        given = [form.how["given_scale"] for form in (self.a, self.b)]
        plain = given == [LAW["given_scale"]] * 2
        if mine and theirs and one == other and given[0] == given[1]:
            same = mine.form == theirs.form
            return self._give(theirs.name, mine.name if same else f"1 / {mine.name}", mine)
        lines = [self._own_scale(mine)]
        if theirs and plain:
            return lines + self._give(theirs.name, to("scale", theirs.form, "scale"))
        if self.a.pack and not self.canonical:
            raise NoAdapter("the scale of packed arrays cannot be told")
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

    def _step(self, step: str, option: str) -> str:
        text = text_of(step, self.a.how[step])
        if step == "bias":
            return "scores = scores + " + re.sub(r"\bbias\b", option, text)
        text = re.sub(r"\bcap\b", option, re.sub(r"\bs\b", "scores", text))
        return "scores = " + text.replace("np.", "xp.")

    def _scores(self) -> list[str]:
        """All scores by the rule of ``a``; ``b`` is left with the softmax, on queries that are scores."""
        a, b = self.a, self.b
        lines = [self._own_scale(a.options.get("scale")), "scores = query @ key.swapaxes(-1, -2)"]
        rules = self._rules(everything=True)
        for step in a.how["order"].split(", "):
            option = a.options.get(step)
            if step == "scale":
                lines.append("scores = scores * scale")
            elif step == "mask":
                if rules or option:
                    lines += [*self._allowed(rules), f"scores = xp.where(allowed, scores, {LEAST})"]
            elif option:
                x = back("bias", option.form, option.name) if step == "bias" else option.name
                line = self._step(step, x)
                lines.append(f"if {option.name} is not None:\n    {line}")
        theirs, factor = b.options.get("scale"), text_of("scale", b.how["scale"])
        if theirs and b.how["given_scale"] == LAW["given_scale"]:
            lines += self._give(theirs.name, "1.0")
            factor = "1"
        factor = re.sub(r"\bD\b", "S", factor)
        query = "scores" if factor == "1" else f"scores / ({factor})"
        lines.append("eye = xp.zeros_like(scores[..., :1, :]) + xp.eye(S, dtype=scores.dtype)")
        return [*lines, f"query, key = {query}, eye"]
