"""Functions of packed sequences: the tokens of all on one axis, and where each begins, as kernels for training have it.

``fn(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, ...)`` takes (tokens, N, D) and gives
(tokens, N, V), the lse as (N, tokens): the signature of ``flash_attn_varlen_func``, by name.
"""

PACKED = "packed"
NO_AXIS = ("mask", "bias", "key_lengths", "query_segment_ids", "key_segment_ids", "offset")
LACKS = {name: "packed sequences have no axis for it" for name in NO_AXIS}
LACKS |= {f"rank {rank}": "sequences are packed from (B, N, T, D)" for rank in (2, 3, 5)}
LACKS |= {"empty arrays": "a packed sequence has tokens"}


def in_packs(fn, query, key, value, *, names, lse_base, stack, concat, ints, **options):
    """Arrays (B, N, T, D) as packed sequences and back; a short filler sequence lies between two of them."""
    import math

    batch, lengths, begins = query.shape[0], (query.shape[2], key.shape[2]), []
    short = [min(length, k) for k, length in enumerate(lengths, start=1)]
    for length, more in zip(lengths, short, strict=True):
        ends = [0]
        for _ in range(batch):
            ends += [ends[-1] + length, ends[-1] + length + more]
        begins.append(ends)

    def packed(x, more):
        rows = [x[b].swapaxes(0, 1) for b in range(batch)]
        return concat([part for row in rows for part in (row, row[:more])])

    arrays = [packed(query, short[0]), packed(key, short[1]), packed(value, short[1])]
    where = {f"cu_seqlens_{of}": ints(ends) for of, ends in zip("qk", begins, strict=True)}
    where |= {f"max_seqlen_{of}": length for of, length in zip("qk", lengths, strict=True)}
    found = fn(*arrays, **where, **{names.get(k, k): x for k, x in options.items()})
    out, *rest = found if isinstance(found, (tuple, list)) else (found,)
    parts = [slice(start, start + lengths[0]) for start in begins[0][:-1:2]]
    out = stack([out[part].swapaxes(0, 1) for part in parts])
    if "return_lse" not in options:
        return out
    return out, stack([rest[0][:, part] * math.log(lse_base) for part in parts])
