"""The causes of faults in libraries that have a name: where they are, what to send upstream, and a script of ten lines.

The lines are those of the versions that ``contracts`` names. Every script was run, and ends in an error there.
"""

from ..implementation import Known
from .scripts import SCRIPTS

FLOAT16 = "scores of float16 are float16: rounded, and too large for it"
WRONG, CRASH, GAP = "wrong numbers", "crash", "robustness gap"
JAX_NN = "jax/_src/nn/functions.py"
MEA = "memory_efficient_attention/attention_jax.py"
FLASH = "flash_attention_jax/flash_attention.py"
HAIKU = "haiku/_src/attention.py:144, logits are float16"
API, BASE, BY_CHUNKS = (f"tokamax/_src/ops/attention/{file}" for file in ("api.py", "base.py", "xla_chunked.py"))


def known(name: str, kind: str, cases: tuple[str, ...], where: str, report: str = "", found: str = "") -> Known:
    """A cause, with its script where there is one."""
    return Known(name, kind, cases, found, where, report, SCRIPTS.get(name, ""))


def of_float16(where: str) -> Known:
    """Scores in the dtype of the arrays."""
    cases = ("float16*", "gradient: float16*", "*ladder: *, float16")
    return known(FLOAT16, GAP, cases, where, "", r"NaN|off by 0\.0")


LSE = known(
    "the lse that is returned has gradient 0",
    WRONG,
    ("gradient: lse*", "gradient: in blocks: lse*", "gradient: ladder: *lse*", "jvp: lse", "second order: lse"),
    f"{JAX_NN}:981, lax.stop_gradient",
    "`return_residual=True` returns `lax.stop_gradient(lse)`: a loss that uses the log-sum-exp "
    "(merging of two halves, "
    "a z-loss) gets a gradient of 0 through it, without a word. Either let it flow, as dS += P · dlse, or say so.",
)
FUTURE = known(
    "a bias of finfo.min lets rows see masked keys",
    WRONG,
    ("bias of finfo.min*",),
    f"{JAX_NN}:866 and 922, masked scores are -0.7 · finfo.max, above finfo.min",
    "The common idiom for padding, a bias of `finfo.min`, lies below the -0.7 · finfo.max that "
    "masked scores get. A row "
    "whose allowed keys are all padded then attends to the future. `-inf` for masked scores, or a mask of the result, "
    "would not.",
)
IN_FLOAT32 = known(
    "float64 is computed in float32", GAP, ("*float64*",), f"{JAX_NN}:970, padded_logits.astype(np.float32)"
)
EMPTY_BIAS = known(
    "a row with a bias of -inf everywhere is NaN", GAP, ("*empty row by a bias of -inf",), f"{JAX_NN}:964 and 971"
)
INTEGERS = known(
    "integer arrays are accepted, and weights rounded to integers",
    GAP,
    ("refused: integer arrays",),
    f"{JAX_NN}:971, probs.astype(key.dtype)",
)
BOOLEAN = known("a boolean bias is added as 0 and 1", GAP, ("refused: boolean bias",), f"{JAX_NN}:964")
LSE_IN_HALF = ("lse of bfloat16*", "ladder: *lse*, bfloat16", "ladder: *lse*, float16")
RATES = ("refused: dropout rate*",)
VIA_JAX = (FUTURE, IN_FLOAT32, EMPTY_BIAS, INTEGERS, BOOLEAN)
DIVISION = "ZeroDivisionError"
CHUNKS = ("long row", "*long row*", "in blocks: *, 1100", "gradient: in blocks: *, 1100")
OF_INT32 = "window of the largest int32"
TOKAMAX = (
    known(
        "a local window of the largest int32 raises",
        CRASH,
        (OF_INT32,),
        f"{API}:163, after + 1 is no int32",
        "`local_window_size=(2**31 - 1, 2**31 - 1)`, which kernels write for no bound, raises `OverflowError: An "
        "overflow was encountered while parsing an argument to a jitted computation`, which does not say that the "
        "window is too large.",
        "OverflowError",
    ),
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
        (
            "window wider than the keys",
            "window with a mask",
            "empty row by a window",
            "leak: NaN outside the window",
            "*ladder: *window*",
        ),
        f"{API}:161, k_indices = jnp.arange(key.shape[-3])",
        "`k_start` and `k_end` of a mask are bounds for each query, but `local_window_size` makes them with the number "
        "of keys, so that any call with T != S raises a broadcasting error. `jnp.arange(query.shape[-3])` is meant.",
        "shape",
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
KNOWN: dict[str, tuple[Known, ...]] = {
    "jax.nn": (
        LSE,
        *VIA_JAX,
        known("lse of bfloat16 arrays is rounded to bfloat16", GAP, LSE_IN_HALF, f"{JAX_NN}:979"),
        known("a window of -1 is accepted", GAP, ("refused: window*",), f"{JAX_NN}:876"),
        known(
            "a window of the largest int32 sees wrong keys",
            GAP,
            (OF_INT32,),
            f"{JAX_NN}:876, key_pos + left_window wraps around",
            "Positions are int32, and the window is added to them. With `2**31 - 1`, which kernels write for no bound, "
            "the sum wraps around, and every query sees key 0 alone, without a word. "
            "`query_pos - key_pos <= left_window` has no such sum.",
        ),
    ),
    "flax": (
        known(
            "a bias of finfo.min lets rows see masked keys (linen)",
            WRONG,
            ("bias of finfo.min*",),
            "flax/linen/attention.py:139, masked scores are finfo.min, no lower than the bias",
            "A bias of `finfo.min` (padding) and the masked scores are the same number, so that a row "
            "whose allowed keys "
            "are all padded spreads over the future as well.",
        ),
        known(EMPTY_BIAS.name, GAP, EMPTY_BIAS.cases, "flax/linen/attention.py:136 and 146"),
        known(
            "a value of ones in the program gives garbage: XLA's CPU compiler",
            WRONG,
            ("value of ones*",),
            "no line of flax: jaxlib 0.10.2 fuses a constant operand into a product that it then reads wrongly",
            "Not flax's mistake, but its users': a value that the compiler knows (ones, as in a sum over the keys) "
            "makes XLA's CPU compiler fuse the broadcast into the product, and numbers up to 1e33 come out. An "
            "`optimization_barrier` with a `reduce_precision` on the value hides it.",
        ),
        of_float16("flax/linen/attention.py:132, scores are float16"),
        known(
            "scores and softmax of bfloat16 are rounded to bfloat16",
            GAP,
            ("bfloat16*", "gradient: bfloat16*", "*ladder: *, bfloat16"),
            "flax/linen/attention.py:130, 132 and 146; force_fp32_for_softmax mends the last alone",
            found=r"off by 0\.0",
        ),
        known("dropout rates outside [0, 1] are accepted", GAP, RATES, "flax/linen/attention.py:152-160"),
        known(BOOLEAN.name, GAP, BOOLEAN.cases, "flax/linen/attention.py:136"),
    ),
    "flax-nnx": (
        *VIA_JAX,
        known("dropout rates outside [0, 1] are accepted", GAP, RATES, "flax/nnx/nn/attention.py:185-196"),
    ),
    "keras": (
        *VIA_JAX,
        known(
            "a float32 bias beside bfloat16 arrays is rounded to bfloat16",
            GAP,
            ("bfloat16 with a float32 bias",),
            "keras/src/backend/jax/nn.py:1695",
        ),
    ),
    "equinox": (
        known(
            "empty sequences divide by zero",
            CRASH,
            ("no keys", "no queries", "gradient: no keys"),
            "equinox/nn/_attention.py:358, reshape(seq_length, num_heads, -1) of an empty array",
            "`reshape(seq_length, num_heads, -1)` cannot infer the last axis of an empty sequence and raises "
            "ZeroDivisionError; the width is known, so it could be written out.",
            DIVISION,
        ),
        of_float16("equinox/nn/_attention.py:27, logits are float16"),
        known("dropout rates outside [0, 1] are accepted", GAP, RATES, "equinox/nn/_dropout.py:48"),
    ),
    "haiku": (
        known(
            "empty sequences divide by zero (haiku)",
            CRASH,
            ("no queries", "no batch", "gradient: no batch"),
            "haiku/_src/attention.py:157, reshape(..., sequence_length, -1) of an empty array",
            "`reshape((*leading_dims, sequence_length, -1))` cannot infer the last axis of an empty array and raises "
            "ZeroDivisionError; H · V is known, so it could be written out.",
            DIVISION,
        ),
        of_float16(HAIKU),
        # where the parts of a gradient cancel, the rounding is large beside it: 0.30 of one with these sizes
        known(FLOAT16, GAP, ("gradient: ladder: *equal keys*, float16",), HAIKU, "", r"grad query is off by 0\."),
    ),
    "memory-efficient-attention": (
        known(
            "a mask without a bias raises AttributeError",
            CRASH,
            ("*",),
            f"{MEA}:65, elif bias.shape[-1] == 1: meant is mask.shape",
            "`chunk_scanner` looks at `bias.shape` where it means `mask.shape`, so that every call with a mask and "
            "without a bias raises `AttributeError: 'NoneType' object has no attribute 'shape'`.",
            "'NoneType' object has no attribute 'shape'",
        ),
        known(
            "lengths that the chunk does not divide count keys twice",
            WRONG,
            CHUNKS,
            f"{MEA}:45, dynamic_slice moves the last chunk back",
            "`jax.lax.dynamic_slice` clamps its start, so that where `key_chunk_size` does not divide "
            "the keys the last "
            "chunk overlaps the one before it, and these keys count twice.",
            "wrong",
        ),
        known(
            "six queries in chunks of four give eight rows",
            CRASH,
            ("gradient: in blocks: *, 1100",),
            f"{MEA}:170 and 178, the last chunk of queries is moved back and kept whole",
            "Where `query_chunk_size` does not divide the queries, the result has a row for each query of the last "
            "chunk, which overlaps the one before it: too many rows, and a gradient that JAX refuses for its shape.",
            "unexpected JAX type",
        ),
        known(
            "empty sequences raise",
            CRASH,
            ("no keys", "no queries", "gradient: no keys"),
            f"{MEA}:76 and 178, no chunk is left to map or to concatenate",
            "No queries leave nothing to concatenate, and no keys a chunk size of 0, by which the number of chunks is "
            "divided. The results are an array without rows, and zeros.",
        ),
        known(
            "a bias of finfo.min and masked scores are the same number",
            WRONG,
            ("bias of finfo.min under a mask",),
            f"{MEA}:32, masked scores are finfo.min, no lower than the bias",
            "A bias of `finfo.min` (padding) and the masked scores are the same number, so that a row whose allowed "
            "keys are all padded spreads over the masked ones as well.",
        ),
        of_float16(f"{MEA}:23, scores are float16"),
    ),
    "flash-attention-jax": (
        known(
            "values of another width than the keys raise",
            CRASH,
            ("*",),
            f"{FLASH}:58, zeros((q_len, batch, heads, dim)), meant is v_dim",
            "The accumulator is made with the width of the queries; `v_dim` is computed and not used.",
            r"incompatible shapes for broadcasting: \((.*), \d+\), \(\1, \d+\)",  # but for the width the same
        ),
        known(
            "gradients of bfloat16 and float16 raise",
            CRASH,
            ("gradient: bfloat16", "gradient: float16", "gradient: ladder: *"),
            f"{FLASH}:134, dq of the inputs' dtype is a carry to which float32 is added",
            "`dq = jnp.zeros_like(q)` starts the scan in half precision and the step adds float32, so that `lax.scan` "
            "refuses the carry: no gradient for half precision.",
            "carry input and carry output|bfloat16|float16",
        ),
        known(
            "lengths that the chunk of 1024 does not divide count keys twice",
            WRONG,
            (*CHUNKS, "*ladder: *"),
            f"{FLASH}:30, dynamic_slice moves the last chunk back",
            "`lax.dynamic_slice` clamps its start, so that where 1024 does not divide the keys the "
            "last chunk overlaps "
            "the one before it: these keys count twice, and the gradient has the shape of the padded length.",
            "wrong|incompatible shapes|cannot reshape|unexpected JAX type",
        ),
        known(
            "no keys: the largest of none",
            CRASH,
            ("no keys*", "gradient: no keys"),
            f"{FLASH}:39",
            "With S = 0, `jnp.max(attn_weights, axis=-1)` has no identity and raises ValueError; the sum over no keys "
            "is 0, as the last lines of the scan would give.",
        ),
        known(
            "a causal row without any key is NaN",
            GAP,
            ("*causal, more queries", "*ladder: *causal*"),
            "causal_flash_attention.py:48",
            found="NaN",
        ),
        known("float64 is off by its epsilon of 1e-10", GAP, ("*float64*",), f"{FLASH}:13 and 45"),
    ),
    "tokamax-xla": TOKAMAX,
    "tokamax-xla_chunked": CHUNKED,
}
