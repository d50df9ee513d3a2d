"""The doctor: planted functions, each of one mistake, and the words that it says of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import right_attention
import stated
from attendax.conformance.report.outcomes import Harm
from off import PLANTED, at_the_end, of_size, tf32, wrong

# At small sizes every cause shows; another process would import this module, and JAX with it, for each function.
check = functools.partial(stated.check, seed=0, budget=0, in_process=True)


pytestmark = pytest.mark.usefixtures("as_users_have_it")


@pytest.mark.smoke
@pytest.mark.sample(5)
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_named(mistake):
    fn, cases, words, remedy = PLANTED[mistake]
    report = check(fn, arrays="numpy", only=cases, level="forward", profile="law")
    told = {cause.name: cause for cause in report.causes}
    found = [name for name in told if words in (name, *name.split(", or "))]  # of few cases "A, or B" may be left
    assert len(found) == 1, list(told)
    name = found[0]
    assert told[name].remedy == (remedy if name == words else "")
    assert told[name].tried >= 1 or "is right" in words or words.startswith(("right below", "some results"))


def test_every_fault_is_in_one_cause_and_the_worst_is_first():
    fn = wrong(scale=of_size(-1.0))
    report = check(fn, arrays="numpy", only=["plain", "no keys"], profile="robust")
    named = [name for cause in report.causes for name in cause.cases]
    assert sorted(named) == sorted(outcome.case.name for outcome in report.failures)
    assert [cause.harm for cause in report.causes] == sorted((c.harm for c in report.causes), key=list(Harm).index)


def test_a_call_that_raises_names_what_is_not_offered():
    def attend(query, key, value):
        return np.einsum("bntd,bnsd,bnse->bnte", query, key, value) * 0 + right_attention.attend(query, key, value)

    report = check(attend, arrays="numpy", only=["grouped heads"], level="forward", profile="law")
    assert {cause.remedy for cause in report.causes} == {'lacks = ["grouped heads"] in a contract file'}
    assert check(attend, arrays="numpy", only=["grouped heads"], level="forward").counts().keys() == {"not offered"}


# For kernel authors


def block_kernel(query, key, value, *, is_causal=False):
    """TF32 products, and no width below 16."""
    if query.shape[-1] < 16:
        raise ValueError(f"D must be at least 16, got {query.shape[-1]}")
    out = tf32(query, key, value) if not is_causal else None
    if is_causal:
        raise NotImplementedError("no causal mask")
    return out.astype(query.dtype)


def test_a_kernel_that_needs_wide_heads_is_judged_at_its_sizes():
    given = {"arrays": "numpy", "level": "forward", "sizes": dict(B=2, N=4, T=48, S=48, D=64)}
    coarse = check(block_kernel, **given)
    assert [cause.remedy for cause in coarse.causes] == ["--precision tf32"]
    judged = check(block_kernel, precision="tf32", **given)
    assert judged.ok
    assert judged.counts()["ok"] >= 3
    assert all(o.case.sizes["D"] == 64 for o in judged.cases)
    half = check(block_kernel, dtype="bfloat16", **given)
    assert half.ok


def with_less(bits, ahead=0):
    """Products of operands without the last bits; a causal mask of so many keys ahead."""

    def coarse(x):
        half = np.uint32(1 << (bits - 1))
        return ((np.asarray(x, np.float32).view(np.uint32) + half) & ~(2 * half - 1)).view(np.float32).reshape(x.shape)

    def attend(query, key, value, *, is_causal=False):
        scores = coarse(query) @ coarse(key).swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
        if is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], k=ahead, dtype=bool), scores, -np.inf)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return coarse(powers / powers.sum(axis=-1, keepdims=True)) @ coarse(value)

    return attend


@pytest.mark.parametrize(("precision", "bits"), [("tf32", 13), ("bf16", 16)])
def test_a_reason_is_found_at_a_coarser_precision(precision, bits):
    given = {"arrays": "numpy", "only": ["plain", "causal"], "precision": precision, "level": "forward"}
    report = check(with_less(bits, ahead=1), **given)
    assert [cause.name for cause in report.causes] == ["causal lets a query see one key ahead (j <= i + 1)"]


def test_rounding_is_given_no_other_reason():
    given = {"arrays": "numpy", "only": ["plain", "one ", "causal", "width"], "level": "forward"}
    report = check(with_less(16), precision="tf32", **given)  # it is bf16
    assert report.failures
    assert [cause.name for cause in report.causes if cause.tried] == []


def test_sizes_are_found_by_trying_and_those_of_the_user_are_asked():
    assert check(block_kernel, precision="tf32", only=["plain"], level="forward").coverage.judged["results"]
    assert check(block_kernel, sizes=dict(D=64), precision="tf32", only=["plain"], level="forward").ok


@pytest.mark.smoke
def test_what_is_not_deterministic_can_be_said():
    def attend(query, key, value, *, is_causal=False, rng=np.random.default_rng(3)):  # noqa: B008
        out = right_attention.attend(query, key, value, is_causal=is_causal)
        return out * (1 + np.float32(1e-7) * rng.integers(-1, 2, out.shape).astype(np.float32))

    given = {"arrays": "numpy", "only": ["repeated", "NaN in a future value"], "level": "forward", "profile": "robust"}
    report = check(attend, **given)
    assert "leak" in report.counts()
    assert [(cause.name, cause.remedy) for cause in report.causes] == [
        ("the same call gives other bits the next time", 'lacks = ["determinism"] in a contract file')
    ]
    assert check(attend, lacks=["determinism"], **given).counts() == {"ok": 1, "not offered": 1}


@pytest.mark.slow  # NumPy multiplies float16 without BLAS
def test_sums_that_round_otherwise_in_another_order_are_no_fault_of_strides():
    """In float16 some sums of a NumPy product are off, and with copies that are contiguous they may not be."""

    def attend(query, key, value):
        weights = np.einsum("bntd,bnsd->bnts", query, key) * query.dtype.type(query.shape[-1] ** -0.5)
        weights = np.exp(weights - weights.max(-1, keepdims=True))
        return np.einsum("bnts,bnsv->bntv", weights / weights.sum(-1, keepdims=True), value)

    case = "ladder: plain, normal, widths before tokens, B=2 N=4 G=4 T=80 S=900 D=192 V=320, float16"
    report = check(attend, arrays="numpy", only=[case], level="forward")
    assert not any("strides" in cause.name for cause in report.causes), report.causes


def test_a_second_backward_through_the_same_graph():
    """The first one writes its result into what was saved for it; in a process of its own that is seen, too."""
    pytest.importorskip("torch")
    names = ["gradient: plain", "a gradient is held"]
    for in_process in (True, False):
        given = {"only": names, "level": "backward", "repeat": 1, "in_process": in_process}
        report = check("second_backward:attend", arrays="torch", **given)
        assert [outcome.case.name for outcome in report.failures] == names[1:]
        assert [c.name for c in report.causes] == ["a second backward through the same graph gives other gradients"]
        assert "['again " in report.failures[0].reproduction


@pytest.mark.parametrize("lost", [slice(None), slice(3)])
def test_a_gradient_of_the_values_alone(lost):
    """Some or all queries leave out key 0 in it; the other gradients are right."""
    torch = pytest.importorskip("torch")

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(context, query, key, value):
            weights = (query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5).softmax(-1)
            context.save_for_backward(query, key, value, weights)
            return weights @ value

        @staticmethod
        def backward(context, cotangent):
            query, key, value, weights = context.saved_tensors
            dweights = cotangent @ value.swapaxes(-1, -2)
            dscores = weights * (dweights - (dweights * weights).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
            weights = weights.clone()
            weights[..., lost, 0] = 0
            return dscores @ key, dscores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ cotangent

    def attend(query, key, value):
        return Attention.apply(query, key, value)

    report = check(attend, arrays="torch", only=["gradient: plain"], level="backward")
    where = "key 0" if lost == slice(None) else "query 0, key 0"
    assert [cause.name for cause in report.causes] == [
        f"in the backward, the gradient of the values alone leaves out {where}"
    ]


def test_a_row_here_and_there_is_no_block():
    def attend(query, key, value):
        out = right_attention.attend(query, key, value)
        out[..., 64::50, :] += 0.5
        return out

    report = check(attend, arrays="numpy", only=["lengths that no block"], level="forward")
    assert [cause.name for cause in report.causes] == ["wrong only where T > 64"]


def test_an_lse_that_is_wrong_is_one_cause():
    def attend(query, key, value, *, return_lse=False):
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        powers = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
        total = powers.sum(axis=-1)
        out = powers @ value / total[..., None]
        return (out, jnp.log(total)) if return_lse else out

    report = check(attend, arrays="jax", only=["lse"])
    (cause,) = report.causes
    assert cause.name == "lse is of the sum alone: the row's largest score is not added"
    assert cause.harm is Harm.NUMBERS
    assert {"lse", "gradient: lse", "jvp: lse"} <= set(cause.cases)


def test_a_reason_that_a_plainer_case_refutes_is_a_coincidence():
    """A scale of the queries' number is none where there is one query, and other reasons hold in other single cases."""

    def attend(query, key, value):
        return right_attention.attend(query, key, value, scale=query.shape[-2] ** -0.3)

    report = check(attend, arrays="numpy", only=["plain", "one query"], level="forward")
    assert {"plain", "one query"} <= {outcome.case.name for outcome in report.failures}
    assert [cause.name for cause in report.causes] == ["the result is wrong"]  # not that scores are not scaled


def test_two_mistakes_are_two_causes():
    fn = wrong(scale=of_size(-1.0), mask=at_the_end, is_causal=lambda given, arrays: False)
    report = check(fn, arrays="numpy", only=["causal, fewer", "causal, more", "plain", "one query"], level="forward")
    assert {cause.name for cause in report.causes} == {
        "the scale is 1/D",
        "causal is aligned to the end of the keys",
    }


def packs(folder, arrays):
    """A contract file."""
    (folder / "packs.toml").write_text(f'[called]\narrays = "{arrays}"\nlayout = "(BT)ND"\n')
    return str(folder / "packs.toml")


def packed(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, is_causal=False, ends=True):
    """(tokens, N, D), in torch and JAX; without ``ends`` every sequence is thought to have the largest length."""
    xp = jnp if isinstance(query, jax.Array) else __import__("torch")

    def placed(cumulated, tokens, length):  # which sequence a token is of, and its place there
        begins = cumulated if ends else xp.arange(0, tokens + length, length)
        behind = xp.arange(tokens)[:, None] >= begins
        begin = xp.where(behind, begins, 0)
        return behind.sum(1), xp.arange(tokens) - (begin.max(1) if xp is jnp else begin.amax(1))

    (seq_q, i), (seq_k, j) = (
        placed(cu_seqlens_q, len(query), max_seqlen_q),
        placed(cu_seqlens_k, len(key), max_seqlen_k),
    )
    allowed = (seq_q[:, None] == seq_k) & ((j <= i[:, None]) | (not is_causal))
    scores = xp.einsum("tnd,snd->nts", query, key) * query.shape[-1] ** -0.5
    powers = xp.where(allowed, xp.exp(scores), 0)
    return xp.einsum("nts,snv->tnv", powers / powers.sum(-1)[..., None], value)


@pytest.mark.parametrize("arrays", ["jax", "torch"])
def test_packed_sequences(arrays, tmp_path):
    """They are of different lengths, so that a function that counts on one length is wrong."""
    pytest.importorskip(arrays)
    given = {"contract": packs(tmp_path, arrays), "only": ["causal, fewer queries"]}
    assert check(packed, **given).counts() == {"ok": 2}  # and its gradient
    assert not check(functools.partial(packed, ends=False), **given, level="forward").ok


@pytest.mark.smoke(1)
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (lambda i, j, k, m: (k - 1 if k else k, m), "a packed sequence sees the last key of the one before it"),
        (lambda i, j, k, m: (k, m + 1), "a packed sequence sees the first key of the one behind it"),
        (lambda i, j, k, m: (i, j), "keys of packed sequences are cut at cu_seqlens_q, not at cu_seqlens_k"),
    ],
    ids=["before", "behind", "of queries"],
)
def test_a_mistake_in_packed_sequences_is_named(keys, words, tmp_path):
    def attend(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        rows = (cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:])
        parts = []
        for i, j, k, m in zip(*rows, strict=True):
            seen = slice(*keys(i, j, k, m))
            arrays = (x.swapaxes(0, 1) for x in (query[i:j], key[seen], value[seen]))
            parts.append(right_attention.attend(*arrays).swapaxes(0, 1))
        return np.concatenate(parts)

    report = check(attend, contract=packs(tmp_path, "numpy"), only=["plain", "width"], level="forward")
    assert [cause.name for cause in report.causes] == [words]


@pytest.mark.parametrize("arrays", ["jax", "torch"])
def test_gradients_by_hand(arrays):
    """They are judged in place of those that the framework would find."""
    pytest.importorskip(arrays)

    def attend(query, key, value, *, bias=0):
        weights = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5 + bias
        return shares(weights) @ value

    def shares(scores):
        return jax.nn.softmax(scores) if arrays == "jax" else scores.softmax(-1)

    def backward(grad_output, query, key, value, *, bias=0, times=1):
        weights = shares(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5 + bias)
        dweights = grad_output @ value.swapaxes(-1, -2)
        dscores = weights * (dweights - (dweights * weights).sum(-1)[..., None])
        grads = [dscores @ key, dscores.swapaxes(-1, -2) @ query]
        grads = [times * x * query.shape[-1] ** -0.5 for x in grads] + [weights.swapaxes(-1, -2) @ grad_output]
        return [*grads, dscores.sum(0)[None]] if hasattr(bias, "shape") else grads

    given = {"arrays": arrays, "only": ["gradient: plain", "gradient: bias (1, N"], "level": "backward"}
    report = check(attend, backward=backward, **given)
    assert set(report.counts()) == {"ok"}, report.failures
    wrong = check(attend, backward=functools.partial(backward, times=2), **given)
    assert set(wrong.counts()) == {"wrong"}
