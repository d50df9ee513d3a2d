"""Functions that users really bring: odd ones are judged, no odder than they are, and break nothing."""

import dataclasses
import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import right_attention
from attendax import cli
from attendax.conformance import Verdict, checking
from attendax.conformance.cases import named
from planted import by_law
from stated import check

BASE = 0.5


pytestmark = pytest.mark.usefixtures("as_users_have_it")


def formula(query, key, value):
    return jax.nn.softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -BASE) @ value


@dataclasses.dataclass
class Layer:
    """Not hashable."""

    power: float = -0.5

    def __call__(self, query, key, value):
        return jax.nn.softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** self.power) @ value

    def attend(self, query, key, value):
        return self(query, key, value)


def decorated(function):
    @functools.wraps(function)
    def run(*arrays, **options):
        return function(*arrays, **options)

    return run


RIGHT = {
    "with None beside": lambda query, key, value: (formula(query, key, value), None),
    "with weights beside": lambda query, key, value: [formula(query, key, value), query @ key.swapaxes(-1, -2)],
    "not hashable": Layer(),
    "a method": Layer().attend,
    "a partial": functools.partial(formula),
    "under jit": jax.jit(formula),
    "decorated": decorated(formula),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_right_however_it_comes(name):
    only = ["plain", "lengths that no block", "lse", "bfloat16"]
    report = by_law(
        RIGHT[name], only=only, seed=0
    )  # at others its softmax in bfloat16 may be further off than L8 allows
    assert [(o.case.name, o.finding.message) for o in report.failures] == []
    assert report.counts()["ok"] >= 7
    assert report.arrays == "jax"


def test_a_result_in_the_same_memory_as_the_last():
    buffers = {}

    def attend(query, key, value, *, return_lse=False):
        out, lse = right_attention.attend(query, key, value, return_lse=True)
        buffer = buffers.setdefault(out.shape, np.empty_like(out))
        buffer[...] = out
        return (buffer, lse) if return_lse else buffer

    assert by_law(attend, arrays="numpy", only=["lse, grouped heads", "repeated", "plain"], level="forward").ok

    calls = iter(range(10**6))

    def another_each_time(query, key, value, *, is_causal=False):
        return attend(query + np.float32(next(calls)) / 1024, key, value)

    report = by_law(another_each_time, arrays="numpy", only=["repeated"], level="forward")
    assert [o.verdict for o in report.cases] == [Verdict.LEAK]


ODD = {
    "nothing": lambda query, key, value, **options: None,
    "a number": lambda query, key, value, **options: 1.0,
    "text": lambda query, key, value, **options: np.array("attention"),
    "a dict": lambda query, key, value, **options: {"out": query},
    "no results": lambda query, key, value, **options: (),
    "complex numbers": lambda query, key, value, **options: right_attention.attend(query, key, value) + 0j,
    "another rank": lambda query, key, value, **options: query[0],
    "zeros": lambda query, key, value, **options: np.zeros(query.shape[:-1] + value.shape[-1:], np.float32),
    "no lse": lambda query, key, value, *, return_lse=False: right_attention.attend(query, key, value),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ODD)
def test_what_gives_something_else_is_wrong_and_breaks_nothing(name):
    report = by_law(ODD[name], arrays="numpy", only=["plain", "lse", "leak: NaN", "dropout", "apart", "not written"])
    assert report.failures
    assert {o.verdict for o in report.failures} <= {Verdict.WRONG, Verdict.SILENT, Verdict.OBSCURE}
    assert all(o.reproduction for o in report.failures)
    json.loads(report.to_json())


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(3), Mute(), RecursionError(), ValueError()])
def test_an_error_of_any_kind_ends_a_case_not_the_check(error):
    def attend(query, key, value, *, mask=None):
        if mask is not None:
            raise error
        return right_attention.attend(query, key, value)

    report = by_law(attend, arrays="numpy", only=["plain", "mask (T"], level="forward")
    assert report.counts().pop("ok") == 3  # plain in three sizes
    assert set(report.counts()) == {"ok", "obscure error", "not offered"}  # there is no is_causal


def test_a_function_that_prints_does_not_spoil_the_json(tmp_path, monkeypatch, capsys):
    pytest.importorskip("rich", reason="the extra 'check' is not installed")
    (tmp_path / "chatty_attention.py").write_text(
        "import right_attention\n\n\ndef attend(query, key, value):\n"
        "    print('hello')\n    return right_attention.attend(query, key, value)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["check", "chatty_attention:attend", "--only", "plain", "--json", "-"]) in (
        0,
        1,
    )
    assert json.loads(capsys.readouterr().out)["name"] == "chatty_attention:attend"


def test_an_unknown_setting_is_refused_before_anything_is_tried():
    with pytest.raises(TypeError, match="check: 'layuot' is not a setting"):
        by_law(formula, layuot="BTNH")
    for name, successor in (("layout", "layout = "), ("names", r"\[keywords\]"), ("lse_base", "lse=base 2")):
        with pytest.raises(TypeError, match=f"check: {name} left: check detects .*{successor}"):
            by_law(formula, **{name: "bthd"})


def test_parameters_that_are_never_given_are_named():
    report = by_law(lambda q, k, v, visible_keys=None: formula(q, k, v), only=["mask (T, S)"], level="forward")
    assert report.cases[0].finding.message == "no argument mask; never given: visible_keys"


def with_constant(power):
    def attend(query, key, value, *, scale=None):
        return jax.nn.softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** power) @ value

    return attend


WRONG = {
    "closure": with_constant(-0.25),
    "partial": functools.partial(with_constant(-0.25), scale=None),
    "uses the module": lambda query, key, value: jnp.tanh(query @ key.swapaxes(-1, -2)) @ value,
    "decorated": decorated(with_constant(-0.25)),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", WRONG)
def test_a_reproduction_brings_what_the_function_uses(name, tmp_path):
    """The functions are of a module that a fresh Python finds, or their text is there with all it needs."""
    made = checking.implement(WRONG[name], arrays="jax")
    outcome = checking.judge(made, checking.CASES[0])
    script = tmp_path / "reproduction.py"
    script.write_text(outcome.reproduction)
    run = subprocess.run([sys.executable, "-P", script], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1
    assert run.stderr.strip().splitlines()[-1].startswith("AssertionError"), run.stderr


@pytest.mark.parametrize(
    ("asked", "memory", "last"),
    [
        ("plain", 'float("nan")', "AssertionError: NaN"),
        ("plain", "1e11", "AssertionError"),
        ("no keys, lse", 'float("nan")', "AssertionError: NaN"),
        ("no keys, lse", "-np.inf", ""),  # which is right there
    ],
)
def test_a_reproduction_of_nan_shows_any_other_number_in_its_place_too(asked, memory, last, tmp_path):
    def never_written(query, key, value, *, return_lse=False):
        lse = np.full(query.shape[:-1], float("nan"), query.dtype)
        return (np.zeros_like(query), lse) if return_lse else np.full_like(query, float("nan"))

    outcome = checking.judge(checking.implement(never_written, arrays="numpy"), named(asked))
    assert outcome.verdict is Verdict.NAN
    script = tmp_path / "reproduction.py"
    script.write_text(outcome.reproduction.replace('float("nan")', memory))
    run = subprocess.run([sys.executable, "-P", script], capture_output=True, text=True, cwd=tmp_path)
    assert run.stderr.strip().rpartition("\n")[-1] == last


def test_a_result_of_another_rank_where_the_call_is_large():
    """Once it ended in an IndexError: options were left out for one head of a result that has no heads."""

    def flat(query, key, value, *, is_causal=False):
        out = right_attention.attend(query, key, value, is_causal=is_causal)
        return out.reshape(-1, out.shape[-1]) if out.shape[-2] > 256 else out

    report = by_law(flat, arrays="numpy", level="forward", only=["in blocks: causal, 300", "causal"], seed=1, repeat=1)
    found = {outcome.case.name: outcome for outcome in report.failures}
    assert found["in blocks: causal, 300"].finding.message == "out has shape (600, 8), expected (1, 2, 300, 8)"
    assert "causal" not in found


def test_a_function_that_only_seems_to_take_any_keyword():
    """Behind a decorator without ``functools.wraps``: what it does not take is not offered."""

    def of_a_mask(query, key, value, mask=None):
        return right_attention.attend(query, key, value, mask=mask)

    def any_keyword(*arrays, **options):
        return of_a_mask(*arrays, **options)

    report = check(any_keyword, arrays="numpy", level="forward", only=["causal", "mask (T, S)", "dropout: share"])
    assert report.ok, [outcome.told() for outcome in report.failures]
    assert {outcome.case.name for outcome in report.cases if outcome.verdict is Verdict.OK} >= {"mask (T, S)"}
    assert {outcome.verdict for outcome in report.cases if "is_causal" in outcome.case.call} == {Verdict.NOT_OFFERED}
    assert {outcome.verdict for outcome in report.cases if "dropout" in outcome.case.call} == {Verdict.NOT_OFFERED}


def test_the_result_tells_the_arrays_of_a_function():
    """JAX's arrays go through ``torch.as_tensor``, too, where JAX is loaded; their gradients do not."""
    torch = pytest.importorskip("torch")

    def attend(query, key, value):
        query, key, value = map(torch.as_tensor, (query, key, value))
        return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1) @ value

    report = by_law(attend, only=["plain"], in_process=True)
    assert (report.arrays, report.ok) == ("torch", True)


def test_what_raises_on_guessed_arrays_names_the_option():
    torch = pytest.importorskip("torch")

    def attend(query, key, value, *, mask=None):
        if mask is not None:
            return torch.as_tensor(query) * mask.to(torch.float32)
        return right_attention.attend(query, key, value)

    report = by_law(attend, only=["plain"], level="forward", in_process=True)
    assert not report.failures
    (words,) = report.unsettled
    assert "mask is not understood: each call with it raises; the first said: AttributeError: 'numpy." in words
