"""``implementation="cudnn"``: which calls it takes, and that they keep the law, with jax.nn's xla in cuDNN's place.

No test runs on a GPU. Of the program for CUDA, only what it calls is looked at.
"""

import collections
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, explain, masks, scores, spec
from attendax.conformance import check
from attendax.kernels import cudnn
from attendax.kernels.backends import default
from attendax.kernels.call import checked_call
from attendax.sharding import in_shard_map as across
from libraries import ADAPTERS

B, N, G, T, S, D = 2, 4, 2, 12, 12, 8
HOPPER, AMPERE = (9, 0), (8, 0)
LENGTHS = np.array([7, 0])
RIGHT = masks.causal() & masks.padding(LENGTHS)


def arrays(dtype=jnp.bfloat16, *, T=T, S=S, D=D, V=D, seed=0):
    rng = np.random.default_rng(seed)
    return [
        jnp.asarray(rng.standard_normal(shape), dtype)
        for shape in ((B, N, T, D), (B, G, S, D), (B, G, S, V), (B, N, T, V))
    ]


def reason(capability=HOPPER, *, sizes=None, dtype=jnp.bfloat16, **options):
    query, key, value, _ = arrays(dtype, **(sizes or {}))
    call = checked_call("attention", query, key, value, **options)
    return cudnn.why_not(call.operands, call.plan, capability)


ELIGIBLE = {
    "no mask": {},
    "float16": {"dtype": jnp.float16},
    "causal": {"mask": masks.causal()},
    "causal, more queries than keys": {"mask": masks.causal(), "sizes": {"T": 14, "S": 6}},
    "causal, said twice": {"mask": masks.causal() & masks.window(None, 3)},
    "left window": {"mask": masks.window(3, 0)},
    "causal and a window": {"mask": masks.causal() & masks.window(3, 2)},
    "a window that reaches every key's query": {"mask": masks.window(4, 0), "sizes": {"T": 10, "S": 6}},
    "lengths": {"mask": masks.padding(LENGTHS)},
    "causal and lengths": {"mask": RIGHT},
    "no window at all": {"mask": masks.window(None, None)},
    "scale": {"scale": 1.0},
    "width 128 on Ampere": {"sizes": {"D": 128, "V": 128}, "capability": AMPERE},
    "width 256 on Hopper": {"sizes": {"D": 256, "V": 256}},
}
NOT_ELIGIBLE = {
    "float32": ({"dtype": jnp.float32}, "float32: it takes float16 and bfloat16"),
    "a bias": ({"bias": np.zeros((T, S), np.float32)}, "a bias"),
    "softcap": ({"score_mod": scores.softcap(5.0)}, "a score modifier"),
    "dropout": ({"dropout_rate": 0.1, "dropout_rng": 3}, "dropout"),
    "lse": ({"return_lse": True}, "lse, which is requested"),
    "V": ({"sizes": {"V": 16}}, "V = 16 is not D = 8"),
    "width 12": ({"sizes": {"D": 12, "V": 12}}, "D = 12 is not a multiple of 8"),
    "width 136 on Ampere": ({"sizes": {"D": 136, "V": 136}, "capability": AMPERE}, "D = 136 is more than 128"),
    "width 136, no GPU": ({"sizes": {"D": 136, "V": 136}, "capability": None}, "D = 136 is more than 128"),
    "width 264": ({"sizes": {"D": 264, "V": 264}}, "D = 264 is more than 256"),
    "odd": ({"sizes": {"T": 11}}, "T = 11 and S = 12 are not multiples of 2"),
    "odd keys": ({"sizes": {"S": 11}}, "T = 12 and S = 11 are not multiples of 2"),
    "negative scale": ({"scale": -0.5}, "scale -0.5 is outside of (0, 1]"),
    "scale 0": ({"scale": 0.0}, "scale 0 is outside of (0, 1]"),
    "large scale": ({"scale": 2.0}, "scale 2 is outside of (0, 1]"),
    "an offset": ({"mask": masks.causal(1)}, "an offset"),
    "an offset that may be traced": ({"mask": masks.causal(np.array(0))}, "an offset"),
    "right window": ({"mask": masks.window(3, 1)}, "a window that looks ahead"),
    "only ahead": ({"mask": masks.window(None, 1)}, "a window that looks ahead"),
    "only back": ({"mask": masks.window(3, None)}, "a window that looks ahead"),
    "a window and lengths": ({"mask": masks.window(3, 0) & masks.padding(LENGTHS)}, "a window and key lengths"),
    "queries beyond a window": ({"mask": masks.window(3, 0), "sizes": {"T": 10, "S": 6}}, "T = 10 queries reach"),
    "query lengths": ({"mask": masks.padding(LENGTHS, LENGTHS)}, "of the kind 'padding'"),
    "two lengths": ({"mask": masks.padding(LENGTHS) & masks.padding(LENGTHS)}, "of the kind 'padding'"),
    "segments": ({"mask": masks.segments(*[np.zeros((B, T), int)] * 2)}, "of the kind 'segments'"),
    "dense": ({"mask": np.ones((T, S), bool)}, "of the kind 'dense'"),
    "or": ({"mask": masks.causal() | masks.padding(LENGTHS)}, "of the kind 'or'"),
    "not": ({"mask": ~masks.causal()}, "of the kind 'not'"),
}


@pytest.mark.parametrize("name", ELIGIBLE)
def test_eligible(name):
    assert reason(**ELIGIBLE[name]) == ""


@pytest.mark.smoke
@pytest.mark.parametrize("name", NOT_ELIGIBLE)
def test_not_eligible(name):
    given, wanted = NOT_ELIGIBLE[name]
    if "dropout_rng" in given:
        given = given | {"dropout_rng": jax.random.key(3)}
    assert wanted in reason(**given)


class TestWithoutAGpu:
    @pytest.mark.smoke
    def test_asked_for_by_name(self):
        query, key, value, _ = arrays()
        for function in (attention, explain):
            with pytest.raises(NotImplementedError) as caught:
                function(query, key, value, implementation="cudnn")
            assert str(caught.value).splitlines() == [
                "attention: implementation 'cudnn' needs an NVIDIA GPU, and JAX finds none (it finds: cpu).",
                "Leave implementation out: the tiles take every call, on every device.",
            ]

    def test_a_call_that_cudnn_cannot_take_says_why(self):
        with pytest.raises(NotImplementedError, match="does not take this call: float32: it takes float16 and bfl"):
            attention(*arrays(jnp.float32)[:3], implementation="cudnn")

    def test_cudnn_is_never_the_default(self, monkeypatch):
        """Its gradient has other bits run after run. ``explain`` says so."""
        monkeypatch.setattr(cudnn, "capability", lambda: HOPPER)
        explained = explain(*arrays()[:3])
        assert (explained.implementation, explained.impossible["cudnn"]) == (
            default(), cudnn.BY_NAME,
        )  # fmt: skip
        monkeypatch.undo()
        assert explain(*arrays()[:3]).impossible["cudnn"].endswith("; JAX finds no NVIDIA GPU here")
        assert explain(*arrays(jnp.float32)[:3]).impossible["cudnn"].startswith("not eligible: float32")


def test_rows_whose_gradients_of_scores_may_overflow():
    """They are rounded to float16; those rows come by definition. (XLA has no such product of float16 on a CPU.)"""
    query, key, value, dout = arrays(jnp.float16)
    call = checked_call("attention", query, key, value * 300)
    found = cudnn._may_overflow(dout.at[1, 2, 3].multiply(100).astype(jnp.float32), call.operands)
    assert np.argwhere(found).tolist() == [[1, 2, 3, 0]]
    wide = call.operands._replace(query=query.astype(jnp.bfloat16))
    assert not cudnn._may_overflow(dout.astype(jnp.float32) * 1e9, wide).any()


@pytest.mark.smoke
def test_a_sequence_on_several_devices(monkeypatch):
    """There the blocks are tiles: it is refused, not left out without a word."""
    call = checked_call("attention", *arrays()[:3])
    call = call._replace(plan=dataclasses.replace(call.plan, backend="cudnn"))
    monkeypatch.setattr(across.lax, "axis_size", lambda axis: 2)
    with pytest.raises(NotImplementedError, match="needs all tokens of a head; here they are divided over seq"):
        across.attend_across_devices(call, ("seq",), "ring")


@pytest.fixture
def in_its_place(monkeypatch):
    """jax.nn's xla implementation in cuDNN's place, on a CPU."""
    monkeypatch.setattr(cudnn, "JAX_NN_IMPLEMENTATION", "xla")
    monkeypatch.setattr(cudnn, "capability", lambda: HOPPER)


def with_gradient(mask):
    def run(query, key, value, dout):
        out, pull = jax.vjp(lambda *a: attention(*a, mask=mask, implementation="cudnn"), query, key, value)
        return out, *pull(dout)

    return jax.jit(run)


def by_spec(query, key, value, dout, mask):
    wide = [np.asarray(x, np.float64) for x in (query, key, value, dout)]
    grads = spec.attention_backward(wide[3], *wide[:3], mask=mask)
    return [spec.attention(*wide[:3], mask=mask), *grads[:3]]


def off(got, wanted):
    pairs = zip(got, wanted, strict=True)
    return max(np.abs(np.asarray(a, np.float64) - b).max() / max(1, np.abs(b).max()) for a, b in pairs)


@pytest.mark.usefixtures("in_its_place")
class TestPlumbing:
    def test_values_gradients_and_the_quarantine(self):
        """Of a text of 7 keys and one of none, under causal."""
        run, (query, key, value, dout) = with_gradient(RIGHT), arrays()
        clean = run(query, key, value, dout)
        assert off(clean, by_spec(query, key, value, dout, RIGHT)) < 2e-2
        assert all(x.dtype == jnp.bfloat16 for x in clean)
        assert all(not np.asarray(x[1]).any() for x in clean), "L5"

        hidden = key.at[0, :, 7:].set(jnp.nan), value.at[0, :, 9].set(jnp.inf).at[1].set(jnp.nan)
        for one, other in zip(clean, run(query, *hidden, dout), strict=True):
            np.testing.assert_array_equal(one, other, "L6")

        seen = run(query, key.at[0, :, 3].set(jnp.nan), value, dout)
        wrong = np.isnan(np.asarray(seen[0], np.float64)).any((1, 3))
        np.testing.assert_array_equal(wrong, [[False] * 3 + [True] * 9, [False] * 12], "the queries that see it")
        np.testing.assert_array_equal(seen[0][0, :, :3], clean[0][0, :, :3])

        unread = dout.at[0, :, 3:].set(0)
        for one in run(query, key.at[0, :, 3].set(jnp.nan), value, unread)[1:]:
            assert np.isfinite(np.asarray(one, np.float64)).all(), "what nothing reads has no gradient"

        huge = query.at[0, 0, 5].multiply(1e15), key.at[0, 0, 2].multiply(1e15)
        assert off(run(*huge, value, dout)[:1], by_spec(*huge, value, dout, RIGHT)[:1]) < 2e-2, "L7"

    def test_explain(self):
        explained = explain(*arrays()[:3], mask=RIGHT, implementation="cudnn")
        assert (explained.implementation, explained.tile) == ("cudnn", None)
        assert set(explained.impossible) == {"native", "triton"}
        assert cudnn.ASKED_FOR in str(explained)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["no mask", "causal, more queries than keys", "left window", "lengths"])
    def test_every_mask(self, name):
        given = ELIGIBLE[name]
        inputs = arrays(**given.get("sizes", {}))
        mask = given.get("mask")
        assert off(with_gradient(mask)(*inputs), by_spec(*inputs, mask)) < 2e-2

    @pytest.mark.slow
    def test_every_direction(self):
        """As the tiles give them: jvp, both orders of the second derivative, vmap over some of the arrays."""
        query, key, value, _ = arrays()
        others = arrays(seed=1)[:3]

        def directions(implementation):
            def attend(*a):
                return attention(*a, mask=RIGHT, implementation=implementation).astype(jnp.float32)

            def gradient(*a):
                return jax.grad(lambda *b: (attend(*b) ** 2).sum(), (0, 1, 2))(*a)

            def along(*a):
                pairs = zip(gradient(*a), others, strict=True)
                return sum(jnp.vdot(x.astype(jnp.float32), t.astype(jnp.float32)) for x, t in pairs)

            given, axes = (query, key, value), (None, 1, 0)
            pairs = query, jnp.stack([key, others[1]], 1), jnp.stack([value, others[2]])
            return (
                jax.jvp(attend, given, tuple(others)),
                jax.jvp(gradient, given, tuple(others))[1],
                jax.grad(along, (0, 1, 2))(*given),
                jax.vmap(attend, axes)(*pairs),
                jax.vmap(gradient, axes, 1)(*pairs),
            )

        got, wanted = (jax.tree.leaves(jax.jit(lambda n=n: directions(n))()) for n in ("cudnn", "blockwise"))
        assert off(got, [np.asarray(x, np.float64) for x in wanted]) < 2e-2

    @pytest.mark.slow
    def test_the_kit(self, monkeypatch):
        """Its cases have odd sizes, which cuDNN does not take and xla does."""
        monkeypatch.setattr(cudnn, "OF_WIDTH", 1)
        monkeypatch.setattr(cudnn, "OF_LENGTHS", 1)
        adapter = ADAPTERS["attendax"]._replace(options={"implementation": "cudnn"})
        given = {"only": ["L4", "L5", "L6"], "dtype": "bfloat16", "profile": "law"}
        report = check(adapter.implementation("attendax, cudnn"), **given)
        assert report.failures == ()
        assert report.counts()["ok"] >= 15


class TestProgramForCuda:
    """Calls of the lowered program; jax.nn's questions about version and device are answered for it."""

    @pytest.fixture
    def calls(self, monkeypatch):
        import jax._src.cudnn.fused_attention_stablehlo as wrapper

        monkeypatch.setattr(wrapper, "check_cudnn_version", lambda: 91000)
        monkeypatch.setattr(wrapper, "check_compute_capability", lambda capability: True)
        monkeypatch.setattr(cudnn, "capability", lambda: HOPPER)

        def lowered(function, platform="cuda"):
            given = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays(D=64, V=64)[:3]]
            text = jax.jit(function).trace(*given).lower(lowering_platforms=(platform,)).as_text()
            return [line for line in text.splitlines() if "custom_call @__cudnn" in line]

        return lowered

    @staticmethod
    def attend(*a):
        return attention(*a, mask=masks.causal(), implementation="cudnn").astype(jnp.float32)

    @staticmethod
    def counted(lines):
        return collections.Counter(re.search(r"@(__cudnn\$\w+)", line)[1] for line in lines)

    @pytest.mark.smoke
    def test_forward_and_gradient(self, calls):
        (line,) = calls(self.attend)
        assert "__cudnn$fmhaSoftmax(" in line
        assert "CAUSAL" in line
        lines = calls(lambda *a: jax.grad(lambda *b: self.attend(*b).sum(), (0, 1, 2))(*a))
        assert self.counted(lines) == {"__cudnn$fmhaSoftmax": 2, "__cudnn$fmhaSoftmaxBackward": 1}
        forwards = {re.sub(r"%[\w#:]+", "%", line) for line in lines if "fmhaSoftmax(" in line}
        assert len(forwards) == 1, "both forwards are one to a compiler that sees them"

    def test_tangents_are_in_tiles(self, calls):
        lines = calls(lambda *a: jax.jvp(self.attend, a, a)[1])
        assert self.counted(lines) == {"__cudnn$fmhaSoftmax": 1}

    @pytest.mark.smoke
    def test_for_another_platform(self, calls):
        with pytest.raises(NotImplementedError, match="implementation 'cudnn' is for CUDA; this program is for cpu"):
            calls(self.attend, "cpu")
