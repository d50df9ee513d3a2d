"""The kernels of Triton, in its interpreter: values, gradients, and the laws, against the specification."""

import importlib.util
import math
import mmap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed; .ci/gpu has it", allow_module_level=True)

import gpu_calls as calls
import interpreted
from attendax import attention, masks, scores
from attendax.kernels import gpu
from attendax.kernels.gpu import compiled, launches
from judges import assert_same_bits

DTYPES = launches.DTYPES
STEPS = launches.STEPS
FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, of Linux
WIDE = "causal", "a negative scale", "two groups of two heads", "all modifiers", "everything"
POISONS_OF_STEPS = [("query", np.nan), ("key", -np.inf), ("value", np.inf), ("dout", np.nan)]


@pytest.fixture(autouse=True)
def in_interpreter():
    with calls.in_interpreter():
        yield


def in_turn():
    """Each call in bfloat16 or, if its scores are products, in one dtype more; the dtypes take turns."""
    for number, name in enumerate(calls.CALLS):
        if name in calls.MODIFIED:
            yield name, DTYPES[number % 3]
        else:
            yield from ((name, dtype) for dtype in ("bfloat16", DTYPES[1 + number % 2]))


@pytest.mark.law("L13", "gpu")
@pytest.mark.parametrize(("name", "dtype"), [*in_turn()])
def test_results_and_gradients_are_those_of_the_specification(name, dtype):
    options, sizes = calls.options_of(name)
    arrays = calls.arrays_of(dtype, **sizes)
    with calls.parts_in_one_block(dtype == "bfloat16"):
        calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), dtype)


@pytest.mark.law("L6", "gpu")
@pytest.mark.parametrize(("name", "array", "bad"), calls.POISONS)
def test_l6_who_sees_what_is_not_finite_gets_nan_and_no_other(name, array, bad):
    options, sizes = calls.options_of(name)
    arrays = calls.poisoned(calls.arrays_of(**sizes), array, bad, seed=len(name))
    calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), "bfloat16")


@pytest.mark.law("L6", "gpu")
def test_l6_a_bias_that_is_not_finite():
    """Where it is seen its row is NaN, but not the keys that a bias forbids; where the mask hides it, nothing is."""
    bias = calls.BIASES.copy()
    bias[0, 0, 5, 1] = -np.inf
    bias[0, 0, 5, 3], bias[1, 1, 7, 2], bias[0, 1, 4, 30] = np.nan, np.inf, np.nan  # the last one is hidden
    arrays, options = calls.arrays_of(), {"mask": masks.causal(), "bias": bias}
    calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), "bfloat16")


@pytest.mark.law("L6", "gpu")
@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("array", ["query", "key"])
def test_l6_scores_of_minus_inf_leave_no_trace(array, modified):
    """In a row whose other scores are finite, and in one that has no other: both are NaN all the same."""
    arrays = calls.arrays_of(T=33, S=33)
    if array == "key":  # which the last query alone sees, and which is alone in its tile
        arrays[0][:, :, 32, 0], arrays[1][:, :, 32, 0] = 1, -np.inf
    else:  # which sees the first key alone
        arrays[0][:, :, 0, 0], arrays[1][:, :, 0, 0] = np.inf, -1
    options = {"mask": masks.causal()} | ({"bias": calls.BIASES[:, :, :33, :33]} if modified else {})
    calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), "bfloat16")


@pytest.mark.law("L6", "gpu")
@pytest.mark.parametrize("array", ["query", "bias"])
def test_l6_a_row_that_nothing_depends_on(array):
    """Its gradient is 0, though its query or its bias is NaN."""
    arrays, options = calls.arrays_of(), {"mask": masks.causal()}
    arrays[3][0, 0, 5], arrays[4][0, 0, 5] = 0, 0
    if array == "query":
        arrays[0][0, 0, 5] = np.nan
    else:
        options["bias"] = calls.BIASES.copy()
        options["bias"][0, 0, 5, 2] = np.nan
    calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), "bfloat16")


@pytest.mark.law("L6", "gpu")
@pytest.mark.parametrize(("dtype", "D"), [*((x, 16) for x in DTYPES), ("float32", 40)])
def test_l6_what_is_hidden_changes_no_bit(dtype, D):
    mask = masks.causal(4) & masks.padding(np.array([30, 45]))
    arrays = calls.arrays_of(dtype, D=D)
    _, key, value, *_ = arrays
    with calls.parts_in_one_block(dtype == "bfloat16"):
        before = calls.found(arrays, mask=mask)
        key[0, :, 30:], value[0, :, 30:, 1], value[1, 0, 42:, 2] = np.inf, np.nan, -np.inf
        assert_same_bits(calls.found(arrays, mask=mask), before, "hidden")


@pytest.mark.law("L6", "gpu")
@pytest.mark.parametrize("in_one_block", [False, True])
@pytest.mark.parametrize("array", ["query", "key", "value"])
def test_l6_in_the_second_of_three_parts(array, in_one_block):
    arrays, mask = calls.arrays_of(B=1, T=20, S=90), masks.causal(50)
    for row, number in ((7, np.nan), (12, -np.inf)):
        arrays[calls.ARRAYS.index(array)][0, 0, row + 38 * (array != "query"), 3] = number
    with calls.parts_in_one_block(in_one_block):
        calls.compare(calls.found(arrays, mask=mask), calls.right(arrays, mask=mask), "bfloat16")


def test_sums_of_more_numbers_than_int32_counts():
    """Of two parts, of which the second has all the weight. Memory that nobody touches is not there."""
    T, W = 2**25, 64  # the second part begins 2^31 numbers behind the first
    program = launches.Sizes(1, 1, 1, T, 33, W, "bfloat16", calls.TINY).forward()
    join = next(x for x in program.launches if x.kernel == "join_parts")._replace(blocks=1)
    shapes, before = program.results | program.inner, 2**33  # bytes, to which a sum of int32 would fall back
    maps = {name: mmap.mmap(-1, before + math.prod(shapes[name][0]) * 4, FLAGS) for name in join.arrays}
    arrays = {
        name: np.frombuffer(maps[name], calls.DTYPES[dtype], math.prod(shape), before).reshape(shape)
        for name, (shape, dtype) in shapes.items()
        if name in maps
    }
    arrays["sums"][0, 0, 1, :4] = 7.0
    arrays["sums_of_rows"][0, 0, :, :4] = [[0.0, -np.inf]], [[1.0, 0.0]]
    interpreted.launch(calls.the_kernels(), join, [arrays[name].ctypes.data for name in join.arrays])
    assert (arrays["out"][0, 0, :4] == 7).all()


@pytest.mark.law("L7", "gpu")
def test_l7_scores_of_1e30():
    arrays = [*calls.arrays_of(std=1e15)[:2], *calls.arrays_of()[2:]]
    options = {"scale": 1.0, "mask": masks.causal(3)}
    got, wanted = calls.found(arrays, **options), calls.right(arrays, **options)
    calls.compare(got[:2], wanted[:2], "bfloat16")
    assert all(np.isfinite(x.astype(np.float64)).all() for x in got)


@pytest.mark.law("L7", "gpu")
def test_l7_products_beyond_float32_whose_scores_are_not():
    arrays = [*calls.arrays_of(std=3e19)[:2], *calls.arrays_of()[2:]]
    options = {"scale": 1e-37}
    got, wanted = calls.found(arrays, **options), calls.right(arrays, **options)
    calls.compare(got[:2], wanted[:2], "bfloat16")


@pytest.mark.law("L7", "gpu")
def test_l7_queries_whose_product_with_the_scale_is_beyond_float32():
    """Only a scale that is small is multiplied with the queries; also if it is traced."""
    arrays = [calls.arrays_of(std=1e37)[0], *calls.arrays_of()[1:]]
    arrays[1] = np.copysign(arrays[1].dtype.type(2.0**-123), arrays[1])
    got, wanted = calls.found(arrays, scale=-8.0), calls.right(arrays, scale=-8.0)
    calls.compare(got[:2], wanted[:2], "bfloat16")
    factors = jax.jit(lambda scale: gpu._factors(scale, jnp.bfloat16))
    assert [tuple(map(float, factors(scale))) for scale in (-8.0, 1.0, 2.0**-20)] == [(-1, 8), (1, 1), (1, 2.0**-20)]
    assert float(factors(2.0**-30)[0]) < 1


@pytest.mark.law("L7", "gpu")
def test_l7_products_beyond_float32_are_nan_after_a_softcap():
    arrays = calls.arrays_of("float32")
    arrays[0][0, 0, 5], arrays[1][0, 0, 7] = 2.0**100, 2.0**100
    score_mod, before = scores.softcap(3.0), calls.found(arrays, mask=masks.causal(8))
    got = calls.found(arrays, mask=masks.causal(8), score_mod=score_mod)
    for one, other in zip(got[:2], before[:2], strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
    assert np.isnan(got[1]).any()


@pytest.mark.law("L7", "gpu")
def test_l7_a_bias_of_the_lowest_number():
    """A score that it is added to is below float32; the row stays a row of numbers."""
    arrays = [*calls.arrays_of(std=1e16)[:2], *calls.arrays_of()[2:]]
    options = {"scale": 1.0, "bias": np.full((37, 45), np.finfo(np.float32).min), "mask": masks.causal()}
    assert all(np.isfinite(x.astype(np.float64)).all() for x in calls.found(arrays, **options)[:2])


@pytest.mark.law("L7", "gpu")
def test_l7_inputs_of_300_in_float16():
    arrays = calls.arrays_of("float16")
    arrays[0][:], arrays[1][:] = 300, 300
    assert all(np.isfinite(x.astype(np.float64)).all() for x in calls.found(arrays, scale=1.0))


def test_gradients_of_scores_beyond_float16():
    """They are products of dout and value, beyond 1e5."""
    arrays = calls.arrays_of("float16", std=300.0)
    options = {"scale": 1e-5}
    calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), "float16")


@pytest.mark.parametrize(("dtype", "D"), [("bfloat16", 96), ("float32", 96), ("float32", 200)])
@pytest.mark.parametrize("target", launches.TARGETS)
def test_in_the_tiles_of_a_gpu(target, dtype, D, monkeypatch):
    monkeypatch.setattr(compiled, "target", lambda: target)
    monkeypatch.setattr(launches, "WIDTHS", (64, 128, 256))
    monkeypatch.setattr(launches, "STEPS", STEPS)
    monkeypatch.setattr(launches, "PART", 256)  # a multiple of each tile of keys, as the part of a GPU is
    sizes = {"B": 1, "N": 1, "T": 150, "S": 290, "D": D, "V": 80}
    arrays, options = calls.arrays_of(dtype, **sizes), {"mask": masks.causal(100) & masks.padding(np.array([190]))}
    calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), dtype)


@pytest.mark.parametrize("name", WIDE)
def test_rows_that_are_multiplied_in_steps(name):
    """In float32 the widest rows are."""
    options, sizes = calls.options_of(name)
    arrays = calls.arrays_of("float32", **sizes | {"D": 40, "V": 56})
    calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), "float32")


@pytest.mark.law("L6", "gpu")
@pytest.mark.parametrize("name", ["causal", "a bias that forbids"])
@pytest.mark.parametrize(("array", "bad"), POISONS_OF_STEPS)
def test_l6_in_rows_that_are_multiplied_in_steps(name, array, bad):
    options, _ = calls.options_of(name)
    arrays = calls.poisoned(calls.arrays_of("float32", D=40, V=56), array, bad)
    calls.compare(calls.found(arrays, **options), calls.right(arrays, **options), "float32")


@pytest.mark.law("L8", "gpu")
def test_l8_float32_is_as_right_as_the_plain_formula():
    """By three products of TF32, which the interpreter multiplies as a GPU does."""
    arrays = calls.arrays_of("float32", T=64, S=96, D=32, V=32)
    wanted = calls.right(arrays)[:2]
    query, key, value = map(jnp.asarray, arrays[:3])
    s = jnp.einsum("bntd,bgsd->bnts", query, key) / np.sqrt(np.float32(32))
    plain = jnp.einsum("bnts,bgsd->bntd", jax.nn.softmax(s), value), jax.nn.logsumexp(s, -1)
    for one, other, right in zip(calls.found(arrays)[:2], plain, wanted, strict=True):
        ours, theirs = (np.square(np.asarray(x) - right).mean() ** 0.5 for x in (one, other))
        assert ours < 2 * theirs


class TestBits:
    """L15: a row of out, lse and dquery has the same bits in any call."""

    WINDOW = 19

    @pytest.fixture(autouse=True)
    def in_order(self):
        with interpreted.in_order():
            yield

    def found(self, arrays, offset=0, **more):
        return calls.found(arrays, mask=masks.window(self.WINDOW, 0, offset), **more)

    @pytest.mark.parametrize("sizes", [{}, {"dtype": "float32", "D": 40}])
    @pytest.mark.parametrize("rows", [slice(36, 37), slice(13, 30)])
    def test_of_a_chunk_over_a_cache_with_nan_behind(self, rows, sizes):
        arrays = calls.arrays_of(**sizes)
        whole = self.found(arrays)
        query, key, value, dout, dlse = arrays
        behind = [np.concatenate([x[:, :, : rows.stop], np.full_like(x[:, :, :41], np.nan)], 2) for x in (key, value)]
        part = self.found([query[:, :, rows], *behind, dout[:, :, rows], dlse[:, :, rows]], rows.start)
        assert_same_bits(part[:3], [x[:, :, rows] for x in whole[:3]], "a chunk")

    def test_of_a_chunk_whose_scores_are_modified(self):
        """Softcap, ALiBi, relative bias, bias and bits of the mask, with an offset."""
        arrays, rng = calls.arrays_of(), np.random.default_rng(3)
        slopes, table = np.float32([0.3, 0.1]), rng.standard_normal((2, 9)).astype(np.float32)
        allowed, rows = rng.random((37, 45)) > 0.4, slice(13, 30)

        def of(arrays, rows):
            parts = scores.alibi(slopes, rows.start), scores.relative_bias(table, rows.start)
            bias = np.ascontiguousarray(calls.BIASES[:, :, rows])
            score_mod = scores.compose(scores.softcap(2.0), *parts)
            mask = masks.window(30, 0, rows.start) & masks.dense(allowed[rows])
            return calls.found(arrays, bias=bias, score_mod=score_mod, mask=mask)[:3]

        query, key, value, dout, dlse = arrays
        part = of([query[:, :, rows], key, value, dout[:, :, rows], dlse[:, :, rows]], rows)
        assert_same_bits(part, [x[:, :, rows] for x in of(arrays, slice(0, 37))], "a chunk")

    @pytest.mark.parametrize("modified", [False, True])
    def test_of_a_query_that_is_decoded(self, modified):
        """Over four parts of the keys, each in a block of its own; in the whole call one block adds them all."""
        query, key, value, dout, dlse = calls.arrays_of(B=1, T=20, S=120)
        key[0, 0, 118:], value[0, 0, 20] = np.nan, np.inf  # behind the last query, and in front of all windows
        more = {"score_mod": scores.softcap(2.0)} if modified else {}

        def of(rows, in_one_block):
            mask = masks.window(75, 0, 98 + rows.start)
            with calls.parts_in_one_block(in_one_block):
                arrays = query[:, :, rows], key, value, dout[:, :, rows], dlse[:, :, rows]
                return calls.found(arrays, mask=mask, **more)[:3]

        whole = of(slice(0, 20), True)
        for row in (19, 3):
            assert_same_bits(of(slice(row, row + 1), False), [x[:, :, row : row + 1] for x in whole], f"query {row}")

    def test_of_a_text_alone(self):
        arrays = calls.arrays_of()
        assert_same_bits(self.found([x[1:] for x in arrays]), [x[1:] for x in self.found(arrays)], "a text alone")

    def test_of_a_text_before_another(self):
        """Packed, the first text has the bits that it has alone."""
        arrays = calls.arrays_of(T=45)
        ids = np.array([[0] * 20 + [1] * 25] * 2)
        packed = calls.found(arrays, mask=masks.segments(ids, ids) & masks.causal())
        alone = calls.found([x[:, :, :20] for x in arrays], mask=masks.causal())
        assert_same_bits(alone, [x[:, :, :20] for x in packed], "the first text")

    def test_run_after_run(self):
        arrays = calls.arrays_of()
        assert_same_bits(self.found(arrays), self.found(arrays), "once more")


class TestDirections:
    """Tangents and second derivatives run in tiles; vmap and sinks reach the kernels."""

    OPTIONS = {"mask": masks.causal(8), "implementation": "triton"}

    def of(self, implementation):
        query, key, value, *_ = map(jnp.asarray, calls.arrays_of(B=1, T=5, S=7))
        options = self.OPTIONS | {"implementation": implementation}

        def loss(query, key, value, **more):
            return (attention(query, key, value, scale=0.3, **options, **more).astype(jnp.float32) ** 2).sum()

        def with_sink(logits):
            return loss(query, key, value, score_mod=scores.sink(logits))

        yield jax.jvp(loss, (query, key, value), (key[:, :1].repeat(2, 1)[:, :, :5], key, value))
        yield jax.jvp(jax.grad(loss), (query, key, value), (query, key, value))
        yield jax.vmap(jax.grad(loss, (0, 1)), (0, None, None))(jnp.stack([query, -query]), key, value)
        yield jax.vmap(jax.grad(loss, (0, 2)), (None, 1, None), 1)(query, jnp.stack([key, -key], 1), value)
        yield jax.grad(with_sink)(jnp.float32([0.5, -1.0]))

        def with_bias(bias, slopes, **more):
            return loss(query, key, value, bias=bias, score_mod=scores.alibi(slopes), **more)

        bias, slopes = jnp.asarray(calls.BIASES[:, :, :5, :7]), jnp.float32([[0.1, 0.2], [0.3, -0.1]])
        yield jax.vmap(jax.grad(with_bias, (0, 1)))(bias, slopes)
        yield jax.vmap(jax.grad(with_bias), (0, None))(bias, slopes[0])
        rng = jax.random.key(3)
        yield jax.vmap(lambda x: loss(x, key, value, dropout_rate=0.5, dropout_rng=rng))(jnp.stack([query, -query]))
        yield jax.jvp(lambda x: loss(x, key, value, bias=bias[0]), (query,), (query,))

    def test_each_is_that_of_tiles(self):
        for got, wanted in zip(self.of("triton"), self.of("blockwise"), strict=True):
            for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
                one, other = (np.asarray(x, np.float64) for x in (one, other))
                assert np.abs(one - other).max() < 4 * calls.EPS["bfloat16"] * np.abs(other).max()

    def test_outside_jit(self):
        arrays = calls.arrays_of()
        for scale in (0.25, -0.5):  # not known when it is compiled
            out, lse = attention(*map(jnp.asarray, arrays[:3]), scale=scale, return_lse=True, implementation="triton")
            wanted = calls.right(arrays, scale=scale)
            calls.compare([np.asarray(out), np.asarray(lse)], wanted[:2], "bfloat16")

    def test_with_an_offset_and_sides_that_are_traced(self):
        arrays = calls.arrays_of()

        @jax.jit
        def run(query, key, value, *numbers):
            mask = masks.window(*numbers)
            return attention(query, key, value, mask=mask, return_lse=True, implementation="triton")

        numbers = np.array([7, 19]), np.int32(2), np.array([8, -3])  # left, right, offset: for each text or for both
        wanted = calls.right(arrays, mask=masks.window(*numbers))
        found = run(*map(jnp.asarray, (*arrays[:3], *numbers)))
        calls.compare([np.asarray(x) for x in found], wanted[:2], "bfloat16")

    def test_what_is_not_wanted_is_not_computed(self, monkeypatch):
        programs, called = [], gpu._called
        monkeypatch.setattr(gpu, "_called", lambda *given: programs.append([*given[0].results]) or called(*given))
        query, key, value, *_ = map(jnp.asarray, calls.arrays_of(T=5))
        jax.grad(lambda x: attention(x, key, value, implementation="triton").astype(jnp.float32).sum())(query)
        assert programs == [["out", "row_max", "row_sum", "lse"], ["dquery"]]
