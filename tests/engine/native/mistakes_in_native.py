"""The table of mistakes planted in the C++ of the native path: a piece of text to replace, and the tests that notice.

A piece of text occurs once in its file of ``csrc``. Tests are named by their parameters in ``CATCHERS``; where the
mistake lies in what is compiled for one type alone, they are of that type.

Of the mistakes that a comparison of plain numbers notices, each parameter of it has one: the default suite runs these.
"""

from typing import NamedTuple


class NativeMistake(NamedTuple):
    name: str
    file: str
    right: str
    wrong: str
    catchers: tuple[str, ...]


NUMBERS = "test_native.py::test_results_and_gradients_are_those_of_the_specification"
LOW = "test_native.py::test_results_and_gradients_in_float32"
ROWS = "test_native_rows.py::test_a_row_does_not_depend_on_other_queries_nor_on_keys_behind"
TEXTS = "test_native_rows.py::test_a_text_does_not_depend_on_the_batch"
HIDDEN = "test_native_conduct.py::test_l6_what_is_hidden_changes_no_bit"
SPREADS = "test_native_conduct.py::test_l6_what_is_not_finite_spreads_as_in_tiles"
RIGHT = "test_same_bits.py::test_products_are_right"
TOKENS = "test_same_bits.py::test_a_product_does_not_depend_on_the_tokens_beside_it"
AGAIN = "test_native_rows.py::test_the_same_bits_run_after_run"
SAME_FOR_ALL = "test_native.py::test_the_gradient_of_a_bias_that_is_the_same_for_all_keys[(3, 1, 1)]"
EQUAL = "test_native.py::test_l8_equal_values_leave_no_gradient_of_scores"
ONES = "test_native.py::test_l8_ones_of_a_long_row_leave_no_more_than_a_rounding"
FEW = "test_native.py::test_l8_few_queries_are_as_near_as_in_the_dense_formula[64-equal columns]"
TANGENTS = "test_native_directions.py::test_tangents_are_those_of_tiles"
BEYOND = "test_native_directions.py::test_l7_a_query_that_the_scale_leads_beyond_the_range_stays_in_its_row"
NEAR = "test_native_directions.py::test_l8_tangents_are_as_near_as_in_the_dense_formula"
PIECES = "test_native_directions.py::test_l8_equal_tangents_of_values_are_added_in_pieces"
WHOLE = "test_native_directions.py::test_cotangents_that_move_give_what_tiles_do"
MEETS = "test_native_directions.py::test_l6_where_cotangents_move_too"
SPOILED = "test_native_directions.py::test_l6_what_is_not_finite_spreads_as_in_tiles"
NARROW = "test_native.py::test_l8_narrow_equal_columns_are_as_near_as_where_a_score_is_rounded_once[8]"
SMALL = "test_native.py::test_l8_small_weights_keep_their_digits"
FEW_WIDE = "test_native_rows.py::test_few_wide_rows_do_not_depend_on_other_rows"
TWO = "test_native.py::test_l8_rows_of_two_weights_are_as_near_as_in_the_dense_formula"
WIDE = "test_native_rows.py::test_a_row_of_a_wide_window_does_not_depend_on_other_rows"
LOWEST = "test_native.py::test_l7_the_lowest_bias_beside_large_scores"


def numbers(sizes, name):
    """Values and gradients in float64, beside the specification."""
    return (f"{NUMBERS}[{sizes}-{name}]",)


def in_file(file, *rows):
    """Mistakes of one file."""
    return [NativeMistake(name, file, right, wrong, catchers) for name, right, wrong, catchers in rows]


PRODUCTS = in_file(
    "product.h",
    ("the last of an odd depth", "if (p < end) step();", "if (p < end) ++p;", numbers("one more", "none")),
    ("tiles of four rows overlap", "row < end; row += M)", "row < end; row += M == 4 ? 5 : M)",
     numbers("a folded group", "none") + numbers("two chunks of keys", "none")),
    ("averages of earlier tiles are not rescaled", "fma(load(at), factor[j], acc[i][j])", "load(at) + acc[i][j]",
     numbers("a folded group", "none")),
    ("products are added in one chain", "constexpr int64_t kPiece = 8;", "constexpr int64_t kPiece = 1 << 20;",
     (FEW, NARROW)),
    ("a piece takes the place of those before it", "p + piece));\n      add(sum, acc);",
     "p + piece));\n      zero(sum);\n      add(sum, acc);", (FEW,)),
    ("weighted values in one chain", "add_until(least(depth, end));", "add_until(depth);", (ONES,)),
    ("a wide row in one chain of pieces", "constexpr int64_t kFar = 8 * kPiece;",
     "constexpr int64_t kFar = int64_t(1) << 20;", (EQUAL,)),
    ("the second sum of a wide row replaces the first", "if (p == kFar) zero(whole);", "zero(whole);", (EQUAL,)),
    ("a narrow row in one chain", "kPiece : kPiece / 2;", "kPiece : kPiece;", (NARROW,)),
)  # fmt: skip

ROWS_AND_MASKS = in_file(
    "rows.h",
    ("few queries that see different keys", "return !end || (begin == all_begin && end == all_end);", "return true;",
     numbers("few tokens", "causal")),
    ("the first leading axis", "at + batch * v.lead[0]", "at + batch % 2 * v.lead[0]",
     ("test_native.py::test_l1_leading_axes",)),
    ("a traced offset of the first batch", "integer_at(p, op.one, batch, head, query, 0) : op.offset",
     "integer_at(p, op.one, 0, head, query, 0) : op.offset", numbers("whole blocks", "traced causal")),
    ("a side of the first batch", "integer_at(p, op.rights, batch, head, query, 0)",
     "integer_at(p, op.rights, 0, head, query, 0)", numbers("whole blocks", "traced window")),
    ("the last interval alone", "seen.last = least(seen.last, one.last);", "seen.last = one.last;",
     numbers("whole blocks", "padding")),
    ("left edges are not masked", "all_begin = most(all_begin, first);", "",
     numbers("two chunks of queries", "window to the left")),
    ("right edges are not masked", "all_end = least(all_end, last);", "", numbers("whole blocks", "causal")),
    ("segments in order", "to.at[k][r] = uint8_t(ids[r] == id);", "to.at[k][r] = uint8_t(ids[r] <= id);",
     numbers("whole blocks", "segments")),
    ("a dense mask of one column", "step == 1 ? keys / 16 * 16 : 0", "keys / 16 * 16",
     numbers("whole blocks", "dense for all keys")),
    ("a block of keys begins one later", "(key + p.first_key) / op.right", "(key + 1 + p.first_key) / op.right",
     numbers("whole blocks", "blocks")),
    ("a union skips what one part skips", "Bounds{one.some || other.some,", "Bounds{one.some && other.some,",
     numbers("whole blocks", "second blocks or none")),
    ("a union is open where one part may be", "one.every || other.every}", "one.some || other.some}",
     numbers("whole blocks", "blocks or a window")),
    ("not some is not every", "{!stack[top].every, !stack[top].some}", "{!stack[top].some, !stack[top].every}",
     numbers("whole blocks", "not causal, or a window")),
    ("an interval ends one tile early", "span.end > key,", "span.end > key + keys,",
     numbers("whole blocks", "first keys or none")),
    ("either is one alone", "uint8_t(one[i] | other[i])", "uint8_t(one[i] ^ other[i])",
     numbers("whole blocks", "segments or causal")),
    ("not, bit by bit", "uint8_t(stack[top].bytes()[i] == 0)", "uint8_t(~stack[top].bytes()[i])",
     numbers("whole blocks", "not dense")),
    ("values in steps of keys", "at_value + k * p.value.row, 1", "at_value + k * p.key.row, 1",
     ("test_native.py::test_l8_errors_are_at_most_twice_those_of_the_plain_formula[tiny-bfloat16]",)),
    ("a value that is not finite has no mark",
     "!(finite_row(key_copy + k * D, D) && finite_row(value_copy + k * V, V))",
     "!finite_row(key_copy + k * D, D)", (SPREADS,)),
    ("marks are lost", "bad[k] = 1;", "", (SPREADS,)),
)  # fmt: skip

SCORES = in_file(
    "scores.h",
    ("truth values of the first keys", "where_allowed(*allowed, first_allowed + r + i, j, x)",
     "where_allowed(*allowed, r + i, j, x)", numbers("one more", "dense in a window")),
    ("the slope of a cap", "all(Real(1)) - t * t", "all(Real(1)) - t", numbers("whole blocks", "softcap")),
    ("a traced offset of slopes", "+ Real(offset_for(m, j, i));", "+ Real(m.offset);",
     numbers("whole blocks", "traced offsets")),
    ("lanes of several heads on one diagonal",
     "return block.head[row] == block.head[row + lanes - 1] &&\n"
     "           block.query[row + lanes - 1] - block.query[row] == lanes - 1;",
     "return lanes > 0;", numbers("a folded group", "relative")),
    ("a bias of one column, key by key", "rows[i] + key * p.bias.column", "rows[i] + key",
     numbers("one more", "bias of queries")),
    ("a bias of one column, in vectors", "keys == W && p.bias.column == 1 &&", "keys == W &&",
     numbers("whole blocks", "bias of queries")),
    ("a bias of minus infinity", "select(b[l] == -kInfinity, all(-kInfinity), smaller(all(-kLowest), y))",
     "smaller(all(-kLowest), y)", numbers("whole blocks", "forbidding bias")),
    ("a sum below the range", "larger(all(kLowest), x + nan_unless_finite(b[l]))", "x + nan_unless_finite(b[l])",
     (LOWEST,)),
    ("intervals beside a bias", "if (masked) x = inside(key + k + l, first, last, x);", "",
     numbers("whole blocks", "bias")),
    ("a program beside a bias", "if (allowed) x = where_allowed(*allowed, first_allowed + k + l, j, x);", "",
     numbers("whole blocks", "everything")),
    ("two rotations", "{17, 29, 16, 24}", "{17, 29, 24, 16}",
     ("test_native.py::test_l10_dropout_keeps_what_the_specification_keeps",)),
)  # fmt: skip

FORWARD = in_file(
    "forward.h",
    ("chunks are not rescaled", "F f = faded(one, top), g = faded(other, top);", "F f = F{} + Real(1), g = f;",
     numbers("two chunks of keys", "none")),
    ("values of the first keys", "end - begin, from.value + skip * from.value_step,", "end - begin, from.value,",
     numbers("whole blocks", "window")),
    ("a maximum that falls", "highest[r][j] > top[r] ? highest[r][j] : top[r];", "highest[r][j];",
     (f"{ROWS}[many heads-plain]", f"{ROWS}[several chunks-plain]")),
    ("keys behind the last of a tile", "Real added[R] = {}, piece[R] = {};",
     "Real added[R] = {}, piece[R] = {};\n"
     "    for (int64_t k = keys; k < rounded_up(keys, W); ++k) added[0] += weights[k];",
     numbers("one query, many keys", "none") + numbers("one key more than a chunk", "none")),
    ("weights are added in one chain", "end = kPiece - key % kPiece; k < keys;", "end = keys; k < keys;",
     (f"{TWO}[148]", f"{TWO}[600]")),
    ("few wide rows in one chain of pieces", "if ((d + W) % kFar) continue;", "continue;", (FEW_WIDE,)),
    ("what is hidden spoils", "if (!bad[k] || (allowed && !allowed->at[k][r])) continue;", "if (!bad[k]) continue;",
     (SPREADS, HIDDEN)),
    ("what a bias forbids spoils", "spoiled[r] |= bias != -kInfinity;", "spoiled[r] = 1;", (SPREADS,)),
    ("a query that sees nothing spoils its row", "(spoiled[r] && sum != 0)", "spoiled[r]", (SPREADS,)),
    ("an empty row is divided", "sum == 0 ? Real(0) : Real(1) / sum", "Real(1) / sum",
     ("test_native_conduct.py::test_l5_a_row_that_sees_nothing",)),
    ("the look at the results", "return !any_not_zero(zero);", "return !any_not_zero(zero) || true;", (HIDDEN,)),
    ("the second chunk of another thread", "if (number) merge(work", "if (number > 1) merge(work",
     numbers("one query alone", "none")),
)  # fmt: skip

BACKWARD = in_file(
    "backward.h",
    ("rows that lse alone reads", "b.dout_step) || !(dlse == 0)) &&", "b.dout_step)) &&", (SPREADS,)),
    ("rows that nothing reads", "if (b.unread) x = select(shift[j] == kInfinity, F{}, x);", "", (SPREADS,)),
    ("hidden keys of a spoiled row", "if (hides && b.spoiled) x = select(s == -kInfinity, F{}, x);", "", (SPREADS,)),
    ("0 times infinity", "select(x == F{}, F{}, x * (dp - delta))", "x * (dp - delta)", (HIDDEN,)),
    ("dropout of dv", "store(weight, x * factor);", "", numbers("whole blocks", "dropout")),
    ("the rows of a shared bias are written over", "block.query[r])] += rows[r];", "block.query[r])] = rows[r];",
     (SAME_FOR_ALL,)),
    ("a bias joins before its last keys", "if (super == p.supers() - 1) {\n      join_modifiers",
     "if (super == 0) {\n      join_modifiers", (SAME_FOR_ALL,)),
    ("modifiers are pulled in their own order", "for (int n = p.modifiers - 1; n >= 0; --n)",
     "for (int n = 0; n < p.modifiers; ++n)", numbers("whole blocks", "composed")),
    ("slopes the wrong way", "% p.repeat()] -= sum;", "% p.repeat()] += sum;", numbers("whole blocks", "alibi")),
    ("the last of a diagonal", "diagonal[r - k + keys - 1] += double", "diagonal[r - k + keys - 1] = double",
     numbers("whole blocks", "relative")),
    ("panels that see half a tile", "spans[i].begin < key + r + M", "spans[i].begin < key + r",
     numbers("one more", "window")),
    ("weights of an earlier tile", "clear_rows(work.weights, skip, row, lanes);", "",
     numbers("two chunks of queries", "window")),
    ("keys that are not finite", "bool clean = !finite_keys(", "bool clean = false && !finite_keys(", (HIDDEN,)),
    ("dq of one super tile", "join_dqueries(p, block, b, super == 0);", "join_dqueries(p, block, b, true);",
     numbers("two chunks of queries", "none")),
    ("nobody waits", "if (!turns.whole_block) turns.wait(turns.state, super);", "",
     (AGAIN,)),
)  # fmt: skip

LANES = in_file(
    "lanes.h",
    ("a coefficient in float32", "0x1.ebfbdcp-3f", "0x1.ebfbdcp-4f", (f"{LOW}[causal]",)),
    ("an exponential of one degree less", "0x1.4173c8p-13f", "0.0f", (SMALL,)),
    ("the product of an exponent is rounded", "return fma(x, all(kRestOfLog2e), fma(x, all(kLog2e), -n));",
     "return x * all(kLog2e) - n;", (SMALL,)),
    ("a coefficient in float64", "5.5504108664821580e-02", "5.55041087e-02", numbers("whole blocks", "none")),
    ("infinite scores are numbers", "F nan_unless_finite(F x) { return fma(x, F{}, x); }",
     "F nan_unless_finite(F x) { return x; }", ("test_native.py::test_l7_what_overflows_in_a_score_is_not_finite",)),
    ("a tanh for small numbers", "select(a < all(Real(0.625f)), small, large)", "small", (f"{LOW}[softcap]",)),
    ("bytes that are turned by half", "round < 4", "round < 3", numbers("whole blocks", "dense")),
    ("the end of a row is finite", "for (; i < n; ++i) rest += x[i] * Real(0);", "", (SPREADS,)),
    ("half of a vector is looked at", "i < kBytes / 8", "i < kBytes / 16", (SPREADS,)),
)  # fmt: skip

THREADS = in_file(
    "ffi.cc",
    ("heads that share a bias", "shared |= p.heads > 1 && !p.dbias_view.head;", "",
     numbers("whole blocks", "bias for all heads")),
    ("queries that share a bias", "one_row = p.queries > 1 && !p.dbias_view.row;", "",
     numbers("one more", "bias of heads and keys")),
    ("the call ends before its helpers", "work->done.load() < count;", "work->done.load() < 0;",
     (AGAIN, "test_native_rows.py::test_sixty_four_threads_call_at_once")),
    ("a helper too many", "(i = next.fetch_add(1)) < count", "(i = next.fetch_add(1)) < count - 1", (AGAIN,)),
)  # fmt: skip

ROW_INVARIANCE = in_file(
    "product.h",
    ("pieces of values begin with a row", "end = kPiece - first % kPiece;", "end = kPiece;", (WIDE,)),
) + in_file(
    "forward.h",
    ("pieces of weights begin with a row", "end = kPiece - key % kPiece;", "end = kPiece;", (WIDE,)),
    ("one query: weights in other pieces", "ends_piece(key + k) && k + 1 < keys) continue;\n        added",
     "ends_piece((key + k) / 2) && k + 1 < keys) continue;\n        added",
     (f"{ROWS}[many heads-plain]", f"{ROWS}[several chunks-plain]")),
    ("one query: values in other pieces", "ends_piece(key + k) && k + 1 < keys) continue;\n      for",
     "ends_piece((key + k) / 2) && k + 1 < keys) continue;\n      for",
     (f"{ROWS}[many heads-plain]", f"{ROWS}[several chunks-plain]")),
    ("tiles half as large for an even number of queries",
     "tile(key, least((at + 1) * kTileKeys, end) - key, to);",
     "int64_t last = least((at + 1) * kTileKeys, end), middle = p.queries % 2 ? last : key + (last - key) / 2;\n"
     "      if (key < middle) tile(key, middle - key, to);\n"
     "      if (middle < last) tile(middle, last - middle, to);", (f"{ROWS}[groups-plain]",)),
    ("more chunks for a batch", '#include "scores.h"',
     '#include "scores.h"\n#define kChunkKeys (p.batch > 1 ? 960 : 1920)',
     (f"{TEXTS}[several chunks-plain]",)),
    ("chunks of several threads are merged from the last to the first", "(from) + number *",
     "(from) + (p.key_chunks() - 1 - number) *", (f"{TEXTS}[decoding-plain]",)),
    ("one query: a rescaling that is not fused", "fma(fade[r], load(at), acc[r][j])",
     "acc[r][j] + fade[r] * load(at)", (f"{ROWS}[many heads-plain]", f"{ROWS}[several chunks-plain]")),
    ("one query: a row sum from the last key to the first", "piece[r] += weights[r * kTileKeys + k];",
     "piece[r] += weights[r * kTileKeys + keys - 1 - k];",
     (f"{ROWS}[many heads-plain]", f"{ROWS}[several chunks-plain]")),
    ("one query: products that are rounded twice", "piece[r] = fma(query[r * p.width + d + i], x[i], piece[r]);",
     "piece[r] += query[r * p.width + d + i] * x[i];",
     (f"{ROWS}[many heads-plain]", f"{ROWS}[several chunks-plain]")),
    ("one query: products in one chain", "if ((d + i + 1) & in_piece) continue;", "continue;",
     (f"{ROWS}[many heads-plain]", f"{ROWS}[several chunks-plain]")),
    ("one query: another exponent", "exp_of(load(score + k) - all(top[r]))",
     "exp_of((load(score + k) - all(top[r])) * all(Real(1 + 1e-6)))",
     (f"{ROWS}[many heads-plain]", f"{ROWS}[several chunks-plain]")),
    ("few queries: the others have the weights of the first", "fma(weights[r * kTileKeys + k], x[j]",
     "fma(weights[k], x[j]", numbers("few queries", "none")),
    ("tiles begin at the first key that is seen",
     "for (int64_t at = begin / kTileKeys; begin < end && at * kTileKeys < end; ++at) {\n"
     "      int64_t key = most(at * kTileKeys, begin);\n"
     "      tile(key, least((at + 1) * kTileKeys, end) - key, to);",
     "for (int64_t key = begin; key < end; key += kTileKeys) {\n      tile(key, least(kTileKeys, end - key), to);",
     ("test_native_rows.py::test_a_row_of_a_wide_window_does_not_depend_on_other_rows",)),
    ("one maximum for all rows of a panel", "    for (int j = 0; j < N; ++j) {\n      fade[j] =",
     "    Real most_of_all = kLowest;\n"
     "    for (int j = 0; j < N; ++j)\n"
     "      for (int i = 0; i < W; ++i) most_of_all = top[j][i] > most_of_all ? top[j][i] : most_of_all;\n"
     "    for (int j = 0; j < N; ++j) {\n      top[j] = all(most_of_all);\n      fade[j] =",
     (f"{ROWS}[groups-plain]",)),
) + in_file(
    "problem.h",
    ("chunks of queries by the batch", "return kChunkQueries / kBlockRows;",
     "return kChunkQueries / kBlockRows / (batch > 1 ? 2 : 1);", (f"{TEXTS}[several chunks-plain]",)),
    ("heads share a block in a batch of one alone", "return queries < kBlockRows;",
     "return queries < kBlockRows && batch == 1;", (f"{TEXTS}[folded-plain]",)),
) + in_file(
    "backward.h",
    ("the scale of dq is rounded otherwise for one query", "factor[r] = Real(p.scale);",
     "factor[r] = Real(p.queries == 1 ? 1 / (1 / p.scale * (1 + 1e-7)) : p.scale);", (f"{ROWS}[many heads-plain]",)),
    ("delta of few queries has another order", "        piece = fma(load(outs + c * kLd + row), load(douts",
     "        if (rows <= W) piece = piece + load(outs + c * kLd + row) * load(douts + c * kLd + row);\n"
     "        else piece = fma(load(outs + c * kLd + row), load(douts", (f"{ROWS}[many heads-plain]",)),
    ("dp is added in one chain", "register_tile<M, N, true, Order::of_width>",
     "register_tile<M, N, true, Order::chain>", (EQUAL,)),
    ("delta is added in one chain", "F piece{};", "F piece = sum;\n      sum = F{};", (EQUAL,)),
)  # fmt: skip

LAYERS = in_file(
    "linear.h",
    ("few tokens: products that are not fused",
     "sum = fma(factor[i], number(w + (p + i) * l.columns + j), sum);",
     "sum += factor[i] * number(w + (p + i) * l.columns + j);",
     (f"{TOKENS}[whole-float32]",)),
    ("few tokens: the depth as a whole",
     "depth += kDepth) {\n    int64_t end = least(depth + kDepth, l.depth);",
     "depth += l.depth) {\n    int64_t end = l.depth;", (f"{TOKENS}[several depths-float32]",)),
    ("the depth is cut by the number of tokens",
     "depth += kDepth) {\n    int64_t deep = least(kDepth, l.depth - depth);",
     "depth += (rows > 50 ? 128 : kDepth)) {\n    int64_t deep = least(rows > 50 ? 128 : kDepth, l.depth - depth);",
     (f"{TOKENS}[several depths-float32]",)),
    ("the last part of the depth alone, in the last columns", "to[i] = first ? x[i] : to[i] + x[i];", "to[i] = x[i];",
     (f"{RIGHT}[several depths-float32]",)),
    ("a turned weight ends with whole vectors", "i < least(W, deep - p); ++i) store(to + (p + i) * kPanel",
     "i + W <= deep - p; ++i) store(to + (p + i) * kPanel",
     (f"{RIGHT}[no whole vectors-float32]",)),
    ("few tokens, turned: the depth as a whole",
     "depth += kDepth) {\n      int64_t end = least(depth + kDepth, l.depth);",
     "depth += l.depth) {\n      int64_t end = l.depth;", (f"{TOKENS}[many columns-float32]",)),
    ("few tokens, turned: products that are not fused",
     "sums[r] = fma(all(x[r * l.depth + p + i]), block[i], sums[r]);",
     "sums[r] += all(x[r * l.depth + p + i]) * block[i];", (f"{TOKENS}[whole-float32]",)),
) + in_file(
    "ffi.cc",
    ("a token between two tasks", "int64_t row = i % blocks * rows", "int64_t row = i % blocks * (rows + 1)",
     (f"{RIGHT}[whole-float32]",)),
)  # fmt: skip

DIRECTIONS = in_file(
    "directions.h",
    ("dp without dropout", "store(ds + at, dp = dp * factor);", ";", (f"{TANGENTS}[two blocks-dropout-float32]",)),
    ("delta' without the tangents of dlse", "of_tangents.total() - load(dlse_moved + row);", "of_tangents.total();",
     (f"{WHOLE}[tiny-none-float32]",)),
    ("tangents of keys meet every row", "moved[r] && meets_moved[r]", "moved[r]", (f"{MEETS}[two blocks-none]",)),
    ("tangents of queries meet every row", "!fine && meets_moved[r]", "!fine", (f"{MEETS}[two blocks-none]",)),
    ("the mask's program is left out", "allowed = seen == Seen::some ? stack : nullptr;", "",
     (f"{TANGENTS}[two blocks-dense-float32]",)),
    ("who sees what is not finite is not asked", "if (sees && hides)", "if (sees && !hides)",
     (f"{SPOILED}[two blocks-causal]",)),
    ("a row that sees nothing is NaN", "lse_moved[row] += x;", "lse_moved[row] = kNaN;",
     (f"{SPOILED}[a folded group-padding]",)),
    ("a scaled query beyond the range", "spoiled[r] = !finite_row(query, query_step);", "spoiled[r] = 0;",
     (f"{BEYOND}[read-given]", f"{BEYOND}[unread-given]")),
    ("sums of a row in one chain", "if (!ends_piece(key)) return;", "if (key >= 0) return;",
     (f"{NEAR}[equal keys]",)),
    ("weighted tangents in one chain", "add_product<N, false, true>(width, keys, p.dquery ? key_moved",
     "add_product<N, false, false>(width, keys, p.dquery ? key_moved", (PIECES,)),
    ("rows on which nothing depends are read", "any_not_zero(dout, dout_step) || !(*dlse == 0);",
     "true;", (f"{SPOILED}[two blocks-none]",)),
) + in_file(
    "ffi.cc",
    ("directions of the first group alone", "kernels.directions(p, i / p.groups, i % p.groups);",
     "kernels.directions(p, i / p.groups, 0);", (f"{TANGENTS}[tiny-none-float32]",)),
)  # fmt: skip

MISTAKES = [
    *PRODUCTS,
    *ROWS_AND_MASKS,
    *SCORES,
    *FORWARD,
    *BACKWARD,
    *LANES,
    *THREADS,
    *ROW_INVARIANCE,
    *LAYERS,
    *DIRECTIONS,
]
