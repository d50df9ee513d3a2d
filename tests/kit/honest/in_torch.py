"""Right candidates of PyTorch."""

from .honest import Honest

HONEST = [
    Honest(
        "scaled_dot_product_attention", "torch",
        '''
import torch.nn.functional as F


def attention(query, key, value, *, mask=None, is_causal=False, scale=None):
    grouped = query.shape[-3] != key.shape[-3]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
''', least=60,
    ),
    Honest(
        "an autograd.Function with a backward by hand", "torch",
        '''
import torch


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(context, query, key, value, seen):
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        if seen is not None:
            scores = scores.masked_fill(~seen, -torch.inf)
        weights = torch.softmax(scores, -1)
        context.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    def backward(context, grad_output):
        query, key, value, weights = context.saved_tensors
        grad_weights = grad_output @ value.transpose(-1, -2)
        delta = (grad_weights * weights).sum(-1, keepdim=True)
        grad_scores = weights * (grad_weights - delta) * query.shape[-1] ** -0.5
        return grad_scores @ key, grad_scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ grad_output, None


def attention(query, key, value, *, is_causal=False):
    group = query.shape[-3] // key.shape[-3]
    key, value = (x.repeat_interleave(group, -3) for x in (key, value))
    seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril() if is_causal else None
    return Attend.apply(query, key, value, seen)
''',
    ),
    Honest(
        "an autograd.Function whose context setup_context makes", "torch",
        '''
import torch


def powers(query, key):
    return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(query, key, value):
        return powers(query, key) @ value

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context, grad):
        query, key, value = context.saved_tensors
        weights, dweights = powers(query, key), grad @ value.mT
        scores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
        return scores @ key, scores.mT @ query, weights.mT @ grad


def attention(query, key, value):
    return Attend.apply(query, key, value)
''', least=20,
    ),
    Honest(
        "gradients by .backward() alone", "torch",
        '''
import torch
from torch.utils.checkpoint import checkpoint


def formula(query, key, value):
    return torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, -1) @ value


def attention(query, key, value):
    group = query.shape[-3] // key.shape[-3]
    key, value = (x.repeat_interleave(group, -3) for x in (key, value))
    return checkpoint(formula, query, key, value, use_reentrant=True)
''',
    ),
    Honest(
        "einsum, in float32 or wider", "torch",
        '''
import torch


def attention(query, key, value, *, mask=None, bias=None):
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    group = query.shape[-3] // key.shape[-3]
    q, k, v = (x.to(wide) for x in (query, key.repeat_interleave(group, -3), value.repeat_interleave(group, -3)))
    scores = torch.einsum("...td,...sd->...ts", q, k) / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.einsum("...ts,...sv->...tv", torch.softmax(scores, -1), v).to(query.dtype)
''',
    ),
]  # fmt: skip
