"""What is judged and is no function of Python: a program by ``--exec``."""

import json
import os
import stat
import sys
import textwrap

import pytest

from attendax.cli import main
from attendax.conformance import CASES, check
from attendax.conformance.cases.how import How
from attendax.conformance.checking import judge
from attendax.conformance.worker.foreign import implementation

RIGHT = """
    import numpy as np
    query, key, value = (np.load(f"{folder}/{name}.npy") for name in ("query", "key", "value"))
    if case["asks_for"] or case["direction"] != "forward" or case["dtype"] not in ("float32", "float64"):
        refuse(f"no {case['direction']} with {case['asks_for']}")
    group = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, group, axis=1) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) * case["scale"]
    if case["allowed"]:
        scores = np.where(np.load(f"{folder}/allowed.npy"), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e30))
    total = weights.sum(-1, keepdims=True)
    np.save(f"{folder}/out.npy", (weights / np.where(total > 0, total, 1) @ value).astype(query.dtype))
"""
ZEROS = "open(f'{folder}/out.npy', 'wb').write(NPY)\n"
WRONG = {  # what a program does, and what the kit finds
    "exits": ("sys.exit(3)", "its process ended with exit status 3"),
    "says why": ("sys.exit('no such file: weights.bin')", "exit status 1; it said: no such file: weights.bin"),
    "is killed": ("os.kill(os.getpid(), 11)", "its process was ended by SIGSEGV"),
    "writes nothing": ("pass", "out.npy was not written"),
    "removes its folder": ("import shutil; shutil.rmtree(folder)", "it removed the folder of its case"),
    "writes half": ("open(f'{folder}/out.npy', 'wb').write(NPY[:-5])", "out.npy has 7 bytes of numbers, expected 12"),
    "writes text": ("open(f'{folder}/out.npy', 'w').write('1 2 3')", "out.npy is not a NumPy array"),
    "another shape": (ZEROS.strip(), "out has shape (3,), expected (2, 3, 5, 4)"),
    "names its error first": (
        "sys.exit('at 3\\n\\x1b[31mTypeError: no bias\\x1b[0m\\n at a\\n at b\\n}\\n\\nNode.js v20')",
        "exit status 1; it said: TypeError: no bias / at a / at b",
    ),
    "writes integers": (
        "np.save(f'{folder}/out.npy', np.ones(case['results']['out']['shape'], np.int32))",
        "out is int32, expected float32",
    ),
    "writes version 2": (
        "open(f'{folder}/out.npy', 'wb').write(NPY[:6] + b'\\x02' + NPY[7:])",
        "out.npy is .npy of version 2.0, expected 1.0",
    ),
    "writes too much": ("open(f'{folder}/out.npy', 'wb').write(NPY + b'12')", "14 bytes of numbers, expected 12"),
    "an error of nothing": (
        "open(f'{folder}/error.json', 'w').write('{}')",
        'error.json cannot be read: expected {"kind": "not offered", "said": ["why"]}',
    ),
    "an error as text": (
        """open(f'{folder}/error.json', 'w').write('{"kind": "failed", "said": "too long"}')""",
        "too long",
    ),
    "a torn error": ("open(f'{folder}/error.json', 'w').write('{')", "error.json cannot be read"),
}
HEAD = """\
#!{python}
import json, os, sys
{numpy}
folder = sys.argv[1]
case = json.load(open(f"{{folder}}/case.json"))
ABOUT = b"{{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }}"
NPY = b"\\x93NUMPY\\x01\\x00F\\x00" + ABOUT.ljust(69) + b"\\n" + bytes(12)


def refuse(why):
    json.dump({{"kind": "not offered", "said": [why]}}, open(f"{{folder}}/error.json", "w"))
    sys.exit(1)


"""
QUICK = {"budget": 0, "repeat": 1, "seed": 3}


@pytest.fixture
def program(tmp_path):
    """Writes a program, and gives its command."""

    def written(text, name="attention.py"):
        path = tmp_path / name
        numpy = "import numpy as np" if "np." in text else ""  # a tenth of a second in each call
        path.write_text(HEAD.format(python=sys.executable, numpy=numpy) + textwrap.dedent(text))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return f"{path} {{case}}"

    return written


def judged(command, only=("plain",), **asked):
    return check(f"exec:{command}", only=only, level="forward", **QUICK | asked)


def test_a_right_program(program):
    """What it refuses is not offered: found by trying. Masks of every kind come as one array."""
    report = judged(program(RIGHT), only=["window with a mask", "key lengths", "bias (T, S)"])
    assert report.ok
    verdicts = {outcome.case.name: outcome for outcome in report.cases}
    for name in ("key lengths", "key lengths, causal", "window with a mask"):
        assert verdicts[name].verdict == "ok", name
    assert verdicts["bias (T, S)"].verdict == "not offered"
    assert "no forward with ['bias']" in verdicts["bias (T, S)"].finding.message


@pytest.mark.smoke(1)
@pytest.mark.sample(7)
@pytest.mark.parametrize("what", WRONG)
def test_a_program_that(what, program):
    """The plainest call is answered, so that the cases tell; and each ending is told."""
    does, said = WRONG[what]
    report = judged(program(f"if case['scale'] != 0.5:\n    {does}\n    sys.exit()\n{ZEROS}"), only=["scale given"])
    assert not report.ok
    assert any(said in outcome.finding.message for outcome in report.cases), [o.told() for o in report.cases]


def test_a_program_that_hangs(program):
    text = "if case['scale'] != 0.5:\n    import time; time.sleep(60)\n"
    report = judged(program(text + ZEROS), only=["scale given"], timeout=1.0)
    assert {o.verdict for o in report.cases if o.verdict.fails} == {"timeout"}


def test_a_program_that_hangs_from_its_first_call(program, capfd):
    command = program("import time; time.sleep(60)\n")
    assert main(["check", "--exec", command, "--timeout", "0.5", "--quiet"]) == 2
    said = capfd.readouterr().err
    assert f"{command} fails on the plainest call: no answer in 0.5 seconds: --timeout SECONDS" in said


def test_no_remedy_that_the_command_refuses(program):
    """What is read the other way round is one cause, of masks and of causal; no flag turns it for a program."""
    text = RIGHT.replace('np.load(f"{folder}/allowed.npy")', '~np.load(f"{folder}/allowed.npy")')
    report = judged(program(text), only=["mask (T, S)", "mask (B, 1, T, S)", "causal, more queries"])
    assert [cause.name for cause in report.causes] == ["the pairs that are allowed and those that are not are swapped"]
    report = judged(program(text), only=["mask (B, 1, T, S)"])
    swapped = "the pairs that are allowed and those that are not are swapped"
    assert [(cause.name, cause.remedy) for cause in report.causes] == [(swapped, "")]


@pytest.mark.smoke
def test_nothing_of_a_case_says_what_is_right(program, tmp_path):
    """No name of the case, seed, tolerance; and the shape of each result that is asked for."""
    text = f"import shutil; shutil.copytree(folder, {str(tmp_path / 'seen')!r}, dirs_exist_ok=True)\n"
    made = implementation(f"exec:{program(text + ZEROS)}")
    case = next(case for case in CASES if case.name == "mask (T, S)")
    assert judge(made, case, How(3)).verdict == "wrong"
    case = json.loads((tmp_path / "seen/case.json").read_text())
    assert set(case) == {
        "schema", "direction", "dtype", "sizes", "scale", "allowed", "asks_for", "options", "arrays", "cotangent",
        "results",
    }  # fmt: skip
    assert case["results"] == {"out": {"file": "out.npy", "dtype": "float32", "shape": [2, 3, 5, 4]}}
    assert case["allowed"] == {"file": "allowed.npy", "dtype": "bool", "shape": [1, 1, 5, 7]}
    assert sorted(os.listdir(tmp_path / "seen")) == [
        "allowed.npy", "case.json", "key.npy", "mask.npy", "query.npy", "value.npy",
    ]  # fmt: skip


REFUSED = {
    "no program": (["--exec", "./nothing {case}"], "there is no program './nothing': build it"),
    "not executable": (["--exec", "./plain.txt"], "'./plain.txt' may not be executed: chmod +x ./plain.txt"),
    "no quotes": (["--exec", "./a 'b"], "cannot be read: No closing quotation"),
    "two": (["mine:attention", "--exec", "./a"], "name one of FUNCTION and --exec"),
    "writes nothing": (["--exec", "true"], "fails on the plainest call, float32: out.npy was not written"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_in_one_line(what, tmp_path, monkeypatch, capfd):
    """With exit status 2, and what to do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").write_text("1 2 3")
    words, said = REFUSED[what]
    assert main(["check", *words, "--quiet"]) == 2
    error = capfd.readouterr().err.strip()
    assert said in error
    assert error.count("\n") == 0


def test_a_program_that_refuses_everything_is_refused(program, capfd):
    assert main(["check", "--exec", program("refuse('only on Tuesdays')"), "--quiet"]) == 2
    assert "fails on the plainest call, float32: only on Tuesdays" in capfd.readouterr().err


def test_a_reproduction_names_the_program(program):
    report = judged(program(RIGHT.replace('* case["scale"]', "")), only=["plain"])
    script = next(o.reproduction for o in report.cases if o.verdict.fails)
    assert "attend = implementation('exec:" in script
    with pytest.raises(AssertionError):
        exec(compile(script, "script", "exec"), {})


def test_in_this_process(program):
    made = implementation(f"exec:{program(RIGHT)}")
    assert check(made, only=["plain"], level="forward", **QUICK).ok
