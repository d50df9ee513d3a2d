"""Functions that require more than three arrays: what has a known name gets the law's meaning in a plain call."""

import types

import numpy as np
import pytest

from attendax.conformance.against import diff, remote
from attendax.conformance.against.options import completed
from attendax.conformance.worker.errors import Failed
from test_against_slips import masked, softmax
from test_understood import described


def law(query, key, value, mask=None, is_causal=False):
    allowed = np.tri(query.shape[-2], key.shape[-2], dtype=bool) if is_causal else True
    return masked(query, key, value, allowed if mask is None else allowed & mask)


def scaled(q, k, v, scale, mask=None):
    scores = q @ k.swapaxes(-1, -2) * scale
    return softmax(scores if mask is None else np.where(mask, scores, np.float32(-1e9))) @ v


def triton(q, k, v, causal, sm_scale):
    """The tutorial of Triton."""
    return scaled(q, k, v, sm_scale, np.tri(q.shape[-2], k.shape[-2], dtype=bool) if causal else None)


def eager(module, query, key, value, attention_mask, scaling, dropout=0.0):
    """As transformers has it, to (B, T, N, D)."""
    key, value = (x.repeat(module.num_key_value_groups, 1) for x in (key, value))
    scores = query @ key.swapaxes(2, 3) * scaling
    weights = softmax(scores if attention_mask is None else scores + attention_mask)
    return (weights @ value).swapaxes(1, 2), weights


def mlx(q, k, v, *, scale, mask=None):
    """A mask may be the word "causal", aligned to the end of the keys."""
    T, S = q.shape[-2], k.shape[-2]
    return scaled(q, k, v, scale, np.tri(T, S, S - T, dtype=bool) if isinstance(mask, str) else mask)


def temper(q, k, v, temperature):
    return scaled(q, k, v, 1 / temperature)


def heads_first(num_heads, q, k, v):
    q, k, v = (x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2) for x in (q, k, v))
    out = masked(q, k, v).swapaxes(1, 2)
    return out.reshape(*out.shape[:2], -1)


def third_left_out(query, value, key=None, use_causal_mask=False):
    """As Keras."""
    return law(query, value if key is None else key, value, is_causal=use_causal_mask)


def mask_required(q, k, v, mask):
    return masked(q, k, v, mask)


def drops_required(q, k, v, padding_mask):
    """(B, S), True drops."""
    return masked(q, k, v, ~padding_mask[:, None, None])


@pytest.mark.smoke(1)
@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (triton, {"is_causal": ("causal", ""), "scale": ("sm_scale", "a factor")}),
        (eager, {"mask": ("attention_mask", "BNTS/added, -inf drops"), "scale": ("scaling", "a factor")}),
        (mlx, {"scale": ("scale", "a factor"), "mask": ("mask", "BNTS/True attends")}),
        (temper, {"scale": ("temperature", "a divisor")}),
        (heads_first, {}),
        (third_left_out, {"is_causal": ("use_causal_mask", "")}),
        (drops_required, {"mask": ("padding_mask", "BS/True drops")}),
        (mask_required, {"mask": ("mask", "BNTS/True attends")}),
    ],
)
def test_a_required_argument(fn, options):
    found, _ = described(fn)
    assert found.known
    assert {k: tuple(x) for k, x in found.form.options.items()} == options
    assert found.form.how["scale"] == "1/√D"


def test_a_mask_may_be_the_word_causal():
    assert described(mlx)[0].form.word == "aligned to the end"
    assert not described(scaled)[0].form.word
    assert "A's mask as the word 'causal', aligned to the end" in diff(mlx, scaled).notes


@pytest.mark.parametrize("fn", [triton, eager, heads_first])
def test_the_adapter_gives_it(fn):
    """The lines that are printed run by themselves."""
    found = diff(law, fn)
    assert found.explained, found.text()
    names = {}
    exec(found.adapter, names)
    q, k, v = (np.random.default_rng(x).standard_normal((2, 4, 5, 8)).astype(np.float32) for x in range(3))
    np.testing.assert_allclose(names["adapted"](q, k, v), law(q, k, v), atol=1e-5)


def test_a_name_that_nobody_knows_is_told():
    with pytest.raises(Failed, match="requires block_size, by a name that is not known: wrap it in a function"):
        described(lambda q, k, v, block_size: masked(q, k, v))


@pytest.mark.smoke
def test_what_is_an_array_and_what_is_not():
    assert completed(["q", "k", "v", "causal"], ["q", "k", "v", "causal"], {}).meant == {"causal": "False"}
    assert completed(["module", "q", "k", "v"], ["module", "q", "k", "v"], {}).by_name == ("q", "k", "v")
    assert completed(["q", "k", "v", "num_heads"], ["q", "k", "v", "num_heads"], {}).required[3:] == ["num_heads"]
    assert completed(["query", "value", "key"], ["query", "value"], {"key": None}).required == ["query", "value", "key"]
    assert completed(["q", "kv", "causal"], ["q", "kv"], {"causal": False}).required == ["q", "kv"]


def test_an_object_is_given_to_a_function_in_another_process():
    function = remote.Function("test_required:eager")
    module = types.SimpleNamespace(num_key_value_groups=1)
    given = dict.fromkeys(("query", "key", "value"), np.ones((1, 2, 3, 4), np.float32))
    found = function(module=module, **given, attention_mask=None, scaling=0.5)
    function.subject.close()
    assert found[0].shape == (1, 3, 2, 4)
