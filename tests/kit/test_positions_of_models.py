"""`check_model` of positions and of texts that are packed into one row: far away, and beside a mask of padding."""

import ml_dtypes
import numpy as np
import pytest

from attendax.conformance import check_model
from test_sees import EMBEDDING, KERNELS, SAID

FREQUENCIES = 10000.0 ** (-np.arange(8) / 8)


def rotated(x, positions, dtype, frequencies=FREQUENCIES):
    angles = (positions[..., None].astype(dtype) * frequencies.astype(dtype)).astype(np.float32)
    cos, sin, one, two = np.cos(angles), np.sin(angles), x[..., :8], x[..., 8:]
    return np.concatenate([one * cos - two * sin, one * sin + two * cos], -1)


def rotary(dtype="float32", of_keys=FREQUENCIES, out="float32", last=None, by_positions=False, drops=False):
    """A decoder; `drops` leaves out what keeps texts apart where there is a mask, `last` is the end of its table."""
    dtype, out = (np.dtype(getattr(ml_dtypes, x, x)) for x in (dtype, out))

    def run(tokens, mask, positions, ids):
        positions = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1)) if positions is None else positions
        x, places = EMBEDDING[tokens], positions if last is None else np.minimum(positions, last)
        query, key, value = (x @ kernel for kernel in KERNELS)
        query, key = rotated(query, places, dtype), rotated(key, places, dtype, of_keys)
        seen = np.tri(tokens.shape[1], dtype=bool)[None]
        if by_positions:
            ids = (np.diff(positions, axis=1, prepend=positions[:, :1] - 1) != 1).cumsum(1)
        if ids is not None and not (drops and mask is not None):
            seen = seen & (ids[:, None] == ids[:, :, None])
        if mask is not None:
            seen = seen & mask[:, None].astype(bool)
        weights = np.exp(np.where(seen, query @ key.swapaxes(1, 2) / 4, -np.inf))
        return (x + weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ value).astype(out)

    if by_positions:
        return lambda tokens, mask=None, positions=None: run(tokens, mask, positions, None)
    return lambda tokens, mask=None, positions=None, segment_ids=None: run(tokens, mask, positions, segment_ids)


def judged(model, **said):
    return check_model(model, causal=True, **SAID | {"positions": "rotary"} | said)


@pytest.mark.parametrize("model", [rotary(), rotary("float64"), rotary(out="bfloat16"), rotary(by_positions=True)])
def test_sound_rotary_models_are_not_accused(model):
    report = judged(model)
    assert report.ok, [outcome.told() for outcome in report.failures]
    judged_ones = [o.case.name for o in report.cases if o.verdict.value == "ok"]
    assert "positions: shifted far" in judged_ones


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_positions_that_lose_digits(dtype, out):
    report = judged(rotary(dtype, out=out), only=["positions"])
    assert report.causes[0].name.startswith("positions: positions lose digits: results are off by 0.0")
    assert "from 300 on" in report.causes[0].name
    assert "from 4,001 on" in report.causes[0].name


def test_keys_that_turn_otherwise_lose_no_digits():
    """They are off by more, the further away, but evenly."""
    report = judged(rotary(of_keys=10500.0 ** (-np.arange(8) / 8)), only=["positions"])
    assert [cause.name for cause in report.causes] == ["positions: positions that begin at 11 give other results"]


def test_a_table_of_positions_that_ends_is_no_fault():
    report = judged(rotary(last=200), only=["positions: shifted"])
    assert report.ok
    far = next(o for o in report.cases if o.case.name == "positions: shifted far")
    assert far.finding.message == "its positions end before 4,001; --longest says how many there are"
    report = judged(rotary(last=200), only=["positions: shifted"], longest=200)
    assert report.counts() == {"ok": 2}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (rotary(drops=True), "packing: a text sees its neighbour in the row, once a mask is given"),
        (
            rotary(drops=True, by_positions=True),
            "packing: texts that positions keep apart see each other, once a mask is given",
        ),
    ],
)
def test_packed_texts_that_see_each_other_beside_a_mask(model, name):
    report = judged(model)
    assert [cause.name for cause in report.causes] == [name]


def test_a_llama_that_keeps_texts_apart_by_positions_does_not_beside_a_mask():
    """Transformers looks at positions that begin anew only if `attention_mask` is None."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    report = check_model(model, only=["packing"], seed=1)
    assert [cause.name for cause in report.causes] == [
        "packing: texts that positions keep apart see each other, once a mask is given"
    ]
