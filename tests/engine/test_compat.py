"""attendax under the signatures of other libraries: same results, and a real small model of each that trains alike."""

import ast
import inspect
import re
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import masks, spec
from attendax.compat import equinox as our_equinox
from attendax.compat.flax import attention_fn
from attendax.compat.jax_nn import dot_product_attention
from places import ROOT

PAGE = ROOT / "docs" / "adopt.md"
B, T, S, N, G, D = 2, 5, 7, 6, 3, 4
RATE = 0.3
PAGES = re.findall(r"^## (\S+)\n.*?^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def as_these_libraries_have_it():
    """They add arrays of different ranks."""
    with jax.numpy_rank_promotion("allow"), jax.enable_x64(False):
        yield


@pytest.fixture
def arrays(rng):
    return [rng.normal(size=shape).astype(np.float32) for shape in ((B, T, N, D), (B, S, G, D), (B, S, G, D))]


def close(found, wanted, tolerance=1e-5):
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def trained(loss, params, steps=5):
    """The losses of a few steps of gradient descent, compiled once."""

    @jax.jit
    def run(params):
        def step(params, _):
            value, grads = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.03 * g, params, grads), value

        return jax.lax.scan(step, params, None, length=steps)[1]

    return np.asarray(run(params))


def assert_trains_alike(of_theirs, of_ours):
    close(of_ours, of_theirs)
    assert of_theirs[-1] < 0.99 * of_theirs[0]  # else there was nothing to learn


def task(rng):
    """Tokens (8, 5, 6), of which some are padding, and a number for each row that depends on all of them."""
    x = rng.normal(size=(8, 5, 6)).astype(np.float32)
    real = np.arange(5) < rng.integers(2, 6, (8, 1))
    return x, real, np.where(real[..., None], x, 0).max(axis=1).sum(axis=1)


def options_of_jax_nn():
    rng = np.random.default_rng(3)
    bias, mask = rng.normal(size=(1, N, T, S)).astype(np.float32), rng.random((B, 1, T, S)) < 0.7
    mask[..., 0] = True
    return {
        "bias and mask": {"bias": bias, "mask": mask},
        "lengths and window": {"local_window_size": (4, 1), "key_value_seq_lengths": np.array([7, 5], np.int32)},
        "plain": {},
        "causal, scale": {"is_causal": True, "scale": 0.3},
        "narrow bias": {"bias": bias[0, 0].astype(np.float16), "is_causal": True},
        "window": {"local_window_size": 2},
        "query lengths": {"query_seq_lengths": np.array([5, 3], np.int32)},
        "no batch": {"mask": np.tri(T, S, dtype=bool)[None, None]},
        "no batch, lengths": {"key_value_seq_lengths": np.array([5], np.int32)},
    }


class TestJaxNn:
    def test_the_signature_is_theirs(self):
        theirs, ours = (inspect.signature(f).parameters for f in (jax.nn.dot_product_attention, dot_product_attention))
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [
            (p.name, p.kind, p.default) for p in theirs.values()
        ]

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("name", options_of_jax_nn())
    def test_same_results(self, arrays, rng, name):
        """Output, residual and gradients, in both layouts."""
        options = options_of_jax_nn()[name]
        arrays = [x[0] for x in arrays] if name.startswith("no batch") else arrays
        weights = rng.normal(size=arrays[0].shape).astype(np.float32)

        def everything(attend):
            def loss(arrays):
                results = attend(*arrays, **options, return_residual=True)
                return (results[0] * weights).sum(), results

            return jax.jit(jax.grad(loss, has_aux=True))(arrays)

        found, wanted = (jax.tree.leaves(everything(f)) for f in (dot_product_attention, jax.nn.dot_product_attention))
        for a, b in zip(found, wanted, strict=True):
            unseen = np.asarray(a) == -np.inf  # lse of a query beyond its length; theirs is a large negative number
            close(np.where(unseen, 0, a), np.where(unseen, 0, b), 3e-5)
            assert (np.asarray(b)[unseen] < -1e30).all()

    @pytest.mark.slow
    def test_empty_rows_of_jax_nn_give_zero(self, arrays):
        query, key, value = arrays
        empty = np.ones((1, 1, T, S), bool)
        empty[..., 2, :] = False
        ours, residual = dot_product_attention(*arrays, mask=empty, return_residual=True)
        assert not np.asarray(ours)[:, 2].any()
        assert (np.asarray(residual)[:, 2] == -np.inf).all()
        theirs = jax.nn.dot_product_attention(*arrays, mask=empty)
        close(theirs[:, 2], np.repeat(value.mean(axis=1), N // G, axis=1))
        half = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
        assert dot_product_attention(*half, return_residual=True)[1].dtype == jnp.float32
        slope = jax.grad(lambda q: dot_product_attention(q, key, value, return_residual=True)[1].sum())
        assert np.abs(slope(jnp.asarray(query))).max() > 0.01

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"mask": np.ones((B, T, S), bool)}, ValueError, r"mask has rank 3 .*\n.*mask\[:, None\]"),
            ({"mask": np.ones((B, 1, T, S))}, TypeError, "mask must be boolean"),
            ({"bias": np.ones((T, S), bool)}, TypeError, "bias has dtype bool"),
            ({"key_value_seq_lengths": np.array([3])}, ValueError, r"key_value_seq_lengths has shape \(1,\)"),
            ({"query_seq_lengths": np.array([3, 6])}, ValueError, "must lie in"),
            ({"query": np.ones((T, D), np.float32)}, ValueError, "query has rank 2"),
            ({"query": np.ones((B, T, 4, D), np.float32)}, ValueError, "N=4 heads, .* G=3"),
            ({"key": np.ones((B, S, G, D + 1), np.float32)}, ValueError, "query has D=4 but key has D=5"),
            ({"value": np.ones((B, S, G, D), np.float16)}, TypeError, "float32 but value has float16"),
            ({"is_causal": 1}, TypeError, "is_causal must be True or False"),
            ({"implementation": "flash"}, ValueError, "implementation must be one of None, 'xla', 'dense',"),
            ({"local_window_size": -1}, ValueError, "local_window_size must be at least 0, got -1"),
        ],
    )
    def test_refuses(self, arrays, change, error, message):
        given = dict(zip(("query", "key", "value"), arrays, strict=True)) | change
        with pytest.raises(error, match=message):
            dot_product_attention(**given)

    @pytest.mark.slow
    def test_a_model_trains_alike(self, rng):
        x, real, target = task(rng)
        params = {name: jnp.asarray(rng.normal(size=(6, 6)) / 3, jnp.float32) for name in "qkvo"}

        def loss(params, attend):
            q, k, v = ((x @ params[name]).reshape(8, 5, 2, 3) for name in "qkv")
            hidden = attend(q, k, v, mask=real[:, None, None]).reshape(8, 5, 6) @ params["o"]
            return ((jnp.where(real[..., None], hidden, 0).sum(axis=(1, 2)) - target) ** 2).mean() / 9

        theirs, ours = (
            trained(lambda p, f=f: loss(p, f), params) for f in (jax.nn.dot_product_attention, dot_product_attention)
        )
        assert_trains_alike(theirs, ours)


class TestAttentionFn:
    """Without flax: its meaning, by the specification."""

    def right(self, arrays, **options):
        query, key, value = (x.swapaxes(1, 2) for x in arrays)
        return spec.attention(query, key, value, **options).swapaxes(1, 2)

    @pytest.mark.slow
    def test_masks_of_numbers_and_biases(self, arrays, rng):
        mask = np.tri(T, S, dtype=np.float32) * np.ones((B, 1, 1, 1), np.float32)
        bias = rng.normal(size=(1, 1, T, S)).astype(np.float16)
        wanted = self.right(arrays, mask=mask.astype(bool), bias=bias.astype(np.float32))

        @jax.jit
        def every_way(*arrays):
            ways = [{"mask": mask}, {"is_causal": True}, {"mask": masks.causal()}, {"mask": jnp.int32(mask)}]
            return [attention_fn(*arrays, bias, **way) for way in ways]

        for found in every_way(*arrays):
            close(found, wanted)

    def test_dtypes(self, arrays):
        def dtype(*arrays, **options):
            return jax.eval_shape(partial(attention_fn, **options), *arrays).dtype

        assert dtype(*arrays, dtype=jnp.bfloat16) == jnp.bfloat16
        assert dtype(arrays[0], jnp.asarray(arrays[1], jnp.bfloat16), arrays[2]) == jnp.float32
        halves = {"promote_dtype": lambda x, dtype=None: [jnp.asarray(y, jnp.float16) for y in x]}
        assert dtype(*arrays, **halves) == jnp.float16

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"mask": np.full((T, S), -1e9, np.float32)}, ValueError, r"other numbers than 0 and 1\.\n.*as bias"),
            ({"mask": np.ones((B, T, S), bool)}, ValueError, "mask has shape"),
            ({"precision": "highest"}, NotImplementedError, "Leave out precision"),
            ({"qk_attn_weights_einsum": jnp.einsum}, NotImplementedError, "Leave out precision"),
            ({"dropout_rate": 0.5}, ValueError, "dropout_rng is None"),
            ({"dropout_rate": 2.0}, ValueError, "dropout_rate must be"),
        ],
    )
    def test_refuses(self, arrays, change, error, message):
        with pytest.raises(error, match=rf"^flax.attention_fn: (?s:.*){message}"):
            attention_fn(*arrays, **change)

    @pytest.mark.slow
    def test_dropout(self, arrays):
        """Weights are seen by values that are the identity: kept or 0, alike in all heads where that is said."""
        query, key, _ = arrays
        value = np.broadcast_to(np.eye(S, dtype=np.float32)[:, None], (B, S, G, S))
        mask = np.tri(T, S, 1, dtype=bool)

        @jax.jit
        def run(rng):
            weights = attention_fn(query, key, value, mask=mask)
            drop = {"mask": mask, "dropout_rng": rng, "dropout_rate": RATE}
            same = attention_fn(query, key, value, **drop)
            own = attention_fn(query, key, value, **drop, broadcast_dropout=False)
            off = attention_fn(query, key, value, **drop, deterministic=True)
            slope = jax.grad(lambda v: (attention_fn(query, key, v, **drop) ** 2).sum())(value)
            return weights, same, own, off, slope

        weights, same, own, off, slope = (np.asarray(x) for x in run(jax.random.key(1)))
        np.testing.assert_array_equal(off, weights)
        for found, alike in ((same, True), (own, False)):
            kept = found > 0
            close(found, np.where(kept, weights / (1 - RATE), 0))
            seen = np.broadcast_to(mask[:, None], kept.shape)
            assert 0.5 < kept[seen].mean() < 0.9
            assert (kept == kept[:1, :, :1]).all() == alike
        assert np.isfinite(slope).all()
        assert not np.asarray(attention_fn(*arrays, dropout_rate=1.0, dropout_rng=jax.random.key(0))).any()


class TestFlax:
    def model(self, nnx, attention):
        class Model(nnx.Module):
            def __init__(self, rngs):
                self.attention = nnx.MultiHeadAttention(2, 6, decode=False, rngs=rngs, attention_fn=attention)
                self.out = nnx.Linear(6, 1, rngs=rngs)

            def __call__(self, x, real, **options):
                mask = nnx.make_attention_mask(real, real)  # float32
                hidden = self.out(x + self.attention(x, mask=mask, **options))[..., 0]
                return jnp.where(real, hidden, 0).sum(axis=1)

        return Model(nnx.Rngs(0))

    @pytest.mark.slow
    def test_nnx_trains_alike_and_sows_alike(self, rng):
        nnx = pytest.importorskip("flax.nnx", reason="flax is not installed (extra 'models')")
        x, real, target = task(rng)
        losses, sown = [], []
        for attention in (nnx.dot_product_attention, attention_fn):
            graph, params, rest = nnx.split(self.model(nnx, attention), nnx.Param, ...)

            def loss(params, graph=graph, rest=rest):
                return ((nnx.merge(graph, params, rest)(x, real) - target) ** 2).mean() / 9

            losses.append(trained(loss, params))
            model = nnx.merge(graph, params, rest)
            with warnings.catch_warnings():  # of sowing as flax had it before 0.12.4
                warnings.simplefilter("ignore", DeprecationWarning)
                model(x, real, sow_weights=True)
            sown.append(np.asarray(model.attention.attention_weights.get_value()[0]))
        assert_trains_alike(*losses)
        seen = (real[:, None, :, None] & real[:, None, None, :]) | np.zeros((1, 2, 1, 1), bool)
        close(sown[1][seen], sown[0][seen])

    @pytest.mark.slow
    def test_nnx_decodes_with_its_cache(self, rng):
        nnx = pytest.importorskip("flax.nnx", reason="flax is not installed (extra 'models')")
        x, decoded = task(rng)[0][:2], []
        for attention in (nnx.dot_product_attention, attention_fn):
            layer = nnx.MultiHeadAttention(2, 6, rngs=nnx.Rngs(0), decode=True, attention_fn=attention)
            layer.init_cache(x.shape)
            decoded.append(np.concatenate([layer(x[:, t : t + 1]) for t in range(3)], axis=1))
        close(*decoded)

    @pytest.mark.slow
    def test_linen_trains_alike_decodes_and_sows(self, rng):
        linen = pytest.importorskip("flax.linen", reason="flax is not installed (extra 'models')")
        x, real, target = task(rng)
        losses, decoded, sown = [], [], []
        for attention in (linen.dot_product_attention, attention_fn):
            layer = linen.MultiHeadDotProductAttention(2, attention_fn=attention)
            params = layer.init(jax.random.key(0), x)
            mask = linen.make_attention_mask(real, real)

            def loss(params, layer=layer, mask=mask):
                hidden = layer.apply(params, x, mask=mask)
                return ((jnp.where(real[..., None], hidden, 0).sum(axis=(1, 2)) - target) ** 2).mean() / 9

            losses.append(trained(loss, params))
            _, state = layer.apply(params, x, mask=mask, sow_weights=True, mutable=["intermediates"])
            sown.append(np.asarray(state["intermediates"]["attention_weights"][0]))
            stepwise = layer.clone(decode=True)
            cache = stepwise.init(jax.random.key(0), x)["cache"]
            run = jax.jit(lambda v, token, f=stepwise: f.apply(v, token, mutable=["cache"]))
            tokens = []
            for t in range(3):
                out, state = run({**params, "cache": cache}, x[:, t : t + 1])
                cache = state["cache"]
                tokens.append(out)
            decoded.append(np.concatenate(tokens, axis=1))
        assert_trains_alike(*losses)
        close(*decoded)
        seen = (real[:, None, :, None] & real[:, None, None, :]) | np.zeros((1, 2, 1, 1), bool)
        close(sown[1][seen], sown[0][seen])


@pytest.mark.slow
def test_equinox_trains_alike(rng):
    eqx = pytest.importorskip("equinox", reason="equinox is not installed (extra 'models')")
    x, real, target = task(rng)
    module = eqx.nn.MultiheadAttention(2, 6, use_query_bias=True, use_output_bias=True, key=jax.random.key(0))
    params, static = eqx.partition(module, eqx.is_inexact_array)
    mask = np.repeat(real[:, None, :], 5, axis=1)

    def loss(params, call):
        hidden = jax.vmap(lambda x, mask: call(eqx.combine(params, static), x, x, x, mask))(x, mask)
        return ((jnp.where(real[..., None], hidden, 0).sum(axis=(1, 2)) - target) ** 2).mean() / 9

    theirs = trained(lambda p: loss(p, lambda module, *given: module(*given)), params)
    assert_trains_alike(theirs, trained(lambda p: loss(p, our_equinox.multihead_attention), params))
    per_head = np.stack([np.tri(5, dtype=bool), np.ones((5, 5), bool)])
    turned = {"process_heads": lambda q, k, v: (q[::-1], k, 2 * v)}
    close(our_equinox.multihead_attention(module, x[0], x[0], x[0], per_head, **turned),
          module(x[0], x[0], x[0], per_head, **turned))  # fmt: skip


@pytest.mark.slow
def test_equinox_drops_weights(rng):
    """Values that are the identity show them: kept and scaled up, or 0, other ones in each head."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed (extra 'models')")
    sizes = {"value_size": 10, "output_size": 10, "vo_size": 5, "dropout_p": RATE}
    module = eqx.nn.MultiheadAttention(2, 6, **sizes, key=jax.random.key(0))
    eye = np.concatenate([np.eye(5), np.eye(5)], axis=1).astype(np.float32)
    module = eqx.tree_at(lambda m: [m.value_proj.weight, m.output_proj.weight], module, [jnp.eye(10), jnp.eye(10)])
    x = rng.normal(size=(5, 6)).astype(np.float32)

    @jax.jit
    def run(key):
        dropped = our_equinox.multihead_attention(module, x, x, eye, key=key)
        return dropped, our_equinox.multihead_attention(module, x, x, eye, inference=True)

    dropped, weights = (np.asarray(a).reshape(5, 2, 5) for a in run(jax.random.key(2)))
    close(weights.reshape(5, 10), module(x, x, eye, inference=True))
    kept = dropped > 0
    close(dropped, np.where(kept, weights / (1 - RATE), 0))
    assert 0.4 < kept.mean() < 0.95
    assert (kept[:, 0] != kept[:, 1]).any()
    with pytest.raises(ValueError, match=r"^equinox.multihead_attention: .* dropout_rng is None"):
        our_equinox.multihead_attention(module, x, x, eye)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # keras, of NumPy's
def test_keras_trains_alike(monkeypatch):
    """The layer of the page in a model of keras, by its own ``fit``, on padded tokens: every loss, all weights."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras", reason="keras is not installed (extra 'models')")
    assert keras.backend.backend() == "jax"
    page: dict = {"jax": jax, "jnp": jnp, "np": np}
    exec(dict(PAGES)["keras"].split("\nx = ")[0], page)
    rng = np.random.default_rng(0)
    tokens = (rng.integers(1, 7, (8, 5)) * (np.arange(5) < rng.integers(2, 6, (8, 1)))).astype(np.int32)
    wanted = tokens.max(axis=1, keepdims=True).astype(np.float32) / 3

    def fitted(layer):
        keras.utils.set_random_seed(0)
        given = keras.Input((5,), dtype="int32")
        x = keras.layers.Embedding(7, 6, mask_zero=True)(given)
        x = layer(2, 3)(x, x, use_causal_mask=True)
        model = keras.Model(given, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        losses = model.fit(tokens, wanted, batch_size=8, epochs=5, shuffle=False, verbose=0).history["loss"]
        return np.asarray(losses), model.get_weights()

    (theirs, weights), (ours, own) = fitted(keras.layers.MultiHeadAttention), fitted(page["Attention"])
    assert_trains_alike(theirs, ours)
    for a, b in zip(own, weights, strict=True):
        close(a, b)


class TestEquinoxWithoutIt:
    @pytest.mark.smoke
    def test_refuses_another_module(self):
        with pytest.raises(TypeError, match=r"^equinox.multihead_attention: module must be"):
            our_equinox.multihead_attention(object(), *(np.ones((2, 3), np.float32) for _ in range(3)))


def test_every_library_has_its_page():
    assert [name for name, _ in PAGES] == ["jax.nn", "flax.nnx", "flax.linen", "equinox", "keras"]
    assert all(len(ast.parse(code).body) <= 6 or name == "keras" for name, code in PAGES)
    assert all("assert " in code for _, code in PAGES)  # tests/pages/test_pages.py runs them
