"""Mistakes planted in the kernels: each is noticed by a test of ``test_gpu_kernels.py``, which right kernels pass."""

import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed; .ci/gpu has it", allow_module_level=True)

import gpu_calls as calls
import interpreted
import test_gpu_kernels as tests
from attendax.kernels.gpu import compiled

NUMBERS = tests.test_results_and_gradients_are_those_of_the_specification
POISON = tests.test_l6_who_sees_what_is_not_finite_gets_nan_and_no_other
TRACELESS = tests.test_l6_scores_of_minus_inf_leave_no_trace
HIDDEN = tests.test_l6_what_is_hidden_changes_no_bit
CHUNK = tests.TestBits().test_of_a_chunk_over_a_cache_with_nan_behind
B16 = "bfloat16"

MISTAKES = {  # what is wrong: the right text, the wrong one, which test notices it, and its parameters
    "an open tile too many": (
        "tl.minimum(tl.min(shut), end) // BLOCK * BLOCK", "tl.cdiv(tl.minimum(tl.min(shut), end), BLOCK) * BLOCK",
        NUMBERS, ("causal", B16)),
    "an open tile too soon": (
        "tl.cdiv(tl.max(opened), BLOCK) * BLOCK", "tl.max(opened) // BLOCK * BLOCK", NUMBERS, ("a window", B16)),
    "ids are not compared": (
        "return inside & (query_ids[:, None] == key_ids[None, :])", "return inside",
        NUMBERS, ("segments in pieces", B16)),
    "a key behind the last is seen": (
        "(columns[None, :] < last[:, None])", "(columns[None, :] <= last[:, None])", NUMBERS, ("causal", B16)),
    "the sum is not rescaled": (
        "row_sum = row_sum * shrink + tl.sum(p, 1)", "row_sum = row_sum + tl.sum(p, 1)", NUMBERS, ("plain", B16)),
    "a row of nothing has the maximum -inf": (
        "shift = tl.where(above == -INF, 0.0, above)", "shift = above", NUMBERS, ("queries before all keys", B16)),
    "lse has no gradient": (
        "load_rows(out + head * T * W, rows, T, W).to(tl.float32), 1) - of_lse",
        "load_rows(out + head * T * W, rows, T, W).to(tl.float32), 1)", NUMBERS, ("plain", B16)),
    "a group begins at the first head": (
        "for head in range(of_keys * GROUP, of_keys * GROUP + GROUP)", "for head in range(of_keys, of_keys + GROUP)",
        NUMBERS, ("two groups of two heads", B16)),
    "the gradient of keys is not scaled": ("S, dk * scale, D)", "S, dk, D)", NUMBERS, ("plain", B16)),
    "gradients of scores are rounded to float16": (
        "if x.dtype == tl.float16:", "if x.dtype == tl.float64:", tests.test_gradients_of_scores_beyond_float16, ()),
    "products of float32 are in TF32": (
        'tl.trans(other), input_precision="tf32x3"', 'tl.trans(other), input_precision="tf32"',
        NUMBERS, ("plain", "float32")),
    "the mask is that of the first text": ("seen += b * seen_b * T * 4", "seen += 0", NUMBERS, ("lengths", B16)),
    "the last tile of queries does not reach": (
        "tl.max(tl.where(some, tiles + 1, 0))", "tl.max(tl.where(some, tiles, 0))", NUMBERS, ("causal", B16)),
    "nobody looks at keys": (
        "(is_finite(k) == 0).to(tl.int8)", "(is_finite(k) != is_finite(k)).to(tl.int8)",
        TRACELESS, ("key",)),
    "nobody looks at queries": (
        "(is_finite(q) == 0).to(tl.int8)", "(is_finite(q) != is_finite(q)).to(tl.int8)",
        TRACELESS, ("query",)),
    "values with care keep NaN": (
        "            values = finite_or_zero(values)\n        if MASKED:", "        if MASKED:", HIDDEN, (B16,)),
    "the gradient of queries keeps NaN with care": (
        "            k, values = finite_or_zero(k), finite_or_zero(values)\n        p =",
        "            pass\n        p =", HIDDEN, (B16,)),
    "rows that are not finite reach the gradients of keys": (
        "            live = share > 0.0\n            q, do =", "            live = share > 0.0\n            _, _ =",
        POISON, ("a window", "query", np.nan)),
    "tiles begin where a row does": (
        "tl.min(tl.where(first < last, first, S)) // BLOCK * BLOCK", "tl.min(tl.where(first < last, first, S))",
        CHUNK, (slice(13, 30),)),
    "the mark of the last tile of keys is not looked at": (
        "tl.cdiv(end, BLOCK_N))) == 0", "end // BLOCK_N)) == 0",
        TRACELESS, ("key",)),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_noticed(name, tmp_path):
    right, wrong, test, parameters = MISTAKES[name]
    text = (compiled.HERE / "kernels.py").read_text("utf-8")
    assert right in text
    path = tmp_path / "kernels.py"
    path.write_text(text.replace(right, wrong), "utf-8")
    bits = interpreted.in_order() if test == CHUNK else interpreted.contextlib.nullcontext()
    with calls.in_interpreter(interpreted.kernels_of(path)), bits, pytest.raises(AssertionError):
        test(*parameters)
