"""``attendax check``: exit statuses, refusals, files, reproductions, every installed library."""

import inspect
import io
import json
import os
import re
import subprocess
import sys

import pytest

from attendax.cli import main
from dying import right
from places import SOURCE

pytest.importorskip("rich", reason="the extra 'check' is not installed")

MINE = (
    f"import numpy as np\n\n\n{inspect.getsource(right)}"
    + '''

def on_one_thread(query, key, value, *, scale=None):
    import os

    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    return right(query, key, value, scale=scale)


def wrong(query, key, value, *, mask=None, is_causal=False):
    """Ten lines with two mistakes."""
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + np.where(mask, 0, -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def interrupted(query, key, value):
    raise KeyboardInterrupt


def renamed(query, key, value, *, allowed=None):
    import jax.numpy as jnp

    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    weights = weights if allowed is None else jnp.where(allowed, weights, 0)
    return weights / weights.sum(-1, keepdims=True) @ value


not_a_function = 3
'''
)
FAST = ("--level", "forward")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The user's folder, with a module of theirs."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    sys.modules.pop("mine", None)
    (tmp_path / "bad.toml").write_text('[called]\nlayout = "XYZ"\n')
    (tmp_path / "traits.toml").write_text('[called]\nlacks = ["maks"]\n')
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.fixture
def run(here, capsys):
    """Run ``attendax check``: (exit status, standard output, standard error)."""

    def run(*argv):
        status = main(["check", *argv])
        return (status, *capsys.readouterr())

    return run


def environment():
    return {k: x for k, x in os.environ.items() if k != "PYTHONPATH"}


class TestStatus:
    def test_right_is_0(self, run):
        status, out, err = run("mine:right", *FAST, "--only", "scale given", "width 1")
        assert status == 0
        assert "3 of 3 cases pass." in out
        assert err == ""  # progress is for terminals

    def test_the_threads_of_products_do_not_wait_for_each_other(self, run, monkeypatch):
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        assert run("mine:on_one_thread", *FAST, "--only", "scale given", "--quiet")[0] == 0

    def test_wrong_is_1(self, run):
        status, out, _ = run("mine:wrong", *FAST, "--only", "causal", "--quiet")
        assert status == 1
        assert "is_causal is ignored" in " ".join(out.split())

    def test_nothing_judged_is_1(self, run):
        status, out, _ = run("mine:right", *FAST, "--only", "softcap and scale")
        assert status == 1
        assert "No case was judged" in out

    @pytest.mark.smoke
    def test_interrupt_is_130(self, run):
        assert run("mine:interrupted", *FAST, "--only", "plain", "--in-process")[0] == 130

    def test_a_keyword_that_only_its_contract_file_knows(self, run, here):
        renamed = ("mine:renamed", "--level", "forward", "--only", "mask (T, S)", "--quiet")
        status, out, _ = run(*renamed)
        assert (status, "allowed is not understood" in out) == (1, True)
        (here / "mine.toml").write_text('[keywords]\nallowed = "mask: BNTS/True attends"\n\n[means]\nempty = "NaN"\n')
        status, out, _ = run(*renamed, "--contract", "mine.toml")
        assert (status, out.startswith("OK  ")) == (0, True)


class TestRefusals:
    @pytest.mark.smoke(8)
    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            ([], "name a function as module:function"),
            (["nosuch:fn"], "nosuch:fn: No module named 'nosuch'"),
            (["mine:nope"], "mine has no nope"),
            (["other"], "'other' is not module:function, such as torch.nn.functional:"),
            (["mine:not_a_function"], "fn got int"),
            (["broken:fn"], "broken:fn: ZeroDivisionError: division by zero"),
            (["leaving:fn"], "leaving:fn: SystemExit: 3"),
            (["mine:right", "--only", "zzz"], "only got 'zzz', which picks no case"),
            (["mine:right", "--level", "half"], "level got 'half'"),
            (["mine:right", "--dtype", "int8"], "dtype got 'int8', expected one of"),
            (["mine:right", "--seed", "-1"], "seed got -1"),
            (["mine:right", "--contract", "bad.toml"], "'XYZ' is not a value of layout; allowed: BNTD, "),
            (["mine:right", "--contract", "traits.toml"], "'maks' is not a trait; allowed: "),
            (["--onnx", "no.onnx", "mine:right"], "name one of FUNCTION and --onnx"),
            (["mine:right", "--json", "no/such/folder.json"], "there is no such folder"),
            (["mine:right", "--json", "-", "--markdown", "-"], "only one report fits standard output"),
            (["mine:right", "--reproduce", "caus"], "is part of"),
            (["nosuch:attention"], "No module named 'nosuch'; nosuch.py is not in this folder"),
            (["mine.py:right"], "mine.py:right: a module is named without .py: mine:right"),
            (["./mine.py:right"], "./mine.py:right: a module is named without .py: mine:right"),
            (["./mine:right"], "./mine:right: a module is named without .py: mine:right"),
            (["../nosuch/mine.py:right"], "there is no file ../nosuch/mine.py; a module is named in its folder"),
            (["mine.py"], "'mine.py' is not module:function; name a function of it: mine:"),
            (["mine"], "'mine' is not module:function; name a function of it: mine:"),
            (["lacking:fn"], "lacking:fn: No module named 'no_such_package'\n"),
            (["mine:right", "--sizes", "N=3,G=2"], "sizes got N=3, expected a multiple of G=2"),
            (["/no/such/mine.py:right"], "a module is named in its folder: cd /no/such, then mine:right"),
        ],
    )
    def test_is_2_and_one_line(self, run, here, argv, words):
        (here / "broken.py").write_text("1 / 0\n")
        (here / "lacking.py").write_text("import no_such_package\n")
        (here / "leaving.py").write_text("raise SystemExit(3)\n")
        status, out, err = run(*argv, "--quiet")
        assert status == 2
        assert out == ""
        assert err.startswith("attendax check: ")
        assert words in err
        assert err.count("\n") == 1

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("argv", "near"),
        [
            (["jax.nn:dot_product_atention"], "dot_product_attention"),
            (["mine:right", "--only", "casual"], "causal"),
            (["mine:right", "--only", "L66"], "L6"),
            (["mine:right", "--level", "forwrd"], "forward"),
            (["mine:right", "--profile", "robst"], "robust"),
            (["mine:right", "--dtype", "flot32"], "float32"),
            (["mine:right", "--precision", "hihgest"], "highest"),
            (["mine:right", "--contract", "traits.toml"], "mask"),
        ],
    )
    def test_names_the_nearest_word(self, run, argv, near):
        status, out, err = run(*argv, "--quiet")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.endswith(f"; did you mean {near}?\n")

    def test_unknown_option_is_2(self, run):
        with pytest.raises(SystemExit) as caught:
            run("mine:right", "--nosuch")
        assert caught.value.code == 2

    def test_rich_is_missing(self, run, monkeypatch):
        monkeypatch.setitem(sys.modules, "rich", None)
        status, _, err = run("mine:right", *FAST)
        assert status == 2
        assert 'pip install ".[check]"' in err


class TestFiles:
    def test_two_reports(self, run, here):
        files = [f"--{kind}={kind}.out" for kind in ("json", "markdown")]
        status, out, _ = run("mine:wrong", *FAST, "--only", "causal", "--quiet", *files)
        assert status == 1
        assert " cases fail" in out
        found = json.loads((here / "json.out").read_text("utf-8"))
        assert (found["name"], found["ok"], found["dtype"]) == ("mine:wrong", False, "float32")
        assert (here / "markdown.out").read_text("utf-8").startswith("# attendax check: mine:wrong")

    def test_standard_output_is_the_report_alone(self, run):
        status, out, err = run("mine:right", *FAST, "--only", "scale given", "--json", "-")
        assert status == 0
        assert json.loads(out)["counts"] == {"ok": 1}
        assert err == ""

    def test_seed_and_dtype_are_passed_on(self, run):
        _, out, _ = run(
            "mine:right",
            "--only",
            "scale given",
            "--level",
            "forward",
            "--dtype",
            "float64",
            "--seed",
            "7",
            "--json",
            "-",
        )
        found = json.loads(out)
        assert (found["seed"], found["dtype"], found["ok"]) == (7, "float64", True)
        assert found["cases"][0]["allowed"] == 1e-10

    def test_ascii_terminal(self, here, monkeypatch):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["check", "mine:wrong", *FAST, "--only", "causal", "--quiet"]) == 1
        assert b"L4" in stream.buffer.getvalue()


class TestLists:
    @pytest.mark.smoke
    def test_follow_the_width(self, run, monkeypatch):
        """Nothing is cut; without a terminal, each has a line."""
        monkeypatch.setenv("COLUMNS", "40")
        plain = run("--list-cases")[1]
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        _, out, _ = run("--list-cases")
        assert max(map(len, out.splitlines())) <= 40
        assert "".join(out.split()) == "".join(plain.split())
        assert len(out.splitlines()) > len(plain.splitlines())

    def test_cases(self, run):
        status, out, _ = run("--list-cases", "--only", "L15", "--level", "forward")
        assert status == 0
        assert all(line.startswith("L15 ") for line in out.splitlines())
        assert "inputs are not written to" in out


SQUARE = """
import numpy as np
def wrong(query, key, value, *, is_causal=False):
    if not is_causal or query.shape[-2] != key.shape[-2]:
        raise ValueError('only T = S')
    scores = np.where(np.tri(key.shape[-2], dtype=bool), query @ key.swapaxes(-1, -2), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value
"""


def test_it_has_at_most_28_options(run, capsys):
    with pytest.raises(SystemExit):
        run("--help-all")
    assert len(re.findall(r"^  --", capsys.readouterr().out, re.MULTILINE)) <= 28


class TestReproduction:
    def test_fails_as_a_script_without_attendax(self, run, here):
        status, out, err = run("mine:wrong", *FAST, "--reproduce", "causal")
        assert (status, err) == (1, "")
        (here / "shows.py").write_text(f"import sys\nsys.modules['attendax'] = None\n{out}")
        command = [sys.executable, "shows.py"]
        shown = subprocess.run(command, cwd=here, env=environment(), capture_output=True, text=True, check=False)
        assert shown.returncode == 1
        assert shown.stdout.startswith("got ")
        assert "AssertionError" in shown.stderr
        assert "attendax" not in shown.stderr

    def test_takes_each_name_that_a_report_of_a_kernel_prints(self, run, here):
        """It is the case as the function takes it, which does not take the one of the kit."""
        (here / "square.py").write_text(SQUARE)
        asked = ("square:wrong", *FAST)
        found = json.loads(run(*asked, "--only", "plain", "causal", "--budget", "0", "--json", "-")[1])["cases"]
        names = [case["name"] for case in found if case["verdict"] == "wrong"]
        assert {"plain, causal", "plain, causal, T = 128"} <= set(names)
        for name in ("plain, causal", "plain, causal, T = 128", "plain"):
            status, out, err = run(*asked, "--reproduce", name)
            assert (status, err) == (1, "")
            assert "assert abs(" in out

    def test_takes_the_name_of_a_case_that_was_drawn(self, run):
        name = "ladder: causal, normal, B=1 N=2 G=2 T=128 S=128 D=64 V=64"
        assert run("mine:wrong", *FAST, "--reproduce", name)[0] == 1

    def test_takes_the_name_of_a_case_at_given_sizes(self, run):
        asked = ("mine:wrong", *FAST, "--sizes", "T=130,S=130")
        found = json.loads(run(*asked, "--only", "in blocks: causal", "--budget", "0", "--json", "-")[1])["cases"]
        names = [case["name"] for case in found if case["verdict"] == "silent"]
        assert "in blocks: causal, 130" in names
        assert [run(*asked, "--reproduce", name)[0] for name in names] == [1] * len(names)

    @pytest.mark.smoke
    def test_nothing_is_wrong(self, run):
        status, out, err = run("mine:right", *FAST, "--reproduce", "scale given")
        assert (status, out) == (0, "")
        assert err.startswith("attendax check: L2, scale given: ok")


@pytest.mark.slow
def test_closed_pipe_ends_quietly(here):
    command = [sys.executable, "-m", "attendax", "check", "mine:wrong", *FAST, "--quiet"]
    env = environment() | {"PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, cwd=here, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141
    assert err == b""
