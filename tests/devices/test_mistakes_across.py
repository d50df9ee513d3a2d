"""Mistakes planted in a copy of the ring and its neighbours, one at a time: each must be caught."""

import importlib
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import sequences

import attendax.kernels
from attendax import masks, scores, sharding

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_quickly")]
NAME = "kernels_with_a_mistake"
DEVICES, T = 3, 24
RING, BLOCKS, HEADS, GATHERED, CALL = (f"across/{name}.py" for name in ("ring", "blocks", "heads", "gathered", "call"))
MISTAKES = {  # the strategy, a file, what is right in it, what is wrong
    "positions do not travel": (
        "ring",
        BLOCKS,
        "operands.positions._replace(keys=guests.positions)",
        "operands.positions",
    ),
    "a hop too few": ("ring", BLOCKS, "lax.fori_loop(0, count - 1,", "lax.fori_loop(0, count - 2,"),
    "local row sums": (
        "ring",
        RING,
        "results._replace(out=jnp.zeros_like(results.out))",
        "results._replace(out=jnp.zeros_like(results.out), total=results.total / 2)",
    ),
    "dlse dropped": (
        "ring",
        RING,
        "sums_of_products(dout, results.out) - dlse, 0)",
        "sums_of_products(dout, results.out), 0)",
    ),
    "delta of a row that nothing reads": (
        "ring",
        RING,
        "jnp.where(is_read(dout, dlse), sums_of_products(dout, results.out) - dlse, 0)",
        "sums_of_products(dout, results.out) - dlse",
    ),
    "the other way round the ring": ("ring", BLOCKS, "(k, (k + 1) % count)", "(k, (k - 1) % count)"),
    "ids do not travel": ("ring", BLOCKS, "(part.arrays[0], next(ids))", "(part.arrays[0], part.arrays[1])"),
    "columns of the wrong owner": (
        "ring",
        BLOCKS,
        "dynamic_slice_in_dim(x, owner * size",
        "dynamic_slice_in_dim(x, 0 * owner * size",
    ),
    "gradients of keys stay away": ("ring", RING, "return rounded(along(found),", "return rounded(found,"),
    "gradients of keys do not travel": (
        "ring",
        RING,
        "if k in (KEY, VALUE) else x for k, x in zip(used, found",
        "if k in () else x for k, x in zip(used, found",
    ),
    "gradient of a bias at the wrong columns": (
        "ring",
        RING,
        "_put(x, part, owner * size)",
        "_put(x, part, 0 * owner)",
    ),
    "parts weighted alike": ("ring", "online_softmax.py", "x.out * (part / sum_or_one(total))", "x.out / 2"),
    "row sums not rescaled": (
        "ring",
        "online_softmax.py",
        "[x.total * jnp.exp(x.shift - max_or_zero(largest)) for",
        "[x.total for",
    ),
    "queries counted from 0": (
        "ring",
        CALL,
        "*(lax.axis_index(axis) * size for size in sizes)",
        "*(0 * lax.axis_index(axis) for size in sizes)",
    ),
    "gathered keys without their positions": (
        "all_gather",
        GATHERED,
        "_gather(positions, 0, plan) if jnp.ndim(positions) else None",
        "None",
    ),
    "gradients of gathered keys from one device": (
        "all_gather",
        GATHERED,
        "return lax.psum_scatter(x, plan.axis, scatter_dimension=x.ndim - 2, tiled=True)",
        "return jnp.split(x, 3, -2)[0]",
    ),
    "wrong heads of a group": (
        "ulysses",
        HEADS,
        "jnp.repeat(x, repeats, axis=-3)",
        "jnp.concatenate([x] * repeats, axis=-3)",
    ),
    "heads counted from 0": ("ulysses", HEADS, "positions=Positions(first +", "positions=Positions(0 * first +"),
}


@pytest.fixture
def attend_of(tmp_path, monkeypatch):
    """``sharding.attention`` of a copy of the kernels with one piece of text replaced."""

    def forget():
        for module in [name for name in sys.modules if name.startswith(NAME)]:
            del sys.modules[module]

    def make(file, right, wrong):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(attendax.kernels.__file__).parent, tmp_path / NAME, ignore=ignored)
        path = tmp_path / NAME / file
        text = path.read_text("utf-8")
        assert text.count(right) == 1, f"{right!r} occurs {text.count(right)} times in {file}"
        path.write_text(text.replace(right, wrong), "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()
        importlib.invalidate_caches()
        across, door = (importlib.import_module(f"{NAME}.{name}") for name in ("across.call", "attention"))

        def attend(query, key, value, *, axis_name, strategy, positions=None, **options):
            results = across.attend_across(query, key, value, (axis_name,), positions, strategy, **options)
            return door.as_asked(results, query, value, True)

        return attend

    yield make
    forget()


def differs(strategy, attend):
    """Whether some result or gradient is not that of the specification, where the last query is NaN and not read."""
    rng = np.random.default_rng(8)
    heads = 6 if strategy == "ulysses" else 4
    arrays = sequences.arrays_of(rng, T, heads=heads)
    ids = np.sort(rng.integers(0, 3, (sequences.B, T)))
    options = {"mask": masks.causal() & masks.segments(ids, ids), "bias": rng.normal(size=(1, heads, T, T))}
    options["score_mod"] = scores.alibi(np.linspace(0.1, 0.9, heads))
    dout, dlse = rng.normal(size=(*arrays[0].shape[:-1], sequences.V)), rng.normal(size=arrays[0].shape[:-1])
    arrays[0][..., -1, :], dout[..., -1, :], dlse[..., -1] = np.nan, 0, 0
    for order in ("zigzag", "in order"):
        given, specs, rest = sequences.placed(options, DEVICES, order)
        across = sequences.attend_by(DEVICES, strategy, order, specs, rest, T, attend=attend, check_vma=False)
        turn = (lambda x, axis: sharding.zigzag(x, DEVICES, axis)) if order == "zigzag" else (lambda x, axis: x)
        leaves = [*(turn(x, -2) for x in arrays), given, turn(dout, -2), turn(dlse, -1)]
        found = sequences.in_order(jax.jit(sequences.results_and_gradients(across))(*leaves), DEVICES, order)
        pairs = zip(found, sequences.right(arrays, options, dout, dlse), strict=True)
        if not all(np.allclose(*pair, rtol=1e-9, atol=1e-9, equal_nan=True) for pair in pairs):
            return True
    return False


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_caught(mistake, attend_of):
    strategy, file, right, wrong = MISTAKES[mistake]
    assert differs(strategy, attend_of(file, right, wrong))


@pytest.mark.parametrize("strategy", ["ring", "all_gather", "ulysses"])
def test_without_a_mistake_nothing_is_caught(strategy, attend_of):
    assert not differs(strategy, attend_of(RING, "import sys\n", "import sys\n"))
