"""The table of mistakes planted in the blockwise kernels: a piece of text to replace, and the judge that must notice.

The file is one of ``attendax.kernels``, or ``masks.py``, of which only what is said about whole tiles is replaced.
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
    "online_softmax.py",
    ("stale row maximum", "jnp.maximum(one[-2], other[-2])", "other[-2]", "huge forward", "wide"),
    ("row maximum of the first tile", "jnp.maximum(one[-2], other[-2])", "one[-2]", "forward", "open"),
    ("rescaled the wrong way", "jnp.exp(part[-2] - common)", "jnp.exp(common - part[-2])", "forward", "open"),
    ("sum not rescaled", "- 2), -1))", "- 2), -1)); row_sum = one[-1] + other[-1]", "forward", "open"),
    ("average not rescaled", "- 2), -1))", "- 2), -1)); summed = [one[0] + other[0]]", "forward", "open"),
    ("empty row minus infinity", "jnp.where(row_max == -jnp.inf, 0, row_max)", "row_max", "forward", "causal"),
    ("empty row divided by 0", "jnp.where(row_sum == 0, 1, row_sum)", "row_sum", "forward", "causal"),
    ("powers not below the maximum", "jnp.exp(scores - max_or_zero(row_max))", "jnp.exp(scores)", "forward", "open"),
    ("a NaN among many scores", "jnp.isnan(lax.stop_gradient(row_sum))", "False", "a seen NaN", "as users do"),
    ("lse without shift", "results.shift + jnp.log(", "jnp.log(", "forward", "open"),
    ("merged lse without shift", ", shift + jnp.log(total))", ", jnp.log(total))", "merge", "open"),
    ("merged without its weights", "* share / total", "/ total", "merge", "open"),
) + in_file(
    "blockwise/algorithm.py",
    ("average not divided", "average / sum_or_one(total)", "average", "forward", "open"),
    ("values stay divided", "* divisor, largest", ", largest", "large values", "open"),
)

WHOLE = in_file(
    "blockwise/whole_heads.py",
    ("not divided", "/ jnp.maximum(total, 1) * heads.divisor", "* heads.divisor", "whole", "open"),
    (
        "values stay divided",
        "/ jnp.maximum(total, 1) * heads.divisor",
        "/ jnp.maximum(total, 1)",
        "large values",
        "whole",
    ),
    (
        "sums of values overflow",
        "= value_divisor(here[VALUE], wide)",
        "= value_divisor(here[VALUE], wide)[0], 1",
        "large values",
        "whole",
    ),
    ("shared by a batch, but written", "== alone[role] else", "is not None else", "a shared key", "as users do"),
    ("masked as little", "0, -jnp.inf).astype(wide)", "0, -9).astype(wide)", "whole", "keys"),
    ("empty row", "jnp.finfo(scores.dtype).min)\n    powers", "-jnp.inf)\n    powers", "whole", "causal"),
    ("keys the other way round", "scale, heads.key, True)", "scale, heads.key[:, ::-1], True)", "whole", "open"),
    (
        "mask of other queries",
        "return allowed.reshape(-1,",
        "return allowed[..., ::-1, :].reshape(-1,",
        "whole",
        "dense",
    ),
    ("masked numbers spoil the chunk", "if operands.mask is None:", "if True:", "whole", "keys"),
    ("infinity is tame", "all_below(arrays, HUGE)", "jnp.bool_(True)", "whole", "keys"),
    ("large numbers are tame", "HUGE = 2.0**50", "HUGE = jnp.inf", "whole", "keys"),
    ("what is wild is not seen", "forward(left_out,", "forward(left_out & False,", "whole", "keys"),
    (
        "a wild key is not seen",
        'large_rows("queries") | by_definition.that_see(large_rows("keys"), operands, plan)',
        'large_rows("queries")',
        "whole",
        "keys",
    ),
    ("empty row of weights", "jnp.where(total == 0, 1, total)", "total", "whole derivatives", "causal"),
    ("weights fixed", "score_tangents - dlse", "score_tangents", "whole derivatives", "open"),
    ("query moves too far", "tangents[QUERY] * plan.scale", "tangents[QUERY]", "whole derivatives", "open"),
    (
        "key moves too far",
        "times(query, tangents[KEY]",
        "times(heads.query, tangents[KEY]",
        "whole derivatives",
        "open",
    ),
    ("value stands still", "dout + times(weights, tangents[VALUE])", "dout", "whole derivatives", "open"),
    ("tangent unmasked", "scores + heads.mask, -1", "scores, -1", "whole derivatives", "causal"),
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
    ("gradient unmasked", "scores + mask, -2", "scores, -2", "whole derivatives", "causal"),
    ("softmax over queries", "scores + mask, -2", "scores + mask, -1", "whole derivatives", "open"),
    (
        "empty row of a gradient",
        "if masked:\n        largest",
        "if False:\n        largest",
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
        "a query that nothing depends on",
        "marked = left_out & (rows_not_zero(",
        "marked, _ = left_out, (rows_not_zero(",
        "whole derivatives",
        "keys",
    ),
    ("what sees large keys counts twice", "kept[role] & _is_small(x)", "_is_small(x)", "whole derivatives", "keys"),
)

DEFINED = in_file(
    "blockwise/by_definition.py",
    (
        "a NaN that nobody sees",
        "jnp.where(seen, _each_head(x.astype(wide), tile), 0)",
        "_each_head(x.astype(wide), tile)",
        "visible forward",
        "future",
    ),
    (
        "behind a bias of -inf",
        'allowed & (tile.cut("pairs", operands.bias) != -jnp.inf)',
        "allowed",
        "poison forward",
        "bias forbids",
    ),
    (
        "key heads in turn",
        "jnp.repeat(x, group, axis=-3)",
        "jnp.tile(x, (group, 1, 1))",
        "visible forward",
        "future, all heads",
    ),
    (
        "rows that are not marked",
        "_allowed(tile, operands) & mark",
        "_allowed(tile, operands)",
        "unread head",
        "future of two heads",
    ),
    ("not scaled", "query * plan.scale * key", "query * key", "visible forward", "future"),
    ("not divided", "exps / sum_or_one(total), tile", "exps, tile", "visible forward", "future"),
    ("without dropout", "dropped(exps", "(lambda weights, *_: weights)(exps", "visible forward", "future, dropout"),
    ("all rows of an index", "jnp.where(mark, *pair)", "pair[0]", "visible forward", "future of one head"),
    (
        "tangent of another row",
        "tile.cut(operands.roles()[k], tangents[k])",
        "jnp.flip(tile.cut(operands.roles()[k], tangents[k]), -1)",
        "whole derivatives",
        "keys",
    ),
)

HEADROOM = in_file(
    "blockwise/tile_work.py",
    ("values not divided", "jnp.asarray(2.0**bits, dtype), 1)", "1, 1)", "large values", "open"),
    ("values always divided", "jnp.ones((), dtype)", "jnp.asarray(2.0**bits, dtype)", "small values", "open"),
)

NUMERICS = in_file(
    "numerics.py",
    (
        "half of a product for all cores",
        "jnp.minimum(jnp.max(x, axis=-1",
        "jnp.minimum(jnp.min(x, axis=-1",
        "whole derivatives",
        "open",
    ),
    ("no wall", "if not isinstance(true, jax.core.Tracer):", "if True:", "losses", "as users do"),
    (
        "a wall that is seen through",
        "*jax.tree.map(lax.optimization_barrier, arrays)",
        "*arrays",
        "losses",
        "as users do",
    ),
    (
        "finite by a maximum",
        "jnp.sum(jnp.square(wide),",
        "jnp.max(jnp.square(wide),",
        "an unseen NaN",
        "as users do",
    ),
    (
        "product with the wrong tangent",
        "times(dleft, finite(right)",
        "times(dleft, 2 * finite(right)",
        "tangent",
        "open",
    ),
    ("product with one tangent", "finite(left), dright", "0 * finite(left), dright", "tangent of the keys", "open"),
    ("finite cuts the gradient", "primals[0]), tangents[0]", "primals[0]), 0 * tangents[0]", "jvp of jvp", "open"),
)

MODIFIED = [
    *in_file(
        "score_modifiers.py",
        ("bias without its tangent", "tangents[0] + tangents[1]", "tangents[0]", "gradient", "bias"),
    ),
    *in_file(
        "dropout.py",
        ("one round of threefry less", "for group in range(5)", "for group in range(4)", "forward", "dropout"),
    ),
]

TILES = in_file(
    "blockwise/schedule.py",
    ("keys of the overlap open, so twice", "once = (j0 % grid.columns == 0) & (", "once = (", "forward", "open"),
    ("queries of the overlap open, so twice", "(i0 % grid.rows == 0) | (", "True | (", "gradient", "open"),
    ("first tile one too late", "used.argmax(axis=1), 0)", "used.argmax(axis=1) + 1, 0)", "forward", "window"),
    (
        "extent one too short",
        "int((end - first).max(initial=0))",
        "int((end - first).max(initial=0)) - 1",
        "forward",
        "causal",
    ),
    ("beyond the extent, the last tile again", "ragged = known and", "ragged = False and", "forward", "not window"),
    ("tiles of the first chunk", "kinds[0 if whole else chunk,", "kinds[0,", "forward", "padding"),
    ("kind of a tile one too high", "jnp.int32(kind > low)", "jnp.int32(kind >= low)", "forward", "causal"),
    (
        "a tile open to one head is open to all",
        "(every, xp.all))]",
        "(every, xp.any))]",
        "forward",
        "padding, all heads",
    ),
    ("a tile skipped for one head is skipped", "(some, xp.any),", "(some, xp.all),", "forward", "padding, all heads"),
    ("ids by their least alone", "(jnp.min, jnp.max)", "(jnp.min, jnp.min)", "forward", "segments"),
    ("truth values by their largest alone", "(jnp.all, jnp.any)", "(jnp.any, jnp.any)", "forward", "dense"),
    ("truth values by their least alone", "(jnp.all, jnp.any)", "(jnp.all, jnp.all)", "forward", "dense"),
) + in_file(
    "blockwise/tiles.py",
    ("the last block starts late", "jnp.minimum(block * size, full - size)", "block * size", "forward", "open"),
    ("tile starts at the head of the keys", "many = self.first_head(),", "many = self.starts[-2],", "forward", "open"),
    ("position of the key head", "* self.grid.axes[-1] + self.starts[-1]", "+ self.starts[-1]", "forward", "alibi"),
    (
        "first of the heads that share",
        "* self.grid.axes[-1] + self.starts[-1]",
        "* self.grid.axes[-1]",
        "forward",
        "some",
    ),
    ("band of the first queries", "starts, row, column, block", "starts, 0, column, block", "forward", "banded"),
    ("queries of two blocks, twice", "index % blocks)", "None)", "gradient", "along a window"),
    ("band of the first keys", "starts, row, column, block", "starts, row, 0, block", "gradient", "banded"),
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
        "else rest % count * piece",
        "else rest // count * piece",
        "forward",
        "padding",
    ),
)

SIZES = in_file(
    "blockwise/partition.py",
    ("pieces that do not divide", "if size % n == 0)", "if n)", "forward", "three key heads"),
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
) + in_file(
    "operands.py",
    (
        "computed in float32",
        "jnp.result_type(jnp.float32, *(x.dtype for x in given))",
        "jnp.dtype(jnp.float32)",
        "forward",
        "open",
    ),
)

MASKS = in_file(
    "masks.py",
    (
        "left of a window skipped",
        "_window(i_first, j_last, xp, offset, left, None)",
        "_window(i_last, j_first, xp, offset, left, None)",
        "forward",
        "window",
    ),
    (
        "right of a window skipped",
        "_window(i_last, j_first, xp, offset, None, right)",
        "_window(i_first, j_last, xp, offset, None, right)",
        "forward",
        "causal",
    ),
    (
        "left of a window open",
        "_window(i_last, j_first, xp, offset, left, None)",
        "_window(i_first, j_last, xp, offset, left, None)",
        "forward",
        "wide window",
    ),
    (
        "right of a window open",
        "_window(i_first, j_last, xp, offset, None, right)",
        "_window(i_last, j_first, xp, offset, None, right)",
        "forward",
        "causal",
    ),
    (
        "offset forgotten",
        "    (i_first, i_last), (j_first, j_last) = i, j\n    some = _window",
        "    (i_first, i_last), (j_first, j_last), offset = i, j, 0 * offset\n    some = _window",
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
    ("segments open", " & (k_least == k_most)", "", "forward", "segments"),
    ("dense skipped", "(least_and_largest[1], ", "(least_and_largest[0], ", "forward", "dense"),
    ("dense open", ", least_and_largest[0])", ", least_and_largest[1])", "forward", "dense"),
    ("function open", "return open_to_all, ~open_to_all", "return open_to_all, open_to_all", "forward", "function"),
    ("not skipped", "return ~every, ~some", "return ~some, ~some", "forward", "not window"),
    ("not open", "return ~every, ~some", "return ~every, ~every", "forward", "not window"),
    ("or skipped", "(COMBINATIONS[self.kind](*pair)", '(COMBINATIONS["and"](*pair)', "forward", "or"),
    ("and open", "(COMBINATIONS[self.kind](*pair)", '(COMBINATIONS["or"](*pair)', "forward", "and"),
)

SCORES = in_file(
    "blockwise/tile_scores.py",
    ("keys of the overlap twice", "j >= tile.column_block * grid.columns", "j >= tile.column", "forward", "open"),
    ("queries of the overlap twice", "i >= tile.row_block * grid.rows", "i >= tile.row", "gradient", "open"),
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
    "blockwise/tile_work.py",
    (
        "dropout local to the tile",
        "dropout.keep(keys, i, j,",
        "dropout.keep(keys, i - tile.row, j - tile.column,",
        "forward",
        "dropout",
    ),
    ("dropout of the key head", 'tile.cut("pairs", word)', 'tile.cut("keys", word)', "forward", "dropout"),
    ("dropout not rescaled", "1 / (1 - plan.rate) if plan.rate < 1 else 1.0", "1.0", "forward", "dropout"),
)

ONE_LOOP = in_file(
    "blockwise/schedule.py",
    ("first tile of a row unknown", "prepend=-1) > 0", "prepend=-1) < 0", "forward", "one loop, causal"),
    ("chunk by the number of the tile", "body(index // count,", "body(index % count,", "forward", "one loop"),
    ("open like one of them", "[used] == OPEN).all()", "[used] == OPEN).any()", "forward", "one loop, causal"),
) + in_file(
    "blockwise/algorithm.py",
    ("rows for columns", "(kinds.swapaxes(1, 2), grid", "(kinds, grid", "gradient", "one loop, causal"),
)

BACKWARD = in_file(
    "blockwise/tile_work.py",
    ("delta without dlse", "dout, results.out) - dlse", "dout, results.out)", "gradient", "open"),
    ("delta without out", "sums_of_products(dout, results.out) - dlse", "-dlse", "gradient", "open"),
    ("delta not divided", "(dp - delta / total)", "(dp - delta)", "gradient", "open"),
    ("dropout missing in dp", "(dp - delta / total)", "(dw - delta / total)", "gradient", "dropout"),
    ("dropout missing in dv", "(VALUE, w, gradient)", "(VALUE, p, gradient)", "gradient", "dropout"),
    ("scale forgotten in dq", "sums = plan.scale * ", "sums = ", "gradient", "open"),
    ("scale forgotten in dk", "(KEY, dz, plan.scale * query)", "(KEY, dz, query)", "gradient", "open"),
    (
        "one head of a group",
        "(VALUE, w, gradient)",
        "(VALUE, w.at[..., 1:, :, :].set(0), gradient)",
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
    "blockwise/algorithm.py",
    (
        "queries of the overlap open in the backward",
        "rows_count_once=True",
        "rows_count_once=False",
        "gradient",
        "open",
    ),
    (
        "bias gradient written, not added",
        "tuple(tile.add(*each)",
        "tuple((tile.put if each[0] == 'pairs' else tile.add)(*each)",
        "gradient",
        "bias of keys",
    ),
    (
        "chunk counted by rows",
        "chunk, column = index // grid.column_blocks,",
        "chunk, column = index // grid.row_blocks,",
        "gradient",
        "open",
    ),
    (
        "huge scores not taken again",
        "lax.cond(any_true(huge),",
        "lax.cond(any_true(huge) & False,",
        "huge gradient",
        "rounds otherwise",
    ),
    (
        "huge scores without dlse",
        "(delta - dlse, shift, total)",
        "(delta, shift, total)",
        "huge gradient of lse",
        "wide",
    ),
)

DIRECTIONS = (
    in_file(
        "blockwise/algorithm.py",
        ("tangent without dlse out", ' - dlse * tile.cut("queries", results.out)', "", "tangent", "open"),
    )
    + in_file(
        "blockwise/tile_work.py",
        ("tangent without dv", "summed += _average(", "_average(", "tangent", "open"),
        ("tangent before dropout", "_average(w * ds,", "_average(p * ds,", "tangent", "dropout"),
        ("dlse after dropout", "sums_of_products(p, ds)", "sums_of_products(w, ds)", "tangent", "dropout"),
    )
    + in_file(
        "derivatives.py",
        ("total moves as lse", ".dtotal_dlse() * dlse]", ".dtotal_dlse() ** 0 * dlse]", "tangent", "open"),
        (
            "total a constant",
            "Results(out, shift, total).dtotal_dlse() * dlse]",
            "jax.lax.stop_gradient(Results(out, shift, total).dtotal_dlse()) * dlse]",
            "jvp of jvp",
            "open",
        ),
        (
            "second order of the linear part alone",
            "return second_p.bind(*given,",
            "return None and second_p.bind(*given,",
            "second order",
            "small",
        ),
        (
            "second tangent of the linear part alone",
            "return curve_p.bind(*given, *primals, moving",
            "return None and curve_p.bind(*given, *primals, moving",
            "jvp of jvp",
            "open",
        ),
        ("third order of the linear part alone", "if not (places", "if True or (places", "third order", "small"),
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

POISON = (
    in_file(
        "blockwise/tile_work.py",
        ("NaN of a masked value", "else _finite(values)", "else values", "poison forward", "keys"),
        (
            "NaN of a masked key in the backward",
            "x if spreads else _finite(x) for x",
            "x for x",
            "poison backward",
            "keys",
        ),
        ("NaN of a cotangent", "jnp.isfinite(self.delta) & ", "", "cotangent", "future"),
        ("NaN of delta", "jnp.isfinite(self.delta) & ", "", "unread", "future"),
        (
            "query of an overflow",
            "leaves[QUERY] = jnp.where(left_out, 0, leaves[QUERY])",
            "pass",
            "unread overflow",
            "future",
        ),
        (
            "a modifier of rows left out",
            "scores = jnp.where(left_out.swapaxes(-1, -2), -jnp.inf, scores)",
            "pass",
            "unread modifier",
            "future",
        ),
        ("live ignored", "(rows_not_zero(dout) | (dlse != 0)) & ", "", "unread", "future"),
        ("live without dlse", " | (dlse != 0)", "", "visible lse", "future"),
    )
    + in_file(
        "blockwise/tile_scores.py",
        ("NaN behind a bias of -inf", "allowed & (bias != -jnp.inf)", "allowed", "poison forward", "bias forbids"),
        (
            "masked pairs reach the modifier",
            "scores if allowed is None else jnp.where(allowed, scores, 0)",
            "scores",
            "poison backward",
            "cubed",
        ),
    )
    + in_file(
        "blockwise/algorithm.py",
        (
            "visible NaN swallowed",
            "seen & ~jnp.isnan(results.total)",
            "seen & False",
            "visible forward",
            "future",
        ),
        (
            "visible NaN swallowed in the backward",
            "rows.live & ~rows",
            "rows.live & False & ~rows",
            "visible backward",
            "future",
        ),
        (
            "an infinite key that its score hides",
            "rows._replace(shift=jnp.where(_see_what_is_not_finite(operands, plan), jnp.inf, rows.shift))",
            "rows",
            "hidden infinity",
            "open",
        ),
        ("visible NaN of a tangent swallowed", "marked = marked | seen", "pass", "visible tangent", "future"),
        ("NaN of results in a tangent", "~rows_finite(results.out)", "False", "visible tangent", "future"),
    )
    + in_file(
        "programs.py",
        (
            "results stand still",
            "(list(given), *result_tangents)",
            "(list(given), 0 * result_tangents[0], result_tangents[1])",
            "second order",
            "small",
        ),
        (
            "sums stand still",
            "(list(given), *result_tangents)",
            "(list(given), result_tangents[0], 0 * result_tangents[1])",
            "second order",
            "small",
        ),
        (
            "tangents of the first leaves",
            "[next(rest) if t else None for t in there]",
            "[next(rest, None) for _ in there]",
            "tangent of the keys",
            "all alike",
        ),
        (
            "NaN of a tangent in second order",
            "active, _finite_or_zero(given), result_tangents",
            "active, given, result_tangents",
            "unread second",
            "future",
        ),
        (
            "NaN of a value in two tangents",
            "moving, _finite_or_zero(given), result_tangents",
            "moving, given, result_tangents",
            "jvp of jvp of NaN",
            "future",
        ),
        ("visible NaN of a second order", "alive & ~finite, found", "alive & False, found", "visible second", "future"),
    )
)

RESULTS = in_file(
    "inspection.py",
    ("best key within its tile", "tile.column + best", "best", "stats", "causal"),
    ("last of equals", "one[1] >= other[1]", "one[1] > other[1]", "stats of equals", "open"),
    ("entropy without the sum", "jnp.log(sum_or_one(total)) - below", "-below", "stats", "open"),
    (
        "received by heads in turn",
        "jnp.repeat(operands.key, N // G, axis=-3)",
        "jnp.tile(operands.key, (N // G, 1, 1))",
        "stats",
        "open",
    ),
    (
        "always the first row",
        "(0,) * len(grid.axes), i, 0, i, 0)",
        "(0,) * len(grid.axes), 0, 0, i, 0)",
        "some weights",
        "causal",
    ),
    (
        "always the first column",
        "(0,) * len(grid.axes), 0, j, 0, j)",
        "(0,) * len(grid.axes), 0, 0, 0, j)",
        "some weights",
        "causal",
    ),
    (
        "columns not divided",
        "weights_of(scores, results.shift, results.total)",
        "jnp.exp(scores - results.shift)",
        "some weights",
        "causal",
    ),
) + in_file(
    "any_allowed.py",
    ("heads after the first", ".any(axis=-3, keepdims=True)", "[..., :1, :, :]", "any allowed", "few"),
    ("blocks before the last", "keys | pairs.any(", "pairs.any(", "any allowed", "few"),
)

KERNELS = [
    *(MERGING + WHOLE + DEFINED + HEADROOM + NUMERICS + TILES + SIZES + MASKS),
    *(MODIFIED + SCORES + ONE_LOOP + BACKWARD + DIRECTIONS),
    *(POISON + RESULTS),
]
