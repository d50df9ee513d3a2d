"""The formulas that Coq proved, run on floats, beside the specification (docs/what-is-proved.md). Needs no Coq."""

import functools

import numpy as np
import proved
import pytest
from proved import FLOATS, SAME, boolean, curry, data, listed

from attendax import masks, scores, spec

B, N, G, T, S, D, V = 2, 4, 2, 2, 3, 2, 3  # the letters of docs/laws.md
THE = proved.definitions()
RNG = np.array([3, 7], np.uint32)
SLOPES, TABLE = np.array([0.5, 0.25, 0.1, 0.7]), np.random.default_rng(5).standard_normal((N, 5))


def softcap(cap):
    return scores.softcap(cap), THE["softcap"](FLOATS)(cap), {}


def alibi(offset):
    distance = curry(lambda i, j: float(abs(j[2] - i[2] - offset)), 2)
    modifier = THE["alibi"](FLOATS)(SAME)(lambda i: ("slopes", i[1]))(distance)
    return scores.alibi(SLOPES, offset=offset), modifier, {"slopes": SLOPES}


def relative_bias(offset):
    reach = TABLE.shape[1] // 2
    entry = curry(lambda i, j: ("table", i[1], min(max(j[2] - i[2] - offset, -reach), reach) + reach), 2)
    return scores.relative_bias(TABLE, offset=offset), THE["relative_bias"](FLOATS)(SAME)(entry), {"table": TABLE}


def compose(first, second):
    modifier = THE["compose"](FLOATS)(first[1])(second[1])
    return scores.compose(first[0], second[0]), modifier, first[2] | second[2]


def some(rng):
    """A mask under which one query may look at nothing, and one key is seen by nobody."""
    mask = rng.random((B, N, T, S)) < 0.6
    mask[0, 0, 0], mask[1, :, :, 1] = False, False
    return mask


CASES = {
    "plain": lambda rng: {},
    "one key head": lambda rng: {"heads": 1},
    "a key head each": lambda rng: {"heads": N},
    "mask with empty rows": lambda rng: {"mask": some(rng)},
    "causal": lambda rng: {"mask": masks.causal().to_dense(T, S)},
    "large scores": lambda rng: {"size": 30.0, "mask": some(rng)},
    "scale 0": lambda rng: {"scale": 0.0},
    "scale below 0": lambda rng: {"scale": -1.3},
    "bias": lambda rng: {"bias": rng.standard_normal((B, N, T, S)), "mask": some(rng)},
    "bias of every head": lambda rng: {"bias": rng.standard_normal((N, 1, 1)), "mask": some(rng)},
    "bias of every key": lambda rng: {"bias": rng.standard_normal((B, 1, 1, S)), "mask": some(rng)},
    "bias of one number": lambda rng: {"bias": rng.standard_normal(1), "mask": some(rng)},
    "bias that forbids": lambda rng: {"bias": np.where(some(rng), rng.standard_normal((B, N, T, S)), -np.inf)},
    "softcap": lambda rng: {"modifier": softcap(1.5), "bias": rng.standard_normal((N, T, S))},
    "alibi": lambda rng: {"modifier": alibi(1), "mask": some(rng)},
    "relative bias": lambda rng: {"modifier": relative_bias(-1), "mask": some(rng)},
    "alibi, then softcap": lambda rng: {"modifier": compose(alibi(0), softcap(0.8)), "mask": some(rng)},
    "softcap, then relative bias": lambda rng: {"modifier": compose(softcap(0.8), relative_bias(1))},
    "dropout": lambda rng: {"rate": 0.4, "mask": some(rng)},
    "sink": lambda rng: {"logits": rng.standard_normal(N), "mask": some(rng)},
    "sink, bias, softcap, dropout": lambda rng: {
        "logits": rng.standard_normal(N),
        "bias": rng.standard_normal((N, 1, S)),
        "modifier": softcap(0.8),
        "rate": 0.4,
    },
    "out alone": lambda rng: {"grad_lse": 0.0, "mask": some(rng)},
    "lse alone": lambda rng: {"grad_out": 0.0, "mask": some(rng)},
    "all": lambda rng: {
        "mask": some(rng),
        "bias": rng.standard_normal((B, 1, T, S)),
        "modifier": compose(compose(relative_bias(0), softcap(2.0)), alibi(1)),
        "rate": 0.3,
    },
}


class Call:
    """One call with gradients given, and its results by the specification and by what was proved."""

    def __init__(
        self,
        rng,
        heads=G,
        mask=None,
        bias=None,
        modifier=None,
        logits=None,
        rate=0.0,
        size=1.0,
        scale=0.7,
        grad_out=1.0,
        grad_lse=1.0,
    ):
        shapes = {"query": (B, N, T, D), "key": (B, heads, S, D), "value": (B, heads, S, V)}
        self.arrays = {name: rng.standard_normal(shape) * size for name, shape in shapes.items()}
        self.arrays["bias"] = np.zeros(1) if bias is None else bias
        self.dout, self.dlse = rng.standard_normal((B, N, T, V)) * grad_out, rng.standard_normal((B, N, T)) * grad_lse
        self.score_mod, self.modifier, self.mod_arrays = modifier or (None, THE["no_modifier"](FLOATS), {})
        self.sunk = logits is not None
        if self.sunk:
            sink = scores.sink(logits)
            self.score_mod = sink if self.score_mod is None else scores.compose(self.score_mod, sink)
            self.mod_arrays = self.mod_arrays | {"logits": logits}
        self.mask, self.rate, self.scale, self.heads = mask, rate, scale, heads
        allowed = np.ones((B, N, T, S), bool) if mask is None else np.broadcast_to(mask, (B, N, T, S))
        self.allowed = allowed & (self.arrays["bias"] != -np.inf)

    def by_specification(self):
        """Out, lse, and the gradients of query, key, value, bias and the modifier's arrays, by name."""
        options = {name: getattr(self, name) for name in ("mask", "score_mod", "scale")} | {"bias": self.arrays["bias"]}
        options |= {"dropout_rate": self.rate, "dropout_rng": RNG} if self.rate else {}
        query, key, value, _ = self.arrays.values()
        out, lse = spec.attention(query, key, value, return_lse=True, **options)
        grads = spec.attention_backward(self.dout, query, key, value, grad_lse=self.dlse, **options)
        gradients = dict(zip(self.arrays, grads, strict=False)) | modifier_gradients(grads.grad_score_mod)
        return {"out": out, "lse": lse} | gradients

    def kept(self):
        """0 or 1 / (1 - rate) for each weight. The choice of dropout is no formula: it is the specification's."""
        shapes = (B, N, T, 1), (B, N, S, 1), (B, N, S, 1)
        options = {"dropout_rate": self.rate, "dropout_rng": RNG if self.rate else None}
        weights = spec.attention_with_weights(*map(np.zeros, shapes), **options)[2]
        return np.where(weights == 0, 0, 1 / (1 - self.rate))

    def by_proof(self):
        """Results by the definitions that Coq extracted: batch and heads are a mask (L1)."""
        queries, keys = list(np.ndindex(B, N, T)), list(np.ndindex(B, self.heads, S))
        group, kept, bias = N // self.heads, self.kept(), self.arrays["bias"]

        def own(i, j):  # a query may look only at keys of its own batch and its own key head
            return (i[0], i[1] // group) == j[:2] and self.allowed[(*i, j[2])]

        def bias_at(i, j):
            return tuple(np.where(np.array(bias.shape) == 1, 0, (*i, j[2])[4 - bias.ndim :]).tolist())

        options = data(
            "Build_options",
            *map(listed, (queries, keys, range(D), range(V), np.ndindex(bias.shape), self.entries())),
            curry(lambda i, j: boolean(own(i, j)), 2),
            self.scale,
            self.modifier,
            curry(bias_at, 2),
            SAME,
            curry(lambda i, j: float(kept[(*i, j[2])]), 2),
        )
        cotangent = data("Build_cotangent", curry(lambda i, c: float(self.dout[(*i, c)]), 2), lambda i: self.dlse[i])
        at, some = self.at, lambda x: x
        if self.sunk:
            options, at = THE["with_sink"].whole(FLOATS, SAME, self.logit, options), THE["sink_inputs"](FLOATS)(at)
            some = functools.partial(data, "Some")  # the key None is the sink
        given = FLOATS, options, at
        backward = functools.partial(THE["backward"].whole, *given, cotangent)
        lse = [THE["lse"].whole(*given, i) for i in queries]
        results = {
            "out": [THE["out"].whole(*given, i, c) for i in queries for c in range(V)],
            "lse": [x.parts[0] if x.name == "Some" else -np.inf for x in lse],
            "query": [backward(data("Query", i, d)) for i in queries for d in range(D)],
            "key": [backward(data("Key", some(j), d)) for j in keys for d in range(D)],
            "value": [backward(data("Value", some(j), c)) for j in keys for c in range(V)],
            "bias": [backward(data("Bias", some(b))) for b in np.ndindex(bias.shape)],
        }
        arrays = {name: [] for name in self.mod_arrays}
        for entry in self.entries():
            arrays[entry[0]].append(backward(data("Array", entry)))
        return results | arrays

    @staticmethod
    def logit(i):
        """The place of the logit of a query's sink."""
        return "logits", i[1]

    def entries(self):
        """The places of the numbers in the modifier's arrays."""
        return [(name, *index) for name, array in self.mod_arrays.items() for index in np.ndindex(array.shape)]

    def at(self, place):
        """The number at a place of the inputs."""
        name, parts = place.name.lower(), place.parts
        if name == "array":
            (entry,) = parts
            return float(self.mod_arrays[entry[0]][entry[1:]])
        return float(self.arrays[name][parts[0] if name == "bias" else (*parts[0], parts[1])])


def modifier_gradients(score_mod):
    """The gradients of a modifier's arrays, by the names that they have here."""
    if score_mod is None or score_mod.kind == "softcap":
        return {}
    if score_mod.kind == "compose":
        return {name: x for part in score_mod.arrays for name, x in modifier_gradients(part).items()}
    return {{"alibi": "slopes", "relative_bias": "table", "sink": "logits"}[score_mod.kind]: score_mod.arrays[0]}


def assert_same(by_proof, by_specification, tolerance=1e-12):
    assert by_proof.keys() == by_specification.keys()
    for name, want in by_specification.items():
        got = np.reshape(by_proof[name], want.shape)
        largest = np.abs(want[np.isfinite(want)]).max(initial=1)
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * largest, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_the_specification_is_what_was_proved(name, rng):
    call = Call(rng, **CASES[name](rng))
    assert_same(call.by_proof(), call.by_specification())


def test_a_query_depends_on_nothing_that_it_may_not_look_at(rng):
    call = Call(rng, mask=masks.causal().to_dense(T, S))
    clean = call.by_specification()
    call.arrays["key"][:, :, 1], call.arrays["value"][:, :, 1] = np.nan, np.inf  # the second query alone may look here
    want, got = call.by_specification(), call.by_proof()
    for name in ("out", "lse", "query"):
        first = np.reshape(got[name], want[name].shape)[:, :, 0]
        np.testing.assert_allclose(first, clean[name][:, :, 0], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(want[name][:, :, 0], clean[name][:, :, 0])
    assert np.isnan(np.reshape(got["out"], want["out"].shape)[:, :, 1]).all()


@pytest.mark.parametrize("name", ["mask with empty rows", "bias", "softcap", "dropout", "all"])
def test_what_is_masked_may_be_nan_in_both(name, rng):
    call = Call(rng, **CASES[name](rng) | {"mask": some(rng)})
    query, key, value, bias = call.arrays.values()
    seen_by_heads = call.allowed.any(axis=2).reshape(B, G, N // G, S).any(axis=2)
    assert not seen_by_heads.all()
    clean = call.by_proof()
    query[~call.allowed.any(axis=-1)] = np.nan
    key[~seen_by_heads], value[~seen_by_heads] = np.nan, np.inf
    if bias.shape == call.allowed.shape:
        bias[~call.allowed] = np.nan
    assert_same(call.by_proof(), call.by_specification())
    for name, got in call.by_proof().items():
        np.testing.assert_array_equal(got, clean[name])
