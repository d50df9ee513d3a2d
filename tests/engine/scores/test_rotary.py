"""Rotary encodings as models have them: by definition, and against the frequencies and angles of transformers."""

import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import ops, rotary, spec
from judges import TWINS

B, N, T, D = 2, 3, 5, 12
FIVE = rotary.Frequencies((1.0, 0.4, 0.3, 0.02, 0.0), 1.4)
OF_AXES = np.array([[0, 1, 2, 3, 4], [7, 7, 0, -2, 1], [5, 0, 900, 2**20, 3]])
ONE_EACH = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
CALLS = {
    "plain": {},
    "part": {"frequencies": rotary.plain(8, 100.0)},
    "frequencies of the whole": {"frequencies": rotary.plain(8, 100.0, of=D)},
    "with a factor": {"frequencies": FIVE},
    "interleaved": {"interleaved": True, "theta": 50.0},
    "interleaved part": {"interleaved": True, "frequencies": FIVE},
    "for each text": {"positions": ONE_EACH},
    "for each text, part": {"positions": ONE_EACH, "frequencies": FIVE},
    "for each head": {"positions": np.arange(N * T).reshape(1, N, T)},
    "axes": {"frequencies": FIVE, "axes": (0, 1, 1, 2, 0), "positions": OF_AXES},
    "axes of each text": {"axes": rotary.sections(1, 2, 3), "positions": np.stack([OF_AXES, OF_AXES[::-1]], 1)},
    "interleaved axes": {"axes": rotary.in_turn(2, 2, 2), "positions": OF_AXES, "interleaved": True},
}


def by_definition(x, *, theta=10000.0, positions=None, frequencies=None, axes=None, interleaved=False):
    """Each pair of each token on its own, as a complex number."""
    count = D // 2 if frequencies is None else len(frequencies.numbers)
    numbers = [theta ** (-2 * i / D) for i in range(D // 2)] if frequencies is None else frequencies.numbers
    factor = 1.0 if frequencies is None else frequencies.factor
    found = x.copy()
    for b, n, t in np.ndindex(B, N, T):
        for i in range(count):
            at = t
            if positions is not None:
                own = positions if axes is None else positions[axes[i]]
                at = own[t] if own.ndim == 1 else own[b, t] if own.ndim == 2 else own[0, n, t]
            one, other = (2 * i, 2 * i + 1) if interleaved else (i, i + count)
            turned = complex(x[b, n, t, one], x[b, n, t, other]) * factor * np.exp(1j * float(at) * numbers[i])
            found[b, n, t, one], found[b, n, t, other] = turned.real, turned.imag
    return found


@pytest.mark.smoke(6)
@TWINS
@pytest.mark.parametrize("name", CALLS)
def test_by_definition(twin, name, rng):
    x = rng.normal(size=(B, N, T, D))
    np.testing.assert_allclose(twin.rotary_encoding(x, **CALLS[name]), by_definition(x, **CALLS[name]), atol=1e-9)


@pytest.mark.smoke(3)
@pytest.mark.parametrize("name", CALLS)
def test_the_gradient_by_hand_is_that_of_jax(name, rng):
    x, grad = rng.normal(size=(2, B, N, T, D))
    wanted = jax.vjp(lambda x: ops.rotary_encoding(x, **CALLS[name]), jnp.asarray(x))[1](jnp.asarray(grad))[0]
    np.testing.assert_allclose(spec.rotary_encoding_backward(grad, x, **CALLS[name]), wanted, atol=1e-9)
    np.testing.assert_allclose(ops.rotary_encoding_backward(grad, x, **CALLS[name]), wanted, atol=1e-12)


def test_traced_positions_and_float32(rng):
    x = jnp.asarray(rng.normal(size=(B, N, T, D)), jnp.float32)
    call = CALLS["axes"] | {"positions": OF_AXES * 1000}

    @jax.jit
    def turned(x, positions):
        return ops.rotary_encoding(x, **call | {"positions": positions})

    wanted = by_definition(np.asarray(x, np.float64), **call)
    np.testing.assert_allclose(turned(x, call["positions"]), wanted, atol=1e-5)
    numbers = np.array(FIVE.numbers)  # an array is as good
    found = jax.jit(lambda x: ops.rotary_encoding(x, frequencies=numbers))(x)
    np.testing.assert_allclose(found, ops.rotary_encoding(x, frequencies=FIVE._replace(factor=1.0)), atol=1e-6)


@pytest.mark.smoke
def test_axes():
    assert rotary.sections(16, 24, 24) == (0,) * 16 + (1,) * 24 + (2,) * 24
    axes = rotary.in_turn(24, 20, 20)
    assert [axes.count(axis) for axis in range(3)] == [24, 20, 20]
    assert axes[:6] == (0, 1, 2, 0, 1, 2)
    assert axes[60:] == (0,) * 4
    frequencies, axes = rotary.axial(16)
    assert axes == (0,) * 4 + (1,) * 4
    assert frequencies.numbers == rotary.plain(8).numbers * 2


REFUSED = {
    "too many": (ValueError, lambda x: ops.rotary_encoding(x, frequencies=rotary.plain(14)), "14 columns", "D=12"),
    "no numbers": (TypeError, lambda x: ops.rotary_encoding(x, frequencies=0.5), "one per pair, got float"),
    "axes of fewer": (ValueError, lambda x: ops.rotary_encoding(x, axes=(0, 1), positions=OF_AXES), "6 pairs"),
    "axes alone": (ValueError, lambda x: ops.rotary_encoding(x, axes=(0, 1) * 3), "axes need positions"),
    "an axis too few": (
        ValueError,
        lambda x: ops.rotary_encoding(x, axes=(0, 1, 2) * 2, positions=OF_AXES[:2]),
        "(2, 5)",
        "3 axes",
    ),
    "odd": (ValueError, lambda x: rotary.plain(5), "must be even"),
    "interleaved": (TypeError, lambda x: ops.rotary_encoding(x, interleaved=1), "True or False"),
    "a share": (ValueError, lambda x: rotary.proportional(8, 1.5), "share"),
    "theta 1": (ValueError, lambda x: rotary.yarn(8, 2.0, trained=9, theta=1.0), "theta must not be 1"),
    "order": (
        ValueError,
        lambda x: rotary.llama3(8, 2.0, low_freq_factor=4.0, high_freq_factor=2.0),
        "high_freq_factor",
    ),
    "a grid": (ValueError, lambda x: rotary.axial(10), "not divisible by 4"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    error, call, *parts = REFUSED[name]
    with pytest.raises(error) as caught:
        call(np.zeros((B, N, T, D)))
    assert [part for part in parts if part not in str(caught.value)] == []


OF_TRANSFORMERS = {
    "linear": ({"factor": 4.0}, lambda: rotary.interpolated(64, 4.0, 5e5)),
    "dynamic": ({"factor": 3.0}, lambda: rotary.ntk_dynamic(64, 3.0, length=9000, trained=4096, theta=5e5)),
    "yarn": (
        {"factor": 8.0, "original_max_position_embeddings": 512},
        lambda: rotary.yarn(64, 8.0, trained=512, theta=5e5),
    ),
    "yarn of DeepSeek": (
        {
            "factor": 40.0, "original_max_position_embeddings": 512, "mscale": 0.7, "mscale_all_dim": 1.0,
            "truncate": False,
        },
        lambda: rotary.yarn(
            64, 40.0, trained=512, theta=5e5, truncate=False,
            attention_factor=(0.07 * math.log(40) + 1) / (0.1 * math.log(40) + 1),
        ),
    ),
    "llama3": (
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512},
        lambda: rotary.llama3(64, 8.0, trained=512),
    ),
    "longrope": (
        {
            "factor": 8.0, "original_max_position_embeddings": 512,
            "short_factor": [1.0 + k / 9 for k in range(32)], "long_factor": [1.0 + k for k in range(32)],
        },
        lambda: rotary.longrope([1.0 + k for k in range(32)], scale=8.0, trained=512, theta=5e5),
    ),
    "proportional": ({"partial_rotary_factor": 0.25}, lambda: rotary.proportional(64, 0.25, 5e5)),
    "default": ({}, lambda: rotary.plain(32, 5e5)),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_frequencies_are_those_of_transformers(name):
    """1e-6: those of transformers are float32."""
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    given, ours = OF_TRANSFORMERS[name]
    kind = name.split()[0]
    parameters = {"rope_type": kind, "rope_theta": 5e5} | given
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=4096, rope_parameters=parameters
    )
    if kind == "default":
        config.head_dim = 32  # a part is a head of its own width
        frequencies, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        frequencies, factor = utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=9000)
    found = ours()
    np.testing.assert_allclose(found.numbers, frequencies.double().numpy(), rtol=1e-6, atol=1e-12)
    assert found.factor == pytest.approx(factor, rel=1e-6)


def test_encodings_are_those_of_transformers(rng):
    """Llama's halves, GPT-J's neighbours, and the sections of Qwen2-VL and Qwen3-VL."""
    pytest.importorskip("transformers")
    import torch
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as of_gptj
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as of_llama

    x = rng.normal(size=(B, N, T, D))
    angle = torch.arange(T)[:, None] * torch.tensor(rotary.plain(D).numbers, dtype=torch.float64)
    cos, sin = (f(torch.cat([angle, angle], -1))[None].expand(B, T, D) for f in (torch.cos, torch.sin))
    wanted = of_llama(torch.tensor(x), torch.tensor(x), cos, sin)[0]
    np.testing.assert_allclose(ops.rotary_encoding(x), wanted.numpy(), atol=1e-9)
    tokens_first = torch.tensor(x).transpose(1, 2)
    wanted = of_gptj(tokens_first, torch.sin(angle)[None], torch.cos(angle)[None]).transpose(1, 2)
    np.testing.assert_allclose(ops.rotary_encoding(x, interleaved=True), wanted.numpy(), atol=1e-9)


@pytest.mark.parametrize("name", ["Qwen2-VL", "Qwen3-VL"])
def test_m_rope_is_that_of_transformers(name, rng):
    pytest.importorskip("transformers")
    import torch

    x, width = rng.normal(size=(B, N, T, 16)), 16
    counts = (2, 3, 3)
    positions = np.stack([np.stack([OF_AXES[k], OF_AXES[k] + 1]) % 50 for k in range(3)])  # (3, B, T)
    angle = torch.tensor(positions)[..., None] * torch.tensor(rotary.plain(width).numbers, dtype=torch.float64)
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    if name == "Qwen2-VL":
        from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding as Embedding

        axes = rotary.sections(*counts)
    else:
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding as Embedding

        axes = rotary.in_turn(*counts)
    model = types.SimpleNamespace(mrope_section=list(counts))
    cos, sin = (Embedding.recomposition_frequencies(model, f(angle)) for f in (torch.cos, torch.sin))
    wanted = apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), cos, sin)[0]
    found = ops.rotary_encoding(x, axes=axes, positions=positions)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-9)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
def test_positions_of_any_width(dtype):
    """The least and the largest number of a dtype, and those beside 2^30; NumPy's int64 also without 64 bits (L4)."""
    info = np.iinfo(dtype)
    numbers = {0, 1, info.min, info.max} if info.bits < 64 else {2**40, -(2**33) - 5}
    numbers |= {x for x in (2**30 - 1, 2**30, -(2**30)) if info.min <= x <= info.max}
    positions = np.array(sorted(numbers), dtype)
    x = np.random.default_rng(1).standard_normal((positions.size, 16))
    frequencies = [0.5**k for k in range(8)]  # powers of two: products with them are exact
    wanted = spec.rotary_encoding(x, positions=positions, frequencies=frequencies)
    for known in (jnp.asarray(x), jnp.asarray(x, jnp.float32)):
        got = ops.rotary_encoding(known, positions=positions, frequencies=frequencies)
        np.testing.assert_allclose(got, wanted, atol=1e-12 if known.dtype == np.float64 else 1e-6)
    with jax.enable_x64(False):
        got = ops.rotary_encoding(x.astype(np.float32), positions=positions, frequencies=frequencies)
        np.testing.assert_allclose(got, wanted, atol=1e-6)
