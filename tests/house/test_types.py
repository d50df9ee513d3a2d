"""Code of a user passes a strict type checker, and shows the public names and no others."""

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import attendax
from attendax import masks, options, scores
from places import ROOT

USER_CODE = Path(__file__).with_name("user_code.py")
SETTINGS = """
[mypy]
strict = true
mypy_path = {sources}
[mypy-attendax.*]
follow_imports = silent
"""


@pytest.mark.slow
def test_a_users_file_passes_a_strict_type_checker(tmp_path):
    """Only the user's file is judged; a mistake in it is seen: the types are those of the library, not Any."""
    sources = Path(attendax.__file__).parent.parent
    (tmp_path / "mypy.ini").write_text(SETTINGS.format(sources=sources))
    mistaken = tmp_path / "mistaken.py"
    mistaken.write_text(
        USER_CODE.read_text()
        + "attendax.attention(x, x, x, return_lse=True).sum()\nattendax.attention(x, x, x, is_causal=True)\n"
        + "attendax.attention(x, x, x, mask='causal')\nops.attention(x, x, x, mask=['causal'])\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary", USER_CODE, mistaken]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert all(line.startswith("mistaken.py:") for line in lines), done.stdout + done.stderr
    last = len(mistaken.read_text().splitlines())
    assert {int(line.split(":")[1]) for line in lines} == {last - 3, last - 2, last - 1, last}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_another_type_checker_agrees(tmp_path):
    sources = Path(attendax.__file__).parent.parent
    mistaken = tmp_path / "mistaken.py"
    mistaken.write_text(USER_CODE.read_text() + "attendax.attention(x, x, x, mask='causal')\n")
    settings = {"include": ["mistaken.py"], "extraPaths": [str(sources)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [each["range"]["start"]["line"] + 1 for each in found] == [len(mistaken.read_text().splitlines())]
    assert "Mask | None" in found[0]["message"]


def untyped(source: str) -> list[str]:
    """The arguments that are said to be ``Any``, without a comment on their line that says what they are."""
    lines, found = source.splitlines(), []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            given = function.args  # not **params: these are the settings of a primitive
            for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg):
                named = each and each.annotation and "Any" in re.findall(r"\w+", ast.unparse(each.annotation))
                if named and "#" not in lines[each.lineno - 1]:
                    found.append(f"{function.name}: {each.arg}")
    return found


def test_a_helper_says_what_an_argument_is():
    """By its type, or by its shape in a comment."""
    assert untyped("def f(x: Any,  # (T, S)\n      *y: Array, **z: Any): ...") == []
    assert untyped("def f(x: Any, *y: list[Any], z: int): ...") == ["f: x", "f: y"]
    package = Path(attendax.__file__).parent
    files = [*package.glob("kernels/**/*.py"), *package.glob("sharding/*.py")]
    assert len(files) > 20
    assert {path.name: found for path in files if (found := untyped(path.read_text("utf-8")))} == {}


def test_help_shows_the_types():
    """By their names, and those of the results."""
    shown = str(inspect.signature(attendax.attention))
    assert "mask: 'Mask | ArrayLike | None'" in shown
    assert shown.endswith("-> 'Array | tuple[Array, Array]'")


def test_help_has_one_text_for_the_arguments_of_attention():
    """In NumPy, JAX and ``dispatch.py``: written once, shown whole, with the option that is particular to each."""
    for function in (attendax.attention, attendax.ops.attention, attendax.spec.attention):
        shown = inspect.getdoc(function)
        for text in (options.ARGUMENTS, options.RESULTS, options.ERRORS):
            assert textwrap.indent(text, "    ") in shown
        named = re.findall(r"^    (\w+): ", shown.partition("Args:\n")[2].partition("\n\n")[0], re.MULTILINE)
        assert named == list(inspect.signature(function).parameters)


@pytest.mark.slow
def test_what_a_user_may_write_runs():
    done = subprocess.run([sys.executable, USER_CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_types_are_shipped():
    assert (Path(attendax.__file__).parent / "py.typed").exists()


@pytest.mark.smoke
def test_dir_shows_the_public_names():
    """And every one of them is there."""
    makers = ["blocks", "causal", "dense", "from_function", "padding", "prefix", "segments", "window"]
    assert dir(masks) == ["Mask", *makers]
    assert dir(scores) == ["ScoreModifier", "alibi", "compose", "from_function", "relative_bias", "sink", "softcap"]
    wanted = "attention attention_stats explain merge weights_at compat masks scores spec ops params encoders"
    wanted += " conformance learn pictures rotary sharding"
    assert {*wanted.split(), "AttentionStats", "Explanation", "__version__"} == set(dir(attendax))
    for module in (attendax, masks, scores):
        assert dir(module) == sorted(module.__all__)
        assert all(hasattr(module, name) for name in dir(module))


def test_the_version_is_said_once():
    """In the package, from which the build reads it."""
    numbers = attendax.__version__.split(".")
    assert len(numbers) == 3
    assert all(number.isdecimal() for number in numbers)
    root = ROOT
    settings = (root / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in settings
    assert f'"{attendax.__version__}"' not in settings
