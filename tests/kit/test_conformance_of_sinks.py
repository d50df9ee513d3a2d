"""The kit judges sinks, and their gradient, of functions in every framework."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import right_attention
from attendax.conformance import CASES, Verdict
from places import PYTHONPATH
from stated import check

FIRST_ORDER = [case.name for case in CASES if "sinks=" in case.call and case.level != "everything"]
LAST = "gradient: sinks, masked"


pytestmark = pytest.mark.usefixtures("as_users_have_it")


def eager(query, key, value, *, mask=None, scale=None, sinks=None):
    """As models in PyTorch have it: a column of scores, which is dropped after the softmax."""
    import torch

    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)], dim=-1)
    return torch.softmax(scores, dim=-1)[..., : key.shape[-2]] @ value


def forgets(query, key, value, *, sinks=None):
    weights = jax.nn.softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5, axis=-1)
    return weights @ value


def without_its_gradient(query, key, value, *, mask=None, sinks=None):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
    if sinks is None:
        return jax.nn.softmax(scores, axis=-1) @ value
    column = jnp.broadcast_to(jax.lax.stop_gradient(sinks)[:, None, None], (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, column], axis=-1), axis=-1)[..., :-1] @ value


def only(report):
    """The finding of the one case of a report, and its script."""
    (outcome,) = report.cases
    return outcome.finding, outcome.reproduction


WHAT_IT_HAS_NOT = ("lse", "softcap", "empty", "-inf", "dropout", "cache", "window")


def test_the_eager_form_of_torch_is_right():
    pytest.importorskip("torch")
    report = check(
        eager, arrays="torch", only=["sinks"], level="gradient", dtype="float64", profile="law", in_process=True
    )
    assert not report.failures
    judged = [name for name in FIRST_ORDER if not any(words in name for words in WHAT_IT_HAS_NOT)]
    assert report.counts()["ok"] == len(judged) > 8


def test_a_function_that_takes_sinks_and_forgets_them():
    found, _ = only(check(forgets, arrays="jax", only=["sinks, long"], in_process=True))
    assert found.verdict is Verdict.SILENT
    assert "as if sinks were not given" in found.message


def test_a_gradient_of_zero_is_told_and_its_script_fails(tmp_path):
    found, script = only(check("test_conformance_of_sinks:without_its_gradient", only=[LAST]))
    assert (found.verdict, found.message) == (Verdict.SILENT, "grad sinks is all zeros")
    (tmp_path / "reproduction.py").write_text(script)
    command, paths = [sys.executable, tmp_path / "reproduction.py"], {"PYTHONPATH": PYTHONPATH}
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | paths, check=False)
    assert run.returncode == 1
    assert "AssertionError" in run.stderr


def test_who_lacks_their_gradient_may_say_so():
    found, _ = only(check(without_its_gradient, arrays="jax", only=[LAST], lacks={"gradient of sinks": "it is frozen"}))
    assert (found.verdict, found.message) == (Verdict.NOT_OFFERED, "it is frozen")


@pytest.mark.parametrize("backward", [None, right_attention.backward], ids=["forward", "backward"])
def test_a_backward_by_hand_gives_it_last(backward):
    report = check(
        right_attention.attend, arrays="numpy", only=["sinks"], level="gradient", backward=backward, profile="law"
    )
    assert not report.failures
    forward = [name for name in FIRST_ORDER if "gradient" not in name]
    assert report.counts()["ok"] == len(FIRST_ORDER if backward else forward)
