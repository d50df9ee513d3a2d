"""Leaks from masked keys: two calls that differ only in numbers that are masked give the same bits (L6)."""

from .case import Case

LENGTHS = 'key_lengths = np.array([5, 5], "int32")'
PADDED = "mask = np.broadcast_to(np.arange(S) < 5, (B, 1, 1, S)).copy()"
FUTURE = dict(out="..., :3, :")
SQUARE = {"T": 7}  # T = S: causal begins at the start and ends at the end
IDS = 'ids = np.array([[0, 0, 0, 1, 1, 1, 1]] * 2, "int32")'
SEGMENTS = "query_segment_ids=ids, key_segment_ids=ids"
FORBIDDEN = "bias = np.zeros((B, 1, 1, S), dtype); bias[..., 5:] = -np.inf"
BIASED = "bias = rng.standard_normal((B, N, T, S)).astype(dtype)"


def leak(name: str, lines: str, call: str, changed: str, law: str = "L6", **more) -> Case:
    """Two calls whose inputs differ where nothing may depend on them."""
    return Case(
        f"leak: {name}",
        law,
        "no bit of any other result changes",
        "same_bits",
        lines=lines,
        call=call,
        changed=changed,
        **more,
    )


def gradient_leak(name: str, lines: str, call: str, changed: str, **more) -> Case:
    """The same of gradients."""
    return leak(f"gradient: {name}", lines, call, changed, direction="gradient", **more)


def put(array: str, where: str, what: str) -> str:
    """Python that puts numbers into a copy of an array."""
    return f"{array} = {array}.copy(); {array}[{where}] = {what}"


MANY = {"B": 1, "N": 12, "G": 12, "T": 64, "S": 64, "D": 16, "V": 16}  # 12,288 numbers each
MORE = {"B": 1, "N": 12, "G": 12, "T": 128, "S": 128, "D": 64, "V": 64}  # 98,304
LAST = "mask = np.arange(S)[None] < S - 4"
BEYOND = [  # where compilers go other ways
    of(f"NaN in a masked {name}, {n} numbers", LAST, "mask=mask", put(name, "..., -1, :", "np.nan"), sizes=sizes)
    for of in (leak, gradient_leak)
    for n, sizes in ((12288, MANY), (98304, MORE))
    for name in ("value", "key")
]
CASES = [
    leak("NaN in a masked value", PADDED, "mask=mask", put("value", ":, :, 5:", "np.nan")),
    leak("NaN in a masked key", PADDED, "mask=mask", put("key", ":, :, 5:", "np.nan")),
    leak("Inf in a masked value", PADDED, "mask=mask", put("value", ":, :, 5:", "np.inf")),
    leak("Inf in a masked key", PADDED, "mask=mask", put("key", ":, :, 5:", "-np.inf")),
    leak("a huge masked key", PADDED, "mask=mask", put("key", ":, :, 5:", "1e30"), dtype="float32"),
    leak("a huge masked value", PADDED, "mask=mask", put("value", ":, :, 5:", "3e38"), dtype="float32"),
    leak("NaN in a padded value", LENGTHS, "key_lengths=key_lengths", put("value", ":, :, 5:", "np.nan")),
    leak("NaN in a padded key", LENGTHS, "key_lengths=key_lengths", put("key", ":, :, 5:", "np.nan")),
    leak("NaN in a future key", "", "is_causal=True", put("key", ":, :, 3:", "np.nan"), where=FUTURE, sizes=SQUARE),
    leak("NaN in a future value", "", "is_causal=True", put("value", ":, :, 3:", "np.nan"), where=FUTURE, sizes=SQUARE),
    leak("NaN outside the window", "", "window=(None, 0)", put("value", ":, :, 3:", "np.nan"), where=FUTURE),
    leak("NaN in another segment", IDS, SEGMENTS, put("value", ":, :, 3:", "np.nan"), where=FUTURE, sizes={"T": 7}),
    leak("NaN in a masked bias", f"{PADDED}\n{BIASED}", "mask=mask, bias=bias", put("bias", "..., 5:", "np.nan")),
    leak("Inf in a masked bias", f"{PADDED}\n{BIASED}", "mask=mask, bias=bias", put("bias", "..., 5:", "np.inf")),
    leak(
        "NaN under a bias of -inf",
        FORBIDDEN,
        "bias=bias",
        put("value", ":, :, 5:", "np.nan"),
    ),
    leak(
        "a query without keys",
        "mask = np.ones((T, S), bool); mask[1] = False",
        "mask=mask",
        put("query", ":, :, 1", "np.nan"),
    ),
    leak(
        "NaN in a masked value, lse",
        PADDED,
        "mask=mask, return_lse=True",
        put("value", ":, :, 5:", "np.nan"),
        where=dict(lse="..."),
    ),
    leak(
        "NaN in a masked key, lse",
        PADDED,
        "mask=mask, return_lse=True",
        put("key", ":, :, 5:", "np.nan"),
        where=dict(lse="..."),
    ),
    gradient_leak("NaN in a masked value", PADDED, "mask=mask", put("value", ":, :, 5:", "np.nan")),
    gradient_leak("NaN in a masked key", PADDED, "mask=mask", put("key", ":, :, 5:", "np.nan")),
    gradient_leak("Inf in a masked value", PADDED, "mask=mask", put("value", ":, :, 5:", "np.inf")),
    gradient_leak("a huge masked key", PADDED, "mask=mask", put("key", ":, :, 5:", "1e30"), dtype="float32"),
    gradient_leak("NaN in a masked key, softcap", PADDED, "mask=mask, softcap=2.0", put("key", ":, :, 5:", "np.nan")),
    gradient_leak(
        "NaN under a bias of -inf",
        FORBIDDEN,
        "bias=bias",
        put("value", ":, :, 5:", "np.nan"),
        needs=("gradient of bias",),
    ),
    gradient_leak("NaN in a padded value", LENGTHS, "key_lengths=key_lengths", put("value", ":, :, 5:", "np.nan")),
    gradient_leak(
        "NaN in a future value",
        "",
        "is_causal=True",
        put("value", ":, :, 3:", "np.nan"),
        where={"grad query": "..., :3, :"},
        sizes=SQUARE,
    ),
    gradient_leak(
        "NaN in another segment",
        IDS,
        SEGMENTS,
        put("value", ":, :, 3:", "np.nan"),
        where={"grad query": "..., :3, :"},
        sizes={"T": 7},
    ),
    gradient_leak(
        "NaN in a masked bias",
        f"{PADDED}\n{BIASED}",
        "mask=mask, bias=bias",
        put("bias", "..., 5:", "np.nan"),
        needs=("gradient of bias",),
    ),
    gradient_leak(
        "a query without keys",
        "mask = np.ones((T, S), bool); mask[1] = False",
        "mask=mask",
        put("query", ":, :, 1", "np.nan"),
    ),
    *BEYOND,
]
