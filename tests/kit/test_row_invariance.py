"""Row invariance: who claims it is held to the bit; nobody else is asked."""

import os
import subprocess
import sys
import unittest

import jax
import numpy as np
import pytest

from attendax.conformance import CASES, CLAIMS, Verdict, assert_conforms
from attendax.conformance.cases.invariance import BROKEN
from attendax.conformance.report.outcomes import Harm
from attendax.kernels.backends import default
from libraries import implementation
from stated import check

CLAIM = "row-invariance"
SMALL = {"B": 3, "N": 2, "G": 2, "T": 20, "S": 20, "D": 8, "V": 8}


def rows(query, key, mask, is_causal, offset, key_lengths):
    """Each row, and the keys that it sees."""
    (B, N, T, _), S = query.shape, key.shape[-2]
    offset, lengths = (np.broadcast_to(x, B) for x in (offset, S if key_lengths is None else key_lengths))
    mask = np.broadcast_to(True if mask is None else mask, (B, N, T, S))
    for b, h, i in np.ndindex(B, N, T):
        seen = mask[b, h, i] & (np.arange(S) < lengths[b])
        yield (b, h, i), np.flatnonzero(seen & (np.arange(S) <= i + offset[b]) if is_causal else seen)


def weights_of(query, key):
    powers = np.exp((scores := (key * query).sum(-1) * query.shape[-1] ** -0.5) - scores.max())
    return powers / powers.sum()


def attention(query, key, value, *, mask=None, is_causal=False, offset=0, key_lengths=None):
    """Row by row, of the keys that the row sees and of nothing else."""
    out = np.zeros(query.shape[:-1] + value.shape[-1:], query.dtype)
    for (b, h, i), seen in rows(query, key, mask, is_causal, offset, key_lengths):
        out[b, h, i] = weights_of(query[b, h, i], key[b, h, seen]) @ value[b, h, seen]
    return out


def backward(grad_output, query, key, value, *, mask=None, is_causal=False, offset=0, key_lengths=None):
    grads = [np.zeros(x.shape, x.dtype) for x in (query, key, value)]
    for (b, h, i), seen in rows(query, key, mask, is_causal, offset, key_lengths):
        weights = weights_of(query[b, h, i], key[b, h, seen])
        dweights = (value[b, h, seen] * grad_output[b, h, i]).sum(-1)
        dscores = weights * (dweights - (weights * dweights).sum()) * query.shape[-1] ** -np.float32(0.5)
        grads[0][b, h, i] = (dscores[:, None] * key[b, h, seen]).sum(0)
        grads[1][b, h, seen] += dscores[:, None] * query[b, h, i]
        grads[2][b, h, seen] += weights[:, None] * grad_output[b, h, i]
    return grads


def judged(fn, **given):
    given = {"claims": [CLAIM], "only": ["row invariance"], "repeat": 1, "sizes": SMALL, "arrays": "numpy"} | given
    return check(fn, in_process=True, **given)


@pytest.mark.slow
@pytest.mark.skipif(default() != "native", reason="in tiles a row does not depend on others beyond rounding alone")
def test_the_native_kernel_keeps_the_claim():
    """At the kit's own sizes, forward and gradient; in tiles the kit does find that it is not kept."""
    given = {"claims": [CLAIM], "only": ["row invariance"], "seed": 3}
    report = check(implementation("attendax"), **given)
    assert [outcome.told() for outcome in report.failures] == []
    assert report.counts() == {"ok": 63, "not offered": 6}  # these need a function whose causal is aligned to the end
    assert check(implementation("attendax-blockwise"), **given).failures


@pytest.mark.smoke
def test_row_by_row_is_row_invariant():
    report = judged(attention, backward=backward)
    assert [outcome.told() for outcome in report.failures] == []
    assert report.counts() == {"ok": 28, "not offered": 19}  # causal to the end, windows, more options, JAX alone
    assert report.coverage.judged[CLAIM] == (28, 28)


def causal_to_the_end(query, key, value, *, is_causal=False):
    return attention(query, key, value, is_causal=is_causal, offset=key.shape[-2] - query.shape[-2])


def test_parts_of_who_is_aligned_to_the_end_are_its_last_queries():
    report = judged(causal_to_the_end, means={"causal": "end"}, only=["causal to the end"], level="forward")
    assert report.counts() == {"ok": 2}


def sees(what):
    """A function whose rows depend, by some roundings, on what they may not."""

    def dependent(query, key, value, *, is_causal=False, offset=0, key_lengths=None):
        out = attention(query, key, value, is_causal=is_causal, offset=offset, key_lengths=key_lengths)
        return out * (1 + np.float32(1e-3) * np.sin(what(query, key), dtype="float32"))

    return dependent


DEPENDENT = {
    "batch": lambda query, key: len(query),
    "other batches": lambda query, key: key[-1, 0, 0, 0],
    "heads": lambda query, key: query.shape[1],
    "other queries": lambda query, key: query[0, 0, -1, 0],
    "more tokens, causal": lambda query, key: key.shape[-2],
    "more keys, key lengths": lambda query, key: key.shape[-2],
    "chunk": lambda query, key: query.shape[-2],
    "single token": lambda query, key: query.shape[-2] == 1,
    "longer cache": lambda query, key: key.shape[-2],
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", DEPENDENT)
def test_what_a_row_depends_on_is_named(name):
    report = judged(sees(DEPENDENT[name]), only=[f"row invariance: {name}"], level="forward", seed=5)
    outcome = next(o for o in report.cases if o.case.name == f"row invariance: {name}, 20")
    assert outcome.verdict is Verdict.LEAK
    cause = next(cause for cause in report.causes if outcome.case.name in cause.cases)
    words = next(words for key, words in BROKEN.items() if name.startswith(key))
    assert cause.name.startswith(f"row-invariance: {words}")
    assert cause.harm == Harm.CLAIM


def test_the_plainest_call_is_named_first():
    """What breaks a batch breaks every call of another size; who splits the keys of few queries keeps whole batches."""
    report = judged(sees(DEPENDENT["chunk"]), level="forward")
    (cause,) = report.causes
    assert cause.name.startswith("row-invariance: tokens that follow change a row (then: chunk, single token, longer")
    report = judged(by_matmul, level="forward")
    words = "row-invariance: a chunk of the queries is computed differently (then: single token)"
    assert [cause.name for cause in report.causes] == [words]


def test_contexts_of_jax():
    """A function that counts how it is called: without jit, or under vmap, it adds up in another order."""
    import jax.numpy as jnp

    def attend(query, key, value, *, odd):
        weights = jnp.exp((query[..., :, None, :] * key[..., None, :, :]).sum(-1) / 4)
        halves = [weights[..., k::2] @ value[..., k::2, :] for k in (0, 1)] if odd else [weights @ value]
        return sum(halves) / weights.sum(-1, keepdims=True)

    def by_jit(query, key, value):
        return attend(query, key, value, odd=isinstance(query, jax.core.Tracer))

    def by_vmap(query, key, value):
        return attend(query, key, value, odd=len(query) == 1)

    for fn, name, words in ((by_jit, "without jit", "without jit"), (by_vmap, "vmap", "under vmap")):
        report = judged(fn, only=[f"row invariance: {name}"], arrays="jax", seed=1)
        (cause,) = report.causes
        assert cause.name == f"row-invariance: a call {words} is computed differently"
        assert {o.verdict for o in report.cases} == {Verdict.LEAK}
        assert_shows(report.failures[0])


def assert_shows(outcome):
    """The reproduction runs up to its last line, where the numbers are held against each other."""
    script = outcome.reproduction
    assert "other = {k: x.reshape(one[k].shape) for k, x in " in script
    compile(script, "shows", "exec")


def by_matmul(query, key, value):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(np.float32(query.shape[-1]))
    if query.shape[-2] < 16:  # the keys in two parts
        return _of_parts(scores, value)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ value


def _of_parts(scores, value):
    half = value.shape[-2] // 2
    powers = np.exp(scores)
    parts = [(powers[..., part], value[..., part, :]) for part in (slice(None, half), slice(half, None))]
    return sum(p @ v for p, v in parts) / sum(p.sum(-1, keepdims=True) for p, _ in parts)


def test_a_reproduction_shows_it_alone(tmp_path):
    report = judged(by_matmul, only=["row invariance: single token"], level="forward")
    (tmp_path / "shows.py").write_text(report.failures[0].reproduction)
    there = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, tmp_path / "shows.py"], env=there, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stdout.startswith("before ")
    assert run.stderr.splitlines()[-1].startswith("AssertionError")


@pytest.mark.smoke
def test_who_does_not_claim_it_is_not_asked():
    assert not any(case.claim for case in CASES)
    assert {case.name for case in CLAIMS[CLAIM]}.isdisjoint(case.name for case in CASES)
    with pytest.raises(ValueError, match="picks no case"):
        check(attention, arrays="numpy", only=["row invariance"])
    case = CLAIMS[CLAIM][0].sized(SMALL)
    with pytest.raises(unittest.SkipTest, match="row-invariance is not claimed"):
        assert_conforms(attention, case)
    assert assert_conforms(attention, case, claims=[CLAIM]).verdict is Verdict.OK


@pytest.mark.smoke
def test_a_claim_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="claims got 'row-invarance', expected some of row-invariance; did you mean"):
        check(attention, arrays="numpy", claims=["row-invarance"])
    with pytest.raises(ValueError, match=r"^assert_conforms: claims got 'rows'"):
        assert_conforms(attention, CASES[0], claims=["rows"])
