"""The keywords of one function from those of another, as lines of Python."""

import re

from .forms import EMPTY, GIVEN, LAW, MASKING, REACH, Form, Option, text_of, window_rule
from .results import NO_MAXIMUM
from .ways import RANKS, SCALINGS, WINDOWS, mask_from, mask_to

LEAST = "-1e30"  # of a score where a product with 0 has to stay 0


class NoAdapter(ValueError):
    """Nothing around the function can make it answer so; why not."""


def steps(form: Form, other: Form) -> str:
    """The steps from products to scores, of those that both offer."""
    offered = (form.offered() & other.offered()) | {"scale"}
    return ", ".join(step for step in form.how["order"].split(", ") if step in offered)


class Keywords:
    """What B has to be given, from what A is given.

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
        self.empties = a.how["empty"] != b.how["empty"] and bool({"mask", "is_causal", "window"} & set(a.options))
        self.own_scores = self._needs_own_scores()
        if self.own_scores:  # a row of scores that are all LEAST is a mean
            self.empties = a.how["empty"] != EMPTY[1] and bool({"mask", "is_causal", "window"} & set(a.options))
        self.loops = [x for x in "BN" if x not in b.layout]
        same = (a.layout, a.outcome, a.order, a.pack) == (b.layout, b.outcome, b.order, b.pack)
        self.canonical = not same or self.empties or self.own_scores or self.repeats
        self.loops = self.loops if self.canonical else []
        if b.heads and not (a.heads and not self.canonical):
            self.words[b.heads] = "query.shape[1]"
        elif b.heads:
            self.words[b.heads] = a.heads

    def _rules_differ(self) -> bool:
        return any(map(self._rule_differs, ("is_causal", "window"))) or self.a.how["always"] != self.b.how["always"]

    def _rule_differs(self, name: str) -> bool:
        """Whether ``a`` is given an option that ``b`` lacks, or means other keys by."""
        a, b = self.a, self.b
        if name not in a.options or name not in b.options:
            return name in a.options
        if name == "window" and a.options[name].form == "both sides" != b.options[name].form:
            return True  # the two sides may differ
        if name == "window":  # another number may do
            return a.how[name].split("/")[1:] != b.how[name].split("/")[1:]
        return a.how["causal"] != b.how["causal"]

    def _needs_own_scores(self) -> bool:
        """Whether ``b`` cannot be asked for the scores of ``a``: it is then given them, with the identity for keys."""
        a, b = self.a, self.b
        if b.how["always"] and a.how["always"] != b.how["always"]:
            raise NoAdapter("B is causal whatever it is given")
        if a.how["masking"] != b.how["masking"] and {"mask", "is_causal"} & set(a.options):
            if a.how["masking"] != MASKING[0]:
                raise NoAdapter(f"A has {a.how['masking']}, which no argument of B asks for")
            return True
        if any(a.how[x] != b.how[x] for x in ("softcap", "bias", "mask") if x in a.options):
            return True
        lacking = {x for x in ("softcap", "bias") if x in a.options} - set(b.options)
        deaf = not {"mask", "bias"} & set(b.options)
        bases = {x.how["lse"] for x in (a, b)}
        maximum = bool(self.lse) and len(bases) > 1 and NO_MAXIMUM in bases
        return (
            bool(lacking) or maximum or (deaf and (self.empties or self._rules_differ())) or steps(a, b) != steps(b, a)
        )

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
        """The keywords of ``b``, from those of ``a``."""
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
        for name, value in (("is_causal", lambda x: x.name), ("window", self._window)):
            if name in a.options and not self._rule_differs(name) and not self.empties:
                lines += self._give(b.options[name].name, value(a.options[name]), a.options[name])
        for key in (x for x in a.options if x.startswith(GIVEN)):
            lines += self._give(b.options[key].name, a.options[key].name, a.options[key])
        return [*lines, *self._scale()]

    def _ranked(self, bias: Option) -> str:
        one, other = bias.form, self.b.options["bias"].form
        x = bias.name if one == other and not self.loops else RANKS[one][1].format(x=bias.name)
        return x if one == other or self.loops else RANKS[other][0].format(x=x)

    def _rules(self, everything: bool) -> list[str]:
        """Lines for the keys that ``b`` has to be told of by a mask, for its own rules are others."""
        a, lines = self.a, []
        if a.how["always"] and (everything or a.how["always"] != self.b.how["always"]):
            lines.append(f"allowed = allowed & ({text_of('causal', a.how['always'])})")
        for name in ("is_causal", "window"):
            option = a.options.get(name)
            if option is None or not (everything or self._rule_differs(name)):
                continue
            rule = text_of("causal", a.how["causal"])
            if name == "window":
                rule = window_rule(a.how["window"], option.name, pair=option.form == "both sides")
            asked = option.name if name == "is_causal" else f"{option.name} is not None"
            lines.append(f"if {asked}:\n    allowed = allowed & ({rule})")
        return lines

    def _allowed(self, rules: list[str]) -> list[str]:
        """One mask of all that forbids."""
        mask = self.a.options.get("mask")
        lines = [f"allowed = xp.ones((1, 1, T, S), dtype={'xp.bool' if self.b.arrays == 'torch' else 'bool'})"]
        if mask:
            lines.append(f"if {mask.name} is not None:\n    allowed = allowed & {self._read(mask)}")
        return lines + rules

    def _read(self, mask: Option) -> str:
        """The mask that ``a`` reads."""
        text = text_of("mask", self.a.how["mask"])
        return text.replace("mask", mask_from(mask.form, mask.name)).replace("np.", "xp.")

    def _mask(self, mine: Option | None) -> list[str]:
        """The mask of ``a``, or all that forbids, in the form of ``b``; as a bias where it takes no mask."""
        theirs = self.b.options.get("mask")
        x = "allowed" if mine is None else mask_from(mine.form, mine.name)
        if theirs:
            form = theirs.form if not self.loops else "BNTS/" + theirs.form.split("/")[1]
            same = mine is not None and mine.form == theirs.form and not self.loops
            return self._give(theirs.name, mine.name if same and mine else mask_to(form, x).replace("~~", ""), mine)
        option = self.b.options["bias"]
        added = mask_to(f"{'BNTS' if self.loops else option.form}/added, -inf drops", x)
        bias = self.a.options.get("bias") if mine is None else None
        if bias is None:
            return self._give(option.name, added, mine)
        lines = [f"added = {added}", f"if {bias.name} is not None:\n    added = added + {self._ranked(bias)}"]
        return lines + self._give(option.name, "added")

    def _window(self, mine: Option) -> str:
        """The same window by another number, where the two count otherwise."""
        theirs = self.b.options["window"]
        reaches = [REACH[form.how["window"].split("/")[0]] for form in (self.a, self.b)]
        if (mine.form, reaches[0]) == (theirs.form, reaches[1]):
            return mine.name
        w = WINDOWS[mine.form][1].format(x=mine.name)
        back = {"w": "{r}", "w - 1": "{r} + 1", "w // 2": "2 * ({r})"}[reaches[1]]
        w = (
            w
            if reaches[0] == reaches[1]
            else back.format(r=re.sub(r"\bw\b", w, reaches[0])).replace("- 1 + 1", "").strip()
        )
        return WINDOWS[theirs.form][0].format(x=w)

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
            return lines + self._give(theirs.name, SCALINGS[theirs.form][0].format(x="scale"))
        if self.a.pack and not self.canonical:
            raise NoAdapter("the scale of packed arrays cannot be told")
        back = "scale" if other == "1" else f"(scale / ({text_of('scale', other)}))"
        return [*lines, f"query = query * {back}"]

    def _own_scale(self, option: Option | None) -> str:
        """The scale of ``a``, given or not."""
        own = text_of("scale", self.a.how["scale"])
        if option is None:
            return f"scale = {own}"
        own_way = text_of("given_scale", self.a.how["given_scale"])
        given = re.sub(r"\bgiven\b", SCALINGS[option.form][1].format(x=option.name), own_way)
        free = self.a.defaults.get(option.name) is None
        line = f"scale = {own} if {option.name} is None else {given}" if free else f"scale = {given}"
        return "" if line == "scale = scale" else line

    def _step(self, step: str, option: str) -> str:
        """The line of a step of ``a``, with its option."""
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
                x = RANKS[option.form][1].format(x=option.name) if step == "bias" else option.name
                line = self._step(step, x)
                lines.append(f"if {option.name} is not None:\n    {line}")
        theirs, back = b.options.get("scale"), text_of("scale", b.how["scale"])
        if theirs and b.how["given_scale"] == LAW["given_scale"]:
            lines += self._give(theirs.name, "1.0")
            back = "1"
        back = re.sub(r"\bD\b", "S", back)
        query = "scores" if back == "1" else f"scores / ({back})"
        lines.append("eye = xp.zeros_like(scores[..., :1, :]) + xp.eye(S, dtype=scores.dtype)")
        return [*lines, f"query, key = {query}, eye"]
