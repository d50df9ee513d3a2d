"""The layers that Coq proved, up to a whole encoder block, run on floats beside the specification. Needs no Coq."""

import numpy as np
import proved
import pytest
from proved import FLOATS, boolean, curry, data, listed
from scipy.special import expit

from attendax import spec
from attendax.params import EncoderBlockParams, MultiHeadParams

B, T, N, D, F, EPS = 1, 2, 2, 2, 3, 1e-3  # batch, tokens, heads, width of a head, hidden width
M = N * D
THE = proved.definitions()
TOKENS = list(np.ndindex(B, T))
FIELDS = "forward", "to_weights", "to_input"
ATTENTION = {"LLLL": "_Q", "LLLRL": "_K", "LLLRR": "_V", "R": "_O"}
FEED_FORWARD = {"LL": "1", "R": "2"}
"""Where weights lie: of two layers the first has its own to the left, the second to the right."""
ACTIVATION = (lambda z: z * float(expit(z))), (lambda z: float(expit(z) * (1 + z * (1 - expit(z)))))  # silu


def block_paths(attention, norm1, feed_forward, norm2):
    """The path of every affine map and of every norm of a block, and the end of its name."""
    affine = {attention + path: name for path, name in ATTENTION.items()}
    affine |= {feed_forward + path: name for path, name in FEED_FORWARD.items()}
    return affine, {norm1: "1", norm2: "2"}


BLOCKS = {"pre": block_paths("LR", "LL", "RR", "RL"), "post": block_paths("LL", "LR", "RL", "RR")}


def index(place):
    """A place on an axis as a number: of the model's width, a head and a column in it are one."""
    return place if isinstance(place, int) else place.parts[0] * D + place.parts[1]


def pairs(first, second):
    return [data("Pair", a, b) for a in first for b in second]


def name_of(place, suffix):
    return {"Matrix": "W", "Offset": "b", "Gamma": "gamma", "Beta": "beta"}[place.name] + suffix


def weights(paths, arrays):
    """The number at each place of the weights."""

    def at(place):
        path = ""
        while place.name in ("Inl", "Inr"):
            path += place.name[-1].upper()
            (place,) = place.parts
        affine, norms = paths
        suffix = (affine if place.name in ("Matrix", "Offset") else norms)[path]
        return float(arrays[name_of(place, suffix)][tuple(map(index, place.parts))])

    return at


def at_path(path, place):
    for side in reversed(path):
        place = data("Inl" if side == "L" else "Inr", place)
    return place


def weight_gradients(paths, arrays, to_weights):
    """Gradients by ``to_weights`` at every place, as arrays by name."""
    affine, norms = paths
    heads = pairs(range(N), range(D))
    axes = {"_Q": (range(M), heads), "_O": (heads, range(M)), "1": (range(M), range(F)), "2": (range(F), range(M))}
    axes |= {"_K": axes["_Q"], "_V": axes["_Q"]}
    places = [
        (path, end, data("Matrix", a, b)) for path, end in affine.items() for a in axes[end][0] for b in axes[end][1]
    ]
    places += [(path, end, data("Offset", b)) for path, end in affine.items() for b in axes[end][1]]
    places += [
        (path, end, data(kind, m)) for path, end in norms.items() for kind in ("Gamma", "Beta") for m in range(M)
    ]
    results = {name: np.full(array.shape, np.nan) for name, array in arrays.items()}
    for path, end, place in places:
        results[name_of(place, end)][tuple(map(index, place.parts))] = to_weights(at_path(path, place))
    return results


def of_tokens(array):
    return lambda place: float(array[(*place.parts[0], place.parts[1])])


def on_tokens(f):
    return np.reshape([f(place) for place in pairs(TOKENS, range(M))], (B, T, M))


def numbers(rng):
    shapes = dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), (M, M)) | dict.fromkeys(("b_Q", "b_K", "b_V", "b_O"), (M,))
    shapes |= {"W1": (M, F), "b1": (F,), "W2": (F, M), "b2": (M,)}
    shapes |= dict.fromkeys(("gamma1", "beta1", "gamma2", "beta2"), (M,))
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("norm", BLOCKS)
def test_the_encoder_block_is_what_was_proved(norm, rng):
    arrays, (x, dy) = numbers(rng), rng.standard_normal((2, B, T, M))
    mask = rng.random((B, N, T, T)) < 0.6
    mask[0, 0, 1] = False  # this token may look at nothing in this head

    def allowed(i, j):  # pairs of a token and a head; a token is a pair of its batch and its position
        (one, head), (other, same) = i.parts, j.parts
        return boolean(head == same and one[0] == other[0] and mask[one[0], head, one[1], other[1]])

    axes = map(listed, (TOKENS, range(N), range(D), range(M), range(F)))
    layer = THE[f"encoder_block_{norm}"].whole(FLOATS, *axes, curry(allowed, 2), D**-0.5, EPS, *ACTIVATION)
    forward, to_weights, to_input = layer.parts
    given = weights(BLOCKS[norm], arrays), of_tokens(x)
    grads = weight_gradients(BLOCKS[norm], arrays, to_weights(given[0])(given[1])(of_tokens(dy)))

    attention = MultiHeadParams(**{name: arrays[name] for name in MultiHeadParams._fields})
    params = EncoderBlockParams(attention, **{name: arrays[name] for name in EncoderBlockParams._fields[1:]})
    options = {"num_heads": N, "mask": mask, "norm": norm, "activation": "silu", "eps": EPS}
    want_x, want = spec.encoder_block_backward(dy, x, params, **options)
    close(on_tokens(forward(given[0])(given[1])), spec.encoder_block(x, params, **options))
    close(on_tokens(to_input(given[0])(given[1])(of_tokens(dy))), want_x)
    for name, array in (want._asdict() | want.attention._asdict()).items():
        if name != "attention":
            close(grads[name], array)


@pytest.mark.parametrize("size", [1.0, 300.0])
def test_softmax_is_what_was_proved(size, rng):
    x, dy = rng.standard_normal((2, 5)) * size
    forward, _, to_input = THE["softmax"].whole(FLOATS, listed(range(5))).parts
    nothing = THE["no_weights"]
    close([forward(nothing)(x.item)(a) for a in range(5)], spec.softmax(x))
    close([to_input(nothing)(x.item)(dy.item)(a) for a in range(5)], spec.softmax_backward(dy, x))


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max(initial=1))
