"""The table of mistakes planted in the blockwise kernels: a piece of text to replace, and the judge that must notice.

The file is one of ``attendax``; of ``mask_type.py`` and ``mask_kinds.py`` only what is said about whole tiles is
replaced.
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


MERGING = (
    in_file(
        "kernels/online_softmax.py",
        ("stale row maximum", "jnp.maximum(one[-2], other[-2])", "other[-2]", "law", "huge scores"),
        ("row maximum of the first tile", "jnp.maximum(one[-2], other[-2])", "one[-2]", "forward", "open"),
        ("rescaled the wrong way", "jnp.exp(part[-2] - common)", "jnp.exp(common - part[-2])", "forward", "open"),
        ("sum not rescaled", "- 2), -1))", "- 2), -1)); row_sum = one[-1] + other[-1]", "forward", "open"),
        ("average not rescaled", "- 2), -1))", "- 2), -1)); summed = [one[0] + other[0]]", "forward", "open"),
        ("empty row minus infinity", "jnp.where(row_max == -jnp.inf, 0, row_max)", "row_max", "forward", "causal"),
        ("empty row divided by 0", "jnp.where(row_sum == 0, 1, row_sum)", "row_sum", "tangent", "causal"),
        ("powers not below the maximum", "marks - jnp.maximum(row_max, jnp.finfo(scores.dtype).min)", "marks",
         "forward", "causal"),
        ("powers of an empty row", "marks - jnp.maximum(row_max, jnp.finfo(scores.dtype).min)", "marks - row_max",
         "forward", "causal"),
        ("weights not below the maximum", "jnp.exp(scores - max_or_zero(row_max))", "jnp.exp(scores)", "tangent",
         "open"),
        ("the largest score moves by half", "x - lax.stop_gradient(jnp.maximum(x, 0))", "jnp.minimum(x, 0)",
         "law", "second order"),
        ("lse without shift", "row_max + jnp.log(", "jnp.log(", "forward", "open"),
    )
    + in_file(
        "dispatch.py",
        ("merged lse without shift", ", shift + jnp.log(total))", ", jnp.log(total))", "merge", "open"),
        ("merged without its weights", "* share / total", "/ total", "merge", "open"),
    )
    + in_file(
        "kernels/blockwise/algorithm.py",
        ("average not divided", "summed / jnp.maximum(row_sum, 1)", "summed", "forward", "open"),
        ("average of an empty row", "summed / jnp.maximum(row_sum, 1)", "summed / row_sum", "forward", "causal"),
        ("the last part alone", "finish(*parts) if at_once", "finish(*parts) if True", "forward", "open"),
        ("average divided again at the end", "return buffers if at_once", "return buffers if False", "forward",
         "one tile"),
    )
)  # fmt: skip

MARKS = (
    in_file(
        "kernels/not_finite.py",
        ("all rows are read", "== 0) | (dlse != 0)", "== 0) | True", "law", "nan in query"),
        ("lse is not read", " | (dlse != 0)", "", "law", "nan in query, lse alone"),
        ("NaN of a cotangent", "jnp.where(live, x, 0) / row_sum", "x / row_sum", "law", "nan in dout"),
        ("NaN of delta", "rows_finite(delta, results.row_sum", "rows_finite(results.row_sum", "law", "nan in dout"),
        ("a row that is not read is NaN", "jnp.where(read, shift, jnp.inf)", "jnp.where(read, shift, jnp.nan)",
         "law", "nan in query"),
        ("a row that is not finite is not read", "results.row_max, jnp.nan)", "results.row_max, jnp.inf)",
         "law", "nan in query"),
        ("out of a row that moves to NaN", "results._replace(out=jnp.where(fine, results.out, jnp.nan))", "results",
         "law", "second, nan in move query"),
        ("delta without dlse", "dout, results.out) - dlse", "dout, results.out)", "gradient", "open"),
        ("delta without out", "sums_of_products(dout, results.out) - dlse", "-dlse", "gradient", "open"),
        ("delta not divided", "(jnp.where(live, x, 0) / row_sum for x in (dout, delta))",
         "(jnp.where(live, dout, 0) / row_sum, jnp.where(live, delta, 0))", "gradient", "open"),
    )
    + in_file(
        "kernels/not_finite.py",
        ("a spoiled cotangent counts as 0", "jnp.where(is_fine, results.row_max, jnp.nan)", "results.row_max",
         "law", "nan in dout"),
        ("a spoiled row moves by 0", "jnp.where(is_fine, results.row_max, jnp.nan)", "results.row_max",
         "law", "second, inf in query"),
    )
    + in_file(
        "kernels/blockwise/tile.py",
        ("infinity is a score", "jnp.subtract(grouped, grouped) +", "0 * grouped[..., :1] +", "law",
         "forward, inf in key"),
        ("a value is not marked", "grouped) + marks.swapaxes(-1, -2)", "grouped)", "law", "forward, nan in value"),
        ("a value is not marked under a mask", "grouped) + marks.swapaxes(-1, -2)", "grouped)", "law",
         "forward, nan in value, causal"),
        ("NaN of a masked value", " value = replace_nonfinite(value)", " pass", "law", "forward, unseen nan"),
        ("a mark of a pair that is forbidden", "-jnp.inf), jnp.where(allowed, marks, 0)\n        value",
         "-jnp.inf), marks\n        value", "law", "forward, unseen nan"),
        ("NaN of a masked value, compiled", " value = replace_nonfinite(value)", " pass", "law",
         "forward, unseen nan, compiled"),
        ("an overflow spreads to keys that the row does not see",
         "p = p if visible is None else jnp.where(visible, p, 0)", "pass", "law", "big in value"),
        ("tangents not marked", "dlse += dlse - dlse", "pass", "law", "tangent, inf in move key"),
        ("a tangent of a value is not marked", "_marks(products, *values)", "_marks(products, values[0])",
         "law", "tangent, nan in move value"),
        ("a tangent of a value is not marked, at once", "_marks(products, *values)", "_marks(products, values[0])",
         "law", "tangent, nan in move value, few keys"),
        ("a tangent's mark of a pair that is forbidden", "jnp.where(allowed, ds, 0), jnp.where(allowed, marks, 0)",
         "jnp.where(allowed, ds, 0), marks", "law", "tangent, nan in move value"),
        ("tangents of pairs that are forbidden", "jnp.where(allowed, s, -jnp.inf), jnp.where(allowed, ds, 0)",
         "jnp.where(allowed, s, -jnp.inf), ds", "law", "tangent, nan in key"),
        ("a spoiled value beside a tangent", "values = list(map(replace_nonfinite, values))",
         "values = [values[0], *map(replace_nonfinite, values[1:])]", "law", "tangent, nan in value"),
        ("a spoiled tangent of a value", "values = list(map(replace_nonfinite, values))",
         "values = [replace_nonfinite(values[0]), *values[1:]]", "law", "tangent, nan in move value"),
        ("NaN of a masked key in the backward", "0), replace_nonfinite(key)", "0), key", "law", "unseen nan"),
        ("NaN of a value in the backward", "(key), replace_nonfinite(value)", "(key), value", "law", "nan in value"),
        ("a query that nothing depends on", "jnp.where(live, query, 0)", "query", "law", "nan in query"),
        ("the overflow of a query that nothing depends on", "jnp.where(live, query, 0)", "query", "unread overflow",
         "future"),
        ("p without the choice", "p = p if visible is None else jnp.where(visible, p, 0)", "pass", "gradient",
         "causal"),
        ("ds without the choice", "ds if visible is None else jnp.where(visible, ds, 0)", "ds", "law",
         "unseen big"),
        ("weights of rows that nothing reads, at once", "visible = read if visible is None else read & visible", "pass",
         "law", "at once, inf in query"),
        ("NaN of a key in second order, at once", "map(finite_straight_through, (query, key, dout))",
         "(finite_straight_through(query), key, finite_straight_through(dout))", "law", "at once, nan in key"),
        ("rows are not marked, at once", "p + delta * (delta - delta)", "p", "law", "at once, nan in move value"),
        ("tangents of rows are not marked, at once", "p + delta * (delta - delta)", "p + (delta - delta)",
         "values alone move", "future, few keys"),
        ("delta without lse, at once", "0)) - row_numbers[0]", "0))", "law", "second order at once"),
        ("infinite scores are not marked, at once", "s = s + (s - s)", "s = s + 0", "values alone move",
         "future, few keys"),
        ("NaN of a query in second order, at once", "map(finite_straight_through, (query, key, dout))",
         "(query, finite_straight_through(key), finite_straight_through(dout))", "law", "at once, inf in query"),
        ("NaN of a key of rows that nothing reads, at once", "map(finite_straight_through, (query, key, dout))",
         "(finite_straight_through(query), key, finite_straight_through(dout))", "law", "one tile, nan in key"),
        ("queries times the scale, at once", "dz = plan.scale * dz",
         "key, query = plan.scale * key, plan.scale * query", "law", "at once, scaled"),
        ("NaN of dout, at once", "map(finite_straight_through, (query, key, dout))",
         "(finite_straight_through(query), finite_straight_through(key), dout)", "law", "at once, nan in dout"),
        ("products of a tangent are not marked, at once", "parts_of_softmax(s, marks)", "parts_of_softmax(s)",
         "law", "tangent, nan in move value, few keys"),
        ("tangents less nothing, at once", "ds - dlse if results is None else ds", "ds", "jvp of jvp", "few keys"),
        ("a modifier of rows that nothing reads", ", live=read", "", "unread modifier", "future"),
    )
    + in_file(
        "kernels/programs.py",
        ("results stand still", "list(result_tangents if results else ())",
         "[0 * result_tangents[0], result_tangents[1]]", "law", "second order"),
        ("shifts stand still", "list(result_tangents if results else ())",
         "[result_tangents[0], 0 * result_tangents[1]]", "law", "second order"),
        ("NaN of a tangent in second order", "vectors = [replace_nonfinite(t) for t in vectors]\n    second",
         "pass\n    second", "law", "second, nan in move key"),
        ("NaN of a tangent in two tangents", "vectors = [replace_nonfinite(t) for t in vectors]\n    values", "values",
         "jvp of jvp of NaN", "future"),
        ("tangents of the first leaves", "[next(rest) if mark else None for mark in marks]",
         "[next(rest, None) for _ in marks]", "tangent of the keys", "all alike"),
    )
    + in_file(
        "kernels/blockwise/tile.py",
        ("NaN behind a bias of -inf", "allowed & (bias != -jnp.inf)", "allowed", "law", "forward, unseen nan, bias"),
        (
            "masked pairs reach the modifier",
            "scores if allowed is None else jnp.where(allowed, scores, 0)",
            "scores",
            "overflow of a modifier",
            "cubed",
        ),
    )
)  # fmt: skip

NUMERICS = in_file(
    "kernels/numerics.py",
    (
        "finite cuts the gradient",
        "_finite_p.bind(x, w",
        "_finite_p.bind(lax.stop_gradient(x), w",
        "law",
        "second order at once",
    ),
) + in_file(
    "kernels/rules.py",
    (
        "product with the wrong tangent",
        "times(dleft, finite_straight_through(right)",
        "times(dleft, 2 * finite_straight_through(right)",
        "jvp of jvp",
        "open",
    ),
    (
        "product with one tangent",
        "finite_straight_through(left), dright",
        "0 * finite_straight_through(left), dright",
        "jvp of jvp",
        "open",
    ),
)

MODIFIED = [
    *in_file(
        "kernels/score_modifiers.py",
        (
            "bias without its tangent",
            "total = scores + bias",
            "total = scores + lax.stop_gradient(bias)",
            "gradient",
            "bias",
        ),
    ),
    *in_file(
        "kernels/dropout.py",
        ("one round of threefry less", "for group in range(5)", "for group in range(4)", "forward", "dropout"),
    ),
]

TILES = (
    in_file(
        "kernels/blockwise/partition.py",
        ("the last block of keys starts late", "np.minimum(j, grid.S - grid.columns)", "j", "forward", "open"),
        ("keys of the overlap twice", "else None, new_column)", "else None, None)", "forward", "open"),
        ("tiles of the first row", "at[0], at[1], new_row", "0, at[1], new_row", "forward", "open"),
        ("tiles of the first column", "at[0], at[1], new_row", "at[0], 0, new_row", "forward", "open"),
        ("the last tile that is used skipped", "else self.found", "else self.found - 1", "forward", "padding"),
        ("out of the order", "else self.order[index]", "else index", "forward", "padding"),
        ("not brought into an order", "jnp.sort(jnp.where(used, numbers, used.shape[0]))", "numbers", "forward",
         "padding"),
        ("tiles of the first chunk", "used.reshape(used.shape[0], -1)", "used[:1].reshape(1, -1)", "forward",
         "padding"),
        ("tiles that are not open skipped", "ask=True) != EMPTY", "ask=True) == FULL", "forward", "causal"),
        ("a tile open to one head is open to all", "(every, xp.all))", "(every, xp.any))", "open tiles",
         "open to one head"),
        ("a tile skipped for one head is skipped", "(some, xp.any),", "(some, xp.all),", "forward",
         "padding, all heads"),
        ("ids by their least alone", "(jnp.min, jnp.max)", "(jnp.min, jnp.min)", "forward", "segments"),
        ("truth values by their largest alone", "(jnp.all, jnp.any)", "(jnp.any, jnp.any)", "open tiles", "dense"),
        ("truth values by their least alone", "(jnp.all, jnp.any)", "(jnp.all, jnp.all)", "forward", "dense"),
    )
    + in_file(
        "kernels/blockwise/algorithm.py",
        (
            "queries that several tiles have, each once",
            "rows_once=not at_once",
            "rows_once=False",
            "forward",
            "open",
        ),
        (
            "queries of whole rows left out",
            "rows_once=not at_once",
            "rows_once=True",
            "forward",
            "few keys",
        ),
    )
    + in_file(
        "kernels/blockwise/tiles.py",
        ("tile starts at the head of the keys", "many = self.first_head(),", "many = self.starts[-2],", "forward",
         "open"),
        ("position of the key head", "* self.grid.axes[-1] + self.starts[-1]", "+ self.starts[-1]", "forward", "alibi"),
        ("first of the heads that share", "* self.grid.axes[-1] + self.starts[-1]", "* self.grid.axes[-1]", "forward",
         "some"),
        ("positions local to the tile", "counted = start + jnp", "counted = jnp", "forward", "causal"),
        ("gradients written, not added", "self.cut(role, buffer) + folded", "folded", "gradient", "open"),
        ("gradient of what vmap shares a mean", "x.sum(repeated,", "x.mean(repeated,", "law",
         "shared by vmap"),
        ("chunks counted from the wrong end",
         "self.chunk_sizes[::-1], strict=True):\n            chunk, place = divided(chunk, count)",
         "self.chunk_sizes[::-1], strict=True):\n            place, chunk = divided(chunk, count)", "forward",
         "padding"),
    )
)  # fmt: skip

SIZES = in_file(
    "kernels/blockwise/partition.py",
    ("chunks that do not divide", "if size % n == 0)", "if n)", "forward", "three key heads"),
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
    ("left of a window skipped", "_between(i_first, j_last, xp, offset, left, None)",
     "_between(i_last, j_first, xp, offset, left, None)", "forward", "window"),
    ("right of a window skipped", "_between(i_last, j_first, xp, offset, None, right)",
     "_between(i_first, j_last, xp, offset, None, right)", "forward", "causal"),
    ("left of a window open", "_between(i_last, j_first, xp, offset, left, None)",
     "_between(i_first, j_last, xp, offset, left, None)", "open tiles", "wide window"),
    ("right of a window open", "_between(i_first, j_last, xp, offset, None, right)",
     "_between(i_last, j_first, xp, offset, None, right)", "open tiles", "causal"),
    ("offset forgotten", "    some = _between(", "    offset = 0 * offset\n    some = _between(", "forward", "offset"),
    ("padding skipped", "first, last = (_padding", "last, first = (_padding", "forward", "padding"),
    ("prefix skipped", '"prefix": _padding_bounds',
     '"prefix": lambda *tile: tuple(False & x for x in _padding_bounds(*tile))', "forward", "prefix"),
    ("segments skipped", "(q_least <= k_most) & (k_least <= q_most)", "(q_least == k_least)", "forward", "segments"),
    ("segments open", " & (k_least == k_most)", "", "open tiles", "segments"),
    ("dense skipped", "(least_and_largest[1], ", "(least_and_largest[0], ", "forward", "dense"),
    ("dense open", ", least_and_largest[0])", ", least_and_largest[1])", "open tiles", "dense"),
    ("function open", "return open_to_all, ~open_to_all", "return open_to_all, open_to_all", "open tiles", "function"),
) + in_file(
    "mask_type.py",
    ("not skipped", "return ~every, ~some", "return ~some, ~some", "forward", "not window"),
    ("not open", "return ~every, ~some", "return ~every, ~every", "open tiles", "not window"),
    ("or skipped", "(COMBINATIONS[self.kind](*pair)", '(COMBINATIONS["and"](*pair)', "forward", "or"),
    ("and open", "(COMBINATIONS[self.kind](*pair)", '(COMBINATIONS["or"](*pair)', "open tiles", "and"),
)  # fmt: skip

SCORES = (
    in_file(
        "kernels/blockwise/tiles.py",
        ("keys of the overlap twice", "(j, tile.new_column)", "(j, None)", "forward", "open"),
    )
    + in_file(
        "kernels/blockwise/tile.py",
        ("modifier local to the tile", "modify(score_mod, scores, positions, in_order",
         "modify(score_mod, scores, (positions[0], positions[1] - tile.row, positions[2]), in_order", "forward",
         "alibi"),
        ("scores not masked", "scores, marks = jnp.where(allowed, scores, -jnp.inf), ", "scores, marks = scores, ",
         "forward", "causal"),
        ("scores of a tangent not masked", "s, ds, marks = jnp.where(allowed, s, -jnp.inf), ", "s, ds, marks = s, ",
         "tangent", "causal"),
        ("scores of statistics not masked", "scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)",
         "scores", "stats", "causal"),
    )
    + in_file(
        "kernels/blockwise/tile.py",
        ("dropout local to the tile", "dropout.keep(dropout_keys, i, j,",
         "dropout.keep(dropout_keys, i - tile.row, j - tile.column,", "forward", "dropout"),
        ("dropout of the key head", 'tile.cut("pairs", word)', 'tile.cut("keys", word)', "forward", "dropout"),
        ("dropout not rescaled", "1 / (1 - plan.rate) if plan.rate < 1 else 1.0", "1.0", "forward", "dropout"),
    )
)  # fmt: skip

BACKWARD = in_file(
    "kernels/blockwise/tile.py",
    ("dropout missing in dp", "dropped(_dout_dot_value(dout, value, plan), tile, operands, plan)",
     "_dout_dot_value(dout, value, plan)", "gradient", "dropout"),
    ("dropout missing in dv", "(VALUE, dropped(p, tile, operands, plan), dout)", "(VALUE, p, dout)", "gradient",
     "dropout"),
    ("scale forgotten in dq", "_multiply_by_keys(dz, key", "_multiply_by_keys(dz / plan.scale, key", "gradient",
     "open"),
    ("scale forgotten in dk", "(KEY, dz, query)", "(KEY, dz / plan.scale, query)", "gradient", "open"),
    ("one head of a group", "(VALUE, dropped(p,", "(VALUE, dropped(p.at[..., 1:, :, :].set(0),", "gradient", "open"),
    ("heads in groups of another key", "return x.reshape(*x.shape[:-3], G",
     "return jnp.roll(x, 1, -3).reshape(*x.shape[:-3], G", "forward", "open"),
    ("gradient of the bias lost", "return (*gradients, *drest)", "return (*gradients, *(0 * x for x in drest))",
     "gradient", "bias"),
) + in_file(
    "kernels/blockwise/algorithm.py",
    (
        "bias gradient written, not added",
        "tuple(tile.add(*of_leaf)",
        "tuple((tile.put if of_leaf[0] == 'pairs' else tile.add)(*of_leaf)",
        "gradient",
        "bias of keys",
    ),
)  # fmt: skip

DIRECTIONS = (
    in_file(
        "kernels/blockwise/algorithm.py",
        ("tangent without dlse out", "summed - dlse * results.out", "summed", "tangent", "open"),
    )
    + in_file(
        "kernels/blockwise/tile.py",
        ("tangent without dv", "zip(parts, values, strict=False)", "zip(parts, values[:1], strict=False)", "tangent",
         "open"),
        ("products along the keys alone", "[*lefts, query], [*rights, moved", "[query], [moved", "tangent", "open"),
        ("products with the wrong tangent", "(compute_dtype)], [key]", "(compute_dtype)], [2 * key]", "tangent",
         "open"),
        ("products along no keys", "[*lefts, query]", "[*lefts, 0 * query]", "tangent of the keys", "open"),
        ("tangent before dropout", "parts = w * (ds", "parts = exps * (ds", "tangent", "dropout"),
        ("dlse after dropout", "sums_of_products(exps, ds)",
         "sums_of_products(dropped(exps, tile, operands, plan), ds)", "tangent", "dropout"),
    )
    + in_file(
        "kernels/derivatives.py",
        ("the row sum moves as lse", "row_sum * dlse, dlse]", "dlse, dlse]", "third order", "small"),
        ("the row sum a constant", "row_sum * dlse, dlse]", "_zero(row_sum), dlse]", "third order", "small"),
        ("lse moves as the row sum", "row_sum * dlse, dlse]", "row_sum * dlse, row_sum * dlse]", "tangent", "open"),
        ("second order of the linear part alone", "return second.bind(*nonzero,",
         "return None if second is hvp_p else second.bind(*nonzero,", "law", "second order"),
        ("second tangent of the linear part alone", "return second.bind(*nonzero,",
         "return None if second is jvp_of_jvp_p else second.bind(*nonzero,", "jvp of jvp", "open"),
        ("third order of the linear part alone", "if not (argnums", "if True or (argnums", "third order", "small"),
        ("second order of one part", "sum(parts[1:], parts[0])", "parts[0]", "law", "reverse over reverse"),
        ("dout and dlse swapped", "zip(tangents, arrays, strict=False)", "zip(tangents[::-1], arrays, strict=False)",
         "law", "reverse over reverse, one value"),
        ("batch axis reshaped, not moved", "jnp.moveaxis(x, axis, 0)",
         "x.reshape(size, *x.shape[:axis], *x.shape[axis + 1 :])", "law", "vmap"),
        ("gradients without the batch axis", "(size, *shape) for shape", "(1, *shape) for shape", "law", "vmap"),
    )
)  # fmt: skip

RESULTS = in_file(
    "inspection.py",
    ("best key within its tile", "tile.column + best", "best", "stats", "causal"),
    ("last of equals", "one[1] >= other[1]", "one[1] > other[1]", "stats of equals", "open"),
    ("entropy without the sum", "jnp.log(sum_or_one(row_sum)) - below", "-below", "stats", "open"),
    ("received by heads in turn", "jnp.repeat(operands.key, N // G, axis=-3)", "jnp.tile(operands.key, (N // G, 1, 1))",
     "stats", "open"),
    ("always the first row", "grid.starts(0), i, 0)", "grid.starts(0), 0, 0)", "some weights", "causal"),
    ("always the first column", "grid.starts(0), 0, j)", "grid.starts(0), 0, 0)", "some weights", "causal"),
    ("columns not divided", "parts_of_weights(scores, results.row_max, results.row_sum)",
     "jnp.exp(scores - results.row_max), 1", "some weights", "causal"),
)  # fmt: skip

KERNELS = [
    *(MERGING + MARKS + NUMERICS + TILES + SIZES + MASKS),
    *(MODIFIED + SCORES + BACKWARD + DIRECTIONS + RESULTS),
]
