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
UNUSED = tests.test_l6_a_row_that_nothing_depends_on
HIDDEN = tests.test_l6_what_is_hidden_changes_no_bit
CHUNK = tests.TestBits().test_of_a_chunk_over_a_cache_with_nan_behind
DECODED = tests.TestBits().test_of_a_query_that_is_decoded
OVERFLOW = tests.test_l7_products_beyond_float32_are_nan_after_a_softcap
B16 = "bfloat16"

MISTAKES = {  # what is wrong: the right text, the wrong one, which test notices it, and its parameters
    "an open tile too soon": (
        "tl.cdiv(tl.max(opened), BLOCK) * BLOCK", "tl.max(opened) // BLOCK * BLOCK", NUMBERS, ("a window", B16)),
    "ids are not compared": (
        "(of_queries(query_ids, KEYS_FIRST) == of_keys(key_ids, KEYS_FIRST))", "(i >= 0)",
        NUMBERS, ("segments in pieces", B16)),
    "a row of nothing has the maximum -inf": (
        "shift = tl.where(above == -INF, 0.0, above)", "shift = above", NUMBERS, ("queries before all keys", B16)),
    "a group begins at the first head": (
        "for head in range(of_keys * GROUP, of_keys * GROUP + GROUP)", "for head in range(of_keys, of_keys + GROUP)",
        NUMBERS, ("two groups of two heads", B16)),
    "gradients of scores are rounded to float16": (
        "if x.dtype == tl.float16:", "if x.dtype == tl.float64:", tests.test_gradients_of_scores_beyond_float16, ()),
    "products of float32 are in TF32": (
        'input_precision="ieee" if MODIFIED else "tf32x3"', 'input_precision="tf32"',
        NUMBERS, ("plain", "float32")),
    "the mask is that of the first text": (
        "return b * by_text * (1 + by_head * (N - 1)) + n * by_head", "return n * by_head", NUMBERS, ("lengths", B16)),
    "nobody looks at keys": (
        "(is_finite(k) == 0).to(tl.int8)", "(is_finite(k) != is_finite(k)).to(tl.int8)",
        TRACELESS, ("key", False)),
    "nobody looks at queries": (
        "(is_finite(q) == 0).to(tl.int8)", "(is_finite(q) != is_finite(q)).to(tl.int8)",
        TRACELESS, ("query", False)),
    "values with care keep NaN": (
        "            values = finite_or_zero(values)\n        if MODIFIED:", "        if MODIFIED:", HIDDEN, (B16, 16)),
    "the gradient of queries keeps NaN with care": (
        "k, s, dp = finite_or_zero(k), tl.where(live, s, 0.0)", "k, s, dp = k, tl.where(live, s, 0.0)",
        HIDDEN, (B16, 16)),
    "the products of the last step alone": ("s += products_with(x, y, MODIFIED)", "s = products_with(x, y, MODIFIED)",
        tests.test_rows_that_are_multiplied_in_steps, ("causal",)),
    "with care, gradients of rows that are not finite": (
        "k, s, dp = finite_or_zero(k), tl.where(live, s, 0.0), tl.where(live, dp, 0.0)", "k = finite_or_zero(k)",
        UNUSED, ("query",)),
    "rows that are not finite reach the gradients of keys": (
        "            live = share > 0.0\n            q, do =", "            live = share > 0.0\n            _, _ =",
        POISON, ("a window", "query", np.nan)),
    "tiles begin where a row does": (
        "tl.min(tl.where(first < last, first, high)) // BLOCK * BLOCK", "tl.min(tl.where(first < last, first, high))",
        CHUNK, (slice(13, 30), {})),
    "the scores pass a softcap with their gradient": ("derivative = 1.0 - t * t", "derivative = t - t + 1.0",
        NUMBERS, ("softcap", B16)),
    "a softcap hides a product that is not finite": (
        's = tl.where(is_finite(s), cap * t, float("nan"))', "s = cap * t", OVERFLOW, ()),
    "ALiBi forgets its offset": ("(i - j).to(tl.float32) + place", "(i - j).to(tl.float32)", NUMBERS, ("ALiBi", B16)),
    "the other direction of relative bias": ("j - i - table_place", "i - j - table_place",
        NUMBERS, ("relative bias", B16)),
    "a bias of the first text": ("plane(b, n, N, tl.load(options + 5), tl.load(options + 6))",
        "plane(0, n, N, tl.load(options + 5), tl.load(options + 6))", NUMBERS, ("a bias", B16)),
    "a bias of -inf is a number": ("s = tl.where(b == -INF, -INF, total)", "s = total",
        POISON, ("a bias that forbids", "key", np.nan)),
    "a sum with a bias leaves float32": ("total = tl.where(is_finite(s) & is_finite(b), near, total)",
        "total = total", tests.test_l7_a_bias_of_the_lowest_number, ()),
    "the gradient of a bias is of the first head": ("n = (at % own_n + step // sum_t % sum_n)",
        "n = (at % own_n + 0 * step)", NUMBERS, ("a bias for each text and key", B16)),
    "the gradient of a bias is of the first keys": ("(tile_s + part) * BLOCK_N", "tile_s * BLOCK_N",
        NUMBERS, ("a bias for each head and query", B16)),
    "the bits of the first query": ("words + i.to(tl.int64) * by_query + j // 32", "words + i * 0 + j // 32",
        NUMBERS, ("a dense mask", B16)),
    "gradients of values without dropout": ("            p = dropped(p, rows, columns, more[2], True)\n",
        "", NUMBERS, ("dropout", B16)),
    "the mask of the first head": ("+ plane(b, head % N, N, seen_b, seen_n) * T * 4, (0, 0, 0)",
        "+ plane(b, 0, N, seen_b, seen_n) * T * 4, (0, 0, 0)", NUMBERS, ("a window for each head", B16)),
    "sums of two parts have different maxima": (
        "return acc * shrink[:, None] + other_acc * other[:, None]", "return acc * shrink[:, None] + other_acc",
        NUMBERS, ("causal", B16)),
    "the sums of a part replace those before": (
        "= joined(acc, row_sum, row_max, other, other_sum, other_max)", "= other, other_sum, other_max",
        NUMBERS, ("plain", B16)),
    "each part has the keys of the first": (
        "low = (from_part + number) * part", "low = 0 * part", NUMBERS, ("plain", "float16")),
    "parts begin where a row does": (
        "low = (from_part + number) * part", "low = (from_part + number) * part + tl.max(first) // BLOCK_N * BLOCK_N",
        DECODED, (False,)),
    "the mark of the last tile of keys is not looked at": (
        "tl.cdiv(end, BLOCK_N))) == 0", "end // BLOCK_N)) == 0",
        TRACELESS, ("key", False)),
    "a score of -inf is hidden from the mark of its tile": (
        "return s - shift != -INF", "return s != -INF", TRACELESS, ("query", True)),
    "a bias of NaN reaches gradients that nothing depends on": (
        "return tl.where(live | (s == -INF), s, 0.0)", "return s", UNUSED, ("bias",)),
    "a bias of -inf forbids nothing in a row that is NaN": (
        "return tl.where(live | (s == -INF), s, 0.0)", "return tl.where(live, s, 0.0)",
        tests.test_l6_a_bias_that_is_not_finite, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_noticed(name, tmp_path):
    right, wrong, test, parameters = MISTAKES[name]
    texts = {file: (compiled.HERE / file).read_text("utf-8") for file in compiled.SOURCES[:-1]}
    changed = {file: text.replace(right, wrong) for file, text in texts.items() if right in text}
    assert len(changed) == 1
    bits = interpreted.in_order() if test in (CHUNK, DECODED) else interpreted.contextlib.nullcontext()
    with calls.in_interpreter(interpreted.kernels_of(changed, tmp_path)), bits, pytest.raises(AssertionError):
        test(*parameters)
