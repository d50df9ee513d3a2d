"""Mistakes planted in the source, one at a time: each must be caught by a judge, or the judges prove nothing.

A mistake is a piece of text replaced in one file of a copy of ``spec`` or ``ops``. The piece must be there, so that the
table cannot go stale in silence; the judge named beside it must raise AssertionError on the copy, and must pass on
the original.
"""

import importlib
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from attendax import ops, spec
from cases import CASES
from judges import arrays_of, assert_same_bits, judge_direction, judge_forward, judge_gradient
from mistakes import OPS, SPEC


def judge(mistake_judge, case_name, twin, is_ops):
    """Run one judge; ``twin`` is the copy (or the original) of spec or ops."""
    case = CASES[case_name]
    one, other = (spec, twin) if is_ops else (twin, ops)
    special = SPECIAL.get(mistake_judge)
    if special:
        special(case, twin)
    elif mistake_judge == "direction":
        judge_direction(case, twin)
    else:
        {"forward": judge_forward, "gradient": judge_gradient}[mistake_judge](case, one, other)


def judge_huge(case, twin):
    q, k, v = (100 * x for x in arrays_of(case))
    assert np.isfinite(np.asarray(twin.scaled_dot_product_attention(q, k, v)[0])).all()


def judge_poison(case, twin):
    """L6: NaN in the values of keys 4 and later, which are masked, changes no bit."""
    q, k, v, *weights = (x.copy() for x in arrays_of(case))
    wanted = case.forward(twin, q, k, v.copy(), *weights)
    v[..., 4:, :] = np.nan
    assert_same_bits(case.forward(twin, q, k, v, *weights), wanted, case.name)


def judge_visible(case, twin, which=2):
    """L6: one number that is not finite makes the whole row NaN of each query that may look at it."""
    arrays = [x.copy() for x in arrays_of(case)]
    arrays[which][..., 0, 0] = np.inf
    assert np.isnan(np.asarray(case.forward(twin, *arrays))).all()


def judge_unread(case, twin):
    """L6: a query that is NaN and that nothing depends on adds 0."""
    arrays = [x.copy() for x in arrays_of(case)]
    arrays[0][..., 1, :] = np.nan
    cotangent = np.ones(arrays[0].shape[:-1] + arrays[2].shape[-1:])
    cotangent[..., 1, :] = 0
    assert all(np.isfinite(x).all() for x in case.backward(twin, cotangent, *arrays))


def judge_hidden_infinity(case, twin):
    """L6: an infinite key spoils its rows though a cap makes its score finite."""
    from attendax import scores

    q, k, v = (x.copy() for x in arrays_of(case))
    k[..., 0, 0] = np.inf
    assert np.isnan(twin.attention(q, k, v, score_mod=scores.softcap(0.5))).all()


def judge_minus_infinity(case, twin):
    """L5: a bias of -inf forbids like a mask, so a NaN behind it is not seen (L6)."""
    q, k, v, bias = (x.copy() for x in arrays_of(case))
    bias[..., 3], v[..., 3, :] = -np.inf, np.nan
    assert np.isfinite(twin.scaled_dot_product_attention(q, k, v, bias=bias)[0]).all()


def judge_modified_bias(case, twin):
    from attendax import scores

    q, k, v = arrays_of(case)
    options = {"score_mod": scores.softcap(0.5), "bias": np.linspace(-3, 3, k.shape[-2])}
    np.testing.assert_allclose(twin.attention(q, k, v, **options), ops.attention(q, k, v, **options), rtol=1e-10)


def judge_encoding(case, twin):
    np.testing.assert_allclose(twin.sinusoidal_encoding(7, 5), ops.sinusoidal_encoding(7, 5), atol=1e-12)


def judge_unwritten(case, twin):
    x, pe = (array.copy() for array in arrays_of(case))
    before = x.copy()
    twin.add_positional_encoding(x, pe)
    assert_same_bits(x, before, "x")


def judge_cotangent(case, twin):
    """L6: a NaN in the cotangent of query 1 reaches the keys up to it, and none after it (case sdpa-causal)."""
    arrays = arrays_of(case)
    cotangent = np.ones(case.forward(twin, *arrays).shape)
    cotangent[..., 1, 0] = np.nan
    for gradient in case.backward(twin, cotangent, *arrays)[1:]:
        assert np.isnan(gradient[..., :2, :]).all()
        assert np.isfinite(gradient[..., 2:, :]).all()


SPECIAL = {
    "huge": judge_huge,
    "poison": judge_poison,
    "visible": judge_visible,
    "visible key": partial(judge_visible, which=1),
    "unread": judge_unread,
    "hidden infinity": judge_hidden_infinity,
    "minus infinity": judge_minus_infinity,
    "modified bias": judge_modified_bias,
    "encoding": judge_encoding,
    "unwritten": judge_unwritten,
    "cotangent": judge_cotangent,
}


@pytest.fixture
def copy_with(tmp_path, monkeypatch, request):
    """Make an importable copy of a package of ours with one piece of text replaced."""

    def make(package, file, right, wrong):
        name = f"mistaken_{package.__name__.split('.')[-1]}"
        folder = tmp_path / name
        shutil.copytree(Path(package.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
        text = (folder / file).read_text(encoding="utf-8")
        assert text.count(right) >= 1, f"{right!r} is not in {file}: the table is stale"
        (folder / file).write_text(text.replace(right, wrong), encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        request.addfinalizer(lambda: [sys.modules.pop(m) for m in list(sys.modules) if m.split(".")[0] == name])
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return make


TABLE = [(m, spec) for m in SPEC] + [(m, ops) for m in OPS]


def test_every_text_to_replace_is_in_the_source():
    folders = {package: Path(package.__file__).parent for package in (spec, ops)}
    assert [m.name for m, p in TABLE if m.right not in (folders[p] / m.file).read_text(encoding="utf-8")] == []


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "package"), TABLE, ids=[f"{p.__name__[9:]}: {m.name}" for m, p in TABLE])
def test_the_mistake_is_caught(mistake, package, copy_with):
    twin = copy_with(package, mistake.file, mistake.right, mistake.wrong)
    with pytest.raises(AssertionError):
        judge(mistake.judge, mistake.case, twin, package is ops)


@pytest.mark.smoke
@pytest.mark.parametrize("package", [spec, ops], ids=["spec", "ops"])
def test_an_untouched_copy_passes_every_judge(package, copy_with):
    """So that it is the mistake that is caught, not the copying."""
    twin = copy_with(package, "__init__.py", '"""', '"""')
    for name, case in sorted({(mistake.judge, mistake.case) for mistake, owner in TABLE if owner is package}):
        judge(name, case, twin, package is ops)
