"""Mistakes of the caller, which must be refused (L14)."""

from .case import Case


def refusal(
    name: str, about: str, lines: str, call: str = "", speaks_of: tuple[str, ...] = (), law: str = "L14", **more
) -> Case:
    """A mistake that must be refused, in words that speak of it."""
    lines = f"{lines}\nspeaks_of = {speaks_of!r}"
    return Case(f"refused: {name}", law, about, "refused", lines=lines, call=call, **more)


SHAPE_WORDS = ("length", "depth", "width", "shape", "size", "dimension", "dims", "axis")
CASES = [
    refusal(
        "key width",
        "query has D = 4, key D = 6",
        "key = rng.standard_normal((B, G, S, 6)).astype(dtype)",
        speaks_of=("key", *SHAPE_WORDS),
    ),
    refusal("value length", "key has S = 7, value S = 6", "value = value[:, :, :6]", speaks_of=("value", *SHAPE_WORDS)),
    refusal(
        "batch of the keys",
        "query has B = 2, key and value B = 3",
        "key, value = np.zeros((3, G, S, D), dtype), np.zeros((3, G, S, V), dtype)",
        speaks_of=("key", "query", "batch", *SHAPE_WORDS),
        needs=("batch",),
    ),
    refusal(
        "batch of 1 beside 2",
        "nothing is broadcast behind the caller's back",
        "key, value = key[:1], value[:1]",
        changed="key, value = (np.concatenate([x] * B) for x in (key, value))",
        speaks_of=("key", "query", "batch", *SHAPE_WORDS),
        law="L1",
        needs=("batch",),
    ),
    refusal(
        "heads that do not divide",
        "N = 3, G = 2",
        "key, value = key[:, :2], value[:, :2]",
        speaks_of=("head", "key", "multiple", *SHAPE_WORDS),
        needs=("heads",),
    ),
    refusal(
        "heads of the values",
        "key has G = 3, value 1",
        "value = value[:, :1]",
        changed="value = np.concatenate([value] * G, axis=1)",
        speaks_of=("head", "value", *SHAPE_WORDS),
        law="L1",
        needs=("heads",),
    ),
    refusal(
        "integer arrays",
        "attention is of floating numbers",
        "query, key, value = ((9 * x).astype('int32') for x in (query, key, value))",
        changed="query, key, value = (x.astype('float32') for x in (query, key, value))",
        speaks_of=("dtype", "float", "int", "type"),
    ),
    refusal(
        "mixed dtypes",
        "query is float32, key and value are float16",
        "key, value = key.astype('float16'), value.astype('float16')",
        changed="key, value = key.astype('float32'), value.astype('float32')",
        speaks_of=("dtype", "type", "float16", "half"),
        law="L8",
        dtype="float32",
    ),
    refusal(
        "mask of integers",
        "is 1 'may look', or an additive 1?",
        "mask = np.ones((T, S), 'int32'); mask[1, 2] = 0",
        "mask=mask",
        ("mask", "bool"),
        "L3",
        changed="mask = mask != 0",
    ),
    refusal(
        "mask of floats",
        "is 0 'may look', or 'may not'?",
        "mask = np.zeros((T, S), dtype); mask[:, :2] = 1",
        "mask=mask",
        ("mask", "bool"),
        "L3",
        changed="mask = mask != 0",
    ),
    refusal(
        "mask (B, T, S) where B = N",
        "batches or heads?",
        "mask = rng.random((B, T, S)) < 0.5; mask[..., 2] = True",
        "mask=mask",
        ("mask", "rank", "ndim", *SHAPE_WORDS),
        "L3",
        changed="mask = mask[None]",
        sizes={"B": 3},
        needs=("batch",),
    ),
    refusal(
        "mask of another length",
        "S = 7, the mask has 6",
        "mask = np.ones((T, 6), bool)",
        "mask=mask",
        ("mask", *SHAPE_WORDS),
        "L3",
    ),
    refusal(
        "mask of too few queries",
        "T = 5, the mask has 4",
        "mask = np.ones((B, 1, 4, S), bool)",
        "mask=mask",
        ("mask", *SHAPE_WORDS),
        "L3",
    ),
    refusal(
        "mask (S, T)", "the wrong way round", "mask = np.ones((S, T), bool)", "mask=mask", ("mask", *SHAPE_WORDS), "L3"
    ),
    refusal(
        "boolean bias",
        "a mask in the wrong place",
        "bias = rng.random((1, 1, T, S)) < 0.5",
        "bias=bias",
        ("bias", "mask", "bool", "dtype"),
        "L3",
        changed="bias = bias.astype(dtype)",
    ),
    refusal(
        "bias of another length",
        "S = 7, the bias has 6",
        "bias = np.zeros((1, N, T, 6), dtype)",
        "bias=bias",
        ("bias", "mask", *SHAPE_WORDS),
    ),
    refusal(
        "key length too long",
        "S = 7, a length of 9",
        'key_lengths = np.array([4, 9], "int32")',
        "key_lengths=key_lengths",
        ("length", "seq"),
        direction="eager",
    ),
    refusal(
        "key length negative",
        "a length of -1",
        'key_lengths = np.array([4, -1], "int32")',
        "key_lengths=key_lengths",
        ("length", "seq"),
        direction="eager",
    ),
    refusal(
        "key lengths of another batch",
        "B = 2, three lengths",
        'key_lengths = np.array([4, 5, 6], "int32")',
        "key_lengths=key_lengths",
        ("length", "seq", *SHAPE_WORDS),
        needs=("batch",),
    ),
    refusal(
        "segment ids of another length",
        "T = 5, six ids",
        'q_ids = np.zeros((B, 6), "int32"); k_ids = np.zeros((B, S), "int32")',
        "query_segment_ids=q_ids, key_segment_ids=k_ids",
        ("segment", "ids", *SHAPE_WORDS),
    ),
    refusal("window to nowhere", "left = -1", "", "window=(-1, 2)", ("window", "left")),
    refusal("softcap of 0", "a division by 0", "", "softcap=0.0", ("softcap", "cap")),
    refusal("softcap negative", "the cap is a bound", "", "softcap=-2.0", ("softcap", "cap")),
    refusal(
        "dropout rate above 1",
        "no probability",
        "",
        "dropout_rate=1.5, dropout_rng=3",
        ("dropout", "rate", "probability"),
        "L10",
    ),
    refusal(
        "dropout rate negative",
        "no probability",
        "",
        "dropout_rate=-0.25, dropout_rng=3",
        ("dropout", "rate", "probability"),
        "L10",
    ),
]
