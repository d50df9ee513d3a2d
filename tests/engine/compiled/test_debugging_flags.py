"""Every public function runs under the settings of JAX that find mistakes: promotion, ranks, leaks, keys, transfers.

Outside jit, JAX refuses to move numbers to a device under a transfer guard, ``x + 1.0`` and its own attention included;
so there the guard is held against compiled programs, whose arguments lie on the device.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import refusal_calls
from attendax import attention, attention_stats, encoders, masks, merge, ops, scores, weights_at
from attendax.compat import jax_nn

SETTINGS = {
    "strict promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "no rank promotion": lambda: jax.numpy_rank_promotion("raise"),
    "leaks": jax.checking_leaks,
    "reused keys": lambda: jax.debug_key_reuse(True),
    "transfers": lambda: jax.transfer_guard("disallow"),
}
CONFIG = encoders.EncoderConfig(
    vocab_size=50, d_model=16, num_layers=2, num_heads=2, d_ff=32, max_positions=16, num_token_types=2
)
LENGTHS = np.array([7, 3])
OPTIONS = {
    "plain": {},
    "dense": {"implementation": "dense"},
    "causal and padding": {"mask": masks.causal(2) & masks.padding(LENGTHS)},
    "window": {"mask": masks.window(2, 1)},
    "a function": {"mask": masks.from_function(lambda i, j: j <= i + 2)},
    "bias": {"bias": np.zeros((4, 5, 7), np.float32)},
    "softcap and alibi": {"score_mod": scores.compose(scores.softcap(5.0), scores.alibi(np.ones(4, np.float32)))},
    "relative bias": {"score_mod": scores.relative_bias(np.zeros((4, 5), np.float32))},
    "a function of scores": {"score_mod": scores.from_function(lambda s, at: s * 2)},
    "sink": {"score_mod": scores.sink(np.zeros(4, np.float32))},
    "scale": {"scale": 0.3},
    "dropout": {"dropout_rate": 0.3, "dropout_rng": "rng"},
}


def attended(options):
    """Of a call: query, key and value to out, and to lse where there is no dropout."""

    def call(query, key, value, rng):
        given = options | ({"dropout_rng": rng} if "dropout_rng" in options else {})
        return attention(query, key, value, return_lse="dropout_rng" not in given, **given)

    return call


def encoded(query, key, value, rng):
    params = encoders.init_encoder(rng, CONFIG)
    tokens = jnp.zeros((2, 5), jnp.int32)
    return encoders.encode(tokens, params, config=CONFIG, mask=jnp.ones((2, 5), bool)) * query.sum()


def beside_jax(query, key, value, rng):
    return jax_nn.dot_product_attention(*(x.swapaxes(1, 2) for x in (query, key, value)), is_causal=True)


CALLS = {f"attention: {name}": attended(options) for name, options in OPTIONS.items()} | {
    "attention_stats": lambda q, k, v, rng: attention_stats(q, k, mask=masks.causal(2)),
    "weights_at": lambda q, k, v, rng: weights_at(q, k, queries=jnp.arange(2)),
    "merge": lambda q, k, v, rng: merge((q, q[..., 0]), (q, q[..., 1])),
    "encode": encoded,
    "compat.jax_nn": beside_jax,
}
LAYERS = [name for name in refusal_calls.ARRAYS if hasattr(ops, name.partition(".")[0])]


def numbers_of(results):
    return [x for x in jax.tree.leaves(results) if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)]


def loss(function):
    return lambda *arrays: sum(x.astype(jnp.float32).sum() for x in numbers_of(function(*arrays)))


def hold(function, setting, how, *arrays):
    run = {"eager": function, "jit": jax.jit(function), "gradient": jax.jit(jax.grad(loss(function)))}[how]
    if setting == "transfers" and how == "eager":
        run = jax.jit(function)
    arrays = jax.device_put(arrays)
    if setting == "transfers":  # what a program closes over is moved once, when it is compiled
        run(*arrays)
    with SETTINGS[setting]():
        results = run(*arrays)
    assert all(np.isfinite(x).all() for x in numbers_of(results))


@pytest.mark.sample(5)
@pytest.mark.parametrize("how", ["eager", "jit", "gradient"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", CALLS)
def test_attention_runs_under(setting, name, how, rng):
    shapes = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    with jax.enable_x64(False):
        hold(CALLS[name], setting, how, *arrays, jax.random.key(3))


@pytest.mark.sample(5)
@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_run_under(setting, name, how):
    refusal_calls._cache("ops")  # kept, and so made outside jit
    given = refusal_calls.arguments(name)
    arrays = {k: x for k, x in given.items() if isinstance(x, np.ndarray) and x.dtype.kind == "f"}
    call = refusal_calls.CALLS.get(name, refusal_calls._plain)
    hold(lambda arrays: call("ops", name, **given | arrays), setting, how, arrays)
