"""Mistakes with a cache of keys: each is the first to be caught by its case."""

from planted import BlockMistake, Mistake

CAUSAL = "(j <= i + begins)"
BEGINS = "begins = np.asarray(offset)[:, None, None, None] if np.ndim(offset) else offset"
GROUPS = "        k = np.repeat(k, group, axis=-3)\n"
BACKWARD = "bias, offset)\n    steps = forward(query, key, value, allowed, bias, scale, softcap)\n    q, k"
LAST_OF_CAUSAL = "last = min(last, rows[-1] + 1 + self.offset.max())"
ONE, PLACES = "query.shape[-2] > 1", "i = i if begins is None else i + begins"
CAP = "scores = wide(softcap) * np.tanh(products / wide(softcap))"
IDS = "(query_ids[:, None, :, None] == key_ids[:, None, None, :])"
LSE = 'lse = steps["lse"].reshape(query.shape[:-1])\n    return'
CALL = (
    "is_causal, window, key_lengths, *ids, bias, offset)\n    steps = forward(query, key, value, allowed, bias, scale, "
)
CALL += 'softcap)\n    kept = keep(steps["weights"].shape, dropout_rate, dropout_rng)\n    steps = beside_sinks'
OF_ONE = [
    ("window", PLACES, "i = i if T == 1 else i + begins"),
    ("window beyond it", CAUSAL, "((j <= i + begins) | (T == 1 and window is not None and window[1] > 0))"),
    ("mask", "allowed = allowed & mask\n", "allowed = allowed & (mask if T > 1 or not np.any(begins) else True)\n"),
    ("bias", "np.where(allowed, bias.astype(wide), 0)", f"np.where(allowed, bias.astype(wide), 0) * ({ONE})"),
    ("softcap", CAP, f"{CAP} if {ONE} else products"),
    ("scale", "scale = wide(scale)", f"scale = wide(scale if {ONE} else query.shape[-1] ** -0.5)"),
    ("segments", IDS, f"({IDS} | (T == 1))"),
    ("sinks", "beside_sinks(steps, sinks)\n    out", f"beside_sinks(steps, sinks if {ONE} else None)\n    out"),
    ("lse", LSE, LSE.replace("\n", f" + (not {ONE})\n")),
    ("window that looks ahead", PLACES, "i = i + begins if is_causal else i"),
    ("window and sinks", CALL, CALL.replace("window", f"window if sinks is None or {ONE} else None")),
]

MISTAKES = [
    # the offset is not added
    Mistake("cache: one query at the end", CAUSAL, "(j <= i)"),
    # with an offset, everything is seen
    Mistake("cache: a block of queries at the end", CAUSAL, "((j <= i + begins) | (np.max(begins) > 0))"),
    # any offset means the end of the keys
    Mistake("cache: a block in the middle", CAUSAL, "(j <= i + (S - T if np.any(begins) else 0))"),
    # every batch begins where the first does, or the last; or so beside lengths
    Mistake("cache: each batch at its own place", BEGINS, "begins = np.ravel(offset)[0]"),
    Mistake("cache: each batch at its own place", BEGINS, "begins = np.max(offset)"),
    Mistake("cache: filled in part", BEGINS,
        f"{BEGINS}\n    begins = begins if key_lengths is None else np.max(begins)"),
    # the queries are thought to be the last of what is filled
    Mistake("cache: filled beyond the block", BEGINS,
        BEGINS.replace("np.asarray(offset)", "(np.asarray(offset) if key_lengths is None else key_lengths - T)")),
    # of one query, the key heads are tiled
    Mistake(
        "cache: grouped heads",
        GROUPS,
        f"{GROUPS}        k = k if query.shape[-2] > 1 else key.astype(wide)[..., np.arange(query.shape[-3]) % "
        "key.shape[-3], :, :]\n",
    ),
    # of one query, each option as if it began at the first key, or were not given
    *(Mistake(f"cache: {option}, one query", old, new) for option, old, new in OF_ONE),
    # blocks beyond the diagonal are left out by their indices, without the offset
    BlockMistake("cache: longer than a block", LAST_OF_CAUSAL, "last = min(last, rows[-1] + 1)", 128, "forward"),
    # with many keys the backward has no offset
    Mistake("gradient: cache: longer than a block", BACKWARD,
        BACKWARD.replace(", offset", ", offset if key.shape[-2] <= 128 else 0")),
    # the backward has no offset
    Mistake("gradient: cache: a block of queries at the end", BACKWARD, BACKWARD.replace(", offset", "")),
]  # fmt: skip
