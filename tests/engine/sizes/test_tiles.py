"""The blockwise backend: the same numbers whatever the tiles, memory O(T + S), nothing done twice or for nothing."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import attention, masks, scores, spec
from attendax.kernels.blockwise import partition
from blockwise import Tiny, Whole, in_tiny_tiles
from cases import CASES, B, D, G, N, S, T, V
from compilation import kept, quickly, temporaries
from judges import assert_tree_close, judge_forward, judge_gradient

ATTENTION_CASES = [name for name in CASES if name.startswith("attention-")]


@pytest.mark.law("L13", "tiles")
@pytest.mark.law("L3", "tiles")
@pytest.mark.law("L2", "tiles")
@pytest.mark.sample(4)
@pytest.mark.parametrize("twin", [Whole, Tiny])
@pytest.mark.parametrize("name", ATTENTION_CASES)
def test_every_case_of_attention(name, twin):
    """Forward to 1e-12 and every gradient by hand to 1e-10, those of bias and modifier in their own shape."""
    judge_forward(CASES[name], spec, twin)
    judge_gradient(CASES[name], spec, twin)


TILES = {
    # leading axes, G and sharing heads; T; S -> heads of a chunk, queries, keys
    "bert-base-512": (((8, 12, 1), 512, 512), (1, 2, 1), 512, 512),
    "long": (((1, 8, 1), 4096, 4096), (1, 2, 1), 512, 512),
    "grouped": (((1, 8, 4), 2048, 2048), (1, 1, 2), 512, 512),
    "few queries": (((1, 8, 1), 64, 4096), (1, 2, 1), 64, 4096),
    "one query": (((1, 8, 1), 1, 8192), (1, 8, 1), 1, 8192),
    "one query of shared heads": (((1, 8, 4), 1, 8192), (1, 8, 4), 1, 8192),
    "ragged": (((2, 5, 1), 97, 257), (2, 5, 1), 97, 257),
    "does not divide": (((1, 8, 1), 1000, 700), (1, 2, 1), 500, 350),
}


@pytest.mark.parametrize(("sizes", "pieces", "rows", "columns"), TILES.values(), ids=list(TILES))
def test_the_table_of_tiles(sizes, pieces, rows, columns):
    """The table that ``choose`` gives, for float32, is part of the speed: a change of it is to be measured."""
    grid = partition.choose(*sizes, itemsize=4)
    assert (grid.chunk_sizes, grid.rows, grid.columns) == (pieces, rows, columns)


def test_under_a_mask_a_tile_of_few_queries_has_no_more_keys():
    """So that those behind a length are left out."""
    grid = partition.choose((1, 8, 4), 1, 8192, itemsize=4, masked=True)
    assert (grid.chunk_sizes, grid.rows, grid.columns) == ((1, 8, 4), 1, 512)


# Masks


def scheduled(mask, T=12, S=16, rows=4, columns=4, heads=1):
    """The kinds of the tiles, and whether they tell the truth about the pairs in them."""
    from attendax.kernels.blockwise.partition import EMPTY, FULL, PARTIAL, kinds_of_tiles
    from attendax.kernels.blockwise.tiles import Grid

    grid = Grid((1, heads, 1), (1, heads, 1), T, S, rows, columns)
    kinds = np.asarray(kinds_of_tiles(mask.of_rank(len(grid.shape)), grid))[0]
    dense = np.broadcast_to(mask.to_dense(T, S), (1, heads, T, S)).reshape(-1, T // rows, rows, S // columns, columns)
    some, every = dense.any(axis=(0, 2, 4)), dense.all(axis=(0, 2, 4))
    assert not some[kinds == EMPTY].any()
    assert every[kinds == FULL].all()
    truth = np.where(every, FULL, np.where(some, PARTIAL, EMPTY))
    return kinds, truth


EXACT = {
    "causal": masks.causal(),
    "causal, offset": masks.causal(-3),
    "causal, traced offset": masks.causal(np.array(4)),
    "window": masks.window(3, 1),
    "left window": masks.window(2, None),
    "padding": masks.padding(np.array([6]), np.array([5])),
    "prefix": masks.prefix(np.array([6])),
    "segments": masks.segments(np.arange(12)[None] // 4, np.arange(16)[None] // 4),
    "segments that end within a tile": masks.segments(np.arange(12)[None] // 4, np.arange(16)[None] // 6),
    "dense": masks.dense(np.random.default_rng(0).random((12, 16)) < np.linspace(0, 1, 16) ** 3),
    "causal and padding": masks.causal() & masks.padding(np.array([6])),
    "causal or padding": masks.causal(-5) | masks.padding(np.array([3])),
    "not causal": ~masks.causal(2),
}


@pytest.mark.law("L16", "tiles")
@pytest.mark.parametrize("name", EXACT)
def test_tiles_without_an_allowed_pair_are_skipped_and_open_ones_known(name):
    kinds, truth = scheduled(EXACT[name])
    np.testing.assert_array_equal(kinds, truth)


@pytest.mark.law("L16", "tiles")
def test_a_tile_is_skipped_or_open_only_where_it_is_so_for_all_heads():
    lower, upper = np.tri(12, 16, dtype=bool), ~np.tri(12, 16, -5, dtype=bool)
    kinds, truth = scheduled(masks.dense(np.stack([lower, upper])[None]), heads=2)
    np.testing.assert_array_equal(kinds, truth)


@pytest.mark.law("L16", "tiles")
@pytest.mark.sample(7)
@pytest.mark.parametrize("seed", range(20))
def test_no_tile_with_an_allowed_pair_is_skipped(seed):
    """Combinations may err on the side of work, never on the other."""
    rng = np.random.default_rng(seed)

    def part(depth):
        kind = rng.integers(0, 10 if depth else 7)
        if kind < 7:
            return [
                masks.causal(int(rng.integers(-9, 9))),
                masks.window(int(rng.integers(0, 6)), None if rng.random() < 0.3 else int(rng.integers(0, 6))),
                masks.padding(rng.integers(0, 17, 1), rng.integers(0, 13, 1)),
                masks.prefix(rng.integers(0, 17, 1)),
                masks.segments(rng.integers(0, 3, (1, 12)), rng.integers(0, 3, (1, 16))),
                masks.dense(rng.random((12, 16)) < 0.2),
                masks.from_function(lambda i, j: (i + j) % 3 != 0),
            ][kind]
        if kind == 9:
            return ~part(depth - 1)
        one, other = part(depth - 1), part(depth - 1)
        return one & other if kind == 7 else one | other

    scheduled(part(2))


def count_work(mask, T, S):
    """How many tiles the forward really computes, counted as it runs."""
    from attendax.kernels.blockwise import algorithm

    done = []

    def counting(*args):
        jax.debug.callback(lambda: done.append(1))
        return original(*args)

    original, algorithm.part_of_forward = algorithm.part_of_forward, counting
    x, y = np.zeros((1, 1, T, 2)), np.zeros((1, 1, S, 2))
    try:
        jax.jit(in_tiny_tiles(lambda x, y: attention(x, y, y, mask=mask, implementation="blockwise")))(x, y)
        jax.effects_barrier()
    finally:
        algorithm.part_of_forward = original
    return len(done)


@pytest.mark.law("L16", "tiles")
def test_skipped_tiles_are_not_computed():
    """Tiles of 3 x 2 over 12 x 12 scores: 24 in all."""
    assert count_work(None, 12, 12) == 24
    assert count_work(masks.causal(), 12, 12) == 16
    assert count_work(masks.window(2, 0), 12, 12) < 12
    for lengths, tiles in ((5, 12), (0, 0), (12, 24)):
        assert count_work(masks.padding(jnp.array([lengths])), 12, 12) == tiles


def test_a_forward_asks_once_for_the_range_of_queries_and_writes_no_scores_for_their_maximum():
    """In a loop over 32 tiles of 2 heads, 512 queries and 512 keys: a tile writes its products and its exponentials."""
    x = jax.ShapeDtypeStruct((2, 8, 1024, 64), jnp.float32)
    text = jax.jit(Whole.attention).lower(x, x, x).compile().as_text()
    assert len(re.findall(r"^  %\S+ = f32\[(?:1,)?2,512,512\]\S* (?:fusion|dot|custom-call)\(", text, re.M)) == 2
    assert set(re.findall(r"f32(\[[\d,]*,64\])\S* abs\(", text)) == {"[2,8,1024,64]"}


@pytest.mark.law("L3", "tiles")
@pytest.mark.slow
@pytest.mark.parametrize("twin", [Whole, Tiny])
@pytest.mark.parametrize("batched", [False, True])
def test_masks_and_modifiers_from_functions(batched, twin, rng):
    """Their arrays are their own: looked up by position, or broadcast along leading axes and heads; under vmap, too."""
    query, key, value = rng.normal(size=(B, N, T, D)), rng.normal(size=(B, G, S, D)), rng.normal(size=(B, G, S, V))
    ids, weight, heat = rng.integers(0, 2, S), rng.normal(size=(N, S)), rng.normal(size=(B, 1, 1, 1))

    def options(ids, weight, heat):
        mask = masks.from_function(lambda i, j, ids: (ids[j] == 1) | (j <= i), ids) & masks.causal(3)
        mod = scores.from_function(lambda s, at, w, c: s * c + w[at[0], at[2]] * jnp.abs(at[1] - at[2]), weight, heat)
        return {"mask": mask, "score_mod": scores.compose(scores.softcap(2.0), mod)}

    def run(attend, ids, weight, heat):
        return jnp.sum(attend(query, key, value, **options(ids, weight, heat)) ** 2)

    def value_and_grad(attend):
        return jax.value_and_grad(functools.partial(run, attend), (1, 2))

    if not batched:
        got, wanted = (quickly(value_and_grad(f))(ids, weight, heat) for f in (twin.attention, attendax.ops.attention))
        assert_tree_close(got, wanted, 1e-10, "function")
        exact = spec.attention(query, key, value, **options(ids, weight, heat))
        np.testing.assert_allclose(got[0], (exact**2).sum(), rtol=1e-12)
        return
    several = np.stack([ids, 1 - ids]), np.stack([weight, -weight])
    got = quickly(jax.vmap(value_and_grad(twin.attention), (0, 0, None)))(*several, heat)
    for k in range(2):
        wanted = value_and_grad(attendax.ops.attention)(several[0][k], several[1][k], heat)
        assert_tree_close(jax.tree.map(lambda x, k=k: x[k], got), wanted, 1e-10, f"function {k}")


@pytest.mark.law("L13", "tiles")
def test_l13_a_modifier_narrower_than_what_is_computed(rng):
    """The gradient of a table in bfloat16, where some tiles are skipped."""
    query, key, value = (jnp.asarray(rng.normal(size=(2, n, 4)), jnp.bfloat16) for n in (T, S, S))
    table = jnp.asarray(rng.normal(size=(2, T + S - 1)), jnp.bfloat16)

    def loss(query, key, value, table):
        out = Tiny.attention(query, key, value, mask=masks.causal(-1), score_mod=scores.relative_bias(table))
        return (out.astype(jnp.float32) ** 2).sum()

    arrays = query, key, value, table
    got = quickly(jax.grad(loss, (0, 1, 2, 3)))(*arrays)
    wanted = quickly(jax.grad(loss, (0, 1, 2, 3)))(*(x.astype(np.float64) for x in arrays))
    assert all(x.dtype == jnp.bfloat16 for x in got)
    assert_tree_close(jax.tree.map(lambda x: np.asarray(x, float), got), wanted, 2**-7, "bfloat16")


@pytest.mark.law("L12", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("what", ["lengths", "ids", "dense mask", "offset", "side", "bias", "slopes", "table", "rng"])
@pytest.mark.parametrize("twin", [Whole, Tiny])
def test_l12_vmap_over_what_is_not_query_key_or_value(twin, what, rng):
    query, key, value = rng.normal(size=(B, N, T, D)), rng.normal(size=(B, G, S, D)), rng.normal(size=(B, G, S, V))
    query_ids = rng.integers(0, 2, (B, T))
    make = {
        "lengths": (rng.integers(0, S + 1, (3, B)), lambda x: {"mask": masks.padding(x)}),
        "ids": (rng.integers(0, 2, (3, B, S)), lambda x: {"mask": masks.segments(query_ids, x)}),
        "dense mask": (rng.random((3, T, S)) < 0.6, lambda x: {"mask": x}),
        "offset": (np.array([-2, 0, 3]), lambda x: {"mask": masks.causal(x) & ~masks.window(1, 0, x - 2)}),
        "side": (np.array([0, 2, 5]), lambda x: {"mask": masks.window(x, 1)}),
        "bias": (rng.normal(size=(3, N, 1, S)), lambda x: {"bias": x}),
        "slopes": (rng.normal(size=(3, N)), lambda x: {"score_mod": scores.alibi(x)}),
        "table": (rng.normal(size=(3, N, 5)), lambda x: {"score_mod": scores.relative_bias(x, offset=1)}),
        "rng": (rng.integers(0, 2**31, (3, 2)).astype(np.uint32), lambda x: {"dropout_rate": 0.3, "dropout_rng": x}),
    }
    stack, options = make[what]
    cotangent = rng.normal(size=(B, N, T, V))

    def run(x, query, key, value):
        out, pull = jax.vjp(lambda *a: twin.attention(*a, **options(x)), query, key, value)
        return out, pull(cotangent)

    got = quickly(jax.vmap(run, (0, None, None, None)))(stack, query, key, value)
    for k, x in enumerate(stack):
        wanted = spec.attention(query, key, value, **options(x))
        by_hand = spec.attention_backward(cotangent, query, key, value, **options(x))[:3]
        assert_tree_close(jax.tree.map(lambda x, k=k: x[k], got), (wanted, by_hand), 1e-10, f"{what} {k}")


def test_masks_pass_through_jit_scan_and_vmap_as_values(rng):
    query, key, value = rng.normal(size=(B, N, T, D)), rng.normal(size=(B, G, S, D)), rng.normal(size=(B, G, S, V))
    stacked = masks.padding(np.array([[7, 2], [3, 0], [1, 5]])) & masks.causal(2)
    each = [masks.padding(np.array(x)) & masks.causal(2) for x in ([7, 2], [3, 0], [1, 5])]
    wanted = np.stack([spec.attention(query, key, value, mask=mask) for mask in each])
    attend = jax.jit(lambda mask: attention(query, key, value, mask=mask))
    np.testing.assert_allclose(jax.vmap(attend)(stacked), wanted, atol=1e-12)
    np.testing.assert_allclose(jax.lax.scan(lambda c, mask: (c, attend(mask)), 0, stacked)[1], wanted, atol=1e-12)


@pytest.mark.law("L8", "tiles")
@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("width", [3, 64, 128])
def test_l8_long_rows(dtype, width, rng):
    """At S = 65,536 the error is at most twice that of the plain formula in the same dtype; float64 keeps 1e-12."""
    query = rng.normal(size=(1, 1, 5, width)).astype(dtype)
    key, value = (rng.normal(size=(1, 1, 65536, width)).astype(dtype) for _ in range(2))
    wide = [x.astype(np.float64) for x in (query, key, value)]
    exact = spec.attention(*wide)
    ours = np.asarray(jax.jit(attention)(query, key, value)).astype(np.float64)
    if dtype == np.float64:
        np.testing.assert_allclose(ours, exact, atol=1e-12)
        return

    @jax.jit
    def plain(query, key, value):
        table = query @ key.swapaxes(-1, -2) / jnp.asarray(np.sqrt(width), dtype)
        return jax.nn.softmax(table, axis=-1) @ value

    error = np.asarray(plain(query, key, value)).astype(np.float64) - exact
    assert np.sqrt(np.mean((ours - exact) ** 2)) <= 2 * np.sqrt(np.mean(error**2))


# Memory


MEMORY = {
    "causal": lambda S: {"mask": masks.causal()},
    "padding": lambda S: {"mask": masks.padding(np.array([S - 5], np.int32))},
    "window": lambda S: {"mask": masks.window(256, 0)},
    "segments": lambda S: {"mask": masks.segments(*[np.arange(S, dtype=np.int32)[None] // 100] * 2)},
    "softcap": lambda S: {"mask": masks.causal(), "score_mod": scores.softcap(30.0)},
}


@pytest.mark.law("L12", "tiles")
@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY)
def test_l12_memory_is_linear(name):
    """Gradient, jvp and forward-over-reverse at N = 4, D = 64; the bounds are those of the benchmark of memory."""

    def grad(S):
        options = MEMORY[name](S)
        return jax.grad(lambda *a: (attention(*a, **options) ** 2).sum(), (0, 1, 2))

    def used(f, S):
        return temporaries(f(S), *[(1, 4, S, 64)] * 3)

    assert used(grad, 4096) <= 40 * 2**20
    assert used(grad, 16384) <= 4.5 * used(grad, 4096)
    if name == "causal":
        jvp = lambda S: lambda *a: jax.jvp(lambda *a: attention(*a, **MEMORY[name](S)), a, a)  # noqa: E731
        hvp = lambda S: lambda *a: jax.jvp(grad(S), a, a)  # noqa: E731
        for f in (jvp, hvp):
            assert used(f, 16384) <= 4.5 * used(f, 4096)


@pytest.mark.slow
def test_whole_blocks_need_memory_linear_in_their_length():
    params = attendax.ops.init_encoder_block(jax.random.key(0), 64, 4, dtype=jnp.float32)

    def used(T):
        f = jax.grad(lambda x: (attendax.ops.encoder_block(x, params, num_heads=4, mask=masks.causal()) ** 2).sum())
        return temporaries(f, (1, T, 64))

    assert used(8192) <= 4.5 * used(2048)
    assert used(8192) < 8192 * 8192 * 4


# Decoding, caches, remat


@pytest.mark.law("L16", "tiles")
@pytest.mark.parametrize("T", [1, 3])
def test_decoding_compiles_once_while_the_cache_fills(T, rng):
    """One query, or a few, against a cache whose filled length is traced; what lies beyond it is NaN."""
    size = 16
    chex.clear_trace_counter()

    @quickly
    @chex.assert_max_traces(n=1)
    def step(query, key, value, filled):
        offset = filled - query.shape[-2]
        return attention(query, key, value, mask=masks.padding(filled) & masks.causal(offset))

    for filled in (3, 7, 8, 16):
        query, key, value = (rng.normal(size=(2, h, n, D)) for h, n in ((4, T), (2, size), (2, size)))
        key[:, :, filled:] = np.nan
        value[:, :, filled:] = np.nan
        got = step(query, key, value, np.array([filled, filled]))
        wanted = spec.attention(query, key[:, :, :filled], value[:, :, :filled], mask=masks.causal(filled - T))
        assert_tree_close(got, wanted, 1e-12, f"{filled}")


@pytest.mark.law("L16", "tiles")
def test_eager_calls_are_compiled_once(rng):
    from attendax.kernels import derivatives

    query = rng.normal(size=(1, 2, 6, 4))
    attention(query, query, query, mask=masks.causal(1))
    compiled = kept(derivatives.forward_p)
    before = compiled.cache_info().misses
    attention(2 * query, query, query, mask=masks.causal(1))
    assert compiled.cache_info().misses == before


def test_remat_that_keeps_the_named_results_does_not_run_the_forward_again(rng):
    x = rng.normal(size=(1, 2, 6, 4))

    def loss(x):
        return (attention(jnp.sin(x), x, x) ** 2).sum()

    def count(policy):
        f = jax.grad(jax.checkpoint(loss, policy=policy))
        return str(jax.make_jaxpr(f)(x)).count("= attention[")

    names = jax.checkpoint_policies.save_only_these_names("attention_out", "attention_lse")
    assert count(jax.checkpoint_policies.nothing_saveable) == 2
    assert count(names) == 1
