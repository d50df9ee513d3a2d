"""jit with arrays that lie on several devices (Auto axes): batch and heads are divided, and nothing else happens."""

import jax
import numpy as np
import pytest
import sequences
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attendax import attention, encoders, masks, scores
from attendax.ops import in_pieces, projections
from collectives import collectives, flops
from judges import assert_leaves_close, by_definition

B, N, G, D, V = 8, 4, 2, 5, 3
MESH = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
LENGTHS, IDS = np.array([7, 40, 0, 13, 1, 33, 40, 21]), np.sort(np.random.default_rng(3).integers(0, 3, (B, 300)))
SCALAR = 4096  # bytes: of conditions, and of whether a row is finite; no activation is as small


def arrays(rng, T, S):
    return [rng.normal(size=(B, n, size, width)) for n, size, width in ((N, T, D), (G, S, D), (G, S, V))]


def options(name, rng, T, S):
    """The options of a kind of call, and which axes of its arrays are (batch, heads)."""
    bias = rng.normal(size=(1, N, T, S))
    return {
        "full": {},
        "causal, padding": {"mask": masks.causal() & masks.padding(LENGTHS)},
        "segments": {"mask": masks.segments(IDS[:, :T], IDS[:, :S])},
        "window": {"mask": masks.window(9, 2)},
        "window of each head": {"mask": masks.window(np.array([1, 30, 5, 2**30]).reshape(N, 1, 1), LENGTHS % 9)},
        "blocks": {"mask": masks.blocks(rng.random((B, N, -(-T // 8), -(-S // 16))) < 0.5, 8, 16)},
        "prefix": {"mask": masks.prefix(LENGTHS)},
        "dense mask": {"mask": rng.random((B, 1, T, S)) < 0.7},
        "bias, softcap": {"bias": bias, "score_mod": scores.softcap(2.0)},
        "alibi, dropout": {
            "score_mod": scores.alibi(np.linspace(0.1, 0.5, N)),
            "dropout_rate": 0.3,
            "dropout_rng": np.array([3, 4], np.uint32),
        },
        "function": {"mask": masks.from_function(lambda i, j, n: (i - j) % n != 1, 3)},
    }[name]


AXES = ("data", "tensor"), ("data",), (None, "tensor")
KINDS = ["full", "causal, padding", "segments", "window", "prefix", "dense mask", "bias, softcap", "alibi, dropout"]
KINDS += ["function", "window of each head", "blocks"]
CASES = [(kind, (300, 40)[k % 2], AXES[k % 3]) for k, kind in enumerate(KINDS)]


@pytest.mark.law("L17", "sharded")
@pytest.mark.law("L3", "sharded")
@pytest.mark.law("L1", "sharded")
@pytest.mark.sample(1)
@pytest.mark.parametrize(("kind", "T", "axes"), CASES)
def test_out_lse_and_gradients(kind, T, axes, rng):
    given, host = options(kind, rng, T, T), arrays(rng, T, T)
    douts = rng.normal(size=(B, N, T, V)), rng.normal(size=(B, N, T))
    placed = [jax.device_put(x, NamedSharding(MESH, P(*axes))) for x in (*host, *douts)]
    compiled = jax.jit(sequences.program(given)).lower(*placed).compile()
    found = compiled(*placed)
    assert_leaves_close(found, by_definition(host, *douts, **given), rtol=1e-12, atol=1e-12)
    moved = [each for each in collectives(compiled) if each.kind != "all-reduce" or each.bytes > SCALAR]
    of_bias = [each for each in moved if "bias" in given and each.kind == "all-reduce"]
    assert moved == of_bias  # a bias for all batches has the sum of their gradients
    for result in found[:5]:
        assert result.sharding.is_equivalent_to(NamedSharding(MESH, P(*axes)), result.ndim)


@pytest.mark.law("L16", "sharded")
@pytest.mark.slow
def test_each_device_does_its_share(rng):
    host = [x.astype(np.float32) for x in arrays(rng, 640, 640)]

    def step(*leaves):
        return jax.value_and_grad(lambda *leaves: (attention(*leaves) ** 2).sum(), (0, 1, 2))(*leaves)

    def compiled(mesh_axes):
        placed = [jax.device_put(x, NamedSharding(MESH, P(*mesh_axes))) for x in host]
        return jax.jit(step).lower(*placed).compile()

    alone, divided = compiled(()), compiled(("data", "tensor"))
    assert flops(divided) * 8 == flops(alone)
    assert divided.memory_analysis().temp_size_in_bytes < 1.2 * alone.memory_analysis().temp_size_in_bytes / 8


@pytest.mark.law("L12", "sharded")
@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
def test_jvp_and_second_order(rng):
    """They are those of one device, lie as the arrays do, and gather nothing."""
    T = 40
    leaves = tuple(arrays(rng, T, T))
    directions = tuple(rng.normal(size=x.shape) for x in leaves)
    w, u = rng.normal(size=(B, N, T, V)), rng.normal(size=(B, N, T))

    def attend(query, key, value, given):
        return attention(query, key, value, return_lse=True, mask=masks.causal() & masks.padding(LENGTHS), **given)

    run = jax.jit(sequences.every_direction(attend))
    place = NamedSharding(MESH, P("data", "tensor"))
    placed = *jax.device_put((leaves, directions), place), {}, *jax.device_put((w, u), place)
    compiled = run.lower(*placed).compile()
    found, expected = compiled(*placed), run(leaves, directions, {}, w, u)
    for ours, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-11, atol=1e-11)
        assert ours.sharding.is_equivalent_to(place, ours.ndim)
    assert [each for each in collectives(compiled) if each.kind != "all-reduce" or each.bytes > SCALAR] == []


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
def test_encode_divides_a_batch_that_goes_in_pieces(monkeypatch):
    """Each device does its own rows of every piece: of eight rows, where four would be enough for one device."""
    monkeypatch.setattr(in_pieces, "NUMBERS", 0)
    monkeypatch.setattr(in_pieces, "LEAST", 4 * 128)
    monkeypatch.setattr(projections, "library_takes", lambda *_: False)  # XLA counts no FLOPs of the library
    config = encoders.EncoderConfig(11, 128, 2, d_model=16, num_heads=2, d_ff=32, num_layers=1)
    params, ids = encoders.init_encoder(jax.random.key(0), config), np.arange(64 * 128).reshape(64, 128) % 11
    run = jax.jit(lambda params, ids: encoders.encode(ids, params, config=config))
    divided = jax.device_put(ids, NamedSharding(MESH, P(("data", "tensor"))))
    compiled, alone = (run.lower(params, x).compile() for x in (divided, ids))
    assert "while" in compiled.as_text()
    assert flops(compiled) * 8 <= flops(alone)  # the whole batch may have a product in both branches of a condition
    assert {each.kind for each in collectives(compiled)} <= {"all-reduce"}
    np.testing.assert_allclose(run(params, divided), run(params, ids), rtol=1e-5, atol=1e-5)
