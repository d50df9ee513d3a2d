"""The native kernel on several devices: each calls it for its own part, and the bits are those of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sequences
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attendax import attention, masks, scores
from attendax.kernels import native
from collectives import collectives
from judges import assert_leaves_close, assert_same_bits, by_definition

pytestmark = [pytest.mark.skipif(not native.library().isa, reason=native.status()), pytest.mark.law("L15", "sharded")]
MESH = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
B, N, G, T, S, D, V = 8, 4, 2, 40, 104, 5, 3
IDS = np.sort(np.random.default_rng(3).integers(0, 3, (B, S)))
KINDS = {
    "full": {},
    "lengths": {"mask": masks.causal(S - T) & masks.padding(np.array([7, 104, 0, 13, 1, 99, 40, 96]))},
    "segments": {"mask": masks.segments(IDS[:, S - T :], IDS) | masks.window(3, 0, S - T)},
    "bias": {"bias": np.random.default_rng(4).normal(size=(1, N, T, S)).astype(np.float32)},
    "dense": {"mask": masks.dense(np.random.default_rng(5).random((B, 1, T, S)) < 0.7)},
    "modifiers, dropout": {
        "score_mod": scores.compose(scores.softcap(2.0), scores.alibi(np.linspace(0.1, 0.5, N).astype(np.float32))),
        "dropout_rate": 0.3,
        "dropout_rng": np.array([3, 4], np.uint32),
    },
    "relative bias": {"score_mod": scores.relative_bias(np.ones((N, 7), np.float32), offset=3)},
    "sinks": {"score_mod": scores.sink(np.linspace(-2, 2, N).astype(np.float32))},
}


def arrays(rng, heads=N, groups=G, queries=T):
    sizes = (heads, queries, D), (groups, S, D), (groups, S, V), (heads, queries, V), (heads, queries)
    return [rng.normal(size=(B, *size)).astype(np.float32) for size in sizes]


def divided(run, given, specs):
    """The results where the arrays lie on the mesh, and what the compiled program sends. It calls the library."""
    placed = [jax.device_put(x, NamedSharding(MESH, spec)) for x, spec in zip(given, specs, strict=True)]
    compiled = jax.jit(run).lower(*placed).compile()
    assert 'custom_call_target="attendax_' in compiled.as_text()
    return compiled(*placed), collectives(compiled)


def same(found, expected):
    assert_same_bits(found, expected, "divided")


def near(found, expected):
    assert_leaves_close(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize("axes", [("data", "tensor"), (("tensor", "data"),), (None, "tensor")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_those_of_one_device(kind, axes, rng):
    """out, lse and the gradients of query, key and value; nothing is gathered, and only shared gradients are summed."""
    given, run = arrays(rng), sequences.program(KINDS[kind])
    found, sent = divided(run, given, [P(*axes)] * 5)
    expected = jax.jit(run)(*given)
    same(found[:5], expected[:5])
    near(found[5:], expected[5:])
    shared = 2 * sum(x.nbytes for x in found[5:])  # a sum over devices comes and goes
    assert {each.kind for each in sent if each.bytes > shared} == set()
    assert {each.kind for each in sent if each.bytes > 64} <= {"all-reduce"}
    for result in found[:5]:
        assert result.sharding.is_equivalent_to(NamedSharding(MESH, P(*axes)), result.ndim)


@pytest.mark.parametrize("groups", [1, 2])
def test_more_devices_than_key_heads(groups, rng):
    """The devices of the query heads of one key head sum its gradient, and send nothing else."""
    given, run = arrays(rng, heads=8, groups=groups), sequences.program(KINDS["lengths"])
    of_queries = P(None, ("tensor", "data"))
    of_keys = P(None, "tensor" if groups == 2 else None)
    found, sent = divided(run, given, [of_queries, of_keys, of_keys, of_queries, of_queries])
    expected = jax.jit(run)(*given)
    same(found[:3], expected[:3])
    near(found[3:], expected[3:])
    assert {each.kind for each in sent} == {"all-reduce"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample(1)
def test_queries_divided(kind, rng):
    """Every device has its own rows: keys are gathered, and queries are not."""
    given, run = arrays(rng), sequences.program(KINDS[kind])
    found, sent = divided(run, given, [P("tensor", None, "data")] * 5)
    expected = jax.jit(run)(*given)
    same(found[:2], expected[:2])
    near(found[2:], expected[2:])
    gathered = sum(each.bytes for each in sent if each.kind == "all-gather")
    assert gathered <= sum(x.nbytes for x in given[1:3]) // 2 * 3 // 4 + 1024
    assert found[0].sharding.is_equivalent_to(NamedSharding(MESH, P("tensor", None, "data")), 4)


UNEQUAL = {
    "6 heads on 4 devices": (6, 3, P(None, "data")),
    "12 heads of 4 groups on 8 devices": (12, 4, P(None, ("data", "tensor"))),
    "widths": (4, 2, P("tensor", None, None, "data")),
    "queries, 5 on 4 devices": (4, 2, P(None, None, "data")),
}


@pytest.mark.law("L17", "sharded")
@pytest.mark.law("L11", "sharded")
@pytest.mark.parametrize("name", UNEQUAL)
@pytest.mark.sample(2)
def test_what_no_division_fits_is_right(name, rng):
    """XLA gathers it."""
    heads, groups, spec = UNEQUAL[name]
    sizes = (heads, 5, 8), (groups, S, 8), (groups, S, 8)
    given = [rng.normal(size=(B, *size)).astype(np.float32) for size in sizes]

    def run(query, key, value):
        query, key, value = (lax.with_sharding_constraint(x, NamedSharding(MESH, spec)) for x in (query, key, value))
        return attention(query, key, value, mask=masks.causal(S - 5))

    found, _ = divided(run, given, [P("tensor")] * 3)
    np.testing.assert_array_equal(found, jax.jit(lambda *x: attention(*x, mask=masks.causal(S - 5)))(*given))


@pytest.mark.parametrize("ordered", [(8,), (2, 4), (4, 2), (2, 2, 2)], ids=str)
@pytest.mark.sample(1)
def test_any_order_of_devices(ordered, rng):
    """The mesh that XLA divides by is found from where the parts lie, whatever the user's mesh was."""
    names = ("a", "b", "c")[: len(ordered)]
    mesh = jax.make_mesh(ordered, names, axis_types=(AxisType.Auto,) * len(ordered))
    given = rng.normal(size=(8, 8, 16, 4)).astype(np.float32)
    expected = attention(given, given, given)
    for spec in (P(names[::-1]), P(names), P(names[-1], names[:-1]), P(names[0], names[:0:-1])):
        placed = jax.device_put(given, NamedSharding(mesh, spec))
        compiled = jax.jit(lambda x: attention(x, x, x)).lower(placed).compile()
        assert collectives(compiled) == []
        found = compiled(placed)
        np.testing.assert_array_equal(found, expected)
        assert found.sharding.is_equivalent_to(placed.sharding, 4)


def test_three_by_two_devices(rng):
    mesh = jax.make_mesh((3, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:6])
    given = rng.normal(size=(6, 6, 12, 4)).astype(np.float32)
    expected = attention(given, given, given)
    for spec in (P("a", "b"), P("b", "a"), P(("b", "a")), P(("a", "b")), P(None, "a", "b"), P("b", None, "a")):
        placed = jax.device_put(given, NamedSharding(mesh, spec))
        np.testing.assert_array_equal(jax.jit(lambda x: attention(x, x, x))(placed), expected)


AROUND = {
    "scan": lambda f: lambda x: lax.scan(lambda x, _: (f(x), None), x, None, length=3)[0],
    "fori_loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda _, x: f(x), x),
    "vmap": jax.vmap,
    "vmap over heads": lambda f: jax.vmap(f, 1, 1),
    "checkpoint": jax.checkpoint,
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("how", ["jit", "shard_map"])
@pytest.mark.sample(3)
def test_inside(name, how, rng):
    """Loops and vmap, under jit and in a shard_map: the bits of one device, of the gradient, too."""
    f = AROUND[name](lambda x: attention(x, x, x, mask=masks.window(9, 2)))
    given = rng.normal(size=(B, N, T, D)).astype(np.float32)
    axes = P("data", "tensor")
    local = jax.shard_map(f, mesh=MESH, in_specs=axes, out_specs=axes) if how == "shard_map" else f

    def run(f, x):
        out, pull = jax.vjp(f, x)
        return out, *pull(out)

    if name == "fori_loop":
        run = lambda f, x: (f(x),)  # noqa: E731 - JAX has no reverse mode of it
    found, sent = divided(lambda x: run(local, x), [given], [axes])
    same(found, jax.jit(lambda x: run(f, x))(given))
    assert sent == []


@pytest.mark.law("L12", "sharded")
@pytest.mark.slow
def test_directions_that_the_kernel_lacks(rng):
    """Tangents and second derivatives of a divided call run in tiles, and nothing is gathered."""
    given = rng.normal(size=(B, N, T, D))

    def run(x):
        slope = jax.grad(lambda x: (attention(x, x, x, mask=masks.causal()) ** 2).sum())
        return jax.jvp(slope, (x,), (jnp.cos(x),))

    found, sent = divided(run, [given], [P("data", "tensor")])
    assert_leaves_close(found, jax.jit(run)(given), rtol=1e-12, atol=1e-12)
    assert {each.kind for each in sent if each.bytes > 4096} == set()


def test_beside_a_shard_map_of_some_axes_are_tiles(rng):
    """There the library is not called: XLA divides some axes, and a shard_map the others."""
    given = rng.normal(size=(B, N, T, D)).astype(np.float32)
    f = jax.shard_map(
        lambda x: attention(x, x, x), mesh=MESH, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )
    placed = jax.device_put(given, NamedSharding(MESH, P("data", "tensor")))
    compiled = jax.jit(f).lower(placed).compile()
    assert "attendax_forward" not in compiled.as_text()
    np.testing.assert_allclose(compiled(placed), attention(given, given, given), rtol=1e-5, atol=1e-5)


def test_the_older_partitioner_divides_tiles(rng):
    """Only Shardy is told how a call may be divided."""
    given = jax.device_put(np.ones((B, N, T, D), np.float32), NamedSharding(MESH, P("data", "tensor")))
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        lowered = jax.jit(lambda x: attention(x, x, x)).lower(given).as_text()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert "attendax_forward" not in lowered
    assert "CustomSPMDPartitioning" not in lowered


def test_a_cache_of_compiled_programs_tells_settings_apart(tmp_path, rng):
    """Two calls that differ in numbers of the library alone: the text of the program has them (L17)."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_remove_custom_partitioning_ptr_from_cache_key": True,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    given = rng.normal(size=(B, N, T, D)).astype(np.float32)
    placed = jax.device_put(given, NamedSharding(MESH, P("data", "tensor")))
    for name, x in settings.items():
        jax.config.update(name, x)
    try:
        found = [jax.jit(lambda x, k=k: attention(x, x, x, mask=masks.window(k, 0)))(placed) for k in (1, 2)]
    finally:
        for name, x in before.items():
            jax.config.update(name, x)
    assert list(tmp_path.iterdir())
    for k, one in zip((1, 2), found, strict=True):
        np.testing.assert_array_equal(one, attention(given, given, given, mask=masks.window(k, 0)))


def test_an_exported_program_is_in_tiles():
    """It may run where no library is."""
    shapes = jax.ShapeDtypeStruct((2, 2, T, D), np.float32)
    slope = jax.grad(lambda x: (attention(x, x, x) ** 2).sum())
    for run in (lambda x: attention(x, x, x), slope):
        exported = jax.export.export(jax.jit(run))(shapes)
        assert "attendax_" not in exported.mlir_module()
        given = np.random.default_rng(0).normal(size=shapes.shape).astype(np.float32)
        np.testing.assert_allclose(exported.call(given), jax.jit(run)(given), rtol=1e-4, atol=1e-4)


STRATEGIES = ["ring", "all_gather", "ulysses"]


def by_strategy(strategy, options, size, devices=4):
    """The program of a sequence on several devices, in order, and what it is called with beside the arrays."""
    given, specs, rest = sequences.placed(options, devices, "in order")
    attend = sequences.attend_by(devices, strategy, "in order", specs, rest, size)
    return jax.jit(sequences.results_and_gradients(attend)), given


@pytest.mark.law("L8", "sharded")
@pytest.mark.law("L7", "sharded")
@pytest.mark.law("L6", "sharded")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("what", ["plain", "not a number", "huge scores"])
@pytest.mark.sample(2)
def test_local_parts_in_float32(strategy, what, rng):
    """At most twice the error of the whole call; the same rows are no numbers (L6), scores of 1e30 are right (L7)."""
    size, options = 96, {"mask": masks.causal() & masks.padding(np.array([93, 32]))}
    run, given = by_strategy(strategy, options, size)
    leaves = sequences.arrays_of(rng, size, dtype=np.float32)
    if what == "not a number":
        leaves[0][0, 3, 50], leaves[1][1, 0, 9], leaves[2][0, 1, 20] = np.nan, np.inf, np.nan
    if what == "huge scores":
        leaves[:2] = [x * np.float32(1e15) for x in leaves[:2]]
    dout, dlse = (rng.normal(size=(2, 8, size, *last)).astype(np.float32) for last in ((sequences.V,), ()))

    def alone(query, key, value, given):
        return attention(query, key, value, return_lse=True, **options)

    whole = jax.jit(sequences.results_and_gradients(alone))(*leaves, {}, dout, dlse)
    right = by_definition([x.astype(float) for x in leaves], dout.astype(float), dlse.astype(float), **options)
    for ours, one, expected in zip(run(*leaves, given, dout, dlse), whole, right, strict=True):
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected))
        scale = np.nanmax(abs(expected))
        error = np.nanmax(abs(ours - expected)) / scale
        assert error <= 2 * np.nanmax(abs(one - expected)) / scale + 2e-7


@pytest.mark.law("L12", "sharded")
@pytest.mark.law("L8", "sharded")
def test_a_tangent_of_a_ring_keeps_its_digits(rng):
    """Where one key fills a row (L8): maximum, sum and scores of a tangent are those of one path, the tiles'."""
    size = 64
    query, key, value = sequences.arrays_of(rng, size, dtype=np.float32)
    leaves, directions = (query * 8, key * 8, value), sequences.arrays_of(rng, size, dtype=np.float32)
    attend = sequences.attend_by(4, "ring", "in order", {}, {}, size)

    def pushed(attend, leaves, directions):
        return jax.jit(lambda x, t: jax.jvp(lambda *x: attend(*x)[0], x, t)[1])(tuple(leaves), tuple(directions))

    ours = pushed(lambda *x: attend(*x, {}), leaves, directions)
    tiles = pushed(lambda *x: attention(*x, return_lse=True, implementation="blockwise"), leaves, directions)
    wide = [[x.astype(np.float64) for x in each] for each in (leaves, directions)]
    right = pushed(lambda *x: attention(*x, return_lse=True, implementation="blockwise"), *wide)
    assert abs(ours - right).max() <= 2 * abs(tiles - right).max()
