"""L16: what a call does is said beforehand: path, tiles, FLOPs, memory, and why nothing faster."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import explain, masks, scores
from attendax.kernels import backends, native
from attendax.kernels.blockwise import algorithm, partition
from blockwise import in_tiny_tiles
from native_calls import where_native_is

pytestmark = pytest.mark.law("L16", "tiles", "native")

explain_tiles = functools.partial(explain, implementation="blockwise")


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


LONG = struct(1, 4, 16384, 64)
FULL = 4 * 4 * 16384 * 16384 * 64


@pytest.mark.parametrize("implementation", [None, "blockwise"])
def test_full_attention(implementation):
    explanation = explain(LONG, LONG, LONG, implementation=implementation)
    assert explanation.implementation == (implementation or backends.default())
    assert explanation.flops == FULL
    assert explanation.flops_skipped == 0
    assert explanation.tiles["masked"] == explanation.tiles["skipped"] == 0
    assert explanation.temporary_bytes < 16384 * 16384
    assert set(explanation.impossible) | {"native"} == {"cudnn", "triton", "native"}


@pytest.mark.slow
@where_native_is
def test_causal_is_half_and_a_window_of_256_at_most_six_percent():
    causal = explain(LONG, LONG, LONG, mask=masks.causal())
    assert 0.5 < causal.flops / FULL < 0.56
    assert causal.flops + causal.flops_skipped == FULL
    for window in (masks.window(256, 0), masks.window(128, 128), masks.window(255, 255) & masks.causal()):
        assert explain(LONG, LONG, LONG, mask=window).flops <= 0.06 * FULL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "columns"),
    [(masks.window(256, 0), 2), (masks.window(128, 128), 3), (masks.window(255, 255) & masks.causal(), 2)],
)
def test_tiles_visit_the_columns_of_512_that_a_window_touches(window, columns):
    """Two or three of 32 for each of 32 rows of tiles."""
    touched = 32 * columns - (columns - 1)  # the first row has no column before it, the last none behind
    assert explain_tiles(LONG, LONG, LONG, mask=window).flops == FULL * touched // 32**2


@pytest.mark.slow
def test_lengths_that_are_known_count_and_others_are_said_to_be_unknown():
    for attend in (explain, explain_tiles):
        known = attend(LONG, LONG, LONG, mask=masks.padding(np.array([4608])))  # 48 tiles of 96 keys, 9 of 512
        assert known.flops == FULL * 4608 // 16384
        unknown = attend(LONG, LONG, LONG, mask=masks.padding(struct(1, dtype=jnp.int32)))
        assert unknown.tiles is None
        assert unknown.flops == FULL
        assert "at most" in str(unknown)
        assert "known when it runs" in str(unknown)


def test_tiles_are_counted_as_they_run():
    x = np.zeros((1, 1, 12, 2))
    explanation = in_tiny_tiles(explain_tiles)(x, x, x, mask=masks.causal())
    assert explanation.tile == (1, 3, 2)
    assert explanation.tiles == {"open": 10, "masked": 6, "skipped": 8}
    assert explanation.flops == 16 * 6 * 4 * 2


def test_it_prints_well():
    shown = str(explain(LONG, LONG, LONG, mask=masks.causal())).splitlines()
    assert shown[0].startswith(f"attention by {backends.default()!r}: the default ")
    assert [line.split()[0] for line in shown[1:5]] == ["tile", "tiles", "FLOPs", "temporaries"]
    assert any("cudnn" in line for line in shown)


@where_native_is
class TestNative:
    """Blocks of 64 queries by tiles of 96 keys; the last ones are smaller."""

    def test_it_prints_well(self):
        shown = str(explain(LONG, LONG, LONG, mask=masks.causal())).splitlines()
        assert shown[:2] == [
            "attention by 'native': the default on a CPU; memory O(T + S)",
            "  tile         1 head x 64 queries x 96 keys",
        ]
        assert "  scratch      less than 1 MiB for each thread" in shown
        assert not any("not 'native'" in line for line in shown)
        asked = explain(LONG, LONG, LONG, implementation="native")
        assert (asked.implementation, asked.reason) == ("native", "requested")

    @pytest.mark.smoke
    @pytest.mark.parametrize(("mask", "tiles", "pairs"), [
        (None, (9, 0, 0), 150 * 250),
        (masks.causal(), (1, 4, 4), 64 * 96 + 64 * 192 + 22 * 192),
        (masks.causal(-300), (0, 0, 9), 0),
        (masks.window(10, 0, offset=90), (0, 5, 4), 64 * 192 + 64 * (96 + 58) + 22 * 58),
        (masks.padding(np.array([96])), (3, 0, 6), 150 * 96),
        (masks.padding(np.array([97]), np.array([64])), (1, 1, 7), 64 * 192),
        (masks.padding(np.array([250])), (9, 0, 0), 150 * 250),
        (masks.prefix(np.array([250])) & ~masks.padding(np.array([192])), (3, 0, 6), 150 * 58),
        (masks.segments(np.arange(150)[None] // 64, np.arange(250)[None] // 96), (3, 0, 6), 128 * 96 + 22 * 58),
        (np.arange(250)[None] >= 240, (0, 3, 6), 150 * 58),
        (np.arange(150)[:, None] >= 128, (3, 0, 6), 22 * 250),
    ])  # fmt: skip
    def test_tiles_are_counted_by_hand(self, mask, tiles, pairs):
        """T = 150: 64, 64, 22; S = 250: 96, 96, 58; two heads of one group."""
        query, key, value = struct(1, 2, 150, 8), struct(1, 1, 250, 8), struct(1, 1, 250, 16)
        found = explain(query, key, value, mask=mask)
        assert found.tile == (1, 64, 96)
        assert tuple(found.tiles.values()) == tuple(2 * n for n in tiles)
        assert (found.flops, found.flops_skipped) == (2 * pairs * 48, 2 * (150 * 250 - pairs) * 48)

    def test_no_tile_with_an_allowed_pair_is_left_out(self, rng):
        """Of every kind of mask, held against all pairs; and what is open is open."""
        T, S = 130, 200
        ids = np.sort(rng.integers(0, 9, (2, T))), np.sort(rng.integers(0, 9, (2, S)))
        tried = masks.segments(*ids), masks.dense(rng.random((2, 4, T, S)) < 0.001), masks.window(3, 20, offset=30)
        for mask in (*tried, tried[0] & tried[2], tried[0] | ~tried[2], masks.padding(np.array([0, 100]))):
            seen = np.broadcast_to(mask.to_dense(T, S), (2, 4, T, S))
            cut = [[seen[..., i : i + 64, j : j + 96] for j in range(0, S, 96)] for i in range(0, T, 64)]
            some, every = (
                sum(int(reduce(tile, axis=(-2, -1)).sum()) for row in cut for tile in row)
                for reduce in (np.any, np.all)
            )
            x, y = struct(2, 4, T, 8), struct(2, 4, S, 8)
            tiles = explain(x, y, y, mask=mask).tiles
            assert sum(tiles.values()) == 2 * 4 * 3 * 3
            assert tiles["open"] <= every
            assert tiles["open"] + tiles["masked"] >= some

    def test_few_queries_of_a_group_share_a_block(self):
        """20 heads over 2, of 7 queries: 70 rows in blocks of 64 and 6."""
        query, key = struct(3, 20, 7, 8), struct(3, 2, 100, 8)
        found = explain(query, key, key, mask=masks.padding(np.array([100, 96, 0])))
        assert found.tile == (10, 7, 96)
        assert found.tiles == {"open": 2 * 2 * (2 + 1), "masked": 0, "skipped": 2 * 2 * (1 + 2)}
        assert found.flops == 20 * 7 * (100 + 96) * 32

    def test_it_says_native_where_the_program_calls_it(self):
        """And nothing else does: the name is in the program, not in a plan."""
        x = struct(2, 4, 30, 8)
        for options in ({}, {"implementation": "blockwise"}, {"mask": masks.from_function(lambda i, j: i >= j)}):
            program = jax.jit(lambda x, o=options: attendax.attention(x, x, x, **o)).lower(x).as_text()
            assert ("attendax_forward" in program) == (explain(x, x, x, **options).implementation == "native")

    def test_why_it_is_not(self):
        x = struct(2, 4, 30, 8)
        by_function = explain(x, x, x, mask=masks.from_function(lambda i, j: i >= j))
        assert (by_function.implementation, by_function.impossible["native"]) == ("blockwise", "a function of your own")
        assert by_function.reason == "the default if 'native' cannot run the call; memory O(T + S)"
        assert "  not 'native': a function of your own" in str(by_function).splitlines()
        assert explain_tiles(x, x, x).impossible["native"] == "eligible; 'blockwise' is requested"
        empty = struct(2, 4, 0, 8)
        assert explain(x, empty, empty).impossible["native"] == "there are no scores"

    @pytest.mark.parametrize(
        ("D", "dtype", "mebibytes"), [(128, "float32", 1), (128, "float64", 1), (4096, "float32", 9)]
    )
    def test_scratch_memory_of_a_thread(self, D, dtype, mebibytes):
        x = struct(1, 1, 70, D, dtype=dtype)
        assert explain(x, x, x).thread_bytes == mebibytes * 2**20
        assert explain_tiles(x, x, x).thread_bytes is None


@pytest.mark.smoke
def test_without_the_library_it_says_why(monkeypatch):
    """And everything runs in tiles."""
    monkeypatch.setattr(native, "library", lambda: native.Library("", "no compiler was there"))
    x = struct(2, 4, 30, 8)
    found = explain(x, x, x)
    assert (found.implementation, found.impossible["native"]) == ("blockwise", "no compiler was there")
    assert found.reason == "the default if 'native' cannot run the call; memory O(T + S)"
    with pytest.raises(NotImplementedError, match="'native' does not take this call: no compiler was there"):
        explain(x, x, x, implementation="native")


def test_temporaries_are_those_of_xla():
    x = struct(2, 4, 300, 16)
    f = jax.jit(lambda q, k, v: attendax.attention(q, k, v, mask=masks.causal()))
    wanted = f.lower(x, x, x).compile().memory_analysis().temp_size_in_bytes
    assert explain(x, x, x, mask=masks.causal()).temporary_bytes == wanted


@pytest.mark.smoke
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
    small = backends.Backend(algorithm, lambda: partition.LIMITS._replace(rows=64, columns=64))
    monkeypatch.setitem(backends.BACKENDS, "small", small)
    x = struct(1, 1, 256, 8)
    explanation = explain(x, x, x, mask=masks.causal(), implementation="small")
    assert (explanation.implementation, explanation.tile) == ("small", (1, 64, 64))
    assert explanation.tiles == {"open": 6, "masked": 4, "skipped": 6}


@pytest.mark.law("L14", "tiles", "native")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": np.ones((2, 2), bool)}, ValueError, "attention: mask has shape (2, 2)"),
        ({"mask": masks.padding(np.array([31, 2]))}, ValueError, "padding: key_lengths must lie in [0, 30]"),
        ({"scale": "x"}, TypeError, "attention: scale must be"),
        ({"implementation": "fast"}, ValueError, "attention: implementation must be one of None, "),
        ({"bias": [1.0]}, TypeError, "attention: bias must be an array, got list."),
    ],
)
def test_l14_it_refuses_what_attention_refuses(options, error, message):
    x = struct(2, 4, 30, 8)
    for function in (explain, attendax.attention):
        with pytest.raises(error) as caught:
            function(*(x if function is explain else jnp.zeros(x.shape, x.dtype) for _ in range(3)), **options)
        assert str(caught.value).startswith(message)
