"""``attendax check --candidates``: each file by itself; a bad one spoils neither the next nor the judge."""

import json

import pytest

from attendax.cli import main
from attendax.conformance.command.running import function_of
from places import KIT

pytest.importorskip("rich", reason="the extra 'check' is not installed")

RIGHT = """
import numpy as np


def attention(query, key, value):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value
"""
WRITES = """
for name in ("rich", "json", "attendax"):
    open(f"{name}.py", "w").write("import os; os._exit(0)")
import os


def attention(query, key, value):
    os._exit(0)
"""
FILES = {
    "a right-one.py": RIGHT,
    "doubles.py": RIGHT.replace("def attention", "def of_another_name").replace("@ value", "@ (2 * value)"),
    "ends.py": "import os\nos._exit(0)\n\n\ndef attention(query, key, value):\n    pass\n",
    "writes.py": WRITES,
    "no_python.py": "def f(\n",
    "_helper.py": "1 / 0\n",
}
SOME = ("--only", "width 1", "--level", "forward", "--arrays", "numpy", "--budget", "0", "--seed", "0")


def test_each_by_itself(tmp_path, capsys):
    folder = tmp_path / "candidates"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    file = tmp_path / "out.jsonl"
    assert main(["check", "--candidates", str(folder), "--json", str(file), "--workers", "2", *SOME]) == 1
    found = {line["file"]: line for line in map(json.loads, file.read_text().splitlines())}
    assert found.keys() == FILES.keys() - {"_helper.py"}
    assert {name: line["status"] for name, line in found.items() if line["ok"]} == {"a right-one.py": 0}
    assert (found["doubles.py"]["status"], found["doubles.py"]["function"]) == (1, "of_another_name")
    assert found["doubles.py"]["faults"][0]["verdict"] == "wrong"
    assert found["doubles.py"]["causes"]
    assert found["ends.py"]["status"] == 2
    assert "when it was imported: its process ended with exit status 0" in found["ends.py"]["said"]
    assert found["no_python.py"]["said"].startswith("SyntaxError: ")
    assert not found["writes.py"]["ok"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)  # nothing is written beside them
    assert capsys.readouterr().err.startswith("1 of 5 are right; not doubles.py, ends.py, no_python.py, writes.py.")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--candidates", "."], "there is no file *.py"),
        (["m:f", "--candidates", "."], "leave the function m:f out"),
        (["--candidates", str(KIT), "--workers", "0"], "--workers got 0, expected 1 or more"),
    ],
)
def test_refusals(tmp_path, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(tmp_path)
    assert main(["check", *argv]) == 2
    assert words in capsys.readouterr().err


def test_which_function():
    assert function_of("def _f(): pass\ndef g(): pass\n") == "g"
    assert function_of("def g(): pass\nattention = jit(g)\n") == "attention"
    with pytest.raises(ValueError, match="functions f, g: name one attention, or give --function NAME"):
        function_of("def f(): pass\ndef g(): pass\n")
    with pytest.raises(ValueError, match="no public function"):
        function_of("x = 1\n")
