"""Functions of libraries by their own path, and what else is called in a way of its own, without an adapter."""

import functools
import importlib

import numpy as np
import pytest

import theirs
from attendax import cli
from attendax.conformance import check
from attendax.conformance.against import remote, report
from attendax.conformance.contract import describing, refusing
from attendax.exits import Refusal


def described(fn, seconds=60.0):
    """The contract of a function in this process."""
    return describing.Describer(remote.Function(fn, in_process=True), seconds).contract()


def masked_or_causal(decodes):
    """Attention that leaves causal out where a mask is given, and perhaps for a single query."""

    def attention(q, k, v, mask=None, is_causal=False):
        s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        if mask is None and is_causal and (s.shape[-2] > 1 or not decodes):
            mask = np.tri(*s.shape[-2:], dtype=bool)
        s = s if mask is None else np.where(mask, s, -np.inf)
        top = s.max(-1, keepdims=True)
        e = np.exp(s - np.where(np.isinf(top), 0, top))
        return e / np.maximum(e.sum(-1, keepdims=True), 1e-30) @ v

    return attention


@pytest.mark.parametrize(("decodes", "kind"), [(True, "convention"), (False, "unusual")])
def test_a_mask_in_place_of_causal(decodes, kind):
    """The rule of transformers, with its rule for a single query; it was a fault of every call with both."""
    contract = described(masked_or_causal(decodes))
    assert (kind, "joins") in [(x.kind, x.axis) for x in contract.meanings()]
    assert not contract.unread


TRANSFORMERS = {
    "integrations.sdpa_attention:sdpa_attention_forward": {"causal", "joins"},
    **{
        f"models.{name}.modeling_{name}:eager_attention_forward": {"empty"}
        for name in ("llama", "gpt2", "gemma2", "gpt_oss")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("path", TRANSFORMERS)
def test_functions_of_transformers(path):
    """Each takes a module; Gemma 2 reads its width of a head there, and gpt-oss its sinks."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    module, _, name = path.partition(":")
    contract = described(getattr(importlib.import_module(f"transformers.{module}"), name))
    assert {x.axis for x in contract.meanings()} == TRANSFORMERS[path]
    assert {x.kind for x in contract.meanings()} == {"convention"}
    assert not contract.unread
    assert contract.form.outcome == "BTND"


def test_an_option_that_is_refused_by_name_is_told():
    """Its error names the option, whatever the value is: there is nothing to judge, and no meaning to find."""

    def attention(q, k, v, logit_cap=None, flash_attention=None):
        if logit_cap is not None:
            raise ValueError("logit_cap is only supported on a TPU")
        s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True) @ v

    contract = described(attention)
    assert not contract.unread
    assert contract.idle == (
        "logit_cap: refused, 'ValueError: logit_cap is only supported on a TPU'",
        "flash_attention: left as it is, not tested",
    )


@pytest.mark.slow
def test_the_function_of_keras(monkeypatch):
    """Its cap is for TPUs alone."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip("keras", reason="Keras is not installed")
    contract = described(importlib.import_module("keras.ops").dot_product_attention)
    assert (contract.form.layout, {x.axis for x in contract.meanings()}) == ("BTND", {"empty"})
    assert not contract.unread


def of_torch():
    """Names of functions that take any arguments by their signature, with those that their forward takes."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def weights(q, k, causal, scale):
        s = q @ k.transpose(-1, -2) * scale
        hidden = ~torch.ones(s.shape[-2:], dtype=torch.bool).tril()
        return (s.masked_fill(hidden, float("-inf")) if causal else s).softmax(-1)

    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal, sm_scale):
            p = weights(q, k, causal, sm_scale)
            ctx.save_for_backward(q, k, v, p)
            ctx.sm_scale = sm_scale
            return p @ v

        @staticmethod
        def backward(ctx, g):
            q, k, v, p = ctx.saved_tensors
            dp = g @ v.transpose(-1, -2)
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * ctx.sm_scale
            return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g, None, None

    class New(torch.autograd.Function):
        @staticmethod
        def forward(q, k, v, causal=False):
            return weights(q, k, causal, q.shape[-1] ** -0.5) @ v

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

    class Layer(torch.nn.Module):
        def forward(self, q, k, v, causal=False):
            return weights(q, k, causal, q.shape[-1] ** -0.5) @ v

    return {"old": Old.apply, "new": New.apply, "module": Layer()}


@pytest.mark.parametrize("name", ["old", "new", "module"])
def test_the_apply_of_an_autograd_function_and_a_module(name):
    """Their parameters are those of the forward; ``apply`` takes none by name."""
    contract = described(of_torch()[name])
    keywords = {ours: option.name for ours, option in contract.form.options.items()}
    assert keywords == {"is_causal": "causal"} | ({"scale": "sm_scale"} if name == "old" else {})
    assert not list(contract.meanings())
    assert not contract.unread
    called = {}
    exec("def fn(q, k, v, causal=False, scale=1.0, /): return causal, scale\n" + remote.by_position(
        remote._parameters(lambda q, k, v, causal=False, scale=1.0, /: None)), called)  # fmt: skip
    assert called["fn"](1, 2, 3, scale=4.0) == (False, 4.0)


def tokens_first(off=0):
    """A function that is made at run time."""

    def attention(q, k, v, causal=False):
        return theirs.attention(q, k, v, causal, off)

    return attention


class Kept:
    def __init__(self, off=0):
        self.attend = tokens_first(off)

    def __call__(self, q, k, v, causal=False):
        return self.attend(q, k, v, causal)

    def method(self, q, k, v, causal=False):
        return self.attend(q, k, v, causal)


FORWARD = {"level": "forward", "seed": 7, "budget": 0, "only": ["plain", "L4"]}
MADE = {
    "closure": tokens_first, "callable": Kept, "method": lambda off: Kept(off).method,
    "partial": lambda off: functools.partial(Kept.method, Kept(off)),
}  # fmt: skip


@pytest.mark.parametrize("kind", MADE)
def test_a_function_that_no_other_process_can_import(kind):
    """It is described in this process; it was held to the protocol, and its layout was a fault."""
    found = check(MADE[kind](0), **FORWARD)
    assert found.ok
    assert "  arrays    query, key, value as (B, T, N, D)" in found.called
    words = "causal is aligned to the end of the keys, and one key ahead is seen (j <= i + S - T + 1)"
    assert [cause.name for cause in check(MADE[kind](1), **FORWARD).causes] == [words]


def test_in_process_and_by_hand(monkeypatch, tmp_path, capsys):
    path = "contract.in_numpy:btnd"
    found = check(path, in_process=True, **FORWARD)
    assert found.ok
    assert "  arrays    query, key, value as (B, T, N, D)" in found.called
    assert found.process == "as requested"
    assert cli.main(["check", path, "--in-process", "--only", "plain", "--seed", "7", "--budget", "0"]) == 0
    assert "(B, T, N, D)" in capsys.readouterr().out
    fn = tokens_first()
    fn.backward = lambda g, q, k, v: (g, g, g)
    with pytest.raises(ValueError, match="gradients by hand are called by the protocol"):
        check(fn, **FORWARD)


def test_gradients_by_hand_of_a_function_with_its_own_conventions():
    """Causal is aligned to the end: a flag had to say so."""

    def attention(query, key, value, is_causal=False):
        return tokens_first()(*(x.swapaxes(1, 2) for x in (query, key, value)), is_causal).swapaxes(1, 2)

    def backward(g, query, key, value, is_causal=False):
        s = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        s = np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2]), s, -np.inf) if is_causal else s
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        dp = g @ value.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * query.shape[-1] ** -0.5
        return ds @ key, ds.swapaxes(-1, -2) @ query, p.swapaxes(-1, -2) @ g

    attention.backward = backward
    found = check(attention, seed=7, budget=0, only=["plain", "fewer queries"])
    assert not found.failures, str(found)
    assert found.coverage.judged["gradients"]


def of_one(q, k, v, is_causal, off):
    s = np.einsum("tnd,snd->nts", q, k) * q.shape[-1] ** -0.5
    T, S = s.shape[-2:]
    s = np.where(np.tri(T, S, S - T + off), s, -np.inf) if is_causal else s
    top = s.max(-1, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.einsum("nts,snd->tnd", e / np.maximum(total, 1e-30), v), (np.log(total) + top)[..., 0]


def of_all(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, return_lse=False, off=0):
    at = zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:], strict=True)
    found = [of_one(q[a:b], k[c:d], v[c:d], causal, off) for a, b, c, d in at]
    outs, logs = zip(*found, strict=True)
    return (np.concatenate(outs), np.concatenate(logs, -1)) if return_lse else np.concatenate(outs)


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False, return_lse=False):
    """As FlashAttention has it: the tokens of all sequences on one axis, and the log-sum-exp as (N, tokens)."""
    return of_all(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, return_lse)


def ahead(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False):
    return of_all(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, off=1)


def of_one_list(q, k, v, cu_seqlens, max_seqlen, causal=False):
    return varlen(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal)


def through_the_next(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
    """It reads a key of the sequence behind it: of one sequence alone it is right."""
    at = zip(cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:] + 1, strict=True)
    return np.concatenate([of_one(q[a:b], k[c:d], v[c:d], False, 0)[0] for a, b, c, d in at])


def test_packed_sequences_need_no_flag():
    contract = described(varlen)
    assert {k: x.name for k, x in contract.form.options.items()} == {"is_causal": "causal", "return_lse": "return_lse"}
    assert contract.means("causal") == "aligned to the end"
    assert "arrays    query, key, value as (tokens, N, D)" in str(contract)
    found = check(varlen, level="forward", seed=7, budget=0, only=["plain", "L4", "lse"])
    assert found.ok, str(found)
    assert found.coverage.judged["lse"]
    words = "causal is aligned to the end of the keys, and one key ahead is seen (j <= i + S - T + 1)"
    assert [cause.name for cause in check(ahead, **FORWARD).causes] == [words]


def test_one_list_of_where_sequences_begin():
    contract = described(of_one_list)
    assert contract.square
    assert not contract.unread
    assert not list(contract.meanings())
    found = check(of_one_list, level="forward", seed=7, budget=0, only=["plain", "L4"])
    assert not found.failures, str(found)
    assert found.judged


def test_packed_sequences_that_read_each_other_have_no_formula():
    with pytest.raises(refusing.NoFormula, match=r"nearest: query, key, value as \(tokens, N, D\)"):
        described(through_the_next, seconds=4.0)


def test_packed_sequences_are_not_compared():
    with pytest.raises(Refusal, match=r"A, .*varlen, takes packed sequences"):
        report.diff(varlen, varlen)


def test_an_operator_of_torch_has_the_parameters_of_its_schema():
    """Its signature is (*args, **kwargs); it was called with every keyword of the protocol."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    contract = described(torch.ops.aten.scaled_dot_product_attention)
    keywords = {ours: option.name for ours, option in contract.form.options.items()}
    assert keywords == {"mask": "attn_mask", "is_causal": "is_causal", "scale": "scale"}
    assert not contract.unread
    assert not list(contract.meanings())
