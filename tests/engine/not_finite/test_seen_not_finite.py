"""L6 in the specification: what is not finite and seen, in every array, under every mask, against loops by definition.

NaN stands exactly where the law says. Every other number has the bits that it has without the number that is not
finite. A number near the largest may overflow where it is seen, so that only what does not see it is compared.
"""

import itertools
from functools import partial

import numpy as np
import pytest

import loops
from attendax import scores, spec

pytestmark = pytest.mark.law("L6", "spec")

T, S, D, V = 4, 5, 2, 3
NUMBERS = [np.nan, np.inf, -np.inf, np.float32(3e38)]
HOLES = np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 1, 0]], bool)  # no query; no key 1 or 4
MASKS = {
    "none": None,
    "dense": HOLES,
    "causal": np.tril(np.ones((T, S), bool)),
    "padding": np.broadcast_to(np.arange(S) < 3, (T, S)),
    "padded queries": np.broadcast_to(np.arange(T)[:, None] < 2, (T, S)),
    "a bias of -inf": HOLES,
}
NEEDED = {  # the rows of which out is read, and those of which lse is
    "everything is read": ((0, 1, 2, 3), (0, 1, 2, 3)),
    "out of some rows, lse of one": ((0, 1), (2,)),
    "nothing is read": ((), ()),
}


def given(rng, mask, needed):
    """Finite arrays of one head, and which pairs are allowed."""
    shapes = {"query": (T, D), "key": (S, D), "value": (S, V), "bias": (T, S), "dout": (T, V), "dlse": (T,)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, rows in zip(("dout", "dlse"), NEEDED[needed], strict=True):
        arrays[name][[i for i in range(T) if i not in rows]] = 0
    allowed = np.ones((T, S), bool) if MASKS[mask] is None else MASKS[mask]
    if mask == "a bias of -inf":
        arrays["bias"][~allowed] = -np.inf
    return arrays, allowed


def spoilt(arrays, names):
    """Numbers that are not finite, one at a time: in each array, row and (for the bias) column."""
    for name in names:
        array = arrays[name]
        places = np.ndindex(array.shape) if name in ("bias", "dlse") else ((row, 1) for row in range(len(array)))
        for place, number in itertools.product(places, NUMBERS):
            if not (name == "bias" and array[place] == -np.inf):  # any other number there would allow the pair
                yield name, place, number


def with_each(arrays, spoilt):
    """The arrays once for each, as one batch."""
    batch = {name: np.stack([array] * len(spoilt)) for name, array in arrays.items()}
    for k, (name, place, number) in enumerate(spoilt):
        batch[name][(k, *place)] = number
    return batch


def changed(array, place, number):
    array = array.copy()
    array[place] = number
    return array


def expected(arrays, allowed, name, place):
    """Where out and the gradients are NaN, by the loops; a number near the largest there counts as NaN."""
    if np.isfinite(arrays[name][place]):
        arrays = arrays | {name: changed(arrays[name], place, np.nan)}
    bias = arrays["bias"]

    def may(i, j):
        return bool(allowed[i, j]) and bias[i, j] != -np.inf

    rows = loops.rows_that_are_nan(arrays["query"], arrays["key"], arrays["value"], may, lambda i, j: bias[i, j])
    pairs = np.zeros((T, S), bool)
    for pair in loops.pairs_of_nan_gradient(rows, may, S, arrays["dout"], arrays["dlse"]):
        pairs[pair] = True
    seen = np.array([[may(i, j) for j in range(S)] for i in range(T)])
    rows, columns, positions = np.array(rows)[:, None], pairs.any(axis=1)[:, None], pairs.any(axis=0)[:, None]
    forward = {"out": rows, "lse": rows[:, 0], "weights": rows & seen}
    return forward | {"query": columns, "key": positions, "value": positions, "bias": pairs}


def assert_by_the_law(got, clean, nan, number, about):
    """NaN where ``nan``, unless the number may be finite there, and the bits of ``clean`` everywhere else."""
    for name in got:
        where = np.broadcast_to(nan[name], got[name].shape)
        np.testing.assert_array_equal(got[name][~where], clean[name][~where], err_msg=f"{about}: {name}")
        assert np.isnan(got[name][where]).all() or np.isfinite(number), f"{about}: {name} is not NaN"


def assert_each_by_the_law(run, arrays, allowed, mask, names):
    """``run(batch, mask)`` on every array with one number that is not finite, beside the finite arrays.

    Where that number is -inf in the bias, the finite arrays come with a pair less.
    """
    every = list(spoilt(arrays, names))
    batch = with_each(arrays, every)
    pairs = allowed & (batch["bias"] != -np.inf)
    finite = {name: np.stack([array] * len(every)) for name, array in arrays.items()}
    got, clean = run(batch, mask), run(finite, pairs)
    for k, (name, place, number) in enumerate(every):
        one, other = ({leaf: x[k] for leaf, x in leaves.items()} for leaves in (got, clean))
        nan = expected({leaf: x[k] for leaf, x in batch.items()}, allowed, name, place)
        assert_by_the_law(one, other, nan, number, f"{number} in {name} at {place}")


def full(arrays, mask, **options):
    """out, lse, weights and all gradients of ``spec.attention``, of two equal heads that share one key head."""
    heads = [np.stack([arrays["query"]] * 2, 1), arrays["key"][:, None], arrays["value"][:, None]]
    mask = mask[:, None] if mask is not None and mask.ndim == 3 else mask
    options |= {"mask": mask, "bias": arrays["bias"][:, None]}
    out, lse, weights = spec.attention_with_weights(*heads, **options)
    dout, dlse = (np.stack([arrays[name]] * 2, 1) for name in ("dout", "dlse"))
    grads = spec.attention_backward(dout, *heads, **options, grad_lse=dlse)
    forward = {"out": out[:, 1], "lse": lse[:, 1], "weights": weights[:, 1]}
    return forward | {"query": grads[0][:, 1], "key": grads[1][:, 0], "value": grads[2][:, 0], "bias": grads[3][:, 0]}


def plain(arrays, mask):
    """Results of ``spec.scaled_dot_product_attention``, which gives no lse."""
    heads, bias = [arrays[name] for name in ("query", "key", "value")], arrays["bias"]
    out, weights = spec.scaled_dot_product_attention(*heads, mask, bias=bias)
    grads = spec.scaled_dot_product_attention_backward(arrays["dout"], *heads, mask, bias=bias)
    return {"out": out, "weights": weights} | dict(zip(("query", "key", "value", "bias"), grads, strict=True))


OPTIONS = {
    "plain": {},
    "a cap": {"score_mod": scores.softcap(2.0)},
    "a scale of 0": {"scale": 0.0},
    "a slope": {"score_mod": scores.alibi(np.array([0.5, 0.5], np.float32))},
    "dropout": {"dropout_rate": 0.5, "dropout_rng": np.array([1, 2], np.uint32)},
    "nothing kept": {"dropout_rate": 1.0, "dropout_rng": np.array([1, 2], np.uint32)},
}


@pytest.mark.parametrize("needed", NEEDED)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_attention(options, mask, needed, rng):
    arrays, allowed = given(rng, mask, needed)
    names = "query", "key", "value", "bias", "dout", "dlse"
    assert_each_by_the_law(partial(full, **OPTIONS[options]), arrays, allowed, as_given(mask), names)


@pytest.mark.smoke
@pytest.mark.parametrize("needed", NEEDED)
@pytest.mark.parametrize("mask", MASKS)
def test_scaled_dot_product_attention(mask, needed, rng):
    arrays, allowed = given(rng, mask, needed)
    arrays["dlse"][:] = 0
    names = "query", "key", "value", "bias", "dout"
    assert_each_by_the_law(plain, arrays, allowed, as_given(mask), names)


def as_given(mask):
    """The mask argument: what a bias forbids, no mask does."""
    return None if mask == "a bias of -inf" else MASKS[mask]


def additive(arrays, mask, weights):
    """All of ``spec.additive_attention`` of one batch; the gradients of its weights as ``W_q``, ``W_k`` and ``v``."""
    heads = [arrays[name][None] for name in ("query", "key", "value")]
    out, share = spec.additive_attention(*heads, *weights, mask)
    grads = spec.additive_attention_backward(arrays["dout"][None], *heads, *weights, mask)
    tokens = dict(zip(("query", "key", "value"), (g[0] for g in grads[:3]), strict=True))
    return {"out": out[0], "weights": share[0]} | tokens | dict(zip(("W_q", "W_k", "v"), grads[3:], strict=True))


def multi_head(arrays, mask, weights):
    """All of multi-head attention with two heads, but for the gradient of W_O, which meets a NaN that nothing reads."""
    heads = [arrays[name][None] for name in ("query", "key", "value")]
    out, cache = spec.multi_head_attention_forward(*heads, *weights, 2, mask)
    *grads, of_weights = spec.multi_head_attention_backward(arrays["dout"][None], cache)
    tokens = dict(zip(("query", "key", "value"), (g[0] for g in grads), strict=True))
    found = {"out": out[0]} | tokens | {name: of_weights[name] for name in ("W_Q", "W_K", "W_V")}
    return found | {"weights": cache["weights"][0, 0]}


WITH_WEIGHTS = {
    "additive": (additive, [(D, 6), (D, 6), (6,)]),
    "multi-head": (multi_head, [(D, D), (D, D), (V, D), (D, D)]),
}


@pytest.mark.parametrize("needed", NEEDED)
@pytest.mark.parametrize("mask", ["none", "dense", "causal", "padding", "padded queries"])
@pytest.mark.parametrize("kind", WITH_WEIGHTS)
def test_with_weights_of_its_own(kind, mask, needed, rng):
    """The weights are parameters of all tokens: their gradient is NaN where some row's is, and only then."""
    run, shapes = WITH_WEIGHTS[kind]
    arrays, allowed = given(rng, mask, needed)
    arrays |= {"bias": np.zeros((T, S), np.float32), "dlse": np.zeros(T, np.float32)}
    if kind == "multi-head":
        arrays["dout"] = arrays["dout"][:, :D]
    weights = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    clean = run(arrays, allowed, weights)
    for name, place, number in spoilt(arrays, ("query", "key", "value", "dout")):
        bad = arrays | {name: changed(arrays[name], place, number)}
        nan = expected(bad, allowed, name, place)
        nan |= dict.fromkeys(("W_q", "W_k", "v", "W_Q", "W_K", "W_V"), nan["query"].any())
        assert_by_the_law(run(bad, allowed, weights), clean, nan, number, f"{number} in {name} at {place}")
