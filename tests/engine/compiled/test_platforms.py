"""Programs lowered for a GPU or a TPU: few loops, few branches; and the numbers of that program, tried on a CPU.

Nothing here runs on a GPU. The program for CUDA is made and counted here; its algorithm runs on the CPU in small tiles.
"""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, explain, masks, scores, spec
from attendax import explanation as explaining
from attendax.kernels import native, numerics, primitives
from attendax.kernels.blockwise import partition
from attendax.kernels.operands import Limits
from judges import assert_leaves_close, by_definition

OPERATIONS = ("while", "case", "dot_general", "dynamic_slice")
MASKS = {"full": None, "causal": masks.causal(), "window": masks.window(256, 0)}
MOST = {  # mask, T, direction: at most so many loops, branches, products, slices (two of them of the range of queries)
    ("full", 1024, "forward"): (0, 0, 2, 0),
    ("full", 1024, "gradient"): (0, 0, 8, 0),
    ("full", 2048, "forward"): (1, 0, 2, 16),
    ("full", 2048, "gradient"): (2, 0, 8, 36),
    ("causal", 2048, "forward"): (1, 0, 2, 16),
    ("causal", 2048, "gradient"): (2, 0, 8, 36),
    ("window", 2048, "gradient"): (2, 0, 8, 36),
    ("causal", 16384, "gradient"): (2, 0, 8, 36),
}


def lowered(mask, T, direction, platform):
    def attend(*a):
        return attention(*a, mask=mask)

    def gradient(*a):
        return jax.grad(lambda *b: (attend(*b) ** 2).sum(), (0, 1, 2))(*a)

    given = [jax.ShapeDtypeStruct((2, 16, T, 64), jnp.float32)] * 3
    function = {"forward": attend, "gradient": gradient}[direction]
    return jax.jit(function).trace(*given).lower(lowering_platforms=(platform,)).as_text()


def counts(program):
    return tuple(len(re.findall(rf"stablehlo\.{name}\b", program)) for name in OPERATIONS)


@pytest.mark.smoke
@pytest.mark.parametrize(("mask", "T", "direction"), MOST)
def test_loops_branches_and_products_of_the_program_for_cuda(mask, T, direction):
    """One loop forward and one backward, without a branch, whatever the mask leaves out."""
    found = counts(lowered(MASKS[mask], T, direction, "cuda"))
    assert all(a <= b for a, b in zip(found, MOST[mask, T, direction], strict=True)), found


def test_every_accelerator_has_the_same_program_and_a_cpu_another():
    programs = {
        name: counts(lowered(MASKS["causal"], 2048, "forward", name)) for name in ("cuda", "rocm", "tpu", "cpu")
    }
    assert programs["cuda"] == programs["rocm"] == programs["tpu"]
    assert programs["cpu"] != programs["cuda"]
    both = jax.jit(lambda x: attention(x, x, x)).trace(jnp.zeros((1, 8, 4))).lower(lowering_platforms=("cpu", "cuda"))
    assert "platform_index" in both.as_text(), "a program for two platforms holds the program of each"


@pytest.fixture
def as_for_cuda(monkeypatch):
    """Lower for the CPU what would be lowered for CUDA, in tiles of 3 queries and 2 keys."""
    placed = primitives.placed
    monkeypatch.setattr(primitives, "placed", lambda plan, context, platform: placed(plan, context, "cuda"))
    monkeypatch.setitem(partition.LIMITS_ON, "cuda", Limits(rows=3, columns=2, bytes=1))


KINDS = {
    "full": {},
    "causal": {"mask": masks.causal()},
    "queries without keys": {"mask": masks.causal(-2)},
    "window": {"mask": masks.window(2, 1)},
    "lengths": {"mask": masks.padding(np.array([0, 5]))},
    "softcap": {"score_mod": scores.softcap(2.0)},
}
B, N, G, D, V = 2, 4, 2, 5, 3


def drawn(T, S):
    rng = np.random.default_rng(0)
    shapes = (B, N, T, D), (B, G, S, D), (B, G, S, V), (B, N, T, V), (B, N, T)
    return [rng.standard_normal(shape) for shape in shapes]


def run_of(**options):
    """A new function, so that nothing compiled for another platform is used again."""

    def run(query, key, value, dout, dlse):
        results, pull = jax.vjp(lambda *a: attention(*a, **options, return_lse=True), query, key, value)
        return *results, *pull((dout, dlse))

    return jax.jit(run)


@pytest.mark.usefixtures("as_for_cuda")
@pytest.mark.sample(1)
@pytest.mark.parametrize("sizes", [(7, 8), (6, 6), (7, 7)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_algorithm_without_branches(kind, sizes):
    """T and S that the tiles divide, and that they do not."""
    *inputs, dout, dlse = drawn(*sizes)
    got = run_of(**KINDS[kind])(*inputs, dout, dlse)
    assert_leaves_close(got, by_definition(inputs, dout, dlse, **KINDS[kind]), rtol=1e-12, atol=1e-12)


def precisions(dtype, platform):
    """How many products of the program of a gradient have which precision."""
    given = [jax.ShapeDtypeStruct((2, 16, 2048, 64), dtype)] * 3

    def gradient(*arrays):
        out, pull = jax.vjp(lambda *a: attention(*a, mask=masks.causal(), implementation="blockwise"), *arrays)
        return pull(out)

    text = jax.jit(gradient).trace(*given).lower(lowering_platforms=(platform,)).as_text()
    return collections.Counter(re.findall(r"stablehlo\.dot_general.*precision = \[(\w+), \w+\]", text))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_narrow_arrays_are_for_tensor_cores_on_a_gpu_alone(dtype):
    """All but the sum of dout times out, which is of float32."""
    assert precisions(dtype, "cuda") == {"DEFAULT": 7, "HIGHEST": 1}
    for other in (precisions(dtype, "cpu"), precisions(dtype, "tpu"), precisions("float32", "cuda")):
        assert set(other) == {"HIGHEST"}


class OfElevenBits:
    """``jax.numpy`` for products: operands are rounded as tensor cores round them where no precision is asked for."""

    def __getattr__(self, name):
        return getattr(jnp, name)

    def matmul(self, left, right, precision):
        if precision == jax.lax.Precision.DEFAULT:
            left, right = (jax.lax.reduce_precision(x, 8, 10) for x in (left, right))
        return jnp.matmul(left, right, precision="highest")


def plain(kind, scale, allowed):
    """The dense formula of a framework: scores and softmax of float32, weights rounded to the dtype of the values."""

    def attend(query, key, value):
        key, value = (jnp.repeat(x, N // G, axis=1) for x in (key, value))
        products = jnp.einsum("bntd,bnsd->bnts", query, key, preferred_element_type=jnp.float32, precision="highest")
        found = products * jnp.float32(D**-0.5 if scale is None else scale)
        found = jnp.where(allowed, 2 * jnp.tanh(found / 2) if kind == "softcap" else found, -1e30)
        weights = jnp.where(allowed, jax.nn.softmax(found), 0).astype(value.dtype)
        return jnp.einsum("bnts,bnsv->bntv", weights, value)

    return attend


@pytest.mark.usefixtures("as_for_cuda")
@pytest.mark.sample(2)
@pytest.mark.parametrize("scale", [None, -3.0, 0.0, 1e-3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_arrays_in_operands_of_eleven_bits(kind, dtype, scale, monkeypatch):
    """The errors are at most twice those of the plain formula, which rounds as much (L8)."""
    monkeypatch.setattr(numerics, "jnp", OfElevenBits())
    *inputs, dout, _ = (jnp.asarray(x, dtype) for x in drawn(24, 40))
    options = KINDS[kind] | {"scale": scale}

    def results_of(attend):
        def run(*inputs):
            out, pull = jax.vjp(attend, *inputs)
            return out, *pull(dout)

        return [np.asarray(x, np.float64) for x in jax.jit(run)(*inputs)]

    *wide, wide_dout = (np.asarray(x, np.float64) for x in (*inputs, dout))
    wanted = [spec.attention(*wide, **options), *spec.attention_backward(wide_dout, *wide, **options)[:3]]
    allowed = spec.attention_with_weights(*wide, **options | {"scale": 0.0})[2] > 0
    by_definition = results_of(plain(kind, scale, allowed))
    lengths = [np.linalg.norm(x, axis=-1).max() for x in (wide_dout, wide[2])]
    rounding = float(jnp.finfo(dtype).eps) * np.array([0, *[np.prod(lengths)] * 3])
    for got, other, one, more in zip(
        results_of(lambda *a: attention(*a, **options)), by_definition, wanted, rounding, strict=True
    ):
        assert np.abs(got - one).max() <= 2 * np.abs(other - one).max() + more


@pytest.mark.slow
def test_what_is_not_finite_spreads_as_on_a_cpu(monkeypatch, request):
    """Without a mask nothing is hidden. But what only unread queries are, or see, has no gradient."""
    *inputs, dout, dlse = drawn(6, 6)
    query, key, value = inputs
    unread = dout.copy(), dlse.copy()
    unread[0][0, 0, 2], unread[1][0, 0, 2] = 0, 0
    none = dout.copy(), dlse.copy()
    none[0][0], none[1][0] = 0, 0

    def with_one(x, place, number):
        x = x.copy()
        x[place] = number
        return x

    cases = [
        (with_one(x, (0, 0, 2, 1), number) if x is one else x for x in inputs)
        for one in (query, key, value)
        for number in (np.nan, np.inf, -np.inf)
    ]
    cases = [(*case, *grads) for case in map(tuple, cases) for grads in ((dout, dlse), unread, none)]
    run = run_of()
    on_a_cpu = [run(*case) for case in cases]
    request.getfixturevalue("as_for_cuda")
    run = run_of()
    for number, (case, wanted) in enumerate(zip(cases, on_a_cpu, strict=True)):
        assert_leaves_close(run(*case), wanted, rtol=1e-9, atol=1e-9, err_msg=f"case {number}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "causal"])
def test_second_derivatives_as_on_a_cpu(kind, request):
    *inputs, _, _ = drawn(4, 4)
    tangents = [x[::-1].copy() for x in inputs]

    def run_of_second():
        def loss(*a):
            return (attention(*a, **KINDS[kind]) ** 2).sum()

        return jax.jit(lambda *a: jax.jvp(jax.grad(loss, (0, 1, 2)), a, tuple(tangents)))

    wanted = run_of_second()(*inputs)
    request.getfixturevalue("as_for_cuda")
    assert_leaves_close(run_of_second()(*inputs), wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("platform", "words"), [("cuda", "the default on this platform"), ("tpu", "not yet measured")])
def test_explain_says_what_was_not_measured(monkeypatch, platform, words):
    x = jax.ShapeDtypeStruct((1, 2, 4096, 64), jnp.float32)
    monkeypatch.setattr(explaining, "default_platform", lambda: platform)
    monkeypatch.setattr(native, "library", lambda: native.Library("", "not for CUDA"))
    explained = explain(x, x, x)
    assert explained.tile == (2, 1024, 1024)
    assert words in explained.reason
    assert ("measured" in explained.reason) == ("measured" in words)
