"""The wheel has the package and no more, and the package needs nothing else: by its settings, without building it."""

import re
import tomllib

import pytest

from places import ROOT

WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]


@pytest.mark.smoke
def test_it_has_no_benchmark():
    assert WHEEL["only-include"] == ["src/attendax", "src/attendax_pytest.py"]
    assert WHEEL["sources"] == {"src": ""}


@pytest.mark.smoke
def test_nothing_of_the_package_imports_the_benchmarks():
    own = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} | {"benchmarks", "matrix"}
    imported = re.compile(r"^\s*(?:import|from) (\w+)", re.MULTILINE)
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text("utf-8")
        assert not own & set(imported.findall(text)), path
        assert "benchmarks" not in re.findall(r"""["'](\w+)["']""", text), path


def test_it_has_no_adapter_of_a_library():
    from libraries import ADAPTERS

    imports = re.compile(r"^\s*(?:import|from) ([\w.]+)", re.MULTILINE)
    adapted = {adapter.function.partition(":")[0] for adapter in ADAPTERS.values()} - {"attendax", "attendax.spec"}
    for path in (ROOT / "src/attendax/conformance").rglob("*.py"):
        assert not adapted & {*imports.findall(path.read_text("utf-8"))}, path
    assert not [*(ROOT / "src/attendax/conformance").rglob("*.toml")]


@pytest.mark.smoke
def test_what_is_left_out_is_there():
    assert [path for path in WHEEL["exclude"] if not (ROOT / path).exists()] == []
