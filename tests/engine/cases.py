"""Every function that has a gradient, as data: how to call it on either twin, its backward by hand, its arrays.

A case is what the judges share: forward and gradients of the two twins, finite differences, float32, jit and vmap all
run over this list. Sizes are distinct and awkward on purpose.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attendax import masks, rotary, scores
from attendax.params import EncoderBlockParams, MultiHeadParams, QKNorm, SingleHeadParams

B, N, G, T, S, D, V, M, F = 2, 6, 3, 5, 7, 3, 11, 12, 13


class Case(NamedTuple):
    """One function under one setting.

    ``forward(twin, *arrays)`` gives an array or a tuple of arrays; ``backward(spec, grad_output, *arrays)`` the
    gradients by hand, one for each of ``arrays``, which may be pytrees.
    """

    name: str
    forward: Callable
    backward: Callable
    arrays: Callable[[np.random.Generator], tuple]
    smooth: bool = True


def normal(*shapes) -> Callable[[np.random.Generator], tuple]:
    return lambda rng: tuple(rng.normal(size=shape) for shape in shapes)


def per_batch_mask(*shape):
    """A fixed random mask that also holds a row without any key and a key that nobody sees."""
    mask = np.random.default_rng(5).random(shape) < 0.6
    mask[0, ..., 1, :] = False
    mask[..., 3] = False
    return mask


def attention_case(name: str, shapes: dict, *, lse: bool = False, smooth: bool = True, **options: Any) -> Case:
    """``attention`` with fixed options; what is in ``shapes`` beyond query, key, value is differentiated, too."""
    names = list(shapes)

    def keywords(arrays):
        given = dict(zip(names, arrays, strict=True))
        if "slopes" in given:
            given["score_mod"] = scores.alibi(given.pop("slopes"), offset=2)
        if "table" in given:
            given["score_mod"] = scores.compose(scores.softcap(3.0), scores.relative_bias(given.pop("table")))
        return given | options

    def forward(twin, *arrays):
        return twin.attention(**keywords(arrays), return_lse=lse)

    def backward(spec, grad_output, *arrays):
        given = keywords(arrays)
        if lse:
            grad_output, given["grad_lse"] = grad_output
        grads = spec.attention_backward(grad_output, **given)
        grad_of = {name: getattr(grads, f"grad_{name}", None) for name in names}
        if "slopes" in names:
            (grad_of["slopes"],) = grads.grad_score_mod.arrays
        if "table" in names:
            (grad_of["table"],) = grads.grad_score_mod.arrays[1].arrays
        return tuple(grad_of[name] for name in names)

    return Case(f"attention-{name}", forward, backward, normal(*shapes.values()), smooth)


QKV = {"query": (B, N, T, D), "key": (B, G, S, D), "value": (B, G, S, V)}
KEY = np.array([7, 11], np.uint32)
LENGTHS = np.array([S, 2])
PLACES = np.array([[[0, 1, 2, 0, 1]], [[-3, 1500, 2**21 + 5, 7, 2**28]]])  # every digit of ops' tables
GRID = np.array([[0, 0, 1, 2, -3], [5, 2**21, 0, 1, 7]])
ROTARY = {
    "part": {"frequencies": rotary.Frequencies((1.0, 0.3, 0.01), 1.3)},
    "interleaved": {"interleaved": True, "positions": np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])},
    "axes": {"axes": (0, 1, 1, 0), "positions": GRID, "frequencies": (1.0, 0.5, 0.2, 0.1)},
}
SDPA = normal((B, 2, T, D), (B, 2, S, D), (B, 2, S, V))
MASKS = {
    "open": None,
    "causal": np.tril(np.ones((T, S), bool)),
    "ragged": per_batch_mask(B, 1, T, S),
    "keys": np.arange(S) < 4,
}


def attention_cases() -> list[Case]:
    cases = [
        attention_case("grouped", QKV),
        attention_case("scale", QKV, scale=-0.7),
        attention_case("mask", QKV, mask=per_batch_mask(B, 1, T, S)),
        attention_case("mask per head", QKV, mask=per_batch_mask(1, N, T, S)),
        attention_case("causal lse", QKV, mask=masks.causal(S - T), lse=True),
        attention_case("window", QKV, mask=masks.window(1, 2) & ~masks.causal(-3)),
        attention_case("padding", QKV, mask=masks.padding(LENGTHS, np.array([T, 0])), lse=True),
        attention_case(
            "segments",
            QKV,
            mask=masks.segments(np.arange(T)[None] // np.array([[2], [3]]), np.arange(S)[None] // np.array([[2], [3]])),
        ),
        attention_case("prefix", QKV, mask=masks.prefix(np.array([3, 0]))),
        attention_case("prefix later", QKV, mask=masks.prefix(np.array([3, 0]), np.array([2, -1]))),
        attention_case("window later", QKV, mask=masks.window(1, 2, np.array([3, -2]))),
        attention_case("softcap", QKV, score_mod=scores.softcap(0.8), mask=per_batch_mask(B, 1, T, S)),
        attention_case("alibi", QKV | {"slopes": (N,)}, mask=masks.causal(2)),
        attention_case("relative bias", QKV | {"table": (N, 5)}, lse=True),
        attention_case("dropout", QKV, dropout_rate=0.3, dropout_rng=KEY),
        attention_case("dropout lse", QKV, dropout_rate=0.6, dropout_rng=KEY, mask=masks.causal(), lse=True),
        attention_case("one head", {"query": (T, D), "key": (S, D), "value": (S, V)}, mask=masks.causal(), lse=True),
    ]
    shapes = [(B, N, T, S), (1, N, 1, S), (N, T, 1), (B, 1, T, S), (S,), (1, 1, 1, 1), ()]
    for shape in shapes:
        cases.append(attention_case(f"bias {shape}", QKV | {"bias": shape}, mask=per_batch_mask(B, 1, T, S)))
    return cases


def core_cases() -> list[Case]:
    cases = [
        Case(
            f"softmax-axis {axis}",
            lambda t, x, a=axis: t.softmax(x, a),
            lambda s, g, x, a=axis: (s.softmax_backward(g, x, a),),
            normal((T, S, D)),
        )
        for axis in (-1, 0, 1)
    ]
    cases += [
        Case("attention_weights", lambda t, x: t.attention_weights(x),
            lambda s, g, x: (s.attention_weights_backward(g, x),), normal((B, T, S))),
        Case("scores", lambda t, q, k: t.compute_attention_scores(q, k),
            lambda s, g, q, k: s.compute_attention_scores_backward(g, q, k), normal((B, T, D), (B, S, D))),
        Case("scores-unscaled", lambda t, q, k: t.compute_attention_scores(q, k, scale=False),
            lambda s, g, q, k: s.compute_attention_scores_backward(g, q, k, scale=False), normal((T, D), (S, D))),
        Case("apply_attention_mask", lambda t, x: t.apply_attention_mask(x, MASKS["causal"], -3.0),
            lambda s, g, x: (s.apply_attention_mask_backward(g, x, MASKS["causal"], -3.0),), normal((B, T, S))),
    ]  # fmt: skip
    for name, mask in MASKS.items():
        flat = mask.reshape(-1, *mask.shape[2:]) if np.ndim(mask) == 4 else mask
        cases += [
            Case(f"sdpa-{name}", lambda t, q, k, v, m=mask: t.scaled_dot_product_attention(q, k, v, m)[0],
                lambda s, g, q, k, v, m=mask: s.scaled_dot_product_attention_backward(g, q, k, v, m), SDPA),
            Case(f"additive-{name}", lambda t, *a, m=flat: t.additive_attention(*a, m)[0],
                lambda s, g, *a, m=flat: s.additive_attention_backward(g, *a, m),
                normal((B, T, D), (B, S, 4), (B, S, V), (D, 8), (4, 8), (8,))),
        ]  # fmt: skip
    ragged = MASKS["ragged"]
    return cases + [
        Case(f"sdpa-bias {shape}", lambda t, q, k, v, b: t.scaled_dot_product_attention(q, k, v, ragged, bias=b)[0],
            lambda s, g, q, k, v, b: s.scaled_dot_product_attention_backward(g, q, k, v, ragged, bias=b),
            lambda rng, shape=shape: (*SDPA(rng), rng.normal(size=shape)))
        for shape in [(T, S), (B, 1, 1, S), (2, T, 1)]
    ]  # fmt: skip


def layer_cases() -> list[Case]:
    return [
        Case("layer_norm", lambda t, x, g, b: t.layer_norm(x, g, b, 1e-3),
            lambda s, dy, x, g, b: s.layer_norm_backward(dy, x, g, 1e-3), normal((B, 1, T, M), (M,), (M,))),
        Case("layer_norm-vector", lambda t, x, g, b: t.layer_norm(x, g, b),
            lambda s, dy, x, g, b: s.layer_norm_backward(dy, x, g), normal((M,), (M,), (M,))),
        Case("rms_norm", lambda t, x, g: t.rms_norm(x, g, 1e-3),
            lambda s, dy, x, g: s.rms_norm_backward(dy, x, g, 1e-3), normal((B, 1, T, M), (M,))),
        Case("rotary", lambda t, x: t.rotary_encoding(x, theta=50.0),
            lambda s, g, x: (s.rotary_encoding_backward(g, x, theta=50.0),), normal((B, N, T, 8))),
        Case("rotary-positions", lambda t, x: t.rotary_encoding(x, positions=PLACES),
            lambda s, g, x: (s.rotary_encoding_backward(g, x, positions=PLACES),), normal((B, N, T, 2))),
        *(Case(f"rotary-{name}", lambda t, x, given=given: t.rotary_encoding(x, **given),
            lambda s, g, x, given=given: (s.rotary_encoding_backward(g, x, **given),), normal((B, N, T, 8)))
            for name, given in ROTARY.items()),
        *(Case(f"gated-{name}", lambda t, *a, o=options: t.gated_feed_forward(*a, **o),
            lambda s, g, *a, o=options: s.gated_feed_forward_backward(g, *a, **o),
            normal((B, T, M), (M, 2 * F), (2 * F,), (F, M), (M,)))
            for name, options in {"geglu": {}, "swiglu": {"activation": "silu"}}.items()),
        Case("add_positional_encoding", lambda t, x, pe: t.add_positional_encoding(x, pe),
            lambda s, g, x, pe: s.add_positional_encoding_backward(g, x, pe), normal((B, T, M), (S, M))),
        Case("split_heads", lambda t, x: t.split_heads(x, N), lambda s, g, x: (s.split_heads_backward(g, x, N),),
            normal((B, T, M))),
        Case("merge_heads", lambda t, x: t.merge_heads(x), lambda s, g, x: (s.merge_heads_backward(g, x),),
            normal((B, N, T, D))),
        *(Case(f"feed_forward-{f}", lambda t, *a, f=f: t.feed_forward(*a, activation=f),
            lambda s, g, *a, f=f: s.feed_forward_backward(g, *a, activation=f),
            normal((B, T, M), (M, F), (F,), (F, M), (M,)), smooth=f != "relu")
            for f in ("relu", "gelu", "gelu_tanh")),
    ]  # fmt: skip


def multi_head_params(rng, bias: bool = True) -> MultiHeadParams:
    weights = [rng.normal(size=(M, M)) / math.sqrt(M) for _ in range(4)]
    return MultiHeadParams(*weights, *(rng.normal(size=M) if bias else None for _ in range(4)))


def block_params(rng, bias: bool = True) -> EncoderBlockParams:
    shapes = ((M, F), (F,), (F, M), (M,), (M,), (M,), (M,), (M,))
    return EncoderBlockParams(multi_head_params(rng, bias), *(rng.normal(size=shape) / 2 for shape in shapes))


def multi_head_cases() -> list[Case]:
    def forward(twin, Q, K, V, params, mask):
        biases = {name: getattr(params, name) for name in ("b_Q", "b_K", "b_V", "b_O")}
        return twin.multi_head_attention_forward(Q, K, V, *params[:4], N, mask, **biases)

    def backward(spec, grad_output, Q, K, V, params, mask):
        _, cache = forward(spec, Q, K, V, params, mask)
        *grads, grad_params = spec.multi_head_attention_backward(grad_output, cache)
        return *grads, MultiHeadParams(**grad_params)

    def other_widths(rng):  # of keys and values
        tokens, params = normal((B, T, M), (B, S, 5), (B, S, 7))(rng), multi_head_params(rng)
        return *tokens, params._replace(W_K=rng.normal(size=(5, M)), W_V=rng.normal(size=(7, M)))

    tokens, ragged = normal((B, T, M), (B, S, M), (B, S, M)), MASKS["ragged"]
    return [
        *(Case(f"multi_head-{name}", lambda t, *a, m=mask: forward(t, *a, m)[0],
            lambda s, g, *a, m=mask: backward(s, g, *a, m),
            lambda rng, b=name != "causal": (*tokens(rng), multi_head_params(rng, b)))
            for name, mask in MASKS.items()),
        Case("multi_head-widths", lambda t, *a: forward(t, *a, ragged)[0],
            lambda s, g, *a: backward(s, g, *a, ragged), other_widths),
        *(qk_norm_case(one_plus) for one_plus in (False, True)),
        Case("multi_head-params", lambda t, p, *a: t.multi_head_attention(*a, p, num_heads=N, mask=ragged),
            lambda s, g, p, *a: (lambda q, k, v, p: (p, q, k, v))(*backward(s, g, *a, p, ragged)),
            lambda rng: (multi_head_params(rng), *tokens(rng))),
    ]  # fmt: skip


def qk_norm_case(one_plus: bool) -> Case:
    """Multi-head attention with a norm of queries and keys; its gains are differentiated, too."""
    options = {"num_heads": N, "qk_eps": 0.5, "qk_one_plus": one_plus}
    mask = MASKS["ragged"]

    def backward(spec, grad_output, params, gains, *tokens):
        named = {name: getattr(params, name) for name in ("b_Q", "b_K", "b_V", "b_O")}
        given = options | {"mask": mask, "qk_norm": gains} | named
        _, cache = spec.multi_head_attention_forward(*tokens, *params[:4], **given)
        *grads, found = spec.multi_head_attention_backward(grad_output, cache)
        of_gains = QKNorm(found.pop("gamma_Q"), found.pop("gamma_K"))
        return MultiHeadParams(**found), of_gains, *grads

    return Case(
        f"multi_head-qk-norm{'-one-plus' if one_plus else ''}",
        lambda t, p, g, *a: t.multi_head_attention(*a, p, qk_norm=g, mask=mask, **options),
        backward,
        lambda rng: (
            multi_head_params(rng),
            QKNorm(*normal((M // N,), (M // N,))(rng)),
            *normal((B, T, M), (B, S, M), (B, S, M))(rng),
        ),
    )


def block_cases() -> list[Case]:
    mask = per_batch_mask(B, 1, T, T)
    settings = [("pre", "relu", False), ("pre", "gelu", True), ("post", "gelu", True), ("post", "gelu_tanh", False)]
    cases = []
    for norm, activation, bias in settings:
        options = {"num_heads": N, "mask": mask, "norm": norm, "activation": activation, "eps": 1e-3}
        cases.append(
            Case(
                f"encoder_block-{norm}-{activation}",
                lambda t, x, p, o=options: t.encoder_block(x, p, **o),
                lambda s, g, x, p, o=options: s.encoder_block_backward(g, x, p, **o),
                lambda rng, b=bias: (rng.normal(size=(B, T, M)), block_params(rng, b)),
                smooth=activation != "relu",
            )
        )

    def as_blocks(spec, params):
        blocks = [spec.TransformerEncoderBlock(M, N, F, norm="post", bias=True, rng=0) for _ in params]
        for block, weights in zip(blocks, params, strict=True):
            block.set_params(weights)
        return blocks

    def forward(twin, x, params):
        if hasattr(twin, "init_encoder_block"):  # the JAX side takes weights where the NumPy side takes layers
            return twin.stack_encoder_blocks(x, params, mask, num_heads=N, norm="post")
        return twin.stack_encoder_blocks(x, as_blocks(twin, params), mask)

    def backward(spec, grad_output, x, params):
        grad_x, grads = spec.stack_encoder_blocks_backward(grad_output, x, as_blocks(spec, params), mask)
        return grad_x, [EncoderBlockParams(**grad) for grad in grads]

    def arrays(rng):
        return rng.normal(size=(B, T, M)), [block_params(rng) for _ in range(3)]

    return [*cases, Case("stack", forward, backward, arrays, smooth=False)]


def single_head_cases() -> list[Case]:
    def layer(spec, params, causal):
        attention = spec.Attention(M, causal=causal, rng=0)
        attention.set_params(params)
        return attention

    def forward(twin, x, params, causal):
        if hasattr(twin, "init_encoder_block"):
            return twin.Attention(M, causal=causal).forward(x, params)
        return layer(twin, params, causal).forward(x)

    def backward(spec, grad_output, x, params, causal):
        attention = layer(spec, params, causal)
        attention.forward(x)
        grad_x, grads = attention.backward(grad_output)
        return grad_x, SingleHeadParams(**grads)

    def scaled_backward(spec, grad_output, *arrays, mask=None):
        attention = spec.ScaledDotProductAttention()
        attention.forward(*arrays, mask=mask)
        grads = attention.backward(grad_output)
        return (grads,) if len(arrays) == 1 else grads

    mask = per_batch_mask(B, T, S)
    return [
        *(Case(f"Attention-causal {causal}", lambda t, x, p, c=causal: forward(t, x, p, c),
            lambda s, g, x, p, c=causal: backward(s, g, x, p, c),
            lambda rng: (rng.normal(size=(B, T, M)), SingleHeadParams(*normal(*[(M, M)] * 4)(rng))))
            for causal in (False, True)),
        Case("ScaledDotProductAttention", lambda t, *a: t.ScaledDotProductAttention().forward(*a, mask=mask),
            lambda s, g, *a: scaled_backward(s, g, *a, mask=mask), normal((B, T, D), (B, S, D), (B, S, V))),
        Case("ScaledDotProductAttention-self", lambda t, x: t.ScaledDotProductAttention().forward(x),
            scaled_backward, normal((B, T, D))),
    ]  # fmt: skip


CASES = {
    case.name: case
    for cases in (core_cases, layer_cases, multi_head_cases, block_cases, single_head_cases, attention_cases)
    for case in cases()
}
