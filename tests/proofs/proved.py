"""Formulas that Coq proved, run on floats: a small interpreter of docs/proofs/definitions.json. It needs no Coq.

The definitions become Python. Functions take one argument at a time, data are a name and its parts, and each result of
a named function is kept, for the definitions say what is right, not in which order to compute it.
"""

import functools
import json
import operator

import numpy as np

from places import ROOT

DEFINITIONS = ROOT / "docs" / "proofs" / "definitions.json"


class Data:
    """A constructor and its parts, such as ``Cons`` of a head and a tail; made by ``data``."""

    def __init__(self, name, *parts):
        self.name, self.parts = name, parts


data = functools.cache(Data)
"""Data of the same constructor and the same parts are one and the same, so that results can be found again."""


class Function:
    """A named function of several arguments, which remembers its results."""

    def __init__(self, body, count):
        self.whole, self.count = functools.cache(body), count

    def __call__(self, argument):
        return curry(self.whole, self.count)(argument)


def curry(f, count):
    """``f`` of so many arguments as a function that takes them one at a time."""
    return f if count == 1 else lambda x: curry(functools.partial(f, x), count - 1)


def choose(chosen, cases):
    """The body of the case whose constructor it is."""
    return next(body for name, body in cases if name == chosen.name)(*chosen.parts)


def absurd(message):
    """A case that no value reaches: it would be of an empty type."""
    raise AssertionError(message)


class Translation:
    """From expressions of the JSON to expressions of Python."""

    def __init__(self, declarations):
        items = [x for d in declarations for x in d.get("fixlist", [d] if d["what"] == "decl:term" else [])]
        self.bodies = {x["name"]: x["value"] for x in items}
        self.counts = {n: len(x["argnames"]) if x["what"] == "expr:lambda" else 0 for n, x in self.bodies.items()}

    def names(self):
        """All definitions, each a ``Function``, or a value where it takes no argument."""
        scope = {"data": data, "choose": choose, "absurd": absurd, "memo": functools.cache}
        for name, body in self.bodies.items():
            self.keeps = "Build_layer" in json.dumps(body)  # a layer computes the same numbers many times over
            value = eval(self.python(body, curried=False), scope)  # the text is the repository's own
            scope[f"the_{name}"] = Function(value, self.counts[name]) if self.counts[name] else value
        return {name: scope[f"the_{name}"] for name in self.bodies}

    def python(self, e, curried=True):
        match e["what"]:
            case "expr:rel":
                return local(e["name"])
            case "expr:global":
                return f"the_{e['name']}"
            case "expr:constructor":
                return f"data({', '.join([repr(e['name']), *map(self.python, e['args'])])})"
            case "expr:lambda":
                names, body = parameters(e["argnames"]), self.python(e["body"])
                if not names:
                    return body
                if curried:
                    keep = "memo" if self.keeps else ""
                    return "".join(f"{keep}(lambda {name}: " for name in names) + body + ")" * len(names)
                return f"(lambda {', '.join(names)}: {body})"
            case "expr:let":
                return f"(lambda {local(e['name'])}: {self.python(e['body'])})({self.python(e['nameval'])})"
            case "expr:apply":
                f, arguments = self.python(e["func"]), [self.python(x) for x in e["args"]]
                if e["func"]["what"] == "expr:global" and self.counts[e["func"]["name"]] == len(arguments):
                    return f"{f}.whole({', '.join(arguments)})"
                return f + "".join(f"({x})" for x in arguments)
            case "expr:case":
                if len(e["cases"]) == 1:
                    (only,) = e["cases"]
                    names = ", ".join(parameters(only["pat"]["argnames"]))
                    return f"(lambda {names}: {self.python(only['body'])})(*{self.python(e['expr'])}.parts)"
                return f"choose({self.python(e['expr'])}, ({''.join(map(self.case, e['cases']))}))"
            case "expr:exception":
                return f"absurd({e['msg']!r})"
        raise NotImplementedError(e["what"])

    def case(self, case):
        """The constructor's name, and a function of its parts."""
        pattern, names = case["pat"], parameters(case["pat"]["argnames"])
        return f"({pattern['name']!r}, lambda {', '.join(names)}: {self.python(case['body'])}), "


def local(name):
    """A name of Coq's, as a name of Python's."""
    return "v_" + name.replace("'", "_prime")


def parameters(names):
    """Names for arguments; what is not used is ``_`` in the JSON, which may stand only once in Python."""
    return [f"unused_{k}" if name == "_" else local(name) for k, name in enumerate(names)]


def definitions():
    """The extracted definitions by name."""
    return Translation(json.loads(DEFINITIONS.read_text())["declarations"]).names()


def listed(items):
    """A list of Coq's."""
    return functools.reduce(lambda tail, x: data("Cons", x, tail), reversed(list(items)), data("Nil"))


def boolean(x):
    """A boolean of Coq's."""
    return data("True" if x else "False")


SAME = curry(lambda a, b: data("Left" if a == b else "Right"), 2)
"""Whether two are the same, as a decision of Coq's."""


def _float(f, count=1):
    return curry(lambda *x: float(f(*x)), count)


FLOATS = data(
    "Build_arithmetic",
    0.0,
    1.0,
    *(curry(f, 2) for f in (operator.add, operator.sub, operator.mul)),
    *(_float(f, 2) for f in (np.divide, np.maximum)),
    *(_float(f) for f in (np.exp, np.log, np.tanh, np.sqrt)),
)
"""Double precision, in which the specification computes, too."""
