"""The table of mistakes planted in the blockwise kernels: a piece of text to replace, and the judge that must notice.

The file is one of ``attendax``; of ``masks.py`` and ``mask_kinds.py`` only what is said about whole tiles is replaced.
"""

from typing import NamedTuple


class KernelMistake(NamedTuple):
    name: str
    file: str
    right: str
    wrong: str
    judge: str
    setting: str


def in_file(file, *rows):
    return [KernelMistake(name, file, right, wrong, judge, setting) for name, right, wrong, judge, setting in rows]


MERGING = in_file(
    "kernels/online_softmax.py",
    ("stale row maximum", "jnp.maximum(one[-2], other[-2])", "other[-2]", "huge forward", "wide"),
    ("row maximum of the first tile", "jnp.maximum(one[-2], other[-2])", "one[-2]", "forward", "open"),
    ("rescaled the wrong way", "jnp.exp(part[-2] - common)", "jnp.exp(common - part[-2])", "forward", "open"),
    ("sum not rescaled", "- 2), -1))", "- 2), -1)); row_sum = one[-1] + other[-1]", "forward", "open"),
    ("average not rescaled", "- 2), -1))", "- 2), -1)); summed = [one[0] + other[0]]", "forward", "open"),
    ("empty row minus infinity", "jnp.where(row_max == -jnp.inf, 0, row_max)", "row_max", "forward", "causal"),
    ("empty row divided by 0", "jnp.where(row_sum == 0, 1, row_sum)", "row_sum", "forward", "causal"),
    ("powers not below the maximum", "scores - (max_or_zero(row_max) if", "scores - (0 if", "forward", "causal"),
    ("weights not below the maximum", "jnp.exp(scores - max_or_zero(row_max))", "jnp.exp(scores)", "tangent", "open"),
    (
        "the largest score moves by half",
        "at_most_zero(primals[0]), tangents[0]",
        "jax.jvp(lambda x: jnp.minimum(x, 0), primals, tangents)",
        "second order",
        "small",
    ),
    ("lse without shift", "row_max + jnp.log(", "jnp.log(", "forward", "open"),
    ("merged lse without shift", ", shift + jnp.log(total))", ", jnp.log(total))", "merge", "open"),
    ("merged without its weights", "* share / total", "/ total", "merge", "open"),
) + in_file(
    "kernels/blockwise/algorithm.py",
    ("average not divided", "summed / sum_or_one(row_sum)", "summed", "forward", "open"),
    ("average divided twice", "finish(*parts) if at_once", "finish(*parts) if True", "forward", "open"),
    ("average divided again at the end", "return buffers if at_once", "return buffers if False", "forward", "banded"),
)

WHOLE = in_file(
    "kernels/blockwise/whole_heads.py",
    (
        "not divided",
        "every(product(exps, value, False)) / jnp.maximum(row_sum, 1)",
        "every(product(exps, value, False))",
        "whole",
        "open",
    ),
    ("shared by a batch, but written", "== alone[role] else", "is not None else", "a shared key", "as users do"),
    ("masked as little", "0, -jnp.inf).astype(query.dtype)", "0, -9).astype(query.dtype)", "whole", "keys"),
    ("empty row", "jnp.finfo(scores.dtype).min)\n    exps", "-jnp.inf)\n    exps", "whole", "causal"),
    (
        "keys the other way round",
        "every(product(query * plan.scale, key, True))",
        "every(product(query * plan.scale, key[:, ::-1], True))",
        "whole",
        "open",
    ),
    (
        "mask of other queries",
        "return allowed.reshape(-1,",
        "return allowed[..., ::-1, :].reshape(-1,",
        "whole",
        "dense",
    ),
    ("masked numbers spoil the chunk", "if operands.mask is None:", "if True:", "whole", "keys"),
    ("infinity is tame", "all_below(operands[:3], HUGE)", "jnp.bool_(True)", "whole", "keys"),
    ("large numbers are tame", "HUGE = 2.0**50", "HUGE = jnp.inf", "whole", "keys"),
    ("what is wild stays", "map(_small, operands[:3])", "operands[:3]", "whole", "keys"),
    ("what is wild is not seen", "jnp.where(see_it, *pair)", "jnp.where(see_it & False, *pair)", "whole", "keys"),
    ("a wild key is not seen", "| bad_keys.swapaxes(-1, -2)", "", "whole", "keys"),
    ("a wild value is not seen", " & rows_below(heads.value, HUGE)", "", "whole", "keys"),
    (
        "a wild query is not seen",
        "~rows_below(heads.query, HUGE) |",
        "(rows_below(heads.query, HUGE) & False) |",
        "whole",
        "keys",
    ),
    (
        "by choice, the mask added",
        "_chosen(product(query * plan.scale, key, True), heads.allowed)",
        "product(query * plan.scale, key, True) + jnp.where(heads.allowed, 0, -jnp.inf)",
        "whole",
        "keys",
    ),
    (
        "by choice, not marked",
        "(query, key, value), _ = with_marks(heads[:3])",
        "query, key, value = heads[:3]",
        "whole",
        "keys",
    ),
    ("the mark of keys forgotten", "mark_of_heads(key, value)", "mark_of_heads(value)", "spoiled forward", "whole"),
    ("the mark of values forgotten", "mark_of_heads(key, value)", "mark_of_heads(key)", "spoiled forward", "whole"),
    (
        "empty row of weights",
        "(jnp.maximum(row_sum, 1) if masked else row_sum)",
        "row_sum",
        "whole derivatives",
        "causal",
    ),
    ("weights fixed", "score_tangents - dlse", "score_tangents", "whole derivatives", "open"),
    ("query moves too far", "times(dquery * plan.scale, key,", "times(dquery, key,", "whole derivatives", "open"),
    (
        "key moves too far",
        "times(query * plan.scale, dkey,",
        "times(query, dkey,",
        "whole derivatives",
        "open",
    ),
    (
        "value stands still",
        "dout if dvalue is None else dout + times(weights, dvalue)",
        "dout",
        "whole derivatives",
        "open",
    ),
    ("tangent unmasked", "_chosen(scores, heads.allowed), -1", "scores, -1", "whole derivatives", "causal"),
    (
        "scores that nobody sees move",
        "score_tangents = _chosen(score_tangents, heads.allowed, 0)",
        "pass",
        "spoiled tangent",
        "future, whole",
    ),
    (
        "tangents not marked",
        "= with_marks(heads[:3], dots)",
        "= heads[:3], dots",
        "spoiled tangent",
        "future, whole",
    ),
    ("delta left out", "dweights - delta +", "dweights +", "whole derivatives", "open"),
    (
        "gradient of the query unscaled",
        "(key * plan.scale).swapaxes(",
        "key.swapaxes(",
        "whole derivatives",
        "open",
    ),
    (
        "gradient of the key unscaled",
        "times(dscores, query)",
        "times(dscores, heads.query)",
        "whole derivatives",
        "open",
    ),
    (
        "gradient unmasked",
        "_chosen(times(key, query, transpose_right=True), allowed), -2",
        "times(key, query, transpose_right=True), -2",
        "whole derivatives",
        "causal",
    ),
    ("softmax over queries", "allowed), -2, allowed", "allowed), -1, allowed", "whole derivatives", "open"),
    (
        "empty row of a gradient",
        "(jnp.maximum(row_max, jnp.finfo(scores.dtype).min) if masked else row_max)",
        "row_max",
        "whole derivatives",
        "causal",
    ),
    (
        "the last head of a group only",
        "if grid.group == shared else None}",
        "}",
        "whole derivatives",
        "three key heads",
    ),
    (
        "not cleaned",
        "map(replace_nonfinite, (*heads[:3], dout, dlse))",
        "(*heads[:3], dout, dlse)",
        "whole derivatives",
        "keys",
    ),
    (
        "a large value that nobody sees",
        "dweights = _chosen(times(value, dout, transpose_right=True), allowed, 0)",
        "dweights = times(value, dout, transpose_right=True)",
        "whole derivatives",
        "keys",
    ),
    (
        "the mark of a row spreads to keys that it does not see",
        "jnp.where(allowed, weights + mark.swapaxes(-1, -2), 0)",
        "weights + mark.swapaxes(-1, -2)",
        "spoiled gradient",
        "future, whole",
    ),
    (
        "an overflow spreads to keys that the row does not see",
        "_chosen(weights * (dweights - delta + dlse.swapaxes(-1, -2)), allowed, 0)",
        "weights * (dweights - delta + dlse.swapaxes(-1, -2))",
        "overflow of a gradient",
        "future, whole",
    ),
    (
        "no mark where all see all",
        "dout + mark if heads.allowed is None",
        "dout if heads.allowed is None",
        "spoiled gradient",
        "whole",
    ),
    (
        "NaN spreads along the queries",
        "on_all_cores(times(turned, dscores), axis=-2)",
        "on_all_cores(times(turned, dscores), axis=-1)",
        "spoiled gradient",
        "future, whole",
    ),
)

MARKS = (
    in_file(
        "kernels/not_finite.py",
        ("a value is not marked", "(key, value, dkey, dvalue)", "(key, dkey)", "spoiled tangent", "future"),
        (
            "a tangent of a value is not marked",
            "(key, value, dkey, dvalue)",
            "(key, value, dkey)",
            "spoiled tangent",
            "future",
        ),
        (
            "a tangent of a key is not marked",
            "(key, value, dkey, dvalue)",
            "(key, value, dvalue)",
            "spoiled tangent",
            "future",
        ),
        (
            "a marked value stays",
            "None if x is None else jnp.where(jnp.isnan(keys), 0, x)",
            "None if x is None else x",
            "spoiled tangent",
            "future",
        ),
        ("the key is not told of its mark", "key + keys.astype(key.dtype)", "key", "spoiled tangent", "future"),
        (
            "the query is not told of its mark",
            "query + queries.astype(query.dtype)",
            "query",
            "spoiled tangent",
            "future",
        ),
        (
            "heads marked by values alone",
            "axis=(-2, -1), keepdims=True) for x in arrays)",
            "axis=(-2, -1), keepdims=True) for x in arrays[1:])",
            "spoiled forward",
            "whole",
        ),
        (
            "a query that nothing depends on",
            "(read == 0) | jnp.isfinite(read + first)",
            "jnp.isfinite(read + first)",
            "whole derivatives",
            "keys",
        ),
        (
            "a spoiled row is not marked",
            "jnp.isfinite(read + first)",
            "jnp.isfinite(read)",
            "spoiled gradient",
            "future, whole",
        ),
        (
            "a spoiled gradient is not marked",
            "jnp.isfinite(read + first)",
            "jnp.isfinite(first)",
            "spoiled cotangent",
            "future, whole",
        ),
        ("all rows are read", "rows_not_zero(dout) | (dlse != 0)", "rows_not_zero(dout) | True", "unread", "future"),
        ("lse is not read", " | (dlse != 0)", "", "visible lse", "future"),
        ("NaN of a cotangent", "jnp.where(live, x, 0) / row_sum", "x / row_sum", "cotangent", "future"),
        ("NaN of delta", "rows_finite(delta, results.row_sum", "rows_finite(results.row_sum", "cotangent", "future"),
        (
            "a row that is not read is NaN",
            "jnp.where(read, shift, jnp.inf)",
            "jnp.where(read, shift, jnp.nan)",
            "unread",
            "future",
        ),
        (
            "a row that is not finite is not read",
            "results.row_max, jnp.nan)",
            "results.row_max, jnp.inf)",
            "visible backward",
            "future",
        ),
        (
            "out of a row that moves to NaN",
            "results._replace(out=jnp.where(fine, results.out, jnp.nan))",
            "results",
            "visible second",
            "future",
        ),
        ("delta without dlse", "dout, results.out) - dlse", "dout, results.out)", "gradient", "open"),
        ("delta without out", "sums_of_products(dout, results.out) - dlse", "-dlse", "gradient", "open"),
        (
            "delta not divided",
            "(jnp.where(live, x, 0) / row_sum for x in (dout, delta))",
            "(jnp.where(live, dout, 0) / row_sum, jnp.where(live, delta, 0))",
            "gradient",
            "open",
        ),
    )
    + in_file(
        "kernels/not_finite.py",
        ("keys are not marked", "mark_of_rows(key, value)", "mark_of_rows(value)", "spoiled forward", "open"),
        ("heads not marked by keys", "mark_of_heads(key)", "mark_of_heads(value)", "spoiled forward", "even"),
        (
            "marks of heads in turn",
            "jnp.repeat(mark_of_heads(key), query.shape[-3] // key.shape[-3], axis=-3)",
            "jnp.tile(mark_of_heads(key), (query.shape[-3] // key.shape[-3], 1, 1))",
            "spoiled forward",
            "even, all heads",
        ),
    )
    + in_file(
        "kernels/blockwise/algorithm.py",
        (
            "heads not marked by values",
            "mark_of_rows(summed) if all_see_all else 0",
            "0",
            "spoiled forward",
            "even",
        ),
        ("no marks under a mask", "for x in operands[3:6])", "for x in operands[3:5])", "poison forward", "even, keys"),
        (
            "no marks with a bias",
            "for x in operands[3:6])",
            "for x in operands[4:6])",
            "poison forward",
            "even, bias forbids",
        ),
    )
    + in_file(
        "kernels/blockwise/tile.py",
        (
            "the mark of a query forgotten",
            "query * before + of_queries.astype(query.dtype)",
            "query * before",
            "spoiled forward",
            "open",
        ),
        (
            "the mark of a key forgotten",
            "products + of_keys.astype(key.dtype).swapaxes(-1, -2)",
            "products",
            "visible forward",
            "future",
        ),
    )
    + in_file(
        "kernels/blockwise/tile.py",
        ("NaN of a masked value", "jnp.where(jnp.isnan(of_keys), 0, value)", "value", "poison forward", "keys"),
        (
            "tangents not marked",
            "leaves[:REST], dots[:REST] = with_marks(leaves[:REST], dots[:REST])",
            "pass",
            "spoiled tangent",
            "future",
        ),
        ("NaN of a masked key in the backward", "if k else", "if k == VALUE else", "poison backward", "keys"),
        ("NaN of a value in the backward", "if k else", "if k == KEY else", "unread", "future"),
        (
            "a query that nothing depends on",
            "jnp.where(rows.live, leaves[QUERY], 0)",
            "leaves[QUERY]",
            "unread",
            "future",
        ),
        (
            "the overflow of a query that nothing depends on",
            "jnp.where(rows.live, leaves[QUERY], 0)",
            "leaves[QUERY]",
            "unread overflow",
            "future",
        ),
        (
            "p without the choice",
            "p = p if allowed is None else jnp.where(allowed, p, 0)",
            "pass",
            "gradient",
            "causal",
        ),
        (
            "ds without the choice",
            "ds if allowed is None else jnp.where(allowed, ds, 0)",
            "ds",
            "poison backward",
            "keys",
        ),
        ("a modifier of rows that nothing reads", ", live=rows.shift != jnp.inf", "", "unread modifier", "future"),
    )
    + in_file(
        "kernels/programs.py",
        (
            "results stand still",
            "given], *result_tangents)",
            "given], 0 * result_tangents[0], result_tangents[1])",
            "second order",
            "small",
        ),
        (
            "shifts stand still",
            "given], *result_tangents)",
            "given], result_tangents[0], 0 * result_tangents[1])",
            "second order",
            "small",
        ),
        (
            "NaN of a tangent in second order",
            "[replace_nonfinite(t) for t in given]",
            "list(given)",
            "unread second",
            "future",
        ),
        (
            "NaN of a tangent in two tangents",
            "[replace_nonfinite(t) for t in given]",
            "list(given)",
            "jvp of jvp of NaN",
            "future",
        ),
        (
            "tangents of the first leaves",
            "[next(rest) if t else None for t in there]",
            "[next(rest, None) for _ in there]",
            "tangent of the keys",
            "all alike",
        ),
    )
    + in_file(
        "kernels/blockwise/tile.py",
        ("NaN behind a bias of -inf", "allowed & (bias != -jnp.inf)", "allowed", "poison forward", "bias forbids"),
        (
            "masked pairs reach the modifier",
            "scores if allowed is None else jnp.where(allowed, scores, 0)",
            "scores",
            "poison backward",
            "cubed",
        ),
    )
)

NUMERICS = in_file(
    "kernels/numerics.py",
    (
        "half of a product for all cores",
        "jnp.minimum(jnp.max(x, axis=axis",
        "jnp.minimum(jnp.min(x, axis=axis",
        "whole derivatives",
        "open",
    ),
    ("no fusion barrier", "if not isinstance(true, jax.core.Tracer):", "if True:", "losses", "as users do"),
    (
        "a barrier that is seen through",
        "*jax.tree.map(lax.optimization_barrier, arrays)",
        "*arrays",
        "losses",
        "as users do",
    ),
    (
        "finite by a maximum",
        "jnp.sum(jnp.square(widened),",
        "jnp.max(jnp.square(widened),",
        "an unseen NaN",
        "as users do",
    ),
    (
        "product with the wrong tangent",
        "times(dleft, finite_straight_through(right)",
        "times(dleft, 2 * finite_straight_through(right)",
        "tangent",
        "open",
    ),
    (
        "product with one tangent",
        "finite_straight_through(left), dright",
        "0 * finite_straight_through(left), dright",
        "tangent of the keys",
        "open",
    ),
    ("finite cuts the gradient", "primals[0]), tangents[0]", "primals[0]), 0 * tangents[0]", "jvp of jvp", "open"),
)

MODIFIED = [
    *in_file(
        "kernels/score_modifiers.py",
        ("bias without its tangent", "tangents[0] + tangents[1]", "tangents[0]", "gradient", "bias"),
    ),
    *in_file(
        "kernels/dropout.py",
        ("one round of threefry less", "for group in range(5)", "for group in range(4)", "forward", "dropout"),
    ),
]

TILES = (
    in_file(
        "kernels/blockwise/partition.py",
        (
            "the last block of keys starts late",
            "np.minimum(j, grid.S - grid.columns)",
            "j",
            "forward",
            "open",
        ),
        ("keys of the overlap twice", "else None, new_column)", "else None, None)", "forward", "open"),
        ("tiles of the first row", "at[0], at[1], new_row", "0, at[1], new_row", "forward", "open"),
        ("tiles of the first column", "at[0], at[1], new_row", "at[0], 0, new_row", "forward", "along a window"),
        ("the last tile that is used skipped", "else self.found", "else self.found - 1", "forward", "padding"),
        ("out of the order", "else self.order[index]", "else index", "forward", "padding"),
        (
            "not brought into an order",
            "jnp.sort(jnp.where(used, numbers, used.shape[0]))",
            "numbers",
            "forward",
            "padding",
        ),
        (
            "tiles of the first chunk",
            "used.reshape(used.shape[0], -1)",
            "used[:1].reshape(1, -1)",
            "forward",
            "padding",
        ),
        ("starts for rows, the rest for columns", "used.swapaxes(1, 2)", "used", "gradient", "causal"),
        ("tiles that are not open skipped", "ask=True) != EMPTY", "ask=True) == FULL", "forward", "causal"),
        (
            "a tile open to one head is open to all",
            "(every, xp.all))",
            "(every, xp.any))",
            "open tiles",
            "open to one head",
        ),
        (
            "a tile skipped for one head is skipped",
            "(some, xp.any),",
            "(some, xp.all),",
            "forward",
            "padding, all heads",
        ),
        ("ids by their least alone", "(jnp.min, jnp.max)", "(jnp.min, jnp.min)", "forward", "segments"),
        ("truth values by their largest alone", "(jnp.all, jnp.any)", "(jnp.any, jnp.any)", "open tiles", "dense"),
        ("truth values by their least alone", "(jnp.all, jnp.any)", "(jnp.all, jnp.all)", "forward", "dense"),
    )
    + in_file(
        "kernels/blockwise/algorithm.py",
        (
            "queries that several tiles have, each once",
            "rows_once=not each.rows_are_whole",
            "rows_once=False",
            "forward",
            "open",
        ),
        (
            "queries of whole rows left out",
            "rows_once=not each.rows_are_whole",
            "rows_once=True",
            "forward",
            "along a window",
        ),
    )
    + in_file(
        "kernels/blockwise/tiles.py",
        (
            "tile starts at the head of the keys",
            "many = self.first_head(),",
            "many = self.starts[-2],",
            "forward",
            "open",
        ),
        ("position of the key head", "* self.grid.axes[-1] + self.starts[-1]", "+ self.starts[-1]", "forward", "alibi"),
        (
            "first of the heads that share",
            "* self.grid.axes[-1] + self.starts[-1]",
            "* self.grid.axes[-1]",
            "forward",
            "some",
        ),
        ("positions local to the tile", "counted = start + jnp", "counted = jnp", "forward", "causal"),
        ("gradients written, not added", "self.cut(role, buffer) + folded", "folded", "gradient", "open"),
        (
            "gradient of what vmap shares a mean",
            "x.sum(repeated,",
            "x.mean(repeated,",
            "shared by vmap",
            "small, all heads",
        ),
        (
            "chunks counted from the wrong end",
            "self.chunk_sizes[::-1], strict=True):\n            chunk, place = divided(chunk, count)",
            "self.chunk_sizes[::-1], strict=True):\n            place, chunk = divided(chunk, count)",
            "forward",
            "padding",
        ),
    )
)

SIZES = in_file(
    "kernels/blockwise/partition.py",
    ("chunks that do not divide", "if size % n == 0)", "if n)", "forward", "three key heads"),
    ("not the first key that is seen", "int(blocks[0] * size)", "int(blocks[0] * size + 1)", "forward", "banded"),
    ("a block of keys too few", "(blocks[-1] + 1) * size", "max(1, blocks[-1]) * size", "forward", "banded"),
    ("last band as long as the others", "min(T - row, size)", "size", "gradient", "banded"),
    ("not the first key of a window", "max(0, row + low)", "max(0, row + low + 1)", "forward", "along a window"),
    (
        "a window of keys too few",
        "(rows + width - 1) // step",
        "(rows + width - 2) // step",
        "forward",
        "along a window",
    ),
    (
        "the lesser of two ends, less one",
        "min(highs, default=None)",
        "min(highs, default=None) - 1",
        "forward",
        "along a window",
    ),
    ("the last band left out", "return bands if done <=", "return bands[:-1] if done <=", "forward", "banded"),
    (
        "queries of two blocks, twice",
        "zip(firsts, range(0, T, rows), strict=True)",
        "zip(firsts, firsts, strict=True)",
        "gradient",
        "along a window",
    ),
) + in_file(
    "kernels/operands.py",
    (
        "computed in float32",
        "np.result_type(np.float32, *dtypes)",
        "np.dtype(np.float32)",
        "forward",
        "open",
    ),
)

MASKS = in_file(
    "mask_kinds.py",
    (
        "left of a window skipped",
        "_between(i_first, j_last, xp, offset, left, None)",
        "_between(i_last, j_first, xp, offset, left, None)",
        "forward",
        "window",
    ),
    (
        "right of a window skipped",
        "_between(i_last, j_first, xp, offset, None, right)",
        "_between(i_first, j_last, xp, offset, None, right)",
        "forward",
        "causal",
    ),
    (
        "left of a window open",
        "_between(i_last, j_first, xp, offset, left, None)",
        "_between(i_first, j_last, xp, offset, left, None)",
        "open tiles",
        "wide window",
    ),
    (
        "right of a window open",
        "_between(i_first, j_last, xp, offset, None, right)",
        "_between(i_last, j_first, xp, offset, None, right)",
        "open tiles",
        "causal",
    ),
    (
        "offset forgotten",
        "    some = _between(",
        "    offset = 0 * offset\n    some = _between(",
        "forward",
        "offset",
    ),
    ("padding skipped", "first, last = (_padding", "last, first = (_padding", "forward", "padding"),
    (
        "prefix skipped",
        '"prefix": _padding_bounds',
        '"prefix": lambda *tile: tuple(False & x for x in _padding_bounds(*tile))',
        "forward",
        "prefix",
    ),
    ("segments skipped", "(q_least <= k_most) & (k_least <= q_most)", "(q_least == k_least)", "forward", "segments"),
    ("segments open", " & (k_least == k_most)", "", "open tiles", "segments"),
    ("dense skipped", "(least_and_largest[1], ", "(least_and_largest[0], ", "forward", "dense"),
    ("dense open", ", least_and_largest[0])", ", least_and_largest[1])", "open tiles", "dense"),
    ("function open", "return open_to_all, ~open_to_all", "return open_to_all, open_to_all", "open tiles", "function"),
) + in_file(
    "masks.py",
    ("not skipped", "return ~every, ~some", "return ~some, ~some", "forward", "not window"),
    ("not open", "return ~every, ~some", "return ~every, ~every", "open tiles", "not window"),
    ("or skipped", "(COMBINATIONS[self.kind](*pair)", '(COMBINATIONS["and"](*pair)', "forward", "or"),
    ("and open", "(COMBINATIONS[self.kind](*pair)", '(COMBINATIONS["or"](*pair)', "open tiles", "and"),
)

SCORES = in_file(
    "kernels/blockwise/tile.py",
    ("keys of the overlap twice", "(j, tile.new_column)", "(j, None)", "forward", "open"),
    (
        "modifier local to the tile",
        "modify(score_mod, scores, positions, in_order",
        "modify(score_mod, scores, (positions[0], positions[1] - tile.row, positions[2]), in_order",
        "forward",
        "alibi",
    ),
    (
        "scores not masked",
        "scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)",
        "scores",
        "forward",
        "causal",
    ),
    ("score fused with its maximum", "scores = _rounded(scores)", "scores = scores", "huge forward", "narrow"),
) + in_file(
    "kernels/blockwise/tile.py",
    (
        "dropout local to the tile",
        "dropout.keep(dropout_keys, i, j,",
        "dropout.keep(dropout_keys, i - tile.row, j - tile.column,",
        "forward",
        "dropout",
    ),
    ("dropout of the key head", 'tile.cut("pairs", word)', 'tile.cut("keys", word)', "forward", "dropout"),
    ("dropout not rescaled", "1 / (1 - plan.rate) if plan.rate < 1 else 1.0", "1.0", "forward", "dropout"),
)

BACKWARD = in_file(
    "kernels/blockwise/tile.py",
    (
        "dropout missing in dp",
        "(dropped(x, tile, operands, plan, key_major=True) for x in (p, key_major_product(value, rows.dout, plan)))",
        "(dropped(p, tile, operands, plan, key_major=True), key_major_product(value, rows.dout, plan))",
        "gradient",
        "dropout",
    ),
    ("dropout missing in dv", "(VALUE, w, rows.dout)", "(VALUE, p, rows.dout)", "gradient", "dropout"),
    ("scale forgotten in dq", "found.append(plan.scale * sums", "found.append(sums", "gradient", "open"),
    ("scale forgotten in dk", "(KEY, dz, plan.scale * query)", "(KEY, dz, query)", "gradient", "open"),
    (
        "one head of a group",
        "(VALUE, w, rows.dout)",
        "(VALUE, w.at[..., 1:, :, :].set(0), rows.dout)",
        "gradient",
        "open",
    ),
    ("groups not side by side", "S, T), -3, -2)", "S, T), -3, -3)", "gradient", "open"),
    (
        "gradient of the bias lost",
        "return (*found, *drest)",
        "return (*found, *(0 * x for x in drest))",
        "gradient",
        "bias",
    ),
) + in_file(
    "kernels/blockwise/algorithm.py",
    (
        "bias gradient written, not added",
        "tuple(tile.add(*of_leaf)",
        "tuple((tile.put if of_leaf[0] == 'pairs' else tile.add)(*of_leaf)",
        "gradient",
        "bias of keys",
    ),
)

DIRECTIONS = (
    in_file(
        "kernels/blockwise/algorithm.py",
        ("tangent without dlse out", "summed - dlse * results.out", "summed", "tangent", "open"),
    )
    + in_file(
        "kernels/blockwise/tile.py",
        ("tangent without dv", "summed += _average(", "_average(", "tangent", "open"),
        ("tangent before dropout", "_average(w * ds,", "_average(p * ds,", "tangent", "dropout"),
        ("dlse after dropout", "sums_of_products(p, ds)", "sums_of_products(w, ds)", "tangent", "dropout"),
    )
    + in_file(
        "kernels/derivatives.py",
        ("the row sum moves as lse", "row_sum * dlse, dlse]", "dlse, dlse]", "third order", "small"),
        ("the row sum a constant", "row_sum * dlse, dlse]", "_zero(row_sum), dlse]", "third order", "small"),
        ("lse moves as the row sum", "row_sum * dlse, dlse]", "row_sum * dlse, row_sum * dlse]", "tangent", "open"),
        (
            "second order of the linear part alone",
            "return hvp_p.bind(*given,",
            "return None and hvp_p.bind(*given,",
            "second order",
            "small",
        ),
        (
            "second tangent of the linear part alone",
            "return jvp_of_jvp_p.bind(*given, *primals, moving",
            "return None and jvp_of_jvp_p.bind(*given, *primals, moving",
            "jvp of jvp",
            "open",
        ),
        ("third order of the linear part alone", "if not (argnums", "if True or (argnums", "third order", "small"),
        ("second order of one part", "sum(parts[1:], parts[0])", "parts[0]", "second order in reverse", "small"),
        (
            "dout and dlse swapped",
            "zip(tangents, arrays, strict=False)",
            "zip(tangents[::-1], arrays, strict=False)",
            "second order in reverse",
            "one value",
        ),
        (
            "batch axis reshaped, not moved",
            "jnp.moveaxis(x, axis, 0)",
            "x.reshape(size, *x.shape[:axis], *x.shape[axis + 1 :])",
            "vmap",
            "small",
        ),
        ("gradients without the batch axis", "(size, *shape) for shape", "(1, *shape) for shape", "vmap", "small"),
    )
)

RESULTS = in_file(
    "inspection.py",
    ("best key within its tile", "tile.column + best", "best", "stats", "causal"),
    ("last of equals", "one[1] >= other[1]", "one[1] > other[1]", "stats of equals", "open"),
    ("entropy without the sum", "jnp.log(sum_or_one(row_sum)) - below", "-below", "stats", "open"),
    (
        "received by heads in turn",
        "jnp.repeat(operands.key, N // G, axis=-3)",
        "jnp.tile(operands.key, (N // G, 1, 1))",
        "stats",
        "open",
    ),
    (
        "always the first row",
        "(0,) * len(grid.axes), i, 0)",
        "(0,) * len(grid.axes), 0, 0)",
        "some weights",
        "causal",
    ),
    (
        "always the first column",
        "(0,) * len(grid.axes), 0, j)",
        "(0,) * len(grid.axes), 0, 0)",
        "some weights",
        "causal",
    ),
    (
        "columns not divided",
        "weights_of(scores, results.row_max, results.row_sum)",
        "jnp.exp(scores - results.row_max)",
        "some weights",
        "causal",
    ),
)

KERNELS = [
    *(MERGING + WHOLE + MARKS + NUMERICS + TILES + SIZES + MASKS),
    *(MODIFIED + SCORES + BACKWARD + DIRECTIONS + RESULTS),
]
