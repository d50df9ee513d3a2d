"""What Coq proved, run on floats: a small interpreter of docs/proofs/definitions.json. It needs no Coq.

The definitions become Python. Functions take one argument at a time, data are a name and its parts, and each result of
a named function is kept, for the definitions say what is right, not in which order to compute it.
"""

import functools
import json
import operator
from pathlib import Path

import numpy as np

DEFINITIONS = Path(__file__).parents[1] / "docs" / "proofs" / "definitions.json"


class Data:
    """A constructor and its parts, such as ``Cons`` of a head and a tail."""

    def __init__(self, name, *parts):
        self.name, self.parts = name, parts


class Function:
    """A named function of several arguments, which remembers its results."""

    def __init__(self, body, count):
        self.whole, self.count = functools.cache(body), count

    def __call__(self, argument):
        return curry(self.whole, self.count)(argument)


def curry(f, count):
    """``f`` of so many arguments as a function that takes them one at a time."""
    return f if count == 1 else lambda x: curry(functools.partial(f, x), count - 1)


def choose(data, cases):
    """The body of the case that fits: a constructor, or None for any."""
    for name, body in cases:
        if name in (None, data.name):
            return body(*data.parts) if name else body()
    raise AssertionError(data.name)


class Translation:
    """From expressions of the JSON to expressions of Python."""

    def __init__(self, declarations):
        items = [x for d in declarations for x in d.get("fixlist", [d] if d["what"] == "decl:term" else [])]
        self.bodies = {x["name"]: x["value"] for x in items}
        self.counts = {n: len(x["argnames"]) if x["what"] == "expr:lambda" else 0 for n, x in self.bodies.items()}

    def names(self):
        """All definitions, each a ``Function``, or a value where it takes no argument."""
        scope = {"Data": Data, "choose": choose}
        for name, body in self.bodies.items():
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
                return f"Data({', '.join([repr(e['name']), *map(self.python, e['args'])])})"
            case "expr:lambda":
                between = ": lambda " if curried else ", "
                return f"(lambda {between.join(parameters(e['argnames']))}: {self.python(e['body'])})"
            case "expr:let":
                return f"(lambda {local(e['name'])}: {self.python(e['body'])})({self.python(e['nameval'])})"
            case "expr:apply":
                f, arguments = self.python(e["func"]), [self.python(x) for x in e["args"]]
                if e["func"]["what"] == "expr:global" and self.counts[e["func"]["name"]] == len(arguments):
                    return f"{f}.whole({', '.join(arguments)})"
                return f + "".join(f"({x})" for x in arguments)
            case "expr:case":
                if len(e["cases"]) == 1 and e["cases"][0]["pat"]["what"] == "pat:constructor":
                    (only,) = e["cases"]
                    names = ", ".join(parameters(only["pat"]["argnames"]))
                    return f"(lambda {names}: {self.python(only['body'])})(*{self.python(e['expr'])}.parts)"
                cases = ", ".join(self.case(c["pat"], self.python(c["body"])) for c in e["cases"])
                return f"choose({self.python(e['expr'])}, ({cases},))"
        raise NotImplementedError(e["what"])

    def case(self, pattern, body):
        if pattern["what"] == "pat:wild":
            return f"(None, lambda: {body})"
        assert pattern["what"] == "pat:constructor", pattern
        return f"({pattern['name']!r}, lambda {', '.join(parameters(pattern['argnames']))}: {body})"


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
    return functools.reduce(lambda tail, x: Data("Cons", x, tail), reversed(list(items)), Data("Nil"))


def boolean(x):
    """A boolean of Coq's."""
    return Data("True" if x else "False")


SAME = curry(lambda a, b: Data("Left" if a == b else "Right"), 2)
"""Whether two are the same, as a decision of Coq's."""


def _float(f, count=1):
    return curry(lambda *x: float(f(*x)), count)


FLOATS = Data(
    "Build_arithmetic",
    0.0,
    1.0,
    *(curry(f, 2) for f in (operator.add, operator.sub, operator.mul)),
    *(_float(f, 2) for f in (np.divide, np.maximum)),
    *(_float(f) for f in (np.exp, np.log, np.tanh, np.sqrt)),
)
"""Double precision, in which the specification computes, too."""
