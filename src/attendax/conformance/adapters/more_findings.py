"""The causes of faults in tokamax 0.0.12, mlx 0.32.4 and onnxruntime 1.32.0; every script was run, and fails there."""

from .findings import CRASH, GAP, WRONG, known

API, BASE, BY_CHUNKS = (f"tokamax/_src/ops/attention/{file}" for file in ("api.py", "base.py", "xla_chunked.py"))
UNREAD = "mlx.core.fast.scaled_dot_product_attention on a CPU; its source was not read"
TOKAMAX = (
    known(
        "a bias of finfo.min lets rows see masked keys (tokamax)",
        WRONG,
        ("bias of finfo.min*",),
        f"{BASE}:625, masked scores are finfo.min, no lower than the bias",
        "The common idiom for padding, a bias of `finfo.min`, is the same number as masked scores. A row whose allowed "
        "keys are all padded then spreads over the future as well. The comment above the line says why it is not -inf; "
        "`jnp.where` of the weights after the softmax would do.",
    ),
    known(
        "a value of ones in the program gives garbage: XLA's CPU compiler (tokamax)",
        WRONG,
        ("value of ones*",),
        f"{BASE}:633, a product with a constant that XLA:CPU miscompiles",
        "With a value that the compiler knows, XLA:CPU of jax 0.10.2 returns garbage (inf, NaN). It is XLA's fault.",
    ),
    known(
        "a local window raises where T != S",
        CRASH,
        ("window wider than the keys", "window with a mask", "empty row by a window", "leak: NaN outside the window"),
        f"{API}:161, k_indices = jnp.arange(key.shape[-3])",
        "`k_start` and `k_end` of a mask are bounds for each query, but `local_window_size` makes them with the number "
        "of keys, so that any call with T != S raises a broadcasting error. `jnp.arange(query.shape[-3])` is meant.",
    ),
    known(
        "reverse over reverse raises",
        CRASH,
        ("second order: *",),
        "tokamax.dot_product_attention, the gradient of its gradient; which line is not known",
        "`jax.grad` of a gradient raises `ValueError: Linearization failed to produce known values`, which does not "
        "say that second derivatives are not supported; forward over reverse works.",
        "Linearization failed",
    ),
    known(
        "no keys: the largest of none (tokamax)",
        CRASH,
        ("no keys*", "gradient: no keys"),
        f"{BASE}:666",
        "With S = 0, `jnp.max` has no identity and raises ValueError; the sum over no keys is 0.",
    ),
    known(
        "a row with a bias of -inf everywhere is NaN",
        GAP,
        ("*empty row by a bias of -inf",),
        f"{BASE}:667, -inf - (-inf)",
    ),
)
CHUNKED = (
    known(
        "no queries: there is no chunk (tokamax)",
        CRASH,
        ("no queries",),
        f"{BY_CHUNKS}:218, out is None until there is a chunk",
        "With T = 0 there is no chunk of queries, `_attend_chunked` returns None, and jaxtyping raises. An empty array "
        "of shape (B, 0, H, d) is meant.",
    ),
    known(
        "no keys: 0 divided by 0 (tokamax)",
        GAP,
        ("no keys*", "gradient: no keys"),
        f"{BY_CHUNKS}:215, the sum over no chunks is 0, and so is what it is divided by",
    ),
    *(finding for finding in TOKAMAX if not finding.name.startswith("no keys")),
)
MLX = (
    known("a row with a bias of -inf everywhere is NaN", GAP, ("*empty row by a bias of -inf",), UNREAD),
    known("scores of float16 overflow", GAP, ("float16 of 300, D = 64",), UNREAD),
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
KNOWN = {"onnxruntime": ONNXRUNTIME, "tokamax-xla": TOKAMAX, "tokamax-xla_chunked": CHUNKED, "mlx": MLX}
