"""L16: what a call does is said beforehand: path, tiles, FLOPs, memory, and why nothing faster."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import explain, masks, scores
from attendax.kernels import backends
from attendax.kernels.blockwise import algorithm, partition
from blockwise import in_tiny_tiles


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


LONG = struct(1, 4, 16384, 64)
FULL = 4 * 4 * 16384 * 16384 * 64


def test_full_attention():
    explanation = explain(LONG, LONG, LONG)
    assert explanation.implementation == "blockwise"
    assert explanation.flops == FULL
    assert explanation.flops_skipped == 0
    assert explanation.tiles["masked"] == explanation.tiles["skipped"] == 0
    assert explanation.temporary_bytes < 16384 * 16384
    assert set(explanation.impossible) == {"cudnn", "mosaic"}


@pytest.mark.slow
def test_causal_is_half_and_a_window_of_256_at_most_six_percent():
    causal = explain(LONG, LONG, LONG, mask=masks.causal())
    assert 0.5 < causal.flops / FULL < 0.56
    assert causal.flops + causal.flops_skipped == FULL
    for window in (masks.window(256, 0), masks.window(128, 128), masks.window(255, 255) & masks.causal()):
        assert explain(LONG, LONG, LONG, mask=window).flops <= 0.06 * FULL


@pytest.mark.slow
def test_lengths_that_are_known_count_and_others_are_said_to_be_unknown():
    known = explain(LONG, LONG, LONG, mask=masks.padding(np.array([4096])))
    assert known.flops == FULL // 4
    unknown = explain(LONG, LONG, LONG, mask=masks.padding(struct(1, dtype=jnp.int32)))
    assert unknown.tiles is None
    assert unknown.flops == FULL
    assert "at most" in str(unknown)
    assert "known when it runs" in str(unknown)


def test_tiles_are_counted_as_they_run():
    x = np.zeros((1, 1, 12, 2))
    explanation = in_tiny_tiles(explain)(x, x, x, mask=masks.causal())
    assert explanation.tile == (1, 3, 2)
    assert explanation.tiles == {"open": 10, "masked": 6, "skipped": 8}
    assert explanation.flops == 16 * 6 * 4 * 2


def test_it_prints_well():
    shown = str(explain(LONG, LONG, LONG, mask=masks.causal())).splitlines()
    assert shown[0].startswith("attention by 'blockwise': ")
    assert [line.split()[0] for line in shown[1:5]] == ["tile", "tiles", "FLOPs", "temporaries"]
    assert any("cudnn" in line for line in shown)


def test_temporaries_are_those_of_xla():
    x = struct(2, 4, 300, 16)
    f = jax.jit(lambda q, k, v: attendax.attention(q, k, v, mask=masks.causal()))
    wanted = f.lower(x, x, x).compile().memory_analysis().temp_size_in_bytes
    assert explain(x, x, x, mask=masks.causal()).temporary_bytes == wanted


def test_every_option_and_the_dense_path():
    x, bias = struct(2, 4, 30, 8), struct(4, 30, 30)
    options = {"score_mod": scores.alibi(struct(4)), "dropout_rate": 0.1, "dropout_rng": jax.random.key(0)}
    assert explain(x, x, x, bias=bias, return_lse=True, **options).flops == 2 * 4 * 30 * 30 * 4 * 8
    dense = explain(x, x, x, implementation="dense")
    assert (dense.implementation, dense.tile) == ("dense", None)
    assert dense.temporary_bytes >= 2 * 4 * 30 * 30 * 4
    empty = explain(x, struct(2, 4, 0, 8), struct(2, 4, 0, 8))
    assert empty.flops == 0


def test_a_backend_that_was_added(monkeypatch):
    small = backends.Backend(
        algorithm, lambda: partition.LIMITS._replace(rows=64, columns=64, whole_head_scores=0, band=0)
    )
    monkeypatch.setitem(backends.BACKENDS, "small", small)
    x = struct(1, 1, 256, 8)
    explanation = explain(x, x, x, mask=masks.causal(), implementation="small")
    assert (explanation.implementation, explanation.tile) == ("small", (1, 64, 64))
    assert explanation.tiles == {"open": 6, "masked": 4, "skipped": 6}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": np.ones((2, 2), bool)}, ValueError, "attention: mask has shape (2, 2)"),
        ({"mask": masks.padding(np.array([31, 2]))}, ValueError, "padding: key_lengths must lie in [0, 30]"),
        ({"scale": "x"}, TypeError, "attention: scale must be"),
        (
            {"implementation": "mosaic"},
            NotImplementedError,
            "attention: implementation 'mosaic' is not here; offered: ",
        ),
        ({"bias": [1.0]}, TypeError, "attention: bias must be an array, got list."),
    ],
)
def test_l14_it_refuses_what_attention_refuses(options, error, message):
    x = struct(2, 4, 30, 8)
    for function in (explain, attendax.attention):
        with pytest.raises(error) as caught:
            function(*(x if function is explain else jnp.zeros(x.shape, x.dtype) for _ in range(3)), **options)
        assert str(caught.value).startswith(message)
