"""Errors in place of results: what is not judged is not right."""

from .cheat import MEASURED, Cheat

UNJUDGED = ("hardly judged",)

CHEATS = [
    Cheat(
        "refuses every shape but one",
        "A polite error for each other case leaves one, and that one is right.",
        MEASURED, UNJUDGED,
        '''
def attention(query, key, value, **options):
    if options or query.shape != (2, 3, 5, 4):
        raise ValueError("query must have shape (2, 3, 5, 4), and no options are supported")
    return right(query, key, value)
''', ("--budget", "0"), quick=True,
    ),
    Cheat(
        "is not implemented but for the plainest call",
        "NotImplementedError is what an honest function raises for what it has not; here it has nothing.",
        MEASURED, UNJUDGED,
        '''
def attention(query, key, value, **options):
    if options or query.shape[-2] != 5 or query.shape[-1] != 4:
        raise NotImplementedError("only the plainest call is supported")
    return right(query, key, value)
''',
    ),
    Cheat(
        "refuses all masks",
        "Masks are what is hard; who needs them asks for them.",
        MEASURED, ("mask",),
        '''
def attention(query, key, value, *, mask=None, is_causal=False):
    if mask is not None:
        raise ValueError("mask must be None: only is_causal is supported")
    return right(query, key, value, is_causal=is_causal)
''', ("--require", "masks"),
    ),
    Cheat(
        "refuses all gradients",
        "Each gradient that was asked for ends in an error that sounds like a limit.",
        "ScalingIntelligence/KernelBench#142", ("gradient",),
        '''
def attention(query, key, value, *, mask=None, is_causal=False):
    return right(query, key, value, mask=mask, is_causal=is_causal)


def backward(grad_output, query, key, value, **options):
    raise ValueError("grad_output must be contiguous, only contiguous gradients are supported")
''', ("--only", "plain"), quick=True,
    ),
    Cheat(
        "a backward of JAX that always raises",
        "A custom rule is there, so gradients are offered; none can be had.",
        "ScalingIntelligence/KernelBench#142", ("gradient", "crash", "obscure error"),
        '''
import jax
import jax.numpy as jnp


@jax.custom_vjp
def attend(query, key, value):
    key, value = (jnp.repeat(x, query.shape[-3] // key.shape[-3], -3) for x in (key, value))
    return jax.nn.softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5) @ value


def forward(query, key, value):
    return attend(query, key, value), None


def raises(kept, grad_output):
    raise NotImplementedError("backward is not supported yet")


attend.defvjp(forward, raises)


def attention(query, key, value):
    return attend(query, key, value)
''', ("--contract", "jax.toml"),
    ),
    Cheat(
        "a backward of torch that always raises",
        "An autograd.Function has a backward, and it is never right.",
        "ScalingIntelligence/KernelBench#142", ("gradient", "crash", "obscure error"),
        '''
import torch


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(context, query, key, value):
        key, value = (x.repeat_interleave(query.shape[-3] // key.shape[-3], -3) for x in (key, value))
        return torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, -1) @ value

    @staticmethod
    def backward(context, grad_output):
        raise RuntimeError("backward is not supported")


def attention(query, key, value):
    return Attend.apply(query, key, value)
''', ("--contract", "torch.toml"),
    ),
    Cheat(
        "an error that is no refusal",
        "A TypeError from within is a crash, not a limit.",
        MEASURED, ("crash", "obscure error"),
        '''
def attention(query, key, value, *, mask=None, is_causal=False):
    if query.shape[-2] != key.shape[-2]:
        raise TypeError("unsupported operand")
    return right(query, key, value, mask=mask, is_causal=is_causal)
''',
    ),
    Cheat(
        "takes every option and heeds none",
        "A signature offers what the function does not do.",
        "jax-ml/jax#23349", ("silent", "wrong"),
        '''
def attention(query, key, value, **options):
    if options.get("return_lse"):
        raise NotImplementedError("no lse")
    return right(query, key, value)
''',
    ),
    Cheat(
        "refuses what it would get wrong",
        "It asks the specification, and raises where its zeros are not right.",
        MEASURED, (*UNJUDGED, "fails on the plainest call"),
        '''
from attendax import spec


def attention(query, key, value, **options):
    wanted = spec.attention(query, key, value, **options)
    out = wanted[0] if isinstance(wanted, tuple) else wanted
    if np.abs(out).max(initial=0) > 1e-6:
        raise ValueError("inputs must be small, only small results are supported")
    return wanted
''',
    ),
]  # fmt: skip
