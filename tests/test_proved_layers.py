"""The layers that Coq proved, up to a whole encoder block, run on floats beside the specification. Needs no Coq."""

import numpy as np
import pytest
from scipy.special import expit

import proved
from attendax import spec
from attendax.params import EncoderBlockParams, MultiHeadParams
from proved import FLOATS, boolean, curry, data, listed

B, T, N, D, F, EPS = 1, 3, 2, 2, 3, 1e-3  # batch, tokens, heads, width of a head, hidden width
M = N * D
THE = proved.definitions()
TOKENS = list(np.ndindex(B, T))
FIELDS = "forward", "to_weights", "to_input"
ATTENTION = {"LLLL": "_Q", "LLLRL": "_K", "LLLRR": "_V", "R": "_O"}
FEED_FORWARD = {"LL": "1", "R": "2"}
"""Where weights lie: of two layers the first has its own to the left, the second to the right."""
ACTIVATION = (lambda z: z * float(expit(z))), (lambda z: float(expit(z) * (1 + z * (1 - expit(z)))))  # silu


def block_paths(attention, norm1, feed_forward, norm2):
    return (
        {attention + path: name for path, name in ATTENTION.items()}
        | {feed_forward + path: name for path, name in FEED_FORWARD.items()}
        | {norm1: "1", norm2: "2"}
    )


BLOCKS = {"pre": block_paths("LR", "LL", "RR", "RL"), "post": block_paths("LL", "LR", "RL", "RR")}


def index(place):
    """A place on an axis as a number: of the model's width, a head and a column in it are one."""
    return place if isinstance(place, int) else place.parts[0] * D + place.parts[1]


def pairs(first, second):
    return [data("Pair", a, b) for a in first for b in second]


def weights(paths, arrays):
    """The number at each place of the weights."""

    def at(place):
        path = ""
        while place.name in ("Inl", "Inr"):
            path += place.name[-1].upper()
            (place,) = place.parts
        return float(arrays[name_of(place, paths[path])][tuple(map(index, place.parts))])

    return at


def name_of(place, suffix):
    kind = {"Matrix": "W", "Offset": "b", "Gamma": "gamma", "Beta": "beta"}[place.name]
    return kind + suffix
