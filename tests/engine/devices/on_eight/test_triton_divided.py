"""The kernels for GPUs on eight devices: each launches them for its own texts and heads.

A driver of tests counts them. Where Triton is installed it hands them to the interpreter: the bits are those of one
device.
"""

import importlib.util
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sequences
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fake_gpu
import gpu_calls as calls
from attendax import attention, masks, scores
from attendax.kernels import cudnn
from attendax.kernels.gpu import compiled
from collectives import collectives
from judges import assert_same_bits

pytestmark = pytest.mark.law("L15", "sharded")
MESH = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
B, N, G, T, S = 4, 4, 2, 18, 35
RNG = np.random.default_rng(2)
MODIFIERS = scores.compose(
    scores.softcap(2.0),
    scores.alibi(np.float32([0.3, 0.1, 0.2, 0.4]), np.array([3, 0, 9, 1])),
    scores.relative_bias(RNG.standard_normal((N, 7)).astype(np.float32), np.array([2, 1, 0, 4])),
)
KINDS = {
    "causal, lengths": {"mask": masks.causal(S - T) & masks.padding(np.array([7, 35, 0, 20]))},
    "segments": {"mask": masks.segments(RNG.integers(0, 2, (B, T)), RNG.integers(0, 2, (B, S)))},
    "modified": {
        "score_mod": MODIFIERS,
        "mask": RNG.random((1, N, T, S)) > 0.3,
        "bias": RNG.standard_normal((B, 1, T, S)).astype(np.float32),
        "dropout_rate": 0.3,
        "dropout_rng": jax.random.key(3),
    },
}


@pytest.fixture
def package(tmp_path):
    with fake_gpu.installed(tmp_path):
        yield


@pytest.fixture
def gpu(package, monkeypatch):
    """A GPU that runs nothing, or Triton's interpreter if there is one."""
    found, lock = fake_gpu.the_gpu(), threading.Lock()
    calls.stand_in(monkeypatch)
    found.launched.clear()

    def on_launch(launched):
        import interpreted

        launch = launched.launch._replace(blocks=launched.blocks, numbers=launched.numbers)
        with lock:  # eight devices are eight threads
            interpreted.launch(calls.the_kernels(), launch, launched.addresses)

    if importlib.util.find_spec("triton") is not None:
        import interpreted

        found.on_launch = on_launch
        with interpreted.in_order():
            yield found
    else:
        yield found
    found.on_launch = lambda launched: None
    jax.clear_caches()


def program(**options):
    return sequences.program(options | {"implementation": "triton"})


def on_devices(run, given, specs):
    """The results where the arrays lie on the mesh, and what the compiled program sends."""
    placed = [jax.device_put(x, NamedSharding(MESH, spec)) for x, spec in zip(given, specs, strict=True)]
    done = jax.jit(run).lower(*placed).compile()
    assert f'custom_call_target="{compiled.TARGET}"' in done.as_text()
    return jax.block_until_ready(done(*placed)), collectives(done)


@pytest.mark.parametrize("kind", KINDS)
def test_each_device_has_its_texts_and_heads(gpu, kind):
    given = calls.arrays_of("bfloat16", B=B, N=N, G=G, T=T, S=S)
    run = program(**KINDS[kind])
    found, sent = on_devices(run, given, [P("data", "tensor")] * 5)
    sizes = {one.numbers[:4] for one in gpu.launched if one.kernel == "forward"}
    assert sizes == {(2, 2, T, S)}  # 2 of 4 heads, of one key head
    assert {each.kind for each in sent if each.bytes > 64} <= ({"all-reduce"} if kind == "modified" else set())
    for result in found[:5]:
        assert result.sharding.is_equivalent_to(NamedSharding(MESH, P("data", "tensor")), result.ndim)
    expected = jax.block_until_ready(jax.jit(run)(*map(jnp.asarray, given)))
    if importlib.util.find_spec("triton") is None:
        return  # the numbers are the interpreter's
    for name, one, other in zip((*calls.NAMES, "dbias"), found, expected, strict=False):
        one, other = np.asarray(one), np.asarray(other)
        if name == "dbias":  # a sum over the devices of the heads
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        else:
            assert_same_bits(one, other, name)


def test_devices_that_share_a_key_head_sum_its_gradients(gpu):
    given = calls.arrays_of("bfloat16", B=1, N=8, G=1, T=T, S=S)
    of_queries = P(None, ("data", "tensor"))
    run = program(mask=masks.causal(9))
    found, sent = on_devices(run, given, [of_queries, P(), P(), of_queries, of_queries])
    assert {one.numbers[:4] for one in gpu.launched if one.kernel == "forward"} == {(1, 1, T, S)}
    assert {each.kind for each in sent if each.bytes > 64} == {"all-reduce"}
    if importlib.util.find_spec("triton") is not None:
        calls.compare([np.asarray(x) for x in found], calls.right(given, mask=masks.causal(9)), "bfloat16")


def test_inside_shard_map(gpu):
    """There each device has a call of its own."""
    given = list(map(jnp.asarray, calls.arrays_of("bfloat16", B=4, N=2, G=2, T=T, S=S)))
    run = program(mask=masks.causal(9))
    spec = P("data", "tensor")
    mapped = jax.shard_map(run, mesh=MESH, in_specs=(spec,) * 5, out_specs=(spec,) * 5)
    found = jax.block_until_ready(jax.jit(mapped)(*given))
    assert {one.numbers[:4] for one in gpu.launched if one.kernel == "forward"} == {(1, 1, T, S)}
    if importlib.util.find_spec("triton") is not None:
        calls.compare([np.asarray(x) for x in found], calls.right(given, mask=masks.causal(9)), "bfloat16")


def test_the_program_for_cuda_says_how_it_is_divided(package, monkeypatch):
    """Lowered without a GPU, for eight devices."""
    fake_gpu.the_gpu()
    monkeypatch.setattr(cudnn, "capability", lambda: (9, 0))
    where = NamedSharding(MESH, P("data", "tensor"))
    shape = jax.ShapeDtypeStruct((8, 4, 1024, 128), jnp.bfloat16, sharding=where)
    traced = jax.jit(lambda *a: attention(*a, implementation="triton")).trace(shape, shape, shape)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@CustomSPMDPartitioning(") == 1
    assert "sdy.sharding_rule" in text
