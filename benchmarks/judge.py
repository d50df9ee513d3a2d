"""The judge: the specification in float64, chunk by chunk of queries, on as many heads as there is time for.

A chunk is ``attendax.spec`` on some of the queries and all the keys; the gradients of keys and values are the sums over
the chunks. Tangents and Hessian products are central differences of the specification in float64.
"""

import numpy as np

from attendax import scores, spec
from attendax.conformance import directional_difference
from workload import Case

TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}  # of entries of order 1: twice the rounding of bfloat16's results
CHUNK_SCORES = 2**22
MOST_SCORES = 2**24  # beyond that, not every head is judged
STEP = 1e-4  # of the central differences: an error of 1e-8 by the formula, 1e-11 by rounding
SIGMAS = 6.0


class Judge:
    """The right numbers of a case, computed when first asked for; ``heads`` says which key heads it looked at."""

    def __init__(self, case: Case) -> None:
        self.case = case
        B, N, G, T, S = case.shape[:5]
        places = [(b, g) for b in range(B) for g in range(G)]
        number = len(places) if case.rate else max(1, min(len(places), MOST_SCORES // (N // G * T * S)))
        chosen = sorted(np.random.default_rng(5).permutation(len(places))[:number].tolist())
        self.heads = [(0, 0)] if case.rate else [places[k] for k in chosen]  # with dropout, all at once
        whole = number == len(places)
        self.name = "specification in float64" + ("" if whole else f", {number} of {len(places)} key heads")
        self._known: dict[str, list[list[np.ndarray]]] = {}

    def error(self, measure: str, results: list[np.ndarray]) -> float:
        """The largest difference of any entry, over the largest entry of that array, or 1 where that is smaller."""
        if measure not in self._known:
            self._known[measure] = [self._right(measure, *head) for head in self.heads]
        worst = 0.0
        for head, wanted in zip(self.heads, self._known[measure], strict=True):
            got = [self._cut(x, *head) for x in results]
            if measure == "jvp":
                got = got[1:]
            if len(got) != len(wanted):
                raise ValueError(f"{len(got)} results, expected {len(wanted)}")
            for a, b in zip(got, wanted, strict=True):
                if a.shape != b.shape:
                    raise ValueError(f"a result of shape {a.shape}, expected {b.shape}")
                off = np.abs(a.astype(np.float64) - b).max() / max(1.0, float(np.abs(b).max()))
                worst = float(np.maximum(worst, off))  # keeps a NaN
        return worst

    def is_right(self, error: float) -> bool:
        return error <= TOLERANCE[self.case.dtype]

    def _cut(self, array: np.ndarray, b: int, g: int) -> np.ndarray:
        """The part of an array, of N or G heads and B or 1 texts, that belongs to a key head."""
        if self.case.rate:
            return array
        size = self.case.shape.N // self.case.shape.G if array.shape[1] == self.case.shape.N else 1
        row = b if array.shape[0] > 1 else 0
        return array[row : row + 1, g * size : (g + 1) * size]

    def _right(self, measure: str, b: int, g: int) -> list[np.ndarray]:
        arrays, tangents, (cotangent,) = (
            [self._cut(x, b, g).astype(np.float64) for x in group]
            for group in (self.case.arrays, self.case.tangents, (self.case.cotangent,))
        )
        if measure in ("forward", "backward"):
            return self._by_definition(arrays, cotangent, b, g)[: 1 if measure == "forward" else None]
        kept = slice(0, 1) if measure == "jvp" else slice(1, None)
        return directional_difference(
            lambda *moved: self._by_definition(list(moved), cotangent, b, g)[kept], arrays, tangents, step=STEP, order=2
        )

    def _by_definition(self, arrays: list[np.ndarray], cotangent: np.ndarray, b: int, g: int) -> list[np.ndarray]:
        """Out and gradients of one key head, in chunks of queries."""
        query, key, value, *bias = arrays
        if self.case.rate:
            return self._with_dropout(query, key, value, cotangent)
        T, S, heads = query.shape[2], key.shape[2], query.shape[1]
        rows = max(1, CHUNK_SCORES // (heads * S))
        outs, grads = [], []
        for first in range(0, T, rows):
            here = np.s_[:, :, first : first + rows]
            options = self._options(first, rows, b, g)
            if bias:
                options["bias"] = bias[0][here]
            outs.append(spec.attention(query[here], key, value, **options))
            grads.append(spec.attention_backward(cotangent[here], query[here], key, value, **options))
        by_query = [np.concatenate([x.grad_query for x in grads], 2)]
        by_key = [np.sum([x[k] for x in grads], axis=0) for k in (1, 2)]
        by_bias = [np.concatenate([x.grad_bias for x in grads], 2)] if bias else []
        return [np.concatenate(outs, 2), *by_query, *by_key, *by_bias]

    def _options(self, first: int, rows: int, b: int, g: int) -> dict:
        """Mask and modifier as they are for the queries from ``first`` on."""
        shape, allowed = self.case.shape, self.case.allowed
        options: dict = {}
        if allowed is not None:
            row = b if allowed.shape[0] > 1 else 0
            options["mask"] = allowed[row : row + 1, :, first : first + rows]
        if shape.variant == "softcap":
            options["score_mod"] = self.case.score_mod
        if shape.variant == "alibi":
            size = shape.N // shape.G
            slopes = self.case.slopes[g * size : (g + 1) * size].astype(np.float64)
            options["score_mod"] = scores.alibi(slopes, offset=first)
        return options

    def _with_dropout(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Compute all heads at once: the place of a head decides which of its weights are kept (L10)."""
        import jax

        *inputs, cotangent = arrays
        options = {"dropout_rate": self.case.rate, "dropout_rng": jax.random.key(0)}
        grads = spec.attention_backward(cotangent, *inputs, **options)
        return [spec.attention(*inputs, **options), *grads[:3]]


def mean_of_dropped(program, case: Case) -> float:
    """Distance of the average result for values of 1 from 1, in standard deviations of a fair dropout.

    A weight p that is kept with probability 1 - r counts p / (1 - r): its variance is p² r / (1 - r).
    """
    query, key, value, *rest = case.arrays
    ones = program.own_layout((query, key, np.ones_like(value), *rest))
    out = program.to_numpy(program.run(ones))[0].astype(np.float64)[..., 0]
    _, _, weights = spec.attention_with_weights(*(x.astype(np.float64) for x in case.arrays[:3]))
    variance = (weights**2).sum() * case.rate / (1 - case.rate)
    return float((out.sum() - out.size) / np.sqrt(variance))
