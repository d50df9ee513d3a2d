"""Refusals beyond arrays: options, sizes, lengths, states; masks and modifiers as values; the words (L14)."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import compat, encoders, masks, ops, scores, sharding, spec
from attendax.conformance import assert_refuses
from attendax.kernels.backends import default
from attendax.params import EncoderParams
from refusal_calls import arguments, assert_refused

pytestmark = pytest.mark.law("L14", "spec", "ops")

NAN, INF = float("nan"), float("inf")

# (function, the wrong arguments, exception, what the first line must say)
MISTAKES = [
    ("softmax", {"axis": 2}, ValueError, ["axis=2", "rank 2"]),
    ("softmax", {"axis": -3}, ValueError, ["axis=-3", "rank 2"]),
    ("softmax", {"axis": 1.0}, TypeError, ["axis", "1.0 of type float"]),
    ("softmax", {"axis": None}, TypeError, ["axis", "NoneType"]),
    ("softmax", {"x": np.float64(1.0).reshape(())}, ValueError, ["axis=-1", "rank 0"]),
    ("softmax_backward", {"axis": 2}, ValueError, ["axis=2", "rank 2"]),
    ("attention_weights", {"axis": 3}, ValueError, ["axis=3", "rank 3"]),
    ("attention_weights_backward", {"axis": -4}, ValueError, ["axis=-4", "rank 3"]),
    ("compute_attention_scores", {"scale": 0.5}, TypeError, ["scale", "0.5"]),
    ("compute_attention_scores_backward", {"scale": "no"}, TypeError, ["scale", "'no'"]),
    ("apply_attention_mask", {"mask": None}, TypeError, ["mask must be boolean", "NoneType"]),
    ("apply_attention_mask_backward", {"mask": None}, TypeError, ["mask must be boolean", "NoneType"]),
    ("apply_attention_mask", {"mask_value": None}, TypeError, ["mask_value", "NoneType"]),
    ("apply_attention_mask", {"mask_value": "low"}, TypeError, ["mask_value", "low"]),
    ("attention", {"scale": 1j}, TypeError, ["scale", "1j"]),
    ("attention", {"scale": np.True_}, TypeError, ["scale", "np.True_"]),
    ("attention", {"scale": b"0.5"}, TypeError, ["scale", "b'0.5'"]),
    ("attention", {"scale": np.complex64(1j)}, TypeError, ["scale", "1j"]),
    ("attention", {"scale": 10**400}, ValueError, ["scale", "finite"]),
    ("attention", {"scale": NAN}, ValueError, ["scale must be a finite number, got nan."]),
    ("attention", {"scale": -INF}, ValueError, ["scale must be a finite number, got -inf."]),
    ("attention", {"dropout_rate": -0.1}, ValueError, ["dropout_rate", "[0, 1]", "-0.1"]),
    ("attention", {"dropout_rate": 1.5}, ValueError, ["dropout_rate", "[0, 1]", "1.5"]),
    ("attention", {"dropout_rate": NAN}, ValueError, ["dropout_rate", "[0, 1]", "nan"]),
    ("attention", {"dropout_rate": None}, TypeError, ["dropout_rate", "NoneType"]),
    ("attention", {"dropout_rate": "0.5"}, TypeError, ["dropout_rate", "'0.5'"]),
    ("attention", {"dropout_rate": 0.5, "dropout_rng": 42}, TypeError, ["dropout_rng", "two 32-bit words"]),
    ("attention", {"dropout_rate": 0.5, "dropout_rng": [0, 1]}, TypeError, ["dropout_rng", "two 32-bit words"]),
    ("attention", {"dropout_rate": 0.5, "dropout_rng": np.ones(2)}, TypeError, ["dropout_rng", "two 32-bit words"]),
    ("attention", {"dropout_rate": 0.5, "dropout_rng": np.ones(3, np.uint32)}, ValueError, ["dropout_rng"]),
    ("attention_backward", {"attn_mask": None}, TypeError, ["unexpected argument 'attn_mask'"]),
    ("attention_with_weights", {"dropout_p": 0.5}, TypeError, ["unexpected argument 'dropout_p'"]),
    ("multi_head_attention", {"key_padding_mask": None}, TypeError, ["unexpected argument 'key_padding_mask'"]),
    ("attention", {"score_mod": abs}, TypeError, ["score_mod", "builtin_function_or_method"]),
    ("attention", {"score_mod": 2.0}, TypeError, ["score_mod", "float"]),
    ("attention", {"score_mod": masks.causal()}, TypeError, ["score_mod", "Mask"]),
    ("attention", {"score_mod": scores.from_function(lambda s, at: s[..., :1])}, ValueError, ["(3, 4, 5, 1)"]),
    ("attention", {"score_mod": scores.from_function(lambda s, at: s > 0)}, TypeError, ["score_mod", "bool"]),
    ("attention", {"mask": scores.softcap(2.0)}, TypeError, ["mask", "ScoreModifier"]),
    ("attention", {"score_mod": scores.alibi(np.ones(3))}, ValueError, ["score_mod alibi", "3 heads", "N=4"]),
    ("attention", {"score_mod": scores.relative_bias(np.ones((2, 5)))}, ValueError, ["2 heads", "N=4"]),
    ("attention", {"score_mod": scores.sink(np.ones(3))}, ValueError, ["score_mod sink", "3 heads", "N=4"]),
    ("attention", {"score_mod": scores.sink(np.ones(4, np.float32))}, TypeError, ["sink", "float32", "float64"]),
    ("attention", {"score_mod": scores.alibi(np.ones(4, np.float32))}, TypeError, ["alibi", "float32", "float64"]),
    ("attention", {"score_mod": scores.compose(scores.alibi(np.ones(5)))}, ValueError, ["5 heads", "N=4"]),
    ("attention", {"score_mod": scores.alibi(np.ones(4), np.zeros(2, int))}, ValueError, ["offset", "(2,)", "(3,)"]),
    (
        "attention",
        {"score_mod": scores.relative_bias(np.ones((4, 5)), np.zeros((3, 1), int))},
        ValueError,
        ["relative_bias", "(3, 1)", "(3,)"],
    ),
    ("attention", {"score_mod": scores.softcap(1e300)}, ValueError, ["cap=1e+300", "from", "to", "float64"]),
    ("attention", {"score_mod": scores.softcap(1e-300)}, ValueError, ["cap=1e-300", "from", "to", "float64"]),
    ("attention", {"mask": masks.causal(np.zeros(2, int))}, ValueError, ["offset of masks.causal has shape (2,)"]),
    ("attention", {"query": np.ones((3, 1, 5, 11))}, ValueError, ["N=1", "not a multiple of the G=2"]),
    ("attention", {"value": np.ones((3, 1, 7, 13))}, ValueError, ["value", "G=2", "G=1"]),
    ("attention", {"mask": np.ones((3, 1, 4, 7), bool)}, ValueError, ["mask", "(3, 1, 4, 7)", "(3, 4, 5, 7)"]),
    ("attention", {"mask": np.ones((7, 5), bool)}, ValueError, ["mask", "(7, 5)", "(3, 4, 5, 7)"]),
    ("attention", {"key": np.ones((3, 0, 7, 11)), "value": np.ones((3, 0, 7, 13))}, ValueError, ["N=4", "G=0"]),
    ("attention_backward", {"grad_lse": np.ones((3, 4, 7))}, ValueError, ["grad_lse", "(3, 4, 7)", "(3, 4, 5)"]),
    ("attention_backward", {"grad_lse": np.ones((3, 4, 5), np.int64)}, TypeError, ["grad_lse", "int64"]),
    ("attention_backward", {"grad_lse": [0.0]}, TypeError, ["grad_lse", "list"]),
    ("split_heads", {"num_heads": 4}, ValueError, ["d_model=22", "num_heads=4"]),
    ("split_heads", {"num_heads": 0}, ValueError, ["num_heads", "at least 1", "0"]),
    ("split_heads", {"num_heads": -2}, ValueError, ["num_heads", "at least 1", "-2"]),
    ("split_heads", {"num_heads": 2.0}, TypeError, ["num_heads", "2.0 of type float"]),
    ("split_heads", {"num_heads": True}, TypeError, ["num_heads", "True of type bool"]),
    ("split_heads", {"num_heads": None}, TypeError, ["num_heads", "NoneType"]),
    ("split_heads_backward", {"num_heads": 4}, ValueError, ["d_model=22", "num_heads=4"]),
    ("multi_head_attention", {"num_heads": 3}, ValueError, ["d_model=22", "num_heads=3"]),
    ("multi_head_attention", {"params": {}}, TypeError, ["params", "MultiHeadParams", "dict"]),
    ("multi_head_attention", {"params": 2}, TypeError, ["params", "MultiHeadParams", "int"]),
    ("multi_head_attention_forward", {"num_heads": 23}, ValueError, ["d_model=22", "num_heads=23"]),
    ("add_positional_encoding_backward", {"pe": np.ones((4, 22))}, ValueError, ["T=5", "P=4"]),
    ("layer_norm", {"eps": -1e-6}, ValueError, ["eps", "-1e-06"]),
    ("layer_norm", {"eps": NAN}, ValueError, ["eps", "nan"]),
    ("layer_norm", {"eps": 1e-310}, ValueError, ["eps=1e-310", "float64"]),
    ("layer_norm", {"eps": "small"}, TypeError, ["eps", "'small'"]),
    ("rms_norm", {"eps": -1e-6}, ValueError, ["eps", "-1e-06"]),
    ("rotary_encoding", {"theta": 0.0}, ValueError, ["theta", "0.0"]),
    ("rotary_encoding", {"positions": np.zeros(5)}, TypeError, ["positions", "float64"]),
    ("rotary_encoding", {"positions": np.zeros((2, 5), int)}, ValueError, ["positions", "(2, 5)", "5 tokens"]),
    ("gated_feed_forward", {"activation": "swiglu"}, ValueError, ["activation", "'swiglu'"]),
    ("layer_norm_backward", {"eps": -1.0}, ValueError, ["eps", "-1.0"]),
    ("layer_norm_backward", {"eps": None}, TypeError, ["eps", "NoneType"]),
    ("feed_forward", {"activation": "swish"}, ValueError, ["activation", "'gelu_tanh'", "'swish'"]),
    ("feed_forward_backward", {"activation": None}, ValueError, ["activation", "'relu'", "None"]),
    ("encoder_block", {"norm": "middle"}, ValueError, ["norm", "'pre', 'post'", "'middle'"]),
    ("encoder_block", {"activation": "tanh"}, ValueError, ["activation", "'tanh'"]),
    ("encoder_block", {"eps": -0.5}, ValueError, ["eps", "-0.5"]),
    ("encoder_block", {"num_heads": 5}, ValueError, ["d_model=22", "num_heads=5"]),
    ("encoder_block", {"params": ()}, TypeError, ["params", "EncoderBlockParams", "tuple"]),
    ("encoder_block_backward", {"norm": None}, ValueError, ["norm", "None"]),
    ("ScaledDotProductAttention.forward", {"key": None}, ValueError, ["key and value"]),
    ("ScaledDotProductAttention.forward", {"value": None}, ValueError, ["key and value"]),
    ("sinusoidal_encoding", {"max_length": -1}, ValueError, ["max_length", "at least 0", "-1"]),
    ("sinusoidal_encoding", {"max_length": 7.0}, TypeError, ["max_length", "7.0 of type float"]),
    ("sinusoidal_encoding", {"d_model": 0}, ValueError, ["d_model", "at least 1", "0"]),
    ("sinusoidal_encoding", {"d_model": True}, TypeError, ["d_model", "True of type bool"]),
    ("learned_positional_encoding", {"max_length": "7"}, TypeError, ["max_length", "'7' of type str"]),
    ("learned_positional_encoding", {"d_model": -11}, ValueError, ["d_model", "at least 1", "-11"]),
    ("create_causal_mask", {"seq_length": -7}, ValueError, ["seq_length", "at least 0", "-7"]),
    ("create_causal_mask", {"seq_length": 7.5}, TypeError, ["seq_length", "7.5 of type float"]),
    ("create_padding_mask", {"max_length": -1}, ValueError, ["max_length", "at least 0", "-1"]),
    ("create_padding_mask", {"lengths": np.ones(3)}, TypeError, ["lengths", "float64"]),
    ("create_padding_mask", {"lengths": np.ones(3, bool)}, TypeError, ["lengths", "bool"]),
    ("create_padding_mask", {"lengths": [3, 2]}, TypeError, ["lengths", "list"]),
    ("create_padding_mask", {"lengths": 3}, TypeError, ["lengths", "int"]),
    ("create_padding_mask", {"lengths": np.ones((3, 1), int)}, ValueError, ["lengths", "(3, 1)", "rank 1"]),
    ("MultiHeadAttention", {"d_model": 0}, ValueError, ["d_model", "at least 1", "0"]),
    ("MultiHeadAttention", {"d_model": 22.0}, TypeError, ["d_model", "22.0 of type float"]),
    ("TransformerEncoderBlock", {"num_heads": 3}, ValueError, ["d_model=22", "num_heads=3"]),
    ("TransformerEncoderBlock", {"d_ff": 0}, ValueError, ["d_ff", "at least 1", "0"]),
    ("TransformerEncoderBlock", {"d_ff": 44.0}, TypeError, ["d_ff", "44.0 of type float"]),
    ("TransformerEncoderBlock", {"norm": "Pre"}, ValueError, ["norm", "'Pre'"]),
    ("TransformerEncoderBlock", {"activation": max}, ValueError, ["activation"]),
    ("TransformerEncoderBlock", {"eps": -1.0}, ValueError, ["eps", "-1.0"]),
    ("Attention", {"embedding_dimension": -3}, ValueError, ["embedding_dimension", "at least 1", "-3"]),
    ("Attention", {"embedding_dimension": None}, TypeError, ["embedding_dimension", "NoneType"]),
    ("ScaledDotProductAttention", {"dropout_p": 1.01}, ValueError, ["dropout_p", "[0, 1]", "1.01"]),
    ("ScaledDotProductAttention", {"dropout_p": NAN}, ValueError, ["dropout_p", "[0, 1]", "nan"]),
    ("ScaledDotProductAttention", {"dropout_p": False}, TypeError, ["dropout_p", "False"]),
]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "wrong", "error", "facts"), MISTAKES, ids=[f"{row[0]}-{row[3][-1]}" for row in MISTAKES]
)
def test_a_wrong_option(name, wrong, error, facts):
    assert_refused(name, arguments(name) | wrong, error, *facts)


@pytest.mark.parametrize("module", [spec, ops])
def test_a_stack_of_what_is_no_block(module):
    """Each twin has blocks of its own kind, so the words may differ here."""
    x = jnp.ones((2, 3, 6)) if module is ops else np.ones((2, 3, 6))
    options = {"num_heads": 2} if module is ops else {}
    message = assert_refuses(lambda: module.stack_encoder_blocks(x, [None], **options), TypeError)
    assert message.startswith("stack_encoder_blocks: ")
    assert "NoneType" in message.splitlines()[0]


def test_a_stack_of_a_whole_encoder():
    """A tree that ``load_torch`` gives for an ``nn.TransformerEncoder`` has its blocks inside."""
    params = EncoderParams(None, (ops.init_encoder_block(jax.random.key(0), 6, 2),))
    message = assert_refuses(lambda: ops.stack_encoder_blocks(jnp.ones((2, 3, 6)), params, num_heads=2), TypeError)
    assert message.splitlines()[1] == "Write params.blocks."


@pytest.mark.smoke(2)
@pytest.mark.parametrize("module", [spec, ops])
@pytest.mark.parametrize("backward", [False, True])
def test_weights_before_the_tokens(module, backward):
    """A block and a stack take their arguments in one order, x first; the other one is named."""
    block = spec.TransformerEncoderBlock(6, 3, rng=0)
    x, options = np.ones((2, 3, 6)), {"num_heads": 3}
    gradient, suffix = ([x], "_backward") if backward else ([], "")
    blocks = [block.params] if module is ops else [block]
    calls = [("encoder_block", "params", block.params, options)]
    calls += [("stack_encoder_blocks", "blocks", given, options if module is ops else {}) for given in (blocks, [])]
    for name, argument, weights, given in calls:
        function = getattr(module, name + suffix)
        function(*gradient, x, weights, **given)
        message = assert_refuses(lambda f=function, w=weights, o=given: f(*gradient, w, x, **o), TypeError)
        first, advice = message.splitlines()
        assert first == f"{name}{suffix}: x comes first, then {argument}, but they are swapped."
        assert advice == f"Write {name}{suffix}({'grad_output, ' if backward else ''}x, {argument}, ...)."


def test_weights_before_the_arrays():
    """Every function and method that takes arrays and weights takes the arrays first, and names the other order."""
    rng, x, tokens = jax.random.key(0), np.ones((2, 3, 6), np.float32), np.array([[1, 2, 3]])
    config = encoders.EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=1)
    layer, block, single = ops.MultiHeadAttention(6, 3), ops.TransformerEncoderBlock(6, 3), ops.Attention(6)
    params = jax.eval_shape(partial(encoders.init_encoder, config=config), rng)
    weights, of_block, of_single = (jax.eval_shape(owner.init, rng) for owner in (layer, block, single))
    three = "query, key and value come first", "query, key, value, params"
    in_capitals = "Q, K and V come first", "Q, K, V, params"
    one = "x comes first", "x, params"
    calls = [
        ("multi_head_attention", partial(ops.multi_head_attention, num_heads=3), [x, x, x], weights, *three),
        ("multi_head_attention", partial(spec.multi_head_attention, num_heads=3), [x, x, x], weights, *three),
        ("MultiHeadAttention.forward", layer.forward, [x, x, x], weights, *in_capitals),
        ("TransformerEncoderBlock.forward", block.forward, [x], of_block, *one),
        ("Attention.forward", single.forward, [x], of_single, *one),
        ("encode", partial(encoders.encode, config=config), [tokens], params, *one),
        ("layer_attention", partial(encoders.layer_attention, config=config, layer=0), [tokens], params, *one),
        ("attention_rows", partial(encoders.attention_rows, config=config), [tokens], params, *one),
    ]
    for name, call, arrays, given, words, order in calls:
        first, advice = assert_refuses(lambda c=call, a=arrays, g=given: c(g, *a), TypeError).splitlines()
        assert first.endswith(f": {words}, then params, but they are swapped."), name
        assert advice == f"Write {name}({order}, ...).", name
    for owner, arrays, given, order in [
        (layer, [x, x, x], weights, "Q, K, V"), (block, [x], of_block, "x"), (single, [x], of_single, "x"),
    ]:  # fmt: skip
        message = assert_refuses(lambda f=owner.backward, a=arrays, g=given: f(x, g, *a), TypeError)
        assert message.splitlines()[1] == f"Write {type(owner).__name__}.backward(grad_output, {order}, params, ...)."


Q, K = np.zeros((2, 4, 5, 8), np.float32), np.zeros((2, 4, 7, 8), np.float32)
X, CONFIG = np.zeros((2, 3, 6), np.float32), encoders.EncoderConfig(11, 7, 2, 6, 3, 5, 1)
BY_POSITION = [  # a call, and the whole error
    (lambda: attendax.attention(Q, K, K, masks.causal()),
     "attention: mask is keyword-only: write attention(query, key, value, mask=...)."),
    (lambda: spec.attention(Q, K, K, np.ones((5, 7), bool)),
     "attention: mask is keyword-only: write attention(query, key, value, mask=...)."),
    (lambda: attendax.attention(Q, K, K, scores.softcap(2.0)),
     "attention: score_mod is keyword-only: write attention(query, key, value, score_mod=...)."),
    (lambda: attendax.explain(Q, K, K, 0.5),
     "explain: scale is keyword-only: write explain(query, key, value, scale=...)."),
    (lambda: attendax.attention_stats(Q, K, K),
     "attention_stats: takes 2 positional arguments (query, key), got 3.\n"
     "Keyword-only: mask, bias, score_mod, scale."),
    (lambda: attendax.merge(Q, Q, K, K), "merge: takes 2 positional arguments (one, other), got 4."),
    (lambda: attendax.attention(Q, K), "attention: value is missing.\nWrite attention(query, key, value)."),
    (lambda: ops.multi_head_attention(X, None, num_heads=2),
     "multi_head_attention: value and params are missing.\n"
     "Write multi_head_attention(query, key, value, params, num_heads=...)."),
    (lambda: ops.encoder_block(X, None, 3),
     "encoder_block: num_heads is keyword-only: write encoder_block(x, params, num_heads=...)."),
    (lambda: encoders.encode(X, None, CONFIG),
     "encode: config is keyword-only: write encode(x, params, config=...)."),
    (lambda: sharding.attention(Q, K, K, "x"),
     "attention: axis_name is keyword-only: write attention(query, key, value, axis_name=...)."),
    (lambda: masks.segments(IDS),
     "segments: key_ids is missing.\nIf texts look at themselves, write segments(ids, ids)."),
    (lambda: masks.causal(5, 7), "causal: takes 1 positional argument (offset), got 2."),
    (lambda: ops.encoder_block(X, None, num_heads=3, is_causal=True),
     "encoder_block: unexpected argument 'is_causal'.\nWrite mask=masks.causal()."),
    (lambda: ops.encoder_block(X, None, num_heads=3, training=True),
     "encoder_block: unexpected argument 'training'.\nArguments: x, params, num_heads, mask, norm, activation, eps."),
    (lambda: spec.scaled_dot_product_attention(Q, K, K, is_causal=True),
     "scaled_dot_product_attention: unexpected argument 'is_causal'.\nWrite mask=masks.causal()."),
    (lambda: compat.jax_nn.dot_product_attention(Q, K, K, causal=True),
     "jax_nn.dot_product_attention: unexpected argument 'causal'.\nWrite is_causal=True."),
    (lambda: compat.jax_nn.dot_product_attention(Q, K, K, dropout_rate=0.1),
     "jax_nn.dot_product_attention: unexpected argument 'dropout_rate'.\n"
     "jax.nn has no such argument; attendax.attention has dropout_rate."),
    (lambda: compat.jax_nn.dot_product_attention(Q, K, K, None, None, 0.5),
     "jax_nn.dot_product_attention: scale is keyword-only: "
     "write jax_nn.dot_product_attention(query, key, value, bias, mask, scale=...)."),
    (lambda: compat.flax.attention_fn(Q, K, K, causal=True),
     "flax.attention_fn: unexpected argument 'causal'.\nWrite is_causal=True."),
    (lambda: compat.equinox.multihead_attention(None, Q, K, K, causal=True),
     "equinox.multihead_attention: unexpected argument 'causal'.\nWrite mask=masks.causal()."),
]  # fmt: skip


@pytest.mark.smoke
@pytest.mark.parametrize(("call", "message"), BY_POSITION, ids=[words.partition(":")[0] for _, words in BY_POSITION])
def test_arguments_in_a_wrong_place(call, message):
    """By position where they are keyword-only, missing, or of another library: the error says what to write."""
    assert assert_refuses(call, TypeError) == message


THREE = np.array([1, 2, 3])
NUMBERS_OF_MASKS = [  # a mask with three numbers where there are two texts; the array that is to blame
    (masks.padding(THREE), "key_lengths of masks.padding"),
    (masks.padding(THREE[:2], THREE), "query_lengths of masks.padding"),
    (masks.causal() & masks.padding(THREE), "key_lengths of masks.padding"),
    (~masks.prefix(THREE), "lengths of masks.prefix"),
    (masks.causal(THREE), "offset of masks.causal"),
    (masks.window(THREE, 0), "left of masks.window"),
    (masks.window(0, THREE), "right of masks.window"),
]


@pytest.mark.parametrize(("mask", "name"), NUMBERS_OF_MASKS, ids=[name for _, name in NUMBERS_OF_MASKS])
def test_an_array_of_a_mask_is_named(mask, name):
    """The user gave three lengths, and never the array (3, 1, 5, 7) that they mean."""
    for module in (attendax, spec):
        facts, row = assert_refuses(lambda m=module: m.attention(Q, K, K, mask=mask), ValueError).splitlines()
        assert facts == f"attention: {name} has shape (3,) but the scores have shape (2, 4, 5, 7)."
        wanted = "got (3,)   expected () or (2,), for each text; (4, 1, 1), for each head"
        assert row == f"  {name.split()[0]}  {wanted}"


def test_ids_of_a_mask_are_named():
    mask = masks.segments(np.zeros((3, 5), int), np.zeros((3, 7), int))
    facts, row = assert_refuses(lambda: attendax.attention(Q, K, K, mask=mask), ValueError).splitlines()
    assert facts == "attention: query_ids of masks.segments has shape (3, 5) but the scores have shape (2, 4, 5, 7)."
    assert row == "  query_ids  got (3, 5)   expected (5,) or (2, 5), for each text"


def test_ranks_and_leading_axes():
    """Two is a rank of its own (L1); what is to be repeated is written out, and what is written works."""
    for module, library in ((attendax, "jnp"), (spec, "np")):
        message = assert_refuses(lambda m=module: m.attention(Q[0, 0, 0], K[0, 0, 0], K[0, 0, 0]), ValueError)
        assert message.startswith("attention: query has rank 1 but needs 2 (one head) or at least 3.\n")
        for key in (K[:1], K[0]):
            message = assert_refuses(lambda m=module, k=key: m.attention(Q, k, k), ValueError)
            code = f"{library}.broadcast_to(key, (2, 4, 7, 8)), {library}.broadcast_to(value, (2, 4, 7, 8))"
            assert message.splitlines()[-1] == f"Leading axes are not broadcast; write {code}."
            wide = eval(code, {"jnp": jnp, "np": np, "key": key, "value": key})
            assert module.attention(Q, *wide).shape == (2, 4, 5, 8)
        message = assert_refuses(lambda m=module: m.attention(Q, K[[0, 0, 0]], K[[0, 0, 0]]), ValueError)
        assert "broadcast" not in message
    params = ops.init_multi_head_attention(jax.random.key(0), 6, 3)
    message = assert_refuses(lambda: ops.multi_head_attention(X, X[:1], X[:1], params, num_heads=3), ValueError)
    assert message.endswith("write jnp.broadcast_to(key, (2, 3, 6)), jnp.broadcast_to(value, (2, 3, 6)).")


# The values of a traced array are not known: these are refused outside jit only.
@pytest.mark.parametrize(("lengths", "found"), [([3, -1, 2], "-1 to 3"), ([8, 7, 0], "0 to 8")])
def test_lengths_that_are_negative_or_too_long(lengths, found):
    given = {"lengths": np.array(lengths), "max_length": 7}
    assert_refused("create_padding_mask", given, ValueError, "lengths must lie in [0, 7]", found, traced=False)
    for convert in (np.asarray, jnp.asarray):
        mask = masks.padding(convert(lengths))
        message = assert_refuses(lambda mask=mask: mask.to_dense(5, 7), ValueError)
        assert message == f"padding: key_lengths must lie in [0, 7], got {found}."


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
def test_known_lengths_inside_jit(convert):
    """They are known, too, where a compiled function closes over them."""
    mask, x = masks.padding(convert([3, 8])), jnp.ones((2, 1, 7, 4))
    message = assert_refuses(lambda: jax.jit(lambda x: attendax.attention(x, x, x, mask=mask))(x), ValueError)
    assert message == "padding: key_lengths must lie in [0, 7], got 3 to 8."


def test_traced_lengths_are_no_mistake():
    """Inside jit a length that no sequence can have cannot be refused; it must not crash, and means none or all."""
    lengths = jnp.array([3, -1, 9])
    made = jax.jit(lambda lengths: ops.create_padding_mask(lengths, 7))(lengths)
    np.testing.assert_array_equal(made, np.arange(7) < np.array([[3], [0], [7]]))
    dense = jax.jit(lambda lengths: masks.padding(lengths).to_dense(5, 7))(lengths)
    np.testing.assert_array_equal(dense[:, 0, 4], made)


@pytest.mark.smoke
def test_random_keys_that_are_none():
    """Keys of JAX: a batch of keys and a key of another generator are refused, by name."""
    for wrong in (jax.random.split(jax.random.key(0), 3), jax.random.key(0, impl="rbg")):
        given = arguments("attention") | {"dropout_rate": 0.5, "dropout_rng": wrong}
        assert_refused("attention", given, ValueError, "dropout_rng is not a key of two 32-bit words", traced=False)


@pytest.mark.smoke
@pytest.mark.parametrize("wrong", ["seed", -1, 1.5])
@pytest.mark.parametrize("make", [
    lambda rng: spec.learned_positional_encoding(3, 5, rng=rng),
    lambda rng: spec.MultiHeadAttention(6, 2, rng=rng),
    lambda rng: spec.TransformerEncoderBlock(6, 2, rng=rng),
    lambda rng: spec.Attention(6, rng=rng),
    lambda rng: spec.ScaledDotProductAttention(0.5, rng=rng),
])  # fmt: skip
def test_a_generator_that_is_none(make, wrong):
    message = assert_refuses(lambda: make(wrong), ValueError if wrong == -1 else TypeError)
    assert message.endswith(f"rng must be a numpy.random.Generator or a seed, got {wrong!r}.")


# --- Weights and states of the layers of spec ------------------------------------------------------------------------

LAYERS = {
    "MultiHeadAttention": lambda: spec.MultiHeadAttention(6, 2, rng=0),
    "TransformerEncoderBlock": lambda: spec.TransformerEncoderBlock(6, 2, 11, rng=0),
    "Attention": lambda: spec.Attention(6, rng=0),
}
FIRST = {"MultiHeadAttention": "W_Q", "TransformerEncoderBlock": "W1", "Attention": "query_weights"}


def leaves(layer):
    return jax.tree.map(np.copy, jax.tree.leaves(layer.params))


@pytest.mark.smoke
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("wrong", "error", "fact"), [
    ({"W_X": np.ones((6, 6))}, ValueError, "there is no weight 'W_X'"),
    ("shape", ValueError, "(5, 7)"),
    ("kind", TypeError, "int64"),
    ("list", TypeError, "list"),
    ("None", TypeError, "NoneType"),
    ([1.0], TypeError, "list"),
    (None, TypeError, "NoneType"),
])  # fmt: skip
def test_weights_that_do_not_fit_change_nothing(name, wrong, error, fact):
    """The mistake stands beside a right weight; neither is set."""
    layer = LAYERS[name]()
    before, good = leaves(layer), FIRST[name]
    *_, bad = (field for field, value in layer.get_params().items() if field != "attention" and field != good)
    shape = layer.get_params()[bad].shape
    values = {"shape": np.ones((5, 7)), "kind": np.ones(shape, int), "list": [0.0], "None": None}
    if isinstance(wrong, str):
        wrong = {bad: values[wrong]}
    if isinstance(wrong, dict):
        wrong = {good: np.full_like(layer.get_params()[good], 3.0)} | wrong
    message = assert_refuses(lambda: layer.set_params(wrong), error)
    assert message.startswith(f"{name}.set_params: ")
    assert fact in message
    for old, new in zip(before, leaves(layer), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.smoke
def test_a_wrong_weight_inside_the_block_changes_nothing():
    block = LAYERS["TransformerEncoderBlock"]()
    before = leaves(block)
    for wrong, error in (({"W_O": np.ones((6, 5))}, ValueError), ({"W": np.ones((6, 6))}, ValueError), (0, TypeError)):
        assert_refuses(lambda wrong=wrong: block.set_params({"W1": np.ones((6, 11)), "attention": wrong}), error)
    for old, new in zip(before, leaves(block), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.smoke
@pytest.mark.parametrize("name", [*LAYERS, "ScaledDotProductAttention"])
def test_backward_before_forward(name):
    layer = (LAYERS | {"ScaledDotProductAttention": spec.ScaledDotProductAttention})[name]()
    message = f"{name}: no forward has run yet; call forward first."
    assert assert_refuses(lambda: layer.backward(np.ones((2, 3, 6))), RuntimeError) == message
    if name != "TransformerEncoderBlock":
        assert assert_refuses(lambda: layer.attention_weights, RuntimeError) == message


@pytest.mark.parametrize("init", [ops.init_multi_head_attention, ops.init_encoder_block])
def test_weights_are_drawn_for_sizes_that_fit(init):
    rng = jax.random.key(0)
    assert "d_model=22 is not divisible by num_heads=4" in assert_refuses(lambda: init(rng, 22, 4), ValueError)
    assert "d_model must be at least 1" in assert_refuses(lambda: init(rng, 0, 1), ValueError)
    assert "num_heads must be an integer" in assert_refuses(lambda: init(rng, 22, 2.0), TypeError)


# --- Masks and score modifiers as values -----------------------------------------------------------------------------

IDS = np.zeros((2, 5), int)
VALUES = [
    (lambda: masks.causal(1.5), TypeError, "causal: offset must be an integer, got 1.5 of type float."),
    (lambda: masks.window(-1, 2), ValueError, "window: left must be at least 0, got -1."),
    (lambda: masks.window(2, 0.5), TypeError, "window: right must be an integer, got 0.5 of type float."),
    (lambda: masks.window(0, -1), ValueError, "window: right must be at least 0, got -1."),
    (lambda: masks.window(np.array([1, -1]), 0), ValueError, "window: left must be at least 0, got -1."),
    (lambda: masks.window(np.array([True]), 0), TypeError, "window: left must be an array of integers, got bool."),
    (lambda: masks.window([1, 2], 0), TypeError,
     "window: left must be an integer, got [1, 2] of type list.\nConvert the list to an array: np.asarray(left)."),
    (lambda: masks.padding(np.ones(3)), TypeError,
     "padding: key_lengths must be an array of integers, got float64.\nConvert it: key_lengths.astype('int32')."),
    (lambda: masks.window(1, 2, 0.5), TypeError, "window: offset must be an integer, got 0.5 of type float."),
    (lambda: masks.window(2**31, 2), ValueError, "window: left must be at most 1073741824, got 2147483648."),
    (lambda: masks.causal(np.array([0.5])), TypeError,
     "causal: offset must be an array of integers, got float64.\nConvert it: offset.astype('int32')."),
    (lambda: masks.causal([3]), TypeError, "causal: offset must be an integer, got [3] of type list."),
    (lambda: masks.padding([3]), TypeError,
     "padding: key_lengths must be an array of integers, got list.\n"
     "Convert the list to an array: np.asarray(key_lengths)."),
    (lambda: masks.padding(True), TypeError, "padding: key_lengths must be an integer, got True of type bool."),
    (lambda: masks.padding(-1), ValueError, "padding: key_lengths must be at least 0, got -1."),
    (lambda: masks.padding(np.array([3, 2**32 + 3])), ValueError,
     "padding: key_lengths must lie in [0, 2147483647], got 3 to 4294967299."),
    (lambda: masks.padding(np.array([3], np.uint64) + np.uint64(2**63)), ValueError,
     "padding: key_lengths must lie in [0, 2147483647], got 9223372036854775811."),
    (lambda: masks.padding(2**40), ValueError, "padding: key_lengths must be at most 2147483647, got 1099511627776."),
    (lambda: masks.causal().check(3, 2**29), ValueError, "masks: T=3 and S=536870912 must be below 536870912."),
    (lambda: masks.segments(IDS + 2**40, jnp.asarray(IDS, jnp.int32)), ValueError,
     "segments: query_ids are 1099511627776, but the other ids are int32.\n"
     "Pass both as NumPy arrays, or ids of 32 bits."),
    (lambda: masks.padding(None), TypeError, "padding: key_lengths must be an array of integers, got NoneType."),
    (lambda: masks.padding(IDS[0], np.ones(3, bool)), TypeError,
     "padding: query_lengths must be an array of integers, got bool.\n"
     "If the real tokens come first, write query_lengths.sum(-1)."),
    (lambda: masks.segments(IDS, IDS > 0), TypeError, "segments: key_ids must be an array of integers, got bool."),
    (lambda: masks.segments(np.array(0), IDS), ValueError, "segments: query_ids has rank 0 but needs at least 1."),
    (lambda: masks.segments(IDS, IDS).to_dense(5, 7), ValueError, "segments: key_ids has length 5, expected S=7."),
    (lambda: masks.segments(IDS, IDS).to_dense(4, 5), ValueError, "segments: query_ids has length 5, expected T=4."),
    (lambda: masks.prefix(np.ones(2)), TypeError,
     "prefix: lengths must be an array of integers, got float64.\nConvert it: lengths.astype('int32')."),
    (lambda: masks.prefix(np.array([8])).to_dense(5, 7), ValueError, "prefix: lengths must lie in [0, 7], got 8."),
    (lambda: masks.padding(np.array([7]), np.array([6])).to_dense(5, 7), ValueError,
     "padding: query_lengths must lie in [0, 5], got 6."),
    (lambda: masks.blocks(IDS, 2, 2), TypeError,
     "blocks: array must be boolean, got int64.\nWrite array.astype(bool)."),
    (lambda: masks.dense(IDS), TypeError, "dense: array must be boolean, got int64.\nWrite array.astype(bool)."),
    (lambda: masks.dense(IDS > 0).to_dense(3, 5), ValueError,
     "dense: array has shape (2, 5) but must end in (3, 5), each of them or 1.\n"
     "For one entry per key, (B, S), write array[:, None, None, :], or masks.padding(array.sum(-1)) "
     "if the real tokens come first."),
    (lambda: masks.from_function(1), TypeError, "from_function: f must be a function of positions (i, j), got int."),
    (lambda: masks.causal() & IDS, TypeError,
     "masks: & joins two masks, got ndarray.\nWrite mask & masks.dense(array.astype(bool))."),
    (lambda: (IDS > 0) & masks.causal(), TypeError,
     "masks: & joins two masks, got ndarray.\nWrite mask & masks.dense(array)."),
    (lambda: (IDS > 0) | masks.causal(), TypeError,
     "masks: | joins two masks, got ndarray.\nWrite mask | masks.dense(array)."),
    (lambda: jnp.ones((2, 2), bool) & masks.causal(), TypeError,
     "masks: & joins two masks, got ArrayImpl.\nWrite mask & masks.dense(array)."),
    (lambda: masks.causal() & [[True]], TypeError,
     "masks: & joins two masks, got list.\nWrite mask & masks.dense(np.asarray(array, 'bool'))."),
    (lambda: masks.causal() & np.zeros((2, 2)), TypeError,
     "masks: & joins two masks, got ndarray.\nPass numbers that are added to the scores as bias."),
    (lambda: masks.causal() & masks.causal, TypeError,
     "masks: & joins two masks, got function.\nCall it: mask & masks.causal(...)."),
    (lambda: masks.causal() | (lambda i, j: i < j), TypeError,
     "masks: | joins two masks, got function.\nWrite mask | masks.from_function(f)."),
    (lambda: masks.causal() | None, TypeError, "masks: | joins two masks, got NoneType."),
    (lambda: True & masks.causal(), TypeError, "masks: & joins two masks, got bool."),
    (lambda: masks.causal() and masks.window(1, 1), TypeError,
     "mask: a mask has no truth value.\nCombine masks with & (and), | (or) and ~ (not)."),
    (lambda: not masks.causal(), TypeError,
     "mask: a mask has no truth value.\nCombine masks with & (and), | (or) and ~ (not)."),
    (lambda: scores.softcap(2.0) or scores.softcap(3.0), TypeError,
     "score_mod: a modifier has no truth value.\nJoin modifiers by scores.compose(...)."),
    (lambda: masks.from_function(max, "text"), TypeError,
     "from_function: arrays must be arrays, numbers, or pytrees of them, got 'text'."),
    (lambda: scores.softcap(0.0), ValueError, "softcap: cap must be a finite number in (0, inf), got 0.0."),
    (lambda: scores.softcap(-2.0), ValueError, "softcap: cap must be a finite number in (0, inf), got -2.0."),
    (lambda: scores.softcap(None), TypeError, "softcap: cap must be a number known before tracing, got NoneType."),
    (lambda: scores.alibi(np.ones((2, 2))), ValueError, "alibi: slopes has shape (2, 2) but needs rank 1."),
    (lambda: scores.softcap(jnp.float32(2.0)), TypeError,
     "softcap: cap must be a number known before tracing, got an array () float32.\n"
     "Write it as a function: scores.from_function(lambda s, positions, cap: cap * jnp.tanh(s / cap), cap)."),
    (lambda: scores.alibi(np.ones(2), 2**31), ValueError, "alibi: offset must be at most 2147483647, got 2147483648."),
    (lambda: scores.alibi(np.ones(2), np.array(-(2**40))), ValueError,
     "alibi: offset must lie in [-2147483648, 2147483647], got -1099511627776."),
    (lambda: scores.relative_bias(np.ones((2, 3)), np.array(0.5)), TypeError,
     "relative_bias: offset must be an array of integers, got float64.\nConvert it: offset.astype('int32')."),
    (lambda: scores.alibi(np.ones(2, ">f4")), TypeError,
     "alibi: slopes must be a floating array, got >f4.\n"
     "Convert the byte order: slopes.astype('float32')."),
    (lambda: scores.alibi([0.5]), TypeError, "alibi: slopes must be a floating array, got list.\n"
     "Convert the list to an array: np.asarray(slopes, 'float32')."),
    (lambda: scores.alibi(np.ones(2), offset=0.5), TypeError,
     "alibi: offset must be an integer, got 0.5 of type float."),
    (lambda: scores.relative_bias(np.ones((2, 4))), ValueError,
     "relative_bias: table has 4 columns but needs an odd number, 2R + 1."),
    (lambda: scores.relative_bias(IDS), TypeError, "relative_bias: table must be a floating array, got int64."),
    (lambda: scores.sink(np.zeros((2, 1))), ValueError, "sink: logits has shape (2, 1) but needs rank 1."),
    (lambda: scores.sink(IDS), TypeError, "sink: logits must be a floating array, got int64."),
    (lambda: scores.from_function(None), TypeError,
     "from_function: f must be a function of (scores, (n, i, j)), got NoneType."),
    (lambda: scores.compose(), ValueError, "compose: needs at least one modifier."),
    (lambda: scores.compose(masks.causal()), TypeError, "compose: takes values from attendax.scores, got Mask."),
]  # fmt: skip


@pytest.mark.smoke
@pytest.mark.parametrize(("make", "error", "message"), [pytest.param(*value, id=value[2][:40]) for value in VALUES])
def test_a_mask_or_a_modifier_that_is_none(make, error, message):
    assert assert_refuses(make, error) == message


def test_every_maker_of_masks_and_modifiers_is_tried_above():
    tried = {message.partition(":")[0] for _, _, message in VALUES}
    for module in (masks, scores):
        makers = {n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
        assert {name for name in makers if not name.startswith("_")} <= tried


def test_lengths_of_a_batch_for_one_head_without_a_batch():
    given = {"query": np.ones((5, 11)), "key": np.ones((7, 11)), "value": np.ones((7, 13))}
    given["mask"] = masks.padding(np.array([3, 7]))
    assert_refused("attention", given, ValueError, "mask", "(5, 7)")


# --- The words -------------------------------------------------------------------------------------------------------

TOKENS_BEFORE_HEADS = {name: np.ones(shape) for name, shape in (
    ("query", (3, 5, 4, 11)), ("key", (3, 7, 2, 11)), ("value", (3, 7, 2, 13)),
)}  # fmt: skip
WORDS = [
    ("attention", {"value": np.ones((3, 2, 6, 13))}, """\
attention: key has S=7 but value has S=6.
  query  got (3, 4, 5, 11) float64   expected (..., N, T, D)
  key    got (3, 2, 7, 11) float64   expected (..., G, S, D)
  value  got (3, 2, 6, 13) float64   expected (..., G, S, V)"""),
    ("attention", {"query": np.ones((3, 5, 5, 11))}, """\
attention: query has N=5 heads, which is not a multiple of the G=2 of key.
  query  got (3, 5, 5, 11) float64   expected (..., N, T, D)
  key    got (3, 2, 7, 11) float64   expected (..., G, S, D)
  value  got (3, 2, 7, 13) float64   expected (..., G, S, V)"""),
    ("attention", {"key": np.ones((4, 2, 7, 11))}, """\
attention: query has leading axes (3,) but key has (4,).
  query  got (3, 4, 5, 11) float64   expected (..., N, T, D)
  key    got (4, 2, 7, 11) float64   expected (..., G, S, D)
  value  got (3, 2, 7, 13) float64   expected (..., G, S, V)"""),
    ("attention", {"mask": np.ones((3, 5, 7), bool)}, """\
attention: mask has shape (3, 5, 7) but the scores have shape (3, 4, 5, 7).
  mask  got (3, 5, 7) bool   expected (3, 4, 5, 7) or (5, 7), any axis may be 1
To add the head axis, write mask[:, None]."""),
    ("attention", {"mask": np.ones((5, 7), np.int32)}, """\
attention: mask must be boolean (True = this query may look at this key), got int32.
  mask  got (5, 7) int32   expected (3, 4, 5, 7) or (5, 7), any axis may be 1
If the numbers are 0 and 1, write mask.astype(bool)."""),
    ("attention", {"mask": masks.causal}, """\
attention: mask must be boolean (True = this query may look at this key), got function.
  mask  got function   expected (3, 4, 5, 7) or (5, 7), any axis may be 1
Call it: mask=masks.causal(...)."""),
    ("attention", {"score_mod": lambda s, at: s}, """\
attention: score_mod must be a value from attendax.scores, got function.
Make a modifier of f(scores, (n, i, j)): scores.from_function(f)."""),
    ("attention", {"score_mod": scores.softcap}, """\
attention: score_mod must be a value from attendax.scores, got function.
Call it: score_mod=scores.softcap(...)."""),
    ("attention", {"is_causal": True}, """\
attention: unexpected argument 'is_causal'.
Write mask=masks.causal()."""),
    ("attention", {"mood": True}, """\
attention: unexpected argument 'mood'.
Arguments: query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng, return_lse, implementation."""),
    ("attention", TOKENS_BEFORE_HEADS, """\
attention: query has N=5 heads, which is not a multiple of the G=7 of key.
  query  got (3, 5, 4, 11) float64   expected (..., N, T, D)
  key    got (3, 7, 2, 11) float64   expected (..., G, S, D)
  value  got (3, 7, 2, 13) float64   expected (..., G, S, V)
Heads come before tokens, (..., N, T, D). From (..., T, N, D): query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2).
attendax.compat.jax_nn.dot_product_attention takes (B, T, N, D) directly."""),  # noqa: E501
    ("attention", {"bias": np.ones((5, 7), bool)}, """\
attention: bias has dtype bool but must be floating.
  bias  got (5, 7) bool   expected a floating array that broadcasts to (3, 4, 5, 7)
A boolean array is a mask: pass it as mask."""),
    ("attention", {"dropout_rate": 0.5}, """\
attention: dropout_rate is above 0 but dropout_rng is None.
  dropout_rng  got None   expected a random key
Write dropout_rng=jax.random.key(seed), and per step a new key: jax.random.fold_in(key, step)."""),
    ("attention", {"dropout_rate": 1.5}, """\
attention: dropout_rate must be a finite number in [0, 1], got 1.5."""),
    ("scaled_dot_product_attention", {"Q": np.ones((3, 5, 11), np.int64)}, """\
scaled_dot_product_attention: Q has dtype int64 but must be floating: float16, bfloat16, float32, float64.
  Q  got (3, 5, 11) int64     expected (..., T, D)
  K  got (3, 7, 11) float64   expected (..., S, D)
  V  got (3, 7, 13) float64   expected (..., S, V)"""),
    ("scaled_dot_product_attention", {"mask": np.ones((5, 6), bool)}, """\
scaled_dot_product_attention: mask has shape (5, 6) but the scores have shape (3, 5, 7).
  mask  got (5, 6) bool   expected a shape that broadcasts to (3, 5, 7)"""),
    ("compute_attention_scores", {"K": np.ones((3, 7, 11), np.float32)}, """\
compute_attention_scores: Q has dtype float64 but K has float32.
  Q  got (3, 5, 11) float64   expected (..., T, D)
  K  got (3, 7, 11) float32   expected (..., S, D)
Use one dtype: K.astype(Q.dtype)."""),
    ("layer_norm", {"gamma": [1.0]}, """\
layer_norm: gamma must be an array, got list.
  x      got (3, 5, 22) float64   expected (..., M)
  gamma  got list                 expected (M,)
  beta   got (22,) float64        expected (M,)
Convert the list to an array: np.asarray(gamma, 'float64')."""),
    ("layer_norm", {"beta": np.ones(22, np.float32)}, """\
layer_norm: x has dtype float64 but beta has float32: a weight may be wider, not narrower.
  x      got (3, 5, 22) float64   expected (..., M)
  gamma  got (22,) float64        expected (M,)
  beta   got (22,) float32        expected (M,)"""),
    ("merge_heads", {"x": np.ones((3, 5, 22))}, """\
merge_heads: x has rank 3 but needs rank 4.
  x  got (3, 5, 22) float64   expected (B, N, T, d_k)"""),
    ("add_positional_encoding", {"x": np.ones((3, 24, 22))}, """\
add_positional_encoding: x has T=24 tokens but pe has only P=23 positions."""),
    ("MultiHeadAttention", {"num_heads": 4}, """\
MultiHeadAttention: d_model=22 is not divisible by num_heads=4."""),
]  # fmt: skip


@pytest.mark.smoke
@pytest.mark.parametrize(("name", "wrong", "words"), WORDS, ids=[row[2].splitlines()[0][:60] for row in WORDS])
def test_the_words(name, wrong, words):
    kinds = ("dtype", "boolean", "an array", "a value from", "unexpected argument")
    error = TypeError if any(fact in words for fact in kinds) else ValueError
    assert assert_refused(name, arguments(name) | wrong, error) == words


@pytest.mark.smoke
@pytest.mark.parametrize("module", [spec, ops, attendax])
def test_numbers_in_another_byte_order(module):
    given = arguments("attention")
    message = assert_refuses(lambda: module.attention(**given | {"query": given["query"].astype(">f8")}), TypeError)
    assert message.splitlines() == [
        "attention: query has dtype >f8 but must be floating: float16, bfloat16, float32, float64.",
        "  query  got (3, 4, 5, 11) >f8       expected (..., N, T, D)",
        "  key    got (3, 2, 7, 11) float64   expected (..., G, S, D)",
        "  value  got (3, 2, 7, 13) float64   expected (..., G, S, V)",
        "Convert the byte order: query.astype('float64').",
    ]
    message = assert_refuses(lambda: module.attention(**given, bias=np.ones((5, 7), ">f8")), TypeError)
    assert message.splitlines()[-1] == "Convert the byte order: bias.astype('float64')."
    lengths = np.array([3, 7, 5])
    got = module.attention(**given, mask=masks.padding(lengths.astype(">i2")) & masks.causal(lengths.astype(">u8")))
    np.testing.assert_array_equal(got, module.attention(**given, mask=masks.padding(lengths) & masks.causal(lengths)))


@pytest.mark.smoke
@pytest.mark.parametrize(("module", "there"), [
    (spec, ["dense"]), (ops, ["dense"]), (attendax, ["dense", "blockwise", "cudnn", "triton", "native"]),
])  # fmt: skip
def test_an_implementation_that_is_not_there(module, there):
    """The list has what there is; what ``attention`` alone has is refused as such elsewhere."""
    given = arguments("attention")
    given = given if module is spec else jax.device_put(given)
    message = assert_refuses(lambda: module.attention(**given, implementation="fast"), ValueError)
    listed = ", ".join(map(repr, [None, *there]))
    assert message == f"attention: implementation must be one of {listed}; got 'fast'."
    if module is not attendax:
        message = assert_refuses(lambda: module.attention(**given, implementation="blockwise"), NotImplementedError)
        assert message == "attention: implementation 'blockwise' is not available here, only 'dense'."
    missing = {"cudnn", "triton"} | ({"native"} - {default()})  # native: where the library is
    for name in set(there) - missing:
        module.attention(**given, implementation=name)


@pytest.mark.parametrize("make", [lambda: jnp.float32(0.5), lambda: np.array(0.5)])
def test_a_scale_that_is_an_array(make):
    """A floating scalar, and nothing else; in NumPy one of NumPy."""
    given = arguments("attention")
    words = "attention: scale must be a number or a floating array of shape (), got {}."
    on_arrays = "\nMultiply the query by an array of another shape or dtype: query * array, with scale=1.0."
    for module in (spec, ops, attendax):
        refused = assert_refuses(lambda m=module: m.attention(**given, scale=np.ones(2)), TypeError)
        assert refused == words.format("an array (2,) float64") + on_arrays
        for other, shown in (("0.5", "'0.5'"), ([0.5], "list"), (True, "True")):
            refused = assert_refuses(lambda m=module, x=other: m.attention(**given, scale=x), TypeError)
            assert refused == words.format(shown)
    wanted = attendax.attention(**given, scale=0.5)
    np.testing.assert_allclose(attendax.attention(**given, scale=make()), wanted, rtol=1e-12)
    np.testing.assert_allclose(spec.attention(**given, scale=np.array(0.5)), wanted, rtol=1e-12)
    for other, shown in ((jnp.int32(1), "an array () int32"), (jnp.bool_(True), "an array () bool")):
        refused = assert_refuses(lambda x=other: attendax.attention(**given, scale=x), TypeError)
        assert refused == words.format(shown) + on_arrays


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_learnt_temperature_has_its_gradient(dtype):
    given = {name: jnp.asarray(x, dtype) for name, x in arguments("attention").items()}

    def loss(scale, **options):
        return jnp.sum(jnp.sin(attendax.attention(**given, scale=scale, **options).astype("float64")))

    step = 1e-6
    with jax.numpy_dtype_promotion("standard"):
        found = jax.jit(jax.grad(loss))(jnp.asarray(0.3))
        wide = {name: x.astype("float64") for name, x in given.items()}

        def smooth(scale):
            return float(np.sum(np.sin(spec.attention(**{n: np.asarray(x) for n, x in wide.items()}, scale=scale))))

        slope = (smooth(0.3 + step) - smooth(0.3 - step)) / (2 * step)
    np.testing.assert_allclose(found, slope, rtol=1e-8 if dtype == "float64" else 0.02)
    explained = attendax.explain(**given, scale=jnp.asarray(0.3))
    assert explained.implementation in ("native", "blockwise")


@pytest.mark.sample(1)
@pytest.mark.parametrize("module", [spec, ops, attendax])
def test_numbers_that_float32_does_not_have(module):
    """A scale, a cap and an eps that would be infinite, or 0 where that matters; a scale that flushes to 0 may."""
    given = {name: array.astype(np.float32) for name, array in arguments("attention").items()}
    message = assert_refuses(lambda: module.attention(**given, scale=-1e39), ValueError)
    assert message == "attention: scale=-1e+39 must be at most 3.4e+38, because the computation is in float32."
    for cap in (1e39, 1e-40, 1e-50):
        message = assert_refuses(lambda cap=cap: module.attention(**given, score_mod=scores.softcap(cap)), ValueError)
        assert (
            message == f"attention: cap={cap!r} must be from 9.9e-32 to 1e+31, because the computation is in float32."
        )
    for scale in (1e-50, 1e-40, 0.0):
        got = module.attention(**given, scale=scale)
        np.testing.assert_allclose(got, np.repeat(given["value"].mean(-2, keepdims=True), 2, 1).repeat(5, 2), atol=1e-6)
    with_float64 = given | {"bias": np.zeros((5, 7))}
    assert np.isfinite(module.attention(**with_float64, scale=1e39)).all()
    if module is not attendax:
        x, one = np.zeros((2, 3), np.float32), np.ones(3, np.float32)
        for eps in (1e39, 1e-50):
            message = assert_refuses(lambda eps=eps: module.layer_norm(x, one, one, eps), ValueError)
            assert (
                message
                == f"layer_norm: eps={eps!r} must be from 1.2e-38 to 3.4e+38, because the computation is in float32."
            )


@pytest.mark.parametrize("module", [spec, ops, attendax])
def test_long_double_is_no_dtype_of_attention(module):
    given = {name: x.astype(np.longdouble) for name, x in arguments("attention").items()}
    message = assert_refuses(lambda: module.attention(**given), TypeError)
    assert message.startswith(f"attention: query has dtype {given['query'].dtype} but must be floating: float16, ")
