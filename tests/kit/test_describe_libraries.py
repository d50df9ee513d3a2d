"""Functions of libraries by their own path, and what else is called in a way of its own, without an adapter."""

import importlib

import numpy as np
import pytest

from attendax.conformance.against import remote
from attendax.conformance.contract import describing


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
