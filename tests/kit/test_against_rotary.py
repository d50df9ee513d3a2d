"""`attendax diff --layers`: how queries and keys are turned and normed, told of layers that differ in that."""

import numpy as np
import pytest

from attendax.conformance.against import diff


def rms(x):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)


def turned(x, speeds, R, pairing, larger):
    """The first R numbers of each head, in pairs; of "half a head", with what stands so far away."""
    angles = np.arange(x.shape[-2])[:, None] * speeds
    cos, sin = larger * np.cos(angles), larger * np.sin(angles)
    far = x.shape[-1] // 2 if pairing == "half a head" else R // 2
    one, other = (
        (slice(0, R, 2), slice(1, R, 2)) if pairing == "neighbours" else (slice(R // 2), slice(far, far + R // 2))
    )
    y = x.copy()
    y[..., one], y[..., other] = x[..., one] * cos - x[..., other] * sin, x[..., one] * sin + x[..., other] * cos
    return y


def speeds_of(R, width, base, linear, ntk, yarn):
    base = base * (ntk ** (width / (width - 2)) if width > 2 else 1)
    speeds = base ** -(np.arange(0, R, 2) / max(width, 1)) / linear
    if not yarn:
        return speeds, 1.0
    factor, trained = yarn
    low, high = (width * np.log(trained / (2 * np.pi * beta)) / (2 * np.log(base)) for beta in (32, 1))
    low, high = max(np.floor(low), 0), min(np.ceil(high), width - 1)
    ramp = np.clip((np.arange(R // 2) - low) / max(high - low, 1e-3), 0, 1)
    return speeds / factor * ramp + speeds * (1 - ramp), 0.1 * np.log(factor) + 1


def layer(
    part=1.0, whole=False, base=1e4, pairing="halves", linear=1.0, ntk=1.0, yarn=(), norm="", after=False, plus=0
):
    """A function of (params, x) by these conventions."""

    def normed(y, params, name):
        if norm == "head":
            return rms(y) * (plus + params[f"{name}_norm_scale"])
        if norm != "whole":
            return y
        flat = y.swapaxes(1, 2).reshape(len(y), y.shape[2], -1)
        flat = rms(flat) * (plus + params[{"query": "queries", "key": "keys"}[name] + "_norm_scale"])
        return flat.reshape(y.swapaxes(1, 2).shape).swapaxes(1, 2)

    def run(params, x, heads=2):
        parts = {
            name: (x @ params[f"{name}_kernel"]).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
            for name in ("query", "key", "value")
        }
        D = x.shape[-1] // heads
        R = int(D * part) // 2 * 2
        speeds, larger = speeds_of(R, D if whole else R, base, linear, ntk, yarn)
        for name in ("query", "key"):
            y = parts[name] if after else normed(parts[name], params, name)
            y = turned(y, speeds, R, pairing, larger)
            parts[name] = normed(y, params, name) if after else y
        scores = parts["query"] @ parts["key"].swapaxes(-1, -2) * D**-0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ parts["value"]
        return x + out.swapaxes(1, 2).reshape(x.shape) @ params["out_kernel"]

    return run


HALF, WHOLE = (
    "part of a head that rotary turns: A the whole; B half",
    "frequencies of rotary: A for the width of the part; B for the width of the head",
)
SCALED = "scaling of rotary: A none; B "
CASES = {
    "part": ({"part": 0.5}, [HALF]),
    "part, counted by the head": ({"part": 0.5, "whole": True}, [HALF, WHOLE]),
    "a quarter, neighbours": (
        {"part": 0.25, "pairing": "neighbours"},
        ["rotary: A pairs the halves; B pairs neighbours",
         "part of a head that rotary turns: A the whole; B a quarter"],
    ),
    "split halves of the whole": (
        {"part": 0.5, "pairing": "half a head"},
        ["rotary: A pairs the halves; B pairs columns half a head apart", HALF],
    ),
    "base": ({"base": 5e5}, ["base of rotary: A 10000; B 500000"]),
    "a base that no list has": ({"base": 25000.0}, ["base of rotary: A 10000; B 25000"]),
    "linear": ({"linear": 4.0}, [SCALED + "linear by 4"]),
    "linear, by 3": ({"linear": 3.0}, [SCALED + "linear by 3"]),
    "NTK": ({"ntk": 8.0}, [SCALED + "NTK by 8"]),
    "YaRN": ({"yarn": (16.0, 4096)}, [SCALED + "YaRN by 16, trained on 4096"]),
    "YaRN of another base": (
        {"yarn": (4.0, 32768), "base": 1e6},
        ["base of rotary: A 10000; B 1e+06", SCALED + "YaRN by 4, trained on 32768"],
    ),
    "norm of heads": (
        {"norm": "head"}, ["weights: A reads no others; B alone reads key_norm_scale, query_norm_scale"]
    ),
    "norm of all heads": (
        {"norm": "whole"}, ["weights: A reads no others; B alone reads keys_norm_scale, queries_norm_scale"]
    ),
}  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", CASES)
def test_what_rotary_is_otherwise_is_named(name):
    said, words = CASES[name]
    found = diff(layer(), layer(**said), layers=True)
    assert [str(difference) for difference in found.differences] == words
    assert found.explained, found.text()


@pytest.mark.parametrize("norm", ["head", "whole"])
def test_the_norm_of_queries_and_keys(norm):
    found = diff(layer(norm=norm), layer(norm=norm, plus=1, after=True), layers=True)
    assert [str(difference) for difference in found.differences] == [
        "norm of queries and keys: A RMS norm; B RMS norm times (1 + scale)",
        "norm of queries and keys: A before rotary; B after rotary",
    ]
    assert found.explained, found.text()


def test_a_base_that_is_a_keyword_is_given():
    def theirs(params, x, heads=2, theta=500000.0):
        return layer(base=theta)(params, x, heads)

    found = diff(layer(), theirs, layers=True)
    assert found.around == "B", found.text()
    assert "theta=10000.0" in found.adapter


def test_what_is_no_rotary_that_is_known_is_said_so():
    def odd(params, x, heads=2):
        return layer()(params, x * (1 + np.arange(x.shape[1])[:, None] / 50).astype(np.float32), heads)

    found = diff(layer(), odd, layers=True)
    assert not found.explained
    assert found.differences == ()


def with_scale(scale):
    def layer(params, x, heads=2):
        rows = ((x @ params[f"{name}_kernel"]).reshape(*x.shape[:2], heads, -1) for name in ("query", "key", "value"))
        query, key, value = (y.swapaxes(1, 2) for y in rows)
        scores = query @ key.swapaxes(-1, -2) * np.float32(scale(query.shape[-1]))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = weights / weights.sum(-1, keepdims=True) @ value
        return x + out.swapaxes(1, 2).reshape(x.shape) @ params["out_kernel"]

    return layer


def test_what_is_found_of_the_other_layer_is_held_against_it_at_every_size():
    """1/16 is 1/D at the width of the search alone."""
    found = diff(with_scale(lambda D: D**-0.5), with_scale(lambda D: 1 / 16), layers=True)
    assert not found.explained
    assert found.why.startswith("what was found of B holds at the sizes that were searched, and not for x (1, 9, 16)")
    found = diff(with_scale(lambda D: D**-0.5), with_scale(lambda D: 1 / D), layers=True)
    assert found.explained
