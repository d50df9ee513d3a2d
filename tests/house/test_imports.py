"""Imports: no circle of files, layers that import downward only, and a specification without JAX.

Every import counts, those inside functions and those for type checkers, too.
"""

import ast
import graphlib
import importlib.util
import subprocess
import sys
import tomllib

import pytest

from places import ROOT

BELOW = "params checks mask_type masks mask_kinds pictures rotary scores options integers"  # everything
VALUES = set(BELOW.split())
ENGINE = {"kernels", "sharding"}
DISPATCH = {"dispatch", "inspection"}
MAY_IMPORT = {  # part of attendax -> the other parts it may import
    "params": set(),
    "options": {"masks", "scores"},  # for type checkers
    "checks": {"params"},
    "integers": {"checks"},
    "pictures": {"checks"},
    "mask_kinds": {"checks"},
    "mask_type": {"checks", "integers", "mask_kinds", "pictures"},
    "masks": {"checks", "integers", "mask_type", "mask_kinds"},
    "rotary": {"checks"},
    "scores": {"checks", "integers"},
    "exits": set(),
    "successors": set(),
    "extras": set(),
    "legible": set(),
    "writing": {"exits"},
    "spec": VALUES,
    "kernels": VALUES,
    "sharding": VALUES | {"kernels"},
    "dispatch": VALUES | ENGINE,
    "explanation": VALUES | ENGINE | {"dispatch"},
    "inspection": VALUES | ENGINE,
    "ops": VALUES | ENGINE | DISPATCH,
    "compat": VALUES | ENGINE | DISPATCH | {"ops"},
    "encoders": VALUES | ENGINE | DISPATCH | {"ops", "spec", "extras", "writing"},
    "conformance": VALUES | {"spec", "extras", "exits", "legible", "successors", "writing"},
    "figures": {"checks", "extras"},
    "learn": {"spec", "exits", "legible", "writing"},
    "": VALUES
    | ENGINE
    | DISPATCH
    | {"explanation", "spec", "ops", "encoders", "conformance", "compat", "learn"},  # attendax itself
    "commands": {"", "encoders", "exits", "extras", "figures", "learn", "legible", "masks", "spec", "writing"},
    "cli": {"commands", "conformance", "exits", "kernels", "legible", "successors"},
    "__main__": {"cli", "exits"},
}
OF_A_RUN = {"report", "judge", "conventions", "worker", "adapters", "cases"}
IN_THE_KIT = {  # room of attendax.conformance -> the other rooms it may import; "" is the package
    "differences": set(),
    "gradients": {"differences", "frameworks"},
    "cases": set(),
    "frameworks": set(),
    "adapters": {"conventions", "cases", "frameworks"},  # of the conventions the names alone
    "protocol": {"cases"},
    "worker": {"protocol", "adapters", "cases", "frameworks"},  # knows neither what is right nor a verdict
    "conventions": {"cases", "differences"},  # what is right knows no candidate
    "judge": {"conventions", "worker", "adapters", "cases"},
    "report": {"judge", "adapters", "cases", "frameworks"},
    "diagnoses": {"conventions", "report", "judge", "worker", "adapters", "cases"},
    "run": {"diagnoses"} | OF_A_RUN,
    "checking": {"run", "contract"} | OF_A_RUN,
    "models": {"protocol", "report", "judge", "worker", "adapters", "frameworks", "cases"},
    "against": {"conventions", "protocol", "worker", "adapters", "frameworks", "cases"},
    "contract": {"report", "conventions", "worker", "adapters", "cases", "against"},
    "command": {"protocol", "checking", "run", "models", "contract", "against", "frameworks"} | OF_A_RUN,
    "": {"checking", "contract", "models", "report", "judge", "adapters", "cases", "gradients", "differences"},
}
CALLING = {"asking", "judging", "judges", "dropout", "trial"}  # the files of the judge that may call the candidate
SPEC_NEEDS = {"numpy", "scipy.special"}


def files(folder, package=""):
    """The Python files below a folder, by the name under which they are imported."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [*filter(None, [package]), *path.relative_to(folder).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name, path, known):
    """Names that a file imports: the name of a known file where it is one, else the name as it is written."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            inside = (f"{base}.{alias.name}" for alias in node.names)
            found |= {module if module in known else base for module in inside}
    return found - {name}


def graph_of(folder, package=""):
    known = files(folder, package)
    return {name: imports(name, path, known) for name, path in known.items()}


def circle(graph):
    """The files of a circle, in order; empty where there is none."""
    within = {name: found & graph.keys() for name, found in graph.items()}
    try:
        graphlib.TopologicalSorter(within).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return []


def part_of(name, package="attendax"):
    """Of attendax.kernels.tiles it is kernels; of attendax itself nothing."""
    return name.removeprefix(package).removeprefix(".").partition(".")[0]


def upward(graph, package="attendax", layers=MAY_IMPORT):
    """The imports between the parts of a package that its layers forbid, in words."""
    return [
        f"{name} imports {found}"
        for name, every in graph.items()
        for found in sorted(every)
        if f"{name}.".startswith(f"{package}.")
        and f"{found}.".startswith(f"{package}.")
        and part_of(found, package) not in layers[part_of(name, package)] | {part_of(name, package)}
    ]


def foreign(graph, allowed):
    """Names that are imported from neither the standard library nor attendax nor the allowed."""
    every = {found for all_ in graph.values() for found in all_}
    return sorted(x for x in every - allowed if x.partition(".")[0] not in sys.stdlib_module_names | {"attendax"})


@pytest.fixture(scope="module")
def attendax():
    return graph_of(ROOT / "src/attendax", "attendax")


@pytest.mark.smoke
def test_no_circle_in_the_package(attendax):
    assert len(attendax) > 80
    assert circle(attendax) == []


@pytest.mark.smoke
def test_no_circle_in_the_benchmarks():
    graph = graph_of(ROOT / "benchmarks")
    assert {"planning", "workload"} <= graph["bench"]
    assert circle(graph) == []


@pytest.mark.smoke
def test_every_part_has_its_place(attendax):
    assert {part_of(name) for name in attendax} <= MAY_IMPORT.keys()


@pytest.mark.smoke
def test_layers_import_downward_only(attendax):
    assert upward(attendax) == []


@pytest.mark.smoke
@pytest.mark.parametrize("layers", [MAY_IMPORT, IN_THE_KIT], ids=["attendax", "conformance"])
def test_the_layers_themselves_are_no_circle(layers):
    assert circle(layers) == []


@pytest.mark.smoke
def test_the_rooms_of_the_kit_import_downward_only(attendax):
    kit = "attendax.conformance"
    assert upward(attendax, kit, IN_THE_KIT) == []
    assert {part_of(name, kit) for name in attendax if f"{name}.".startswith(f"{kit}.")} == IN_THE_KIT.keys()
    hall = [path.name for path in (ROOT / "src/attendax/conformance").iterdir() if path.is_file()]
    assert len(hall) <= 6, hall


def test_what_compares_numbers_knows_no_candidate(attendax):
    """The oracle, the tolerances and the comparison need neither the function nor the way to call it."""
    judge = "attendax.conformance.judge."
    files = {name.removeprefix(judge): found for name, found in attendax.items() if name.startswith(judge)}
    assert files.keys() == {"dense", "tolerances", "comparing", "verdicts"} | CALLING
    for name in files.keys() - CALLING:
        needed = {part_of(x, "attendax.conformance") for x in files[name] if x.startswith("attendax.conformance.")}
        assert needed <= {"cases", "conventions", "judge"}, name
        assert not {x.removeprefix(judge) for x in files[name]} & CALLING, name


@pytest.mark.smoke
def test_the_specification_needs_numpy_only(attendax):
    spec = {name: found for name, found in attendax.items() if part_of(name) == "spec"}
    assert len(spec) > 10
    assert foreign(spec, SPEC_NEEDS) == []


@pytest.mark.smoke
def test_the_specification_loads_neither_jax_nor_the_kit():
    code = "import sys, attendax.spec; print(sorted({'jax', 'attendax.conformance'} & sys.modules.keys()))"
    path = {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


# --- The checker, on trees with a fault ------------------------------------------------------------------------------


def planted(folder, **sources):
    """A tree in which ``kernels__tiles`` is the file kernels/tiles.py."""
    for name, source in sources.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        (path.parent / "__init__.py").touch()
    return graph_of(folder, "attendax")


HIDDEN = {
    "at the top": "from .{} import x",
    "in a function": "def f():\n    from . import {}",
    "in full": "import attendax.kernels.{}",
    "for type checkers": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from attendax.kernels import {}",
}


@pytest.mark.parametrize("back", HIDDEN.values(), ids=list(HIDDEN))
def test_a_planted_circle_is_found(tmp_path, back):
    there = {"kernels__a": "from .b import x", "kernels__b": "from . import c"}
    graph = planted(tmp_path, **there, kernels__c="import numpy")
    assert circle(graph) == []
    graph = planted(tmp_path, **there, kernels__c=back.format("a"))
    found = [name.removeprefix("attendax.kernels.") for name in circle(graph)]
    assert found[0] == found[-1]
    assert "".join(found[1:]) in ("abc", "bca", "cab")


UPWARD = {
    "kernels__a": ["from ..ops import x", "def f():\n    from .. import ops", "import attendax.spec.b"],
    "ops__a": ["from attendax import encoders", "from ..conformance import x"],
    "conformance__a": ["from ..kernels.b import x", "from attendax.ops.b import x"],
    "encoders__a": ["from attendax import cli", "from attendax import figures", "from attendax import attention"],
    "spec__a": ["from .. import cli", "from ..kernels import b"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "source"), [(name, x) for name, sources in UPWARD.items() for x in sources])
def test_a_planted_import_upward_is_found(tmp_path, name, source):
    names = ("kernels__b", "ops__b", "spec__b", "encoders__b", "conformance__b", "cli", "figures", "checks")
    there = dict.fromkeys(names, "import numpy")
    assert upward(planted(tmp_path, **there, **{name: "from attendax.checks import x"})) == []
    (found,) = upward(planted(tmp_path, **there, **{name: source}))
    assert found.startswith(f"attendax.{name.replace('__', '.')} imports attendax")


@pytest.mark.parametrize("source", ["from ..judge.b import x", "def f():\n    import attendax.conformance.judge.b"])
def test_a_planted_import_upward_in_the_kit_is_found(tmp_path, source):
    there = {"conformance__judge__b": "from ..worker import a", "conformance__cases__b": "import numpy"}
    graph = planted(tmp_path, **there, conformance__worker__a="from ..cases import b")
    assert upward(graph, "attendax.conformance", IN_THE_KIT) == []
    graph = planted(tmp_path, **there, conformance__worker__a=source)
    (found,) = upward(graph, "attendax.conformance", IN_THE_KIT)
    assert found == "attendax.conformance.worker.a imports attendax.conformance.judge.b"


def test_a_planted_import_of_jax_is_found(tmp_path):
    source = "import math\nimport numpy as np\nfrom scipy.special import erf\nfrom attendax import checks\n"
    assert foreign(planted(tmp_path, spec__a=source), SPEC_NEEDS) == []
    graph = planted(tmp_path, spec__a=f"{source}def f():\n    import jax.numpy as jnp\n    from scipy import linalg")
    assert foreign(graph, SPEC_NEEDS) == ["jax.numpy", "scipy"]


BESIDE = {"torch", "keras", "flax", "equinox", "haiku", "mlx", "onnx", "onnxruntime", "optax", "tokamax"}


def test_pytest_imports_nothing_that_the_extra_test_does_not_install():
    """Where a file is searched for doctests, it is imported."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    ignored = [ROOT / option.removeprefix("--ignore=") for option in options if option.startswith("--ignore=")]
    files = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    for path in files:
        body = ast.parse(path.read_text()).body
        names = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in body if isinstance(node, ast.ImportFrom) and not node.level]
        if BESIDE.intersection(name.partition(".")[0] for name in names):
            assert path in ignored, path
