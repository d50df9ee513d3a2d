"""The tests of each law, read from the marker `law` without running anything.

``@pytest.mark.law("L5", "tiles", "native")`` says which law a test is about, and which implementations it runs. Without
implementations it runs the four of `FOUR`. A module says it once for all its tests: ``pytestmark = ...``. A test with
``law("all", "kit")`` has the law as its parameter. The pages of the laws show them (docs/_site/law_tests.py).
"""

import ast
from typing import NamedTuple

from places import TESTS

LAWS = tuple(f"L{n}" for n in range(1, 18))
IMPLEMENTATIONS = {
    "spec": "the NumPy specification",
    "ops": "the dense JAX functions",
    "tiles": "the JAX tiles",
    "native": "the CPU kernel",
    "sharded": "several devices",
    "kit": "`attendax check` catches planted mistakes",
    "gpu": "the GPU kernels",
}
FOUR = ("spec", "ops", "tiles", "native")
WITHOUT = {  # where a law says nothing about an implementation, and why
    ("L12", "spec"): "NumPy has no transformations; L13 covers its gradients",
    ("L14", "kit"): "functions may refuse other calls than attendax",
    ("L16", "spec"): "NumPy is never chosen",
    ("L16", "ops"): "a dense function builds all scores",
    ("L16", "kit"): "the kit does not measure memory",
    ("L17", "spec"): "NumPy does not compile",
}


class Test(NamedTuple):
    """One test of a law."""

    file: str  # relative to tests/
    name: str  # with its class, as pytest writes it
    law: str
    implementation: str
    is_smoke: bool  # the default suite runs it, with a parameter of each of its implementations
    parameter: str  # of the tests with law("all", ...)

    @property
    def node(self) -> str:
        """What pytest takes."""
        return f"tests/{self.file}::{self.name}" + (f"[{self.parameter}]" if self.parameter else "")

    __test__ = False


def marks(nodes):
    """The calls of markers among decorators, or in the value of ``pytestmark``: (name, arguments) each."""
    for node in nodes:
        if isinstance(node, ast.List | ast.Tuple):
            yield from marks(node.elts)
            continue
        call = node if isinstance(node, ast.Call) else None
        function = call.func if call else node
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) == "pytest.mark":
            read = call and function.attr in ("law", "smoke")
            yield function.attr, [ast.literal_eval(x) for x in call.args] if read else []


def above(body):
    """The marks that a module, or a class, has for all its tests."""
    assigned = (node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark")
    return [mark for node in assigned for mark in marks([node.value])]


def functions(body, prefix=""):
    """The tests of a module or class: (name, marks)."""
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for name, own in functions(node.body, f"{prefix}{node.name}::"):
                yield name, [*own, *marks(node.decorator_list)]
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield prefix + node.name, list(marks(node.decorator_list))


def laws_and_tests():
    """Every test of a law, once for each law and implementation.

    Raises:
        ValueError: a marker names a law or an implementation that is not there.
    """
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text("utf-8")
        if "mark.law(" not in text:
            continue
        body = ast.parse(text).body
        file = path.relative_to(TESTS).as_posix()
        for name, own in functions(body):
            has = [*own, *above(body)]
            laws = [arguments for mark, arguments in own if mark == "law"]
            for law, *of in laws or [arguments for mark, arguments in has if mark == "law"]:
                if law not in (*LAWS, "all") or not set(of) <= set(IMPLEMENTATIONS):
                    raise ValueError(f"{file}: {name}: law{(law, *of)} names no law or no implementation")
                counts = [arguments for mark, arguments in has if mark == "smoke"]
                is_smoke = any(not count or count[0] >= len(of or FOUR) for count in counts)
                is_smoke |= "/on_eight/" in file and "slow" not in dict(has)  # test_on_eight.py runs these
                for number in LAWS if law == "all" else (law,):
                    for implementation in of or FOUR:
                        if law != "all" or (number, implementation) not in WITHOUT:
                            parameter = number if law == "all" else ""
                            yield Test(file, name, number, implementation, is_smoke, parameter)
