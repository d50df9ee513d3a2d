"""The table of mistakes planted in the blockwise kernels: a piece of text to replace, and the judge that must notice.

The file is one of ``attendax``. Here are mistakes that few calls show. What a comparison of values, gradients or
tangents shows, the tests of laws notice.
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


KERNELS = [
    *in_file(
        "kernels/online_softmax.py",
        ("stale row maximum", "jnp.maximum(one[-2], other[-2])", "other[-2]", "law", "huge scores"),
        ("the largest score moves by half", "x - lax.stop_gradient(jnp.maximum(x, 0))", "jnp.minimum(x, 0)", "law",
         "second order"),
    ),
    *in_file(
        "kernels/not_finite.py",
        ("all rows are read", "== 0) | (dlse != 0)", "== 0) | True", "law", "nan in query"),
        ("lse is not read", " | (dlse != 0)", "", "law", "nan in query, lse alone"),
        ("NaN of a cotangent", "jnp.where(live, x, 0) / row_sum", "x / row_sum", "law", "nan in dout"),
        ("NaN of delta", "rows_finite(delta, results.row_sum", "rows_finite(results.row_sum", "law", "nan in dout"),
        ("a row that is not read is NaN", "jnp.where(read, shift, jnp.inf)", "jnp.where(read, shift, jnp.nan)", "law",
         "nan in query"),
        ("a row that is not finite is not read", "results.row_max, jnp.nan)", "results.row_max, jnp.inf)", "law",
         "nan in query"),
        ("out of a row that moves to NaN", "results._replace(out=jnp.where(fine, results.out, jnp.nan))", "results",
         "law", "second, nan in move query"),
        ("a spoiled cotangent counts as 0", "jnp.where(is_fine, results.row_max, jnp.nan)", "results.row_max", "law",
         "nan in dout"),
        ("a spoiled row moves by 0", "jnp.where(is_fine, results.row_max, jnp.nan)", "results.row_max", "law",
         "second, inf in query"),
    ),
    *in_file(
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
        ("a tangent of a value is not marked", "_marks(products, *values)", "_marks(products, values[0])", "law",
         "tangent, nan in move value"),
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
        ("ds without the choice", "ds if visible is None else jnp.where(visible, ds, 0)", "ds", "law", "unseen big"),
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
        ("products of a tangent are not marked, at once", "parts_of_softmax(s, marks)", "parts_of_softmax(s)", "law",
         "tangent, nan in move value, few keys"),
        ("a modifier of rows that nothing reads", ", live=read", "", "unread modifier", "future"),
        ("NaN behind a bias of -inf", "allowed & (bias != -jnp.inf)", "allowed", "law", "forward, unseen nan, bias"),
        ("masked pairs reach the modifier", "scores if allowed is None else jnp.where(allowed, scores, 0)", "scores",
         "overflow of a modifier", "cubed"),
    ),
    *in_file(
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
    ),
    *in_file(
        "kernels/numerics.py",
        ("finite cuts the gradient", "_finite_p.bind(x, w", "_finite_p.bind(lax.stop_gradient(x), w", "law",
         "second order at once"),
        ("gradient of what vmap shares a mean", "x.sum(repeated,", "x.mean(repeated,", "law", "shared by vmap"),
    ),
    *in_file(
        "kernels/rules.py",
        ("product with the wrong tangent", "times(dleft, finite_straight_through(right)",
         "times(dleft, 2 * finite_straight_through(right)", "jvp of jvp", "open"),
        ("product with one tangent", "finite_straight_through(left), dright",
         "0 * finite_straight_through(left), dright", "jvp of jvp", "open"),
    ),
    *in_file(
        "kernels/blockwise/algorithm.py",
        ("queries of whole rows left out", "rows_once=not at_once", "rows_once=True", "forward", "few keys"),
    ),
    *in_file(
        "kernels/blockwise/partition.py",
        ("chunks that do not divide", "if size % n == 0)", "if n)", "forward", "three key heads"),
    ),
    *in_file(
        "kernels/derivatives.py",
        ("the row sum moves as lse", "row_sum * dlse, dlse]", "dlse, dlse]", "third order", "small"),
        ("the row sum a constant", "row_sum * dlse, dlse]", "_zero(row_sum), dlse]", "third order", "small"),
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
    ),
    *in_file(
        "inspection.py",
        ("last of equals", "one[1] >= other[1]", "one[1] > other[1]", "stats of equals", "open"),
    ),
]  # fmt: skip
