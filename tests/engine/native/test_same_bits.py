"""L15 of layers: by the library a token's products have the same bits whatever tokens are beside it."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import encoders, masks, ops
from attendax.kernels.numerics import repeated, row_sums
from attendax.ops import projections
from attendax.ops.projections import library_takes, project
from judges import assert_same_bits
from native_calls import needs_library
from processes import in_a_process

pytestmark = [needs_library, pytest.mark.law("L15", "native")]

ROWS = 1000  # several tasks
WEIGHTS = {  # by what is beside a limit: vectors, panels, 256 of the depth, 64 columns of a strip
    "whole": (64, 128),
    "no whole vectors": (37, 75),
    "several depths": (600, 91),
    "one number": (1, 1),
    "many columns": (33, 530),
    "so many that few tokens pack the weight": (9, 2056),
}


def drawn(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def backward(cotangent, W):
    """The gradient of the tokens."""
    types = jax.ShapeDtypeStruct((*cotangent.shape[:-1], W.shape[0]), cotangent.dtype)
    return jax.linear_transpose(lambda x: project(x, W), types)(cotangent)[0]


def both(name, dtype):
    """The product and its gradient, what they are of, and what is right."""
    depth, columns = WEIGHTS[name]
    W = drawn(depth, columns, dtype=dtype)
    x, cotangent = drawn(ROWS, depth, dtype=dtype), drawn(ROWS, columns, dtype=dtype, seed=1)
    with jax.enable_x64(dtype == np.float64):
        yield jax.jit(lambda x: project(x, W)), x, x.astype("f8") @ W.astype("f8")
        yield jax.jit(lambda g: backward(g, W)), cotangent, cotangent.astype("f8") @ W.T.astype("f8")


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_products_are_right(name, dtype):
    for run, x, wanted in both(name, dtype):
        for rows in (1, 2, 3, 4, 5, 8, 9, 13, 24, 25, 63, 64, 97, 481, ROWS):
            size = np.abs(wanted).max()
            np.testing.assert_allclose(run(x[:rows]), wanted[:rows], rtol=0, atol=40 * size * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_product_does_not_depend_on_the_tokens_beside_it(name, dtype):
    for run, x, _ in both(name, dtype):
        whole = np.asarray(run(x))
        for start, rows in (
            (0, 1), (17, 1), (ROWS - 1, 1), (5, 2), (9, 3), (1, 4), (50, 7), (95, 13), (11, 200), (100, 16), (100, 17),
            (7, 32), (70, 63), (5, 700),
        ):  # fmt: skip
            assert_same_bits(run(x[start : start + rows]), whole[start : start + rows], f"{rows} from {start}")
        in_batches = np.asarray(run(x.reshape(10, ROWS // 10, -1)))
        assert_same_bits(in_batches.reshape(ROWS, -1), whole, "in a batch")
        assert_same_bits(jax.vmap(run)(x.reshape(10, ROWS // 10, -1)).reshape(ROWS, -1), whole, "under vmap")


@pytest.mark.smoke
def test_eager_is_as_under_jit():
    x, W = drawn(2, 9, 300), drawn(300, 40)
    assert_same_bits(project(x, W), jax.jit(project)(x, W), "eager")
    assert "attendax_project" in jax.jit(project).lower(x, W).as_text()


@pytest.mark.smoke
def test_what_the_library_does_not_take_is_computed_by_xla():
    """An export, types that it does not know, no tokens: the numbers are right, and no call of the library is there."""
    x, W = drawn(2, 3, 8), drawn(8, 5)
    exported = jax.export.export(jax.jit(project))(x, W)
    assert "attendax_project" not in exported.mlir_module()
    np.testing.assert_allclose(exported.call(x, W), x @ W, rtol=1e-5)
    assert jax.jit(project)(x[:, :0], W).shape == (2, 0, 5)
    assert not jax.jit(project)(x[..., :0], W[:0]).any()
    assert not library_takes(*(jax.typeof(jnp.asarray(a, "bfloat16")) for a in (x, W)))


CORES = """
import os
if "ONE_CORE" in os.environ:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import hashlib
import numpy as np
import test_same_bits as here
from test_native_rows import SIZES, Part
for name in here.WEIGHTS:
    found = [np.asarray(run(x[:rows])) for run, x, _ in here.both(name, np.float32) for rows in (1, 3, here.ROWS)]
    print(hashlib.sha256(b"".join(x.tobytes() for x in found)).hexdigest())
for found in (here.layer(here.tokens(4, 40)), here.encoded(here.ids(4, 40), None)):
    print(hashlib.sha256(np.asarray(found).tobytes()).hexdigest())
for name, option in (("several chunks", "plain"), ("groups", "dropout")):
    found = Part(SIZES[name], option).take()
    print(hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in found)).hexdigest())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no cores can be chosen here")
def test_one_core_and_all_cores_are_the_same_bits():
    """Products, layers, and attention with its gradients."""
    one, many = in_a_process(CORES, ONE_CORE="1"), in_a_process(CORES)
    assert one == many
    assert len(set(many)) == len(WEIGHTS) + 4


DEVICES = """
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import test_same_bits as here
x, W = here.drawn(8, 30, 40), here.drawn(40, 50)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
over = jax.shard_map(here.project, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
assert "attendax_project" in jax.jit(over).lower(x, W).as_text()
here.assert_same_bits(jax.jit(over)(x, W), jax.jit(here.project)(x, W), "shard_map")
divided = jax.device_put(x, NamedSharding(mesh, P("x")))
found = jax.jit(here.project)(divided, W)
np.testing.assert_allclose(found, jax.jit(here.project)(x, W), rtol=1e-5, atol=1e-4)
assert "attendax_project" not in jax.jit(here.project).lower(divided, W).as_text()
print("ok")
"""


def test_many_devices():
    """Inside shard_map the bits of one device; where XLA divides a program, its own products."""
    assert in_a_process(DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=8") == ["ok"]


# Whole layers: what lies between the products is XLA's


WIDTH, HEADS = 96, 4


def tokens(B, T):
    return drawn(B, T, WIDTH, seed=4)


@functools.cache
def block():
    with jax.ensure_compile_time_eval():
        return ops.init_encoder_block(jax.random.key(0), WIDTH, HEADS, bias=True)


@jax.jit
def layer(x):
    return ops.encoder_block(x, block(), num_heads=HEADS, activation="gelu", mask=masks.causal())


@jax.jit
def attended(query, keys, start):
    options = {"num_heads": HEADS, "mask": masks.causal(start)}
    return ops.multi_head_attention(query, keys, keys, block().attention, **options)


CONFIG = encoders.EncoderConfig(50, 80, 2, d_model=WIDTH, num_heads=HEADS, d_ff=200, num_layers=2)


@functools.cache
def params():
    return encoders.init_encoder(jax.random.key(3), CONFIG)


def ids(B, T):
    return np.random.default_rng(5).integers(0, 50, (B, T))


@jax.jit
def with_params(params, x, mask):
    """Weights are arguments: what is constant XLA may add up beforehand, if it has the shape for it."""
    return encoders.encode(x, params, config=CONFIG, mask=mask)


def encoded(x, mask):
    return with_params(params(), x, mask)


def test_a_row_of_a_layer_does_not_depend_on_the_batch_nor_on_what_follows():
    x = tokens(5, 70)
    whole = np.asarray(layer(x))
    for text in (0, 3):
        assert_same_bits(layer(x[text : text + 1]), whole[text : text + 1], f"text {text} alone")
    for length in (1, 2, 17, 33, 69):
        assert_same_bits(layer(x[:, :length]), whole[:, :length], f"{length} tokens")
        assert_same_bits(layer(x[:1, :length]), whole[:1, :length], f"{length} tokens of one text")


def test_a_query_of_multi_head_attention_does_not_depend_on_the_others():
    x = tokens(3, 70)
    whole = np.asarray(attended(x, x, 0))
    for a, b in ((0, 1), (10, 12), (30, 63), (69, 70)):
        assert_same_bits(attended(x[:, a:b], x, a), whole[:, a:b], f"queries {a} to {b}")
        assert_same_bits(attended(x[:1, a:b], x[:1], a), whole[:1, a:b], f"queries {a} to {b} of one text")


def test_a_text_of_an_encoder_does_not_depend_on_the_batch_nor_on_padding():
    x = ids(6, 60)
    lengths = np.array([60, 31, 17, 1, 44, 59])
    real = np.arange(60) < lengths[:, None]
    whole = np.asarray(encoded(x, real))
    for text, length in enumerate(lengths):
        alone = encoded(x[text : text + 1, :length], real[text : text + 1, :length])
        assert_same_bits(alone, whole[text : text + 1, :length], f"text {text} alone")


def test_the_gradient_of_a_token_does_not_depend_on_the_batch():
    x = tokens(4, 33)
    cotangent = drawn(*x.shape, seed=8)
    pulled = jax.jit(lambda x, cotangent: jax.vjp(layer, x)[1](cotangent)[0])
    whole = np.asarray(pulled(x, cotangent))
    for text in range(4):
        part = slice(text, text + 1)
        assert_same_bits(pulled(x[part], cotangent[part]), whole[part], f"text {text} alone")


def test_without_the_library_bits_do_depend_on_the_other_tokens(monkeypatch):
    """So the tests above can fail."""
    x, W = drawn(ROWS, 256), drawn(256, 1000)
    monkeypatch.setattr(projections, "library_takes", lambda *_: False)
    whole = np.asarray(jax.jit(lambda x: project(x, W))(x))
    assert any((np.asarray(jax.jit(lambda x: project(x, W))(x[:n])) != whole[:n]).any() for n in (1, 5, 13))


@pytest.mark.smoke(1)
@pytest.mark.parametrize("size", [1, 2, 7, 64, 75, 768, 4097, 20000])
def test_sums_of_rows(size):
    """Right, of the same bits however many rows there are; so are the sums that pull a repeated column back."""
    x, dout = drawn(40, size), drawn(40, size, seed=1)
    sums = jax.jit(row_sums)
    pulled = jax.jit(lambda x, dout: jax.vjp(lambda x: repeated(x, size), x[:, :1])[1](dout)[0])
    for run, given in ((sums, (x,)), (pulled, (x, dout))):
        whole = np.asarray(run(*given))
        np.testing.assert_allclose(whole, given[-1].astype("f8").sum(1, keepdims=True), atol=1e-5 * size**0.5)
        for rows in (1, 2, 5, 13):
            assert_same_bits(run(*(y[3 : 3 + rows] for y in given)), whole[3 : 3 + rows], f"{rows} rows")
    np.testing.assert_array_equal(sums(x[:6].reshape(2, 3, size)).reshape(6, 1), sums(x)[:6])
    np.testing.assert_array_equal(jax.grad(lambda x: row_sums(x).sum())(x), np.ones_like(x))
    np.testing.assert_allclose(row_sums(x.T, 0), x.sum(1)[None], atol=1e-5 * size**0.5)
    assert row_sums(x[:, :0]).shape == (40, 1)


def test_sums_of_long_rows_of_doubles():
    """XLA cuts them at other places, if they are few; four rows, since one may round to the right bits by chance."""
    with jax.enable_x64(True):
        for row in np.random.default_rng(0).standard_normal((4, 20000)):
            found = {float(jax.jit(row_sums)(jnp.tile(row, (rows, 1)))[0, 0]) for rows in (1, 2, 5, 8, 13, 100, 300)}
            assert len(found) == 1
