"""Arguments of every public function, written down a second time, and one right call of each, to be spoilt.

In ``"Q: B T D | W: D M"`` the arrays before the bar have one dtype; those after it are weights, which may be wider.
An axis that stands in several arrays of a call must have one size; ``M!`` has the size that the layer or option sets.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np

import attendax
from attendax import ops, spec
from attendax.conformance import assert_refuses
from attendax.params import EncoderBlockParams, MultiHeadParams

TWINS = {"spec": spec, "ops": ops, "attendax": attendax}

# H heads of width K in a model of width M; N query heads share G key/value heads; a and b are further widths.
SIZES = {"B": 3, "T": 5, "S": 7, "D": 11, "V": 13, "N": 4, "G": 2, "M": 22, "H": 2, "K": 11, "F": 17, "A": 19, "P": 23}
SIZES |= {"a": 2, "b": 9, "E": 34}

_BIASES = "b_Q: M, b_K: M, b_V: M, b_O: M"
_PROJECTIONS = f"W_Q: M M, W_K: a M, W_V: b M, W_O: M M, {_BIASES}"
_NETWORK = "W1: M F, b1: F, W2: F M, b2: M"
_BLOCK = f"W_Q: M M, W_K: M M, W_V: M M, W_O: M M, {_BIASES}, {_NETWORK}, gamma1: M, beta1: M, gamma2: M, beta2: M"

ARRAYS = {
    "softmax": "x: B T",
    "softmax_backward": "x: B T, grad_output: B T",
    "attention_weights": "scores: B T S",
    "attention_weights_backward": "scores: B T S, grad_output: B T S",
    "compute_attention_scores": "Q: B T D, K: B S D",
    "compute_attention_scores_backward": "Q: B T D, K: B S D, grad_output: B T S",
    "apply_attention_mask": "scores: B T S",
    "apply_attention_mask_backward": "scores: B T S, grad_output: B T S",
    "scaled_dot_product_attention": "Q: B T D, K: B S D, V: B S V",
    "scaled_dot_product_attention_backward": "Q: B T D, K: B S D, V: B S V, grad_output: B T V",
    "additive_attention": "Q: B T a, K: B S b, V: B S V | W_q: a A, W_k: b A, v: A",
    "additive_attention_backward": "Q: B T a, K: B S b, V: B S V, grad_output: B T V | W_q: a A, W_k: b A, v: A",
    "attention": "query: B N T D, key: B G S D, value: B G S V",
    "attention_with_weights": "query: B N T D, key: B G S D, value: B G S V",
    "attention_backward": "query: B N T D, key: B G S D, value: B G S V, grad_output: B N T V",
    "split_heads": "x: B T M",
    "split_heads_backward": "x: B T M, grad_output: B H! T K!",
    "merge_heads": "x: B H T K",
    "merge_heads_backward": "x: B H T K, grad_output: B T M!",
    "multi_head_attention": f"query: B T M, key: B S a, value: B S b | {_PROJECTIONS}",
    "multi_head_attention_forward": f"Q: B T M, K: B S a, V: B S b | {_PROJECTIONS}",
    "multi_head_attention_backward": "grad_output: B! T! M!",
    "MultiHeadAttention.forward": "Q: B T M!, K: B S M!, V: B S M!",
    "MultiHeadAttention.backward": "grad_output: B! T! M!",
    "add_positional_encoding": "x: B T M | pe: P M",
    "add_positional_encoding_backward": "x: B T M, grad_output: B T M | pe: P M",
    "layer_norm": "x: B T M | gamma: M, beta: M",
    "layer_norm_backward": "x: B T M, grad_output: B T M | gamma: M",
    "rms_norm": "x: B T M | gamma: M",
    "rms_norm_backward": "x: B T M, grad_output: B T M | gamma: M",
    "rotary_encoding": "x: B T M",
    "rotary_encoding_backward": "x: B T M, grad_output: B T M",
    "gated_feed_forward": "x: B T M | W1: M E, b1: E, W2: F M, b2: M",
    "gated_feed_forward_backward": "x: B T M, grad_output: B T M | W1: M E, b1: E, W2: F M, b2: M",
    "feed_forward": f"x: B T M | {_NETWORK}",
    "feed_forward_backward": f"x: B T M, grad_output: B T M | {_NETWORK}",
    "encoder_block": f"x: B T M | {_BLOCK}",
    "encoder_block_backward": f"x: B T M, grad_output: B T M | {_BLOCK}",
    "TransformerEncoderBlock.forward": "x: B T M!",
    "TransformerEncoderBlock.backward": "grad_output: B! T! M!",
    "stack_encoder_blocks": "x: B T M!",
    "stack_encoder_blocks_backward": "x: B T M!, grad_output: B T M!",
    "Attention.forward": "x: B T M!",
    "Attention.backward": "grad_output: B! T! M!",
    "ScaledDotProductAttention.forward": "query: B T D, key: B S D, value: B S V",
    "ScaledDotProductAttention.backward": "grad_output: B! T! V!",
}

WITHOUT_ARRAYS = {  # the sizes and arrays of one right call
    "sinusoidal_encoding": {"max_length": 7, "d_model": 11},
    "learned_positional_encoding": {"max_length": 7, "d_model": 11},
    "create_causal_mask": {"seq_length": 7},
    "causal_mask": {"seq_len": 7},
    "create_padding_mask": {"lengths": np.array([3, 7, 0]), "max_length": 7},
    "MultiHeadAttention": {"d_model": 22, "num_heads": 2},
    "TransformerEncoderBlock": {"d_model": 22, "num_heads": 2},
    "Attention": {"embedding_dimension": 11},
    "ScaledDotProductAttention": {"dropout_p": 0.5},
}

OPTIONS = {  # what a right call needs beyond its arrays
    "apply_attention_mask": {"mask": np.tri(5, 7, dtype=bool)},
    "apply_attention_mask_backward": {"mask": np.tri(5, 7, dtype=bool)},
    "split_heads": {"num_heads": 2},
    "split_heads_backward": {"num_heads": 2},
    "multi_head_attention": {"num_heads": 2},
    "multi_head_attention_forward": {"num_heads": 2},
    "encoder_block": {"num_heads": 2},
    "encoder_block_backward": {"num_heads": 2},
}


# A method may leave its errors to the function behind it, whose arguments have the same names.
SPEAKS_AS = {
    "MultiHeadAttention.forward": "multi_head_attention_forward",
    "MultiHeadAttention.backward": "multi_head_attention_backward",
    "TransformerEncoderBlock.forward": "TransformerEncoderBlock",
    "Attention.forward": "Attention",
    "ScaledDotProductAttention.forward": "ScaledDotProductAttention",
}


def array_table(name):
    """Argument -> (axes, is it a weight)."""
    data, _, weights = ARRAYS.get(name, "").partition(" | ")
    table = {}
    for part, is_weight in ((data, False), (weights, True)):
        for item in filter(None, part.split(", ")):
            argument, axes = item.split(": ")
            table[argument] = axes.split(), is_weight
    return table


def arguments(name):
    """Those of one right call, in NumPy and float64."""
    rng = np.random.default_rng(7)
    arrays = {
        argument: rng.standard_normal([SIZES[axis.rstrip("!")] for axis in axes])
        for argument, (axes, _) in array_table(name).items()
    }
    return arrays | OPTIONS.get(name, {}) | WITHOUT_ARRAYS.get(name, {})


def call(twin, name, given):
    """Call ``name`` of a twin: in ``spec`` with the arrays as they are, otherwise with JAX arrays."""
    if twin != "spec":
        given = given | jax.device_put(_only_arrays(given))
    return CALLS.get(name, _plain)(twin, name, **given)


def call_traced(name, given):
    """Call ``name`` of ``ops`` inside ``jit``, with every array traced."""

    @jax.jit
    def traced(arrays):
        result = CALLS.get(name, _plain)("ops", name, **(given | arrays))
        return jax.tree.map(jnp.asarray, result) if name not in WITHOUT_ARRAYS else None

    return traced.trace(_only_arrays(given))  # tracing is where shapes and dtypes are seen; nothing need be compiled


def _only_arrays(given):
    return {argument: value for argument, value in given.items() if isinstance(value, np.ndarray)}


def _plain(twin, name, **given):
    if name == "learned_positional_encoding" and twin == "ops":
        given.setdefault("rng", jax.random.key(0))
    return getattr(TWINS[twin], name)(**given)


def _taken(given, fields):
    return {field: given.pop(field) for field in fields if field in given}


def _multi_head_attention(twin, name, *, query, key, value, params=None, **given):
    weights = MultiHeadParams(**_taken(given, MultiHeadParams._fields))
    return getattr(TWINS[twin], name)(query, key, value, weights if params is None else params, **given)


def _encoder_block(twin, name, *, x, params=None, **given):
    gradient = tuple(_taken(given, ["grad_output"]).values())
    attention = MultiHeadParams(**_taken(given, MultiHeadParams._fields))
    weights = EncoderBlockParams(attention, **_taken(given, EncoderBlockParams._fields[1:]))
    return getattr(TWINS[twin], name)(*gradient, x, weights if params is None else params, **given)


@functools.cache
def _cache(twin):
    """Arrays that the forward of multi-head attention keeps for its backward."""
    given = arguments("multi_head_attention_forward")
    if twin == "spec":
        return spec.multi_head_attention_forward(**given)[1]
    sizes = {"num_heads": given.pop("num_heads")}
    return jax.jit(functools.partial(ops.multi_head_attention_forward, **sizes))(**given)[1]


def _multi_head_attention_backward(twin, name, *, grad_output):
    return getattr(TWINS[twin], name)(grad_output, _cache(twin))


def _blocks(twin):
    """Two encoder blocks, as each twin wants them, and the options that go with them."""
    blocks = [spec.TransformerEncoderBlock(22, 2, 17, rng=seed) for seed in range(2)]
    if twin == "spec":
        return blocks, {}
    return [jax.tree.map(jnp.asarray, block.params) for block in blocks], {"num_heads": 2}


def _stack(twin, name, *, x, **given):
    gradient = tuple(_taken(given, ["grad_output"]).values())
    blocks, options = _blocks(twin)
    return getattr(TWINS[twin], name)(*gradient, x, blocks, **options, **given)


METHODS = {  # of a class: its sizes, and the arrays of its forward
    "MultiHeadAttention": ((22, 2), "B T M", "B S M", "B S M"),
    "TransformerEncoderBlock": ((22, 2, 17), "B T M"),
    "Attention": ((22,), "B T M"),
    "ScaledDotProductAttention": ((), "B T D", "B S D", "B S V"),
}


def _method(twin, name, **given):
    """A method of a layer, which in ``ops`` takes the weights."""
    kind, _, method = name.partition(".")
    sizes, *shapes = METHODS[kind]
    own = getattr(spec, kind)(*sizes, rng=0)
    weights = [own.params] if twin == "ops" and hasattr(own, "params") else []
    layer = own if twin == "spec" else getattr(ops, kind)(*sizes)
    if method == "forward":
        return layer.forward(**dict(zip(["params"], weights, strict=False)), **given)
    rng = np.random.default_rng(8)
    arrays = [rng.standard_normal([SIZES[axis] for axis in shape.split()]) for shape in shapes]
    if twin == "spec":
        layer.forward(*arrays)
        return layer.backward(**given)
    return layer.backward(given["grad_output"], *jax.tree.map(jnp.asarray, (*arrays, *weights)))


CALLS = {
    "multi_head_attention": _multi_head_attention,
    "multi_head_attention_backward": _multi_head_attention_backward,
    "encoder_block": _encoder_block,
    "encoder_block_backward": _encoder_block,
    "stack_encoder_blocks": _stack,
    "stack_encoder_blocks_backward": _stack,
    **{f"{kind}.{method}": _method for kind in METHODS for method in ("forward", "backward")},
}


def assert_refused(name, given, error, *facts, traced=True):
    """Every twin refuses in the same words, returned; the first line names the function and states the facts."""
    twins = ("spec", "ops", "attendax") if name == "attention" else ("spec", "ops")
    facts = f"{SPEAKS_AS.get(name, name)}: ", *facts

    def message_of(calling):
        return assert_refuses(calling, error, *facts).replace(
            "jnp.broadcast_to", "np.broadcast_to"
        )  # advice for its arrays

    messages = {twin: message_of(lambda twin=twin: call(twin, name, given)) for twin in twins}
    message = messages["spec"]
    assert message.startswith(facts[0]), message
    assert set(messages.values()) == {message}, messages
    if traced:
        under_jit = message_of(lambda: call_traced(name, given))
        assert under_jit == message, (under_jit, message)
    return message


def assert_row(message, argument, value):
    """The message has a line for the array: what was got, what was expected."""
    got = f"{value.shape} {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    assert re.search(rf"^  {argument} +got {re.escape(got)} +expected \(", message, re.MULTILINE), message
