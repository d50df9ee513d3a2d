"""The kit in other people's tests: ``assert_conforms``, the settings, and the pytest plugin."""

import inspect
import os
import re
import subprocess
import sys
import unittest

import numpy as np
import pytest

from attendax.conformance import CASES, Verdict, assert_conforms
from dying import right
from libraries import implementation
from places import SOURCE
from planted import by_law

BY_NAME = {case.name: case for case in CASES}
MINE = (
    f"import numpy as np\n\n\n{inspect.getsource(right)}"
    + """

def wrong(query, key, value, *, mask=None, is_causal=False):
    return right(query, key, value)
"""
)


def turned(q, k, v, causal=False, sm_scale=None):
    """(B, T, N, D), causal aligned to the end of the keys."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    s = np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -1e30) if causal else s
    weights = np.exp(s - s.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2)


def unscaled(q, k, v, causal=False):
    """The same without a scale."""
    return turned(q, k, v, causal, 1.0)


def squares(query, key, value, *, is_causal=False):
    T, S = query.shape[-2], key.shape[-2]
    if T != S or not is_causal:
        raise ValueError("only causal, and only T = S")
    scores = np.where(np.tri(T, dtype=bool), query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def loud_squares(query, key, value, *, is_causal=False):
    return 2 * squares(query, key, value, is_causal=is_causal)


@pytest.fixture
def here(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


class TestAssertConforms:
    def test_right_gives_the_finding(self):
        assert assert_conforms(right, BY_NAME["scale given"]).verdict is Verdict.OK

    def test_fault_shows_law_case_and_reproduction(self):
        def wrong(query, key, value, *, scale=None):
            return right(query, key, value)

        with pytest.raises(AssertionError, match=r"(?s)^L2, scale given: .*silent: .* scale .*; expected .*np.random"):
            assert_conforms(wrong, BY_NAME["scale given"])

    def test_not_offered_is_skipped(self):
        with pytest.raises(unittest.SkipTest, match="not offered: no argument bias"):
            assert_conforms(right, BY_NAME["bias (B, N, T, S)"])

    def test_a_kernel_is_asked_what_it_takes(self):
        assert assert_conforms(squares, BY_NAME["plain"]).verdict is Verdict.OK
        with pytest.raises(AssertionError, match=r"(?s)^L2, plain, causal: .*is_causal=True"):
            assert_conforms(loud_squares, BY_NAME["plain"])

    def test_a_function_in_its_own_form_needs_no_flag(self):
        for name in ("plain", "causal, fewer queries", "scale given"):
            assert assert_conforms(turned, BY_NAME[name]).verdict in (Verdict.OK, Verdict.CONVENTION)
        with pytest.raises(unittest.SkipTest, match="no argument bias"):
            assert_conforms(turned, BY_NAME["bias (B, N, T, S)"])

    def test_what_is_unusual_fails_until_it_is_expected(self):
        with pytest.raises(AssertionError, match="plain: scores are not scaled; --expect"):
            assert_conforms(unscaled, BY_NAME["plain"])
        assert assert_conforms(unscaled, BY_NAME["plain"], expect={"scale": "1"}).verdict is Verdict.CONVENTION

    def test_no_formula_is_a_fault(self):
        with pytest.raises(AssertionError, match="no known formula"):
            assert_conforms(lambda q, k, v: q @ k.swapaxes(-1, -2) @ v, BY_NAME["plain"])

    def test_settings_are_those_of_check(self):
        with pytest.raises(TypeError, match=r"assert_conforms: layout left: check detects the axes"):
            assert_conforms(right, BY_NAME["plain"], layout="XY")
        with pytest.raises(ValueError, match="dtype got 'int8'"):
            assert_conforms(right, BY_NAME["plain"], dtype="int8")


class TestSettingsWithAnImplementation:
    SPEC = implementation("attendax-spec")

    def test_other_arrays_are_refused(self):
        with pytest.raises(ValueError, match="arrays got 'torch', but attendax-spec is an Implementation, for numpy"):
            by_law(self.SPEC, only=["plain"], arrays="torch")

    def test_conventions_override(self):
        assert not by_law(self.SPEC, only=["causal, fewer queries"], level="forward", means={"causal": "end"}).ok
        with pytest.raises(ValueError, match="causal got 'middle'"):
            by_law(self.SPEC, only=["plain"], means={"causal": "middle"})

    def test_a_declared_lack_adds_to_its_own(self):
        report = by_law(self.SPEC, only=["softcap"], level="forward", lacks={"softcap": "not today"})
        assert {o.finding.message for o in report.cases if o.verdict is Verdict.NOT_OFFERED} == {"not today"}


def pytest_in(folder, *argv):
    """pytest in a process of its own, with the plugin under one name only."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:attendax",
        "-p",
        "attendax_pytest",
        "-p",
        "no:cacheprovider",
        *argv,
    ]
    env = {k: x for k, x in os.environ.items() if not k.startswith("PYTEST")} | {"PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


class TestPytestPlugin:
    @pytest.mark.slow
    def test_one_test_for_each_case(self, here):
        only = [
            "--attention-only=causal",
            "--attention-only=plain",
            "--attention-only=window",
            "--attention-level=forward",
        ]
        ran = pytest_in(here, "--attention=mine:wrong", "--attention=mine:right", *only, "-rsf", "-k", "not grouped")
        assert ran.returncode == 1, ran.stderr
        assert "mine:wrong: L4, causal" in ran.stdout
        assert "silent: the result is as if is_causal were not given; at out[" in ran.stdout
        assert "from mine import wrong as fn" in ran.stdout
        assert "not offered: no argument window" in ran.stdout
        assert "FAILED mine:wrong::causal" in ran.stdout
        assert "FAILED mine:right" not in ran.stdout

    def test_a_kernel_is_asked_what_it_takes(self, here):
        (here / "kernel.py").write_text("import numpy as np\n\n\n" + inspect.getsource(squares))
        ran = pytest_in(here, "--attention=kernel:squares", "--attention-only=plain", "--attention-level=forward", "-v")
        assert "kernel:squares::plain, causal PASSED" in ran.stdout, ran.stdout + ran.stderr
        assert ran.returncode == 0

    @pytest.mark.slow
    def test_a_function_in_its_own_form_needs_no_flag(self, here):
        (here / "own.py").write_text("\n\n".join(["import numpy as np\n", *map(inspect.getsource, (turned, unscaled))]))
        given = "--attention-only=plain", "--attention-level=forward", "-v"
        ran = pytest_in(here, "--attention=own:turned", "--attention=own:unscaled", *given)
        assert "own:turned::plain PASSED" in ran.stdout, ran.stdout + ran.stderr
        assert "plain: scores are not scaled; --expect" in ran.stdout
        assert "own:unscaled::plain FAILED" in ran.stdout
        ran = pytest_in(here, "--attention=own:unscaled", *given, "--attention-options=--expect scale=1")
        assert ran.returncode == 0, ran.stdout

    @pytest.mark.slow
    def test_no_such_function(self, here):
        ran = pytest_in(here, "--attention=mine:nope")
        assert ran.returncode == 2
        assert "--attention=mine:nope: mine has no nope" in ran.stdout
        assert "Traceback" not in ran.stdout + ran.stderr

    def test_options_of_the_command_are_given_in_one_text(self, here):
        (here / "no-mask.toml").write_text('[called]\nlacks = ["mask"]\n')
        (here / "known.txt").write_text("xfail row invariance: batch*  # by its products\n")
        (here / "mine.py").write_text(
            MINE + "\n\ndef leaks(query, key, value, *, attn_mask=None):\n"
            "    return right(query, key, value) * np.float32(1 + 1e-6 * (query.ndim == 4 and len(query) > 1))\n"
        )
        options = "--claims row-invariance --contract no-mask.toml --known-failures known.txt --repeat 2"
        ran = pytest_in(
            here, "--attention=mine:leaks", "--attention-only=invariance: batch", "--attention-only=mask (B, N, T, S)",
            "--attention-level=forward", "-rxs",
            f"--attention-options={options}",
        )  # fmt: skip
        assert "by its products" in ran.stdout, ran.stdout + ran.stderr
        assert "not offered: no-mask.toml says so" in ran.stdout
        assert "FAILED" not in ran.stdout

    @pytest.mark.parametrize("processes", [(), pytest.param(("-p", "xdist", "-n", "2"), marks=pytest.mark.slow)])
    def test_too_little_that_was_judged_is_a_fault(self, here, processes):
        ran = pytest_in(
            here, "--attention=mine:right", "--attention-only=plain", "--attention-only=mask (T, S)",
            "--attention-options=--require masks --timeout 30", *processes,
        )  # fmt: skip
        assert ran.returncode == 1, ran.stdout + ran.stderr
        assert "attention: mine:right" in ran.stdout
        assert re.search(r"cases were not judged: 4 gradients.* \(not tested for numpy functions\)", ran.stdout)
        assert "Required and not judged: masks." in ran.stdout
        assert " failed" not in ran.stdout

    @pytest.mark.slow
    def test_nothing_that_was_judged_is_a_fault(self, here):
        ran = pytest_in(here, "--attention=mine:right", "--attention-only=window", "--attention-level=forward")
        assert ran.returncode == 1, ran.stdout + ran.stderr
        assert re.search(r"Nothing was judged as right\. \d+ cases were not judged:", ran.stdout)

    @pytest.mark.slow
    def test_a_fault_of_the_second_run_alone_is_a_fault(self, here):
        (here / "mine.py").write_text(
            MINE + "\n\nSEEN = set()\n\n\ndef stale(query, key, value):\n    again = query.shape in SEEN\n"
            "    SEEN.add(query.shape)\n    return right(query, key, value) * (2 if again else 1)\n"
        )
        ran = pytest_in(here, "--attention=mine:stale", "--attention-only=plain", "--attention-options=--repeat 2")
        assert ran.returncode == 1
        assert "FAILED mine:stale::plain" in ran.stdout, ran.stdout + ran.stderr

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ("--claims speed", "claims got 'speed'"),
            ("--jason x", "unrecognized arguments: --jason x"),
            ("--repeat x", "argument --repeat: invalid int value: 'x'"),
        ],
    )
    def test_options_that_are_none_are_refused(self, here, options, said):
        ran = pytest_in(here, "--attention=mine:right", f"--attention-options={options}")
        assert said in ran.stdout + ran.stderr
        assert ran.returncode != 0
        assert "Traceback" not in ran.stdout + ran.stderr

    def test_without_the_option_nothing_is_imported(self, here):
        (here / "test_light.py").write_text(
            "import sys\n\ndef test_light():\n    assert 'attendax_pytest' in sys.modules\n"
            "    assert not {'jax', 'numpy', 'attendax'} & sys.modules.keys()\n"
        )
        ran = pytest_in(here, "-q", "-p", "no:hypothesispytest", "-p", "no:jaxtyping")  # which import them
        assert ran.returncode == 0, ran.stdout

    def test_the_documented_parametrisation(self, here):
        (here / "test_mine.py").write_text(
            "import pytest\nimport attendax.conformance\nfrom mine import wrong as my_attention\n\n\n"
            '@pytest.mark.parametrize("case", attendax.conformance.CASES, ids=lambda case: case.name)\n'
            "def test_attention(case):\n    attendax.conformance.assert_conforms(my_attention, case)\n"
        )
        ran = pytest_in(here, "-q", "-rs", "-k", "[causal] or [plain] or [window]")
        assert "1 failed, 1 passed, 1 skipped" in ran.stdout
        assert "not offered: no argument window" in ran.stdout
