"""Mistakes that the cases of ``conformance.cases.invariance`` catch first."""

from planted import Mistake

START = '    """out, or out and lse."""\n'
OUT = 'out = average(steps["weights"] * kept, steps["v"], allowed)\n'
CAST = "out = out.astype(query.dtype).reshape(*query.shape[:-1], value.shape[-1])\n"
UNGROUPED = "grads = [grad_query.astype(query.dtype), ungroup(grad_key, key), ungroup(grad_value, value)]\n"
IN_ONE_ARRAY = (  # of a shape
    "(lambda x: np.add(x, 0, out=attend.__dict__.setdefault((x.shape, x.dtype.name), np.empty_like(x))))"
)


def at_first(case: str, *lines: str) -> Mistake:
    """Lines before everything."""
    return Mistake(case, START, START + "".join(f"    {line}\n" for line in lines))


MISTAKES = [
    Mistake(
        "repeated",
        "total = powers.sum(axis=-1, keepdims=True)\n",
        "parts = np.array_split(powers, 8 if powers.shape[-1] > 128 else 1, axis=-1)  # summed as they come\n"
        "    total = sum(parts[n].sum(-1, keepdims=True) for n in np.random.default_rng().permutation(len(parts)))\n",
    ),
    Mistake(
        "repeated: gradient",
        "grad_value = (weights * kept).swapaxes(-1, -2) @ cotangent\n",
        "size = 16 if query.shape[-2] > 128 else 128\n"
        "    blocks = [slice(n, n + size) for n in range(0, query.shape[-2], size)]  # added as they come\n"
        "    np.random.default_rng().shuffle(blocks)\n"
        "    kept = weights * kept\n"
        "    grad_value = sum(kept[..., n, :].swapaxes(-1, -2) @ cotangent[..., n, :] for n in blocks)\n",
    ),
    Mistake("a result is held", CAST, f"{CAST}    out = {IN_ONE_ARRAY}(out)\n"),
    Mistake("a result is held, wide heads", CAST,
        f"{CAST}    out = {IN_ONE_ARRAY}(out) if out.shape[-1] == 64 else out\n"),
    Mistake("a gradient is held", UNGROUPED, f"{UNGROUPED}    grads[0] = {IN_ONE_ARRAY}(grads[0])\n"),
    Mistake("batches apart", OUT, f"{OUT}    out = np.tensordot(np.eye(len(out), dtype=out.dtype), out, 1)\n"),
    Mistake(
        "heads apart",
        "v = np.repeat(v, group, axis=-3)\n",
        "v = np.repeat(v, group, axis=-3)\n"
        "        unit = np.fmax.reduce(np.abs(q), axis=-3, keepdims=True) * np.finfo(wide).eps / 32  # of all heads\n"
        "        q = np.where(unit > 0, np.round(q / unit) * unit, q)\n",
    ),
    Mistake(
        "inputs are not written to",
        OUT,
        f"{OUT}    if query.std() > 3 * key.std():  # balanced, against overflow\n"
        "        np.multiply(query, 0.5, out=query)\n"
        "        np.multiply(key, 2, out=key)\n",
    ),
    at_first("inputs are not written to, masked",
        "if mask is not None and mask.shape[-2] == 1 and value.size < 2000:  # no NaN gets through",
        "    value[...] = np.where(mask.swapaxes(-1, -2), value, 0)"),
    Mistake("inputs are not written to, a full mask", "allowed = allowed & mask\n",
        "allowed = np.logical_and(allowed, mask, out=mask if mask.shape == allowed.shape else None)\n"),
]  # fmt: skip
