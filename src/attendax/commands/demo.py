"""``attendax demo``: attention of small numbers, printed."""

import argparse

import jax.numpy as jnp
import numpy as np

from attendax import attention, masks, spec
from attendax.exits import FAILED
from attendax.legible import columns, wrapped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``attendax demo`` has no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print the demo: attention weights of two small sequences, the same under a causal mask, and ``attention``."""
    rng = np.random.RandomState(42)  # the generator behind np.random.seed(42), without touching the global one
    Q, K, V = (rng.standard_normal((2, 4, 8)) * 0.1 for _ in range(3))
    output, weights = spec.scaled_dot_product_attention(Q, K, V)
    causal_mask = np.broadcast_to(spec.create_causal_mask(4), (2, 4, 4))
    _, causal_weights = spec.scaled_dot_product_attention(Q, K, V, mask=causal_mask)
    # NumPy's own defaults, said again: what is printed does not depend on what the user has set.
    width = columns()
    layout = np.printoptions(threshold=1000, edgeitems=3, linewidth=min(75, width), formatter=None, legacy=False)
    digits = np.printoptions(precision=8, suppress=False, sign="-", floatmode="maxprec", formatter=None)
    with layout, digits:
        rule = "-" * min(60, width)
        print("Batch size: 2\nSequence length: 4")
        print("Key/Query dimension (d_k): 8\nValue dimension (d_v): 8")
        print(f"Q shape: {Q.shape}\nK shape: {K.shape}\nV shape: {V.shape}")
        print(f"\n{rule}\nExample 1: Attention without mask")
        print(f"\nOutput shape: {output.shape}\nAttention weights shape: {weights.shape}")
        print(f"\nAttention weights (first batch):\n{weights[0]}\nRow sums: {weights[0].sum(axis=1)}")
        print(f"\n{wrapped('Output (first batch, first sequence position):')}\n{output[0, 0]}")
        print(f"\n{rule}\nExample 2: Attention with causal mask")
        print(wrapped("(Each position can only attend to itself and previous positions)"))
        print(f"\nCausal mask (first batch):\n{causal_mask[0].astype(int)}")
        print(f"\n{wrapped('Attention weights with causal mask (first batch):')}\n{causal_weights[0]}")
        print(f"\n{wrapped('Note: Upper triangle is 0 (masked positions)')}")
        print(f"\n{rule}")
        return 0 if _show_attention(Q, K, V) else FAILED


def _show_attention(Q: np.ndarray, K: np.ndarray, V: np.ndarray) -> bool:
    """Print ``attention`` of these numbers, as one head, with a mask as a value; tell if the specification agrees."""
    query, key, value = (x[:, None].astype(np.float32) for x in (Q, K, V))
    mask = masks.causal() & masks.padding(np.array([4, 2]))
    out, lse = map(np.asarray, attention(*map(jnp.asarray, (query, key, value)), mask=mask, return_lse=True))
    same = np.abs(out - spec.attention(query, key, value, mask=mask)).max() < 1e-6
    print(wrapped("Example 3: attention, with a mask as a value"))
    print(wrapped("(B texts, N heads, T queries and S keys of width D, values of width V)"))
    calls = "mask = causal() & padding([4, 2])", "out, lse = attention(query, key, value, mask=mask, return_lse=True)"
    print("\n" + "\n".join(wrapped(call, indent="    ") for call in calls) + "\n")
    shapes = ("query", "B, N, T, D", query), ("key", "B, N, S, D", key), ("value", "B, N, S, V", value)
    for name, axes, array in (*shapes, ("out", "B, N, T, V", out), ("lse", "B, N, T", lse)):
        print(f"{name:<5} {f'({axes})':<12} = {array.shape}")
    print(f"\n{wrapped('mask, text 2 of 2 tokens: keys 3 and 4 are padding')}")
    print(mask.to_dense(4, 4)[1, 0].astype(int))
    with np.printoptions(precision=4, floatmode="fixed"):
        print(f"\nout, text 2, query 4:\n{out[1, 0, 3]}\nlse, text 2:\n{lse[1, 0]}")
    print("\n" + wrapped(f"The specification in NumPy {'agrees' if same else 'DIFFERS'}: spec.attention, to 1e-06."))
    return bool(same)
