"""Kernels that are right at small sizes: what is wrong at which sizes as people run them, forward and backward.

A row has the sizes that show it, by the axes of a case (``R`` is the query heads of a key head), and what becomes of
the results there.
"""

import functools
from typing import NamedTuple

import numpy as np

import right_attention


class Faulty(NamedTuple):
    name: str
    shows: str  # at which sizes, as Python
    becomes: str = "0 * x"  # of each result there, as Python


ZEROS = [  # by https://github.com/ScalingIntelligence/KernelBench/issues/165 an absolute tolerance does not see them
    Faulty("zeros for D >= 128", "D >= 128"),
    Faulty("zeros for D >= 160", "D >= 160"),
    Faulty("zeros at D = 100", "D == 100"),
    Faulty("zeros for V = 256", "V == 256"),
    Faulty("zeros 40 wide", "40 in (D, V)"),  # thu-ml/SageAttention#119
    Faulty("zeros 48 wide", "48 in (D, V)"),  # tenstorrent/tt-metal#33434
    Faulty("zeros for 7 heads", "N == 7"),  # HazyResearch/HipKittens#22, as those of 28
    Faulty("zeros for 28 heads", "N == 28"),
    Faulty("zeros for N >= 8", "N >= 8"),
    Faulty("zeros for N >= 64", "N >= 64"),
    Faulty("zeros for B >= 4", "B >= 4"),
    Faulty("zeros for groups of 6 or 7", "R in (6, 7)"),  # mlc-ai/mlc-llm#2543
    Faulty("zeros for groups of 8", "R == 8"),
    Faulty("zeros for groups of 16", "R == 16"),
    Faulty("zeros for S >= 2,048", "S >= 2048"),
    Faulty("zeros for T > 4,097", "T > 4097"),
    Faulty("zeros for 32 tokens", "T == S == 32"),  # tspeterkim/flash-attention-minimal#2
    Faulty("zeros at one query of many keys", "T == 1 and S >= 2048"),
]
GARBAGE = [
    Faulty("half at D = 96", "D == 96", "x / 2"),
    Faulty("T is no multiple of 64", "T % 64", "last(x, T % 64, T)"),
    Faulty("T is no multiple of 128", "T % 128", "last(x, T % 128, T)"),
    Faulty("S one beyond a multiple of 64", "S % 64 == 1", "x + 1"),
    Faulty("causal and long, the last block", "causal and T == S and S >= 2048", "last(x, 64, T)"),
    Faulty("16 queries of many keys", "T == 16 and S >= 2048", "-x"),
    Faulty("an index of 8 bits, of batch and head", "B * N > 256", "wrapped(x)"),
]
TABLE = [*ZEROS, *GARBAGE]


def last(x, rows, length):
    """The last rows of the queries are not written; gradients of keys keep their first numbers alone."""
    x = x.copy()
    x[..., max(0, x.shape[-2] - rows) :, :] = 0
    return x


def wrapped(x):
    """Heads beyond an index of 8 bits are those of the index without the upper ones."""
    heads = x.reshape(-1, *x.shape[-2:])
    return heads[np.arange(len(heads)) % 256].reshape(x.shape)


def facts(query, key, value, is_causal=False):
    """The sizes of a call, by their letters."""
    B, N, T, D = query.shape
    G, S, V = *key.shape[1:3], value.shape[-1]
    return {
        "B": B, "N": N, "G": G, "R": N // G, "T": T, "S": S, "D": D, "V": V, "causal": is_causal,
        "dtype": query.dtype.name,
    }  # fmt: skip


def with_fault(fault):
    """The attention with the fault, forward and backward."""

    def spoiled(x, known):
        return eval(fault.becomes, {"x": x, "last": last, "wrapped": wrapped, **known}).astype(x.dtype)

    @functools.wraps(right_attention.attend)
    def attend(query, key, value, **given):
        known, out = (
            facts(query, key, value, given.get("is_causal", False)),
            right_attention.attend(query, key, value, **given),
        )
        return spoiled(out, known) if eval(fault.shows, known) else out

    def backward(grad_output, query, key, value, **given):
        known = facts(query, key, value, given.get("is_causal", False))
        grads = right_attention.backward(grad_output, query, key, value, **given)
        return [spoiled(x, known) if eval(fault.shows, known) else x for x in grads]

    return attend, backward


def rounded(x, bits):
    """Float32 with fewer bits of its mantissa: 10 are tf32, 7 bfloat16."""
    if bits is None:
        return x
    whole = np.ascontiguousarray(x, np.float32).view(np.uint32) + np.uint32(1 << (22 - bits))
    return (whole & np.uint32(2**32 - (1 << (23 - bits)))).view(np.float32)


def kernel(query, key, value, *, is_causal=False, scale=None, bits=None, sums="float32"):
    """Tiles of 32 keys: products of operands of so many bits, row sums and results in a dtype of their own."""
    wide, group = np.float32, query.shape[1] // key.shape[1]
    q = rounded(query.astype(wide) * wide(query.shape[-1] ** -0.5 if scale is None else scale), bits)
    k, v = (rounded(np.repeat(x.astype(wide), group, axis=1), bits) for x in (key, value))
    scores = q @ k.swapaxes(-1, -2)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total, out = (np.zeros((*query.shape[:-1], n), sums) for n in (1, value.shape[-1]))
    for start in range(0, key.shape[2], 32):
        tile = slice(start, start + 32)
        total += powers[..., tile].sum(axis=-1, keepdims=True).astype(sums)
        out += (rounded(powers[..., tile], bits) @ v[..., tile, :]).astype(sums)
    return (out.astype(wide) / total.astype(wide)).astype(query.dtype)
