"""Mistakes planted in a copy of the ring and its neighbours, one at a time: each must be caught."""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import sequences

import attendax
from attendax import masks, scores, sharding
from copied_kernels import copied

compiled_quickly = pytest.mark.usefixtures("compiled_quickly")
NAME = "sharding_with_a_mistake"
DEVICES, T = 3, 24
RING, SHARDS, ULYSSES, ALL_GATHER, CALL = (
    f"sharding/{name}.py" for name in ("ring", "shards", "ulysses", "all_gather", "in_shard_map")
)
MISTAKES = {  # the strategy, a file, what is right in it, what is wrong
    "positions are not sent": ("ring", SHARDS, "operands.positions._replace(keys=shard.positions)",
        "operands.positions"),
    "a hop too few": ("ring", RING, "lax.fori_loop(0, count - 1,", "lax.fori_loop(0, count - 2,"),
    "local row sums": ("ring", RING, "results._replace(out=jnp.zeros_like(results.out))",
        "results._replace(out=jnp.zeros_like(results.out), row_sum=results.row_sum / 2)"),
    "dlse dropped": ("ring", RING, "sums_of_products(dout, results.out) - dlse, 0)",
        "sums_of_products(dout, results.out), 0)"),
    "delta of a row that nothing reads": ("ring", RING,
        "jnp.where(is_read(dout, dlse), sums_of_products(dout, results.out) - dlse, 0)",
        "sums_of_products(dout, results.out) - dlse"),
    "the other way round the ring": ("ring", RING, "(k, (k + 1) % count)", "(k, (k - 1) % count)"),
    "ids are not sent": ("ring", SHARDS, "(part.arrays[0], next(ids))", "(part.arrays[0], part.arrays[1])"),
    "columns of the wrong source": ("ring", SHARDS, "dynamic_slice_in_dim(x, source * size",
        "dynamic_slice_in_dim(x, 0 * source * size"),
    "gradients of keys stay away": ("ring", RING, "tuple(pass_gradients(found))", "tuple(found)"),
    "gradients of keys are not sent": ("ring", RING, "if k in (KEY, VALUE) else x for k, x in zip(used, found",
        "if k in () else x for k, x in zip(used, found"),
    "gradient of a bias at the wrong columns": ("ring", RING, "_put(x, part, source * size)",
        "_put(x, part, 0 * source)"),
    "parts weighted alike": ("ring", "kernels/online_softmax.py", "x.out * (part / sum_or_one(row_sum))", "x.out / 2"),
    "row sums not rescaled": ("ring", "kernels/online_softmax.py",
        "[x.row_sum * jnp.exp(x.row_max - max_or_zero(largest)) for", "[x.row_sum for"),
    "queries counted from 0": ("ring", CALL, "*(lax.axis_index(axis) * size for size in sizes)",
        "*(0 * lax.axis_index(axis) for size in sizes)"),
    "gathered keys without their positions": ("all_gather", ALL_GATHER,
        "_gather(positions, 0, plan) if jnp.ndim(positions) else None", "None"),
    "gradients of gathered keys from one device": ("all_gather", ALL_GATHER,
        "return lax.psum_scatter(x, plan.axis, scatter_dimension=x.ndim - 2, tiled=True)",
        "return jnp.split(x, 3, -2)[0]"),
    "wrong heads of a group": ("ulysses", ULYSSES, "jnp.repeat(x, repeats, axis=-3)",
        "jnp.concatenate([x] * repeats, axis=-3)"),
    "heads counted from 0": ("ulysses", ULYSSES, "positions=Positions(first +", "positions=Positions(0 * first +"),
}  # fmt: skip


@pytest.fixture
def attend_of(tmp_path, monkeypatch):
    """``sharding.attention`` of a copy with one piece of text replaced."""

    def forget():
        for module in [name for name in sys.modules if name.startswith(NAME)]:
            del sys.modules[module]

    def make(file, right, wrong):
        copied(tmp_path / NAME)
        path = tmp_path / NAME / file
        text = path.read_text("utf-8")
        assert text.count(right) == 1, f"{right!r} occurs {text.count(right)} times in {file}"
        path.write_text(text.replace(right, wrong), "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()
        importlib.invalidate_caches()
        sharded, call = (
            importlib.import_module(f"{NAME}.{name}") for name in ("sharding.in_shard_map", "kernels.call")
        )

        def attend(query, key, value, *, axis_name, strategy, positions=None, **options):
            results = sharded.attend_from_shards(query, key, value, (axis_name,), positions, strategy, **options)
            return call.as_asked(results, query, value, True)

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
def test_its_text_is_in_the_source(mistake):
    _, file, right, _ = MISTAKES[mistake]
    assert (Path(attendax.__file__).parent / file).read_text("utf-8").count(right) == 1


@pytest.mark.slow
@compiled_quickly
@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_caught(mistake, attend_of):
    strategy, file, right, wrong = MISTAKES[mistake]
    assert differs(strategy, attend_of(file, right, wrong))


@compiled_quickly
@pytest.mark.parametrize("strategy", ["ring", "all_gather", "ulysses"])
def test_without_a_mistake_nothing_is_caught(strategy, attend_of):
    assert not differs(strategy, attend_of(RING, "import sys\n", "import sys\n"))
