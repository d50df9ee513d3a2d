"""The causes of faults in libraries outside JAX, as ``findings`` has them: torch, ONNX's reference and runtime, MLX."""

from .findings import CRASH, GAP, WRONG, Known, known, of_float16

ONNX = "onnx/reference/ops/op_attention.py"
UNREAD = "mlx.core.fast.scaled_dot_product_attention on a CPU; its source was not read"
MLX = (
    known("a row with a bias of -inf everywhere is NaN", GAP, ("*empty row by a bias of -inf",), UNREAD),
    of_float16(UNREAD),
    known(
        "exp and softmax of float32 are off by 15 and 40 roundings",
        GAP,
        ("long row", "lengths that no block divides", "*ladder: *"),
        f"{UNREAD}; mlx.core.exp is off by 15 roundings where NumPy's is by 1.5, and mlx.core.softmax by 41",
        found=r"off by \d(\.\d+)?e-0[67]",
    ),
)
ONNXRUNTIME = (
    known(
        "no keys: Reshape of an empty array raises (onnxruntime)",
        CRASH,
        ("no keys",),
        "onnxruntime/core/providers/cpu/tensor/reshape_helper.h, as its message says",
        "With S = 0, the nodes that Attention is expanded to raise in `Reshape`; the sum over no keys is 0.",
    ),
)
KNOWN: dict[str, tuple[Known, ...]] = {
    "torch-sdpa": (
        known(
            "a value shorter than the key is accepted",
            WRONG,
            ("refused: value length",),
            "the flash kernel of the CPU; torch/nn/functional.py:6341",
            "`scaled_dot_product_attention` with `key` (.., 7, D) and `value` (.., 6, D) on the CPU "
            "returns a result in "
            "which the last key takes part in the softmax and has no value. The formula in the "
            "documentation would raise.",
        ),
        known(
            "is_causal with a scale of 0 or less gives NaN",
            WRONG,
            ("scale negative, causal",),
            "aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: hidden keys are filled with -inf, then scaled",
            "`scaled_dot_product_attention(..., is_causal=True, scale=-0.3)` on the CPU is NaN, and so it is with a "
            "scale of 0: scores of hidden keys are set to -inf before they are multiplied by the scale.",
        ),
        known(
            "an attn_mask of rank 1 raises IndexError",
            CRASH,
            ("bias (S,)",),
            'torch/nn/functional.py:6463, "broadcastable to the shape of attention weights"',
            "An additive `attn_mask` of shape (S,) is broadcastable to the weights, as the documentation asks, and "
            "raises `IndexError: Dimension out of range`.",
        ),
        known(
            "gradients of bfloat16 and float16 round more than the dense formula does",
            GAP,
            ("gradient: ladder: *, bfloat16", "gradient: ladder: *, float16"),
            "the flash kernel of the CPU: off by 0.014 where float32, rounded at the end, is off by 0.003",
            found=r"off by 0\.0",
        ),
    ),
    "torch-mha-weights": (
        known(
            "need_weights=True gives NaN gradients through a row without keys",
            GAP,
            (
                "gradient: empty row*",
                "gradient: in blocks: mask (B, 1, T, 1)*",
                "jvp: mask with an empty row",
                "leak: gradient: a query without keys",
            ),
            "torch/nn/functional.py:7037, softmax of a row of -inf; need_weights=False gives 0",
        ),
    ),
    "torch-flex": (
        known(
            "no keys: max of an empty axis",
            CRASH,
            ("no keys*",),
            "torch/_higher_order_ops/flex_attention.py:278",
            "With S = 0, `torch.max(post_mod_scores, dim=-1)` has no identity and raises IndexError; "
            "the sum over no keys "
            "is 0.",
        ),
    ),
    "onnx-reference": (
        known(
            "is_causal with a mask that is broadcast over the queries: rows see key 0 only",
            WRONG,
            (
                "*causal and mask (*1, S)*",
                "ladder: * 1, S)*causal*",
                "ladder: *causal* 1, S)*",
                "bias of finfo.min under a causal mask",
            ),
            f"{ONNX}:69 and 258, the length of the queries is read from the mask's shape",
            "`_apply_causal` takes `q_sequence_length` from `base.shape[-2]`. Where `attn_mask` is "
            "(.., 1, S), as padding "
            "masks are, that is 1, and every query gets the causal row of query 0: it sees key 0 only. "
            "`base = np.zeros((T, S)) + attn_mask`, as for windows in line 264, would do.",
        ),
        known(
            "no keys: maximum of an empty axis",
            CRASH,
            ("no keys*",),
            f"{ONNX}:19",
            "With S = 0, `np.max` has no identity and raises ValueError; a row without keys is 0 "
            "elsewhere in the file.",
        ),
        known(
            "sums of bfloat16 run in bfloat16",
            WRONG,
            ("bfloat16, a long row", "ladder: *, bfloat16"),
            f"{ONNX}:31 and 395, np.sum and np.matmul of bfloat16 arrays",
            "NumPy adds bfloat16 numbers in bfloat16, so that the sum of the powers stands still at 256, and the sum "
            "over the values does, too: a row of 2,305 equal keys gives 1 in place of 0.11. Sums in float32, rounded "
            "at the end, are right to 0.003. `softmax_precision` does not help the second sum.",
            "off by",
        ),
        of_float16(f"{ONNX}:31, 344 and 395, unless softmax_precision is given"),
    ),
    "onnxruntime": ONNXRUNTIME,
    "mlx": MLX,
}
