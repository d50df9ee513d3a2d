"""Where libraries differ by design: what their own documentation or source states, each with its place.

Lines are those of jax 0.10.2, flax 0.12.8, keras 3.15.1, equinox 0.13.8, dm-haiku 0.0.17, torch 2.13.0, onnx 1.23.2,
memory-efficient-attention 0.1.3, flash-attention-jax 0.3.1, mlx 0.32.4 and tokamax 0.0.12. A line is no promise; the
sentence beside it is what the source does.
"""

from ..implementation import Documented

LEAKS = ("leak: *NaN*", "leak: *Inf*", "leak: *a query without keys")
NOT_FINITE = "what is masked is multiplied by its weight of 0, so NaN and Inf in it spread; nothing else is promised"
ROUNDED = "right to rounding"


def zero_times(source: str) -> Documented:
    """0 · NaN under a mask, in a library that never promised otherwise."""
    return Documented(LEAKS, NOT_FINITE, source, r"NaN|leak")


def broadcast(source: str, *cases: str) -> Documented:
    """Documented broadcasting."""
    return Documented(cases or ("refused: mask (B, T, S) where B = N",), "shapes are broadcast", source, ROUNDED)


def promoted(source: str) -> Documented:
    """Dtypes are promoted, and the numbers are right."""
    found = ("refused: mixed dtypes", "refused: integer arrays")
    return Documented(found, "dtypes are promoted to a common floating one", source, ROUNDED)


JAX_NN = "jax/_src/nn/functions.py"
TORCH = "torch/nn/functional.py"
ONNX = "onnx/reference/ops/op_attention.py"
MLX = "mlx.core.fast:scaled_dot_product_attention, its docstring"
COMPARED = "a length is compared with the positions: above S it means all keys, below 0 none"
JAX = (
    zero_times(f"{JAX_NN}:973, einsum of probabilities and values"),
    broadcast(f'{JAX_NN}:1121, "broadcastable to (BNTS|NTS)"'),
    Documented(("refused: key length too long", "refused: key length negative"), COMPARED, f"{JAX_NN}:887-888"),
)
FLAX_MASKS = "a mask is any array of numbers, 0 = masked, as the library's own helpers make it in float32"
MHA = (
    zero_times(f"{TORCH}:7042, bmm of weights and values; 6608, masks are added as -inf"),
    Documented(("refused: dropout rate negative",), "a rate that is not above 0 means none", f"{TORCH}:7039"),
)
TOKAMAX_BASE = "tokamax/_src/ops/attention/base.py"
TOKAMAX = (
    zero_times(f"{TOKAMAX_BASE}:633, einsum of weights and values"),
    broadcast('tokamax/_src/ops/attention/api.py:87, Bool[Array, "*#B #N #T #S"]'),
    Documented(
        (
            "softcap, then bias",
            "gradient: bias after a softcap",
            "*ladder: *softcap*bias (*",
            "*ladder: *bias (*softcap*",
        ),
        '"logits_soft_cap * tanh(logits / logits_soft_cap), where logits are scale * query @ key.T + bias"',
        "tokamax/_src/ops/attention/api.py:116-118",
        "off by",
    ),
    Documented(("refused: key length too long", "refused: key length negative"), COMPARED, f"{TOKAMAX_BASE}:53"),
)
DOCUMENTED = {
    "tokamax-xla": TOKAMAX,
    "tokamax-xla_chunked": TOKAMAX,
    "jax.nn": JAX,
    "jax.nn-cudnn": JAX,
    "flax": (
        zero_times("flax/linen/attention.py:140 and 195, where on scores, einsum of weights and values"),
        broadcast('flax/linen/attention.py:196-197, "broadcastable to [batch..., num_heads, q_length, kv_length]"'),
        promoted("flax/linen/dtypes.py:55, promote_dtype; flax/linen/attention.py:254"),
        Documented(
            ("refused: mask of integers", "refused: mask of floats"), FLAX_MASKS, "flax/linen/attention.py:835", ROUNDED
        ),
    ),
    "flax-nnx": (
        zero_times(f"flax/nnx/nn/attention.py:288, which calls {JAX_NN}:973"),
        broadcast('flax/nnx/nn/attention.py:235-236, "broadcastable to [batch..., num_heads, q_length, kv_length]"'),
        promoted("flax/nnx/nn/dtypes.py:54, promote_dtype; flax/nnx/nn/attention.py:267"),
        Documented(
            ("refused: mask of integers", "refused: mask of floats"),
            FLAX_MASKS,
            "flax/nnx/nn/attention.py:287 and 856",
            ROUNDED,
        ),
    ),
    "keras": (
        zero_times(f"keras/src/backend/jax/nn.py:1800, which calls {JAX_NN}:973"),
        broadcast('keras/src/backend/jax/nn.py:1665-1666, "broadcastable to [batch, heads, dest_time, source_time]"'),
        promoted("keras/src/backend/jax/nn.py:1690-1693, result_type of the three"),
    ),
    "equinox": (
        zero_times("equinox/nn/_attention.py:35 and 57, where on logits, einsum of weights and values"),
        promoted("equinox/nn/_attention.py:27 and 57, einsum promotes"),
        Documented(
            ("refused: mask of integers", "refused: mask of floats"),
            "jnp.where takes any number that is not 0 as True; the annotation asks for Bool, and is not checked",
            "equinox/nn/_attention.py:24 and 35",
            ROUNDED,
        ),
    ),
    "haiku": (
        zero_times("haiku/_src/attention.py:152 and 156, where on logits, einsum of weights and values"),
        broadcast(
            'haiku/_src/attention.py:120, "broadcasts over zero or more batch-like dimensions"',
            "refused: mask (B, T, S) where B = N",
            "refused: batch of 1 beside 2",
        ),
        promoted("haiku/_src/attention.py:144 and 156, einsum promotes"),
    ),
    "memory-efficient-attention": (
        zero_times("memory_efficient_attention/attention_jax.py:34 and 40, where on weights, einsum with values"),
        promoted("memory_efficient_attention/attention_jax.py:23 and 40, einsum promotes"),
    ),
    "flash-attention-jax": (
        zero_times("flash_attention_jax/flash_attention.py:44 and 47, where on weights, einsum with values"),
        promoted("flash_attention_jax/flash_attention.py:34 and 58, einsum promotes, the carry is float32"),
        Documented(
            ("bfloat16*", "float16*"),
            "the result is float32, as the carry of its scan is",
            "flash_attention_jax/flash_attention.py:58",
            "out is float32",
        ),
    ),
    "torch-sdpa": (
        zero_times(f"{TORCH}:6365 and 6377, masked_fill on the scores, attn_weight @ value"),
        broadcast(f'{TORCH}:6463, "shape must be broadcastable to the shape of attention weights"'),
        broadcast(
            f'{TORCH}:6352-6377, "equivalent to" products by @, which broadcasts',
            "refused: batch of 1 beside 2",
            "refused: heads of the values",
        ),
    ),
    "torch-mha": MHA,
    "torch-mha-weights": MHA,
    "torch-flex": (
        zero_times("torch/_higher_order_ops/flex_attention.py:286, scores @ value"),
        Documented(
            ("refused: heads of the values", "refused: integer arrays", "refused: mixed dtypes"),
            "uncompiled, products are by @ in a working precision",
            "torch/_higher_order_ops/flex_attention.py:286",
            ROUNDED,
        ),
    ),
    "mlx": (
        zero_times(f"{MLX}, O = softmax(Q @ K.T) @ V"),
        broadcast(f'{MLX}, "broadcast-compatible with the shape [B, N, T_q, T_kv]"'),
        Documented(("*float64*",), '"The softmax operation is performed in float32"', MLX, "wrong"),
        Documented(
            ("bfloat16 with a float32 bias",), '"its type must promote to the promoted type of q, k, and v"', MLX
        ),
    ),
    "onnxruntime": (
        zero_times(f"{ONNX}:395, the operator is defined as the product of softmax and V"),
        broadcast(f"{ONNX}:280, attn_bias + attn_mask"),
        Documented(
            ("*bias (B, N, T, 1)*", "*mask (B, 1, T, 1)*"),
            "an attn_mask whose last axis is shorter than the keys is padded with -inf",
            f"{ONNX}:229-237",
        ),
        Documented(
            ("scale negative", "*ladder: *scale below 0*"),
            "Q and K are each multiplied by √scale, as the operator is defined",
            f"{ONNX}:207, 344",
        ),
        Documented(
            ("refused: batch of 1 beside 2", "refused: heads of the values"),
            "products broadcast, as NumPy's do in the definition",
            f"{ONNX}:344 and 395",
            ROUNDED,
        ),
    ),
    "onnx-reference": (
        zero_times(f"{ONNX}:395, product of softmax and V"),
        broadcast(f"{ONNX}:280, attn_bias + attn_mask"),
        Documented(
            ("*bias (B, N, T, 1)*", "*mask (B, 1, T, 1)*"),
            "an attn_mask whose last axis is shorter than the keys is padded with -inf",
            f"{ONNX}:229-237",
        ),
        Documented(("refused: softcap negative",), "a cap that is not above 0 means none", f"{ONNX}:37"),
        Documented(("refused: mask of integers",), "an attn_mask that is not boolean is added", f"{ONNX}:276-280"),
        Documented(("refused: key length*",), COMPARED, f"{ONNX}:298"),
        Documented(
            ("scale negative", "*ladder: *scale below 0*"),
            "Q and K are each multiplied by √scale, as the operator is defined",
            f"{ONNX}:207, 344",
        ),
        Documented(
            ("refused: batch of 1 beside 2", "refused: heads of the values"),
            "products are NumPy's, which broadcast",
            f"{ONNX}:344 and 395",
            ROUNDED,
        ),
    ),
}
