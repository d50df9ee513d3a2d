"""Mistakes of real block kernels, planted in ``right_kernel``, and the reason that is named first for each.

Where one was met is a thread (repository#number); "planted" is one that is common and has no thread here.
"""

from typing import NamedTuple


class KernelMistake(NamedTuple):
    """A mistake in ``right_kernel``.

    Attributes:
        name: in a few words.
        old, new: a piece of its text, which occurs once, and what is there instead.
        met: where.
        cause: what the first cause says, in part; empty where the mistake is caught and its reason is not named.
        missed: why the default profile cannot see it; empty where it does.
    """

    name: str
    old: str
    new: str
    met: str
    cause: str = ""
    missed: str = ""


RESCALED = "blocks of keys are joined, but the {} is not multiplied by exp(old maximum - new maximum)"
RACE = "a race, or state kept between calls"
SKIPPED = "some queries do not see whole blocks of keys"
OF_KEYS = "np.arange(self.N) // self.group"
CAUSAL = "            seen = seen & (j <= i + begins)\n"
P_SAVED = "        kept = self.kept(rows, keys)\n"
LAST_OF_CAUSAL = "            last = min(last, rows[-1] + 1 + self.offset.max())\n"
LAST_OF_LEFT = "            last = min(last, keys[-1] + 1 + self.left)\n"
READS = "        self.query, self.key, self.value = query, key, value\n"

JOINED = [
    KernelMistake(
        "tail of zeros counted", "seen = (i < self.T) & (j < self.S)", "seen = (i < self.T) & (j == j)",
        "jax#27224", "keys of zeros that fill the last block of 32 are counted",
    ),
    KernelMistake(
        "output not rescaled", "acc = acc * alpha + p", "acc = acc + p", "planted", RESCALED.format("output"),
    ),
    KernelMistake(
        "sum not rescaled", "row_sum = row_sum * alpha + p", "row_sum = row_sum + p", "planted", RESCALED.format("sum"),
    ),
    KernelMistake(
        "neither rescaled", "alpha = np.exp2(row_max - shift)", "alpha = np.float32(1)", "planted",
        RESCALED.format("output and sum"),
    ),
    KernelMistake(
        "maximum not carried", "                row_max = higher\n",
        "                row_max = np.maximum(row_max, -np.inf)\n", "planted", "only the last block of keys counts",
    ),
    KernelMistake(
        "maximum not subtracted",
        "higher = np.maximum(row_max, scores.max(axis=-1, keepdims=True))",
        "higher = np.zeros_like(row_max)",
        "planted",
        "exp overflows: the row's largest score is not subtracted",
    ),
    KernelMistake(
        "last part of the keys lost", "        return tiles(first, last, BLOCK_K)\n",
        "        return tiles(first, last // BLOCK_K * BLOCK_K, BLOCK_K)\n", "66RING/tiny-flash-attention#12",
        "keys behind the last whole block are left out",
    ),
    KernelMistake(
        "keys from 2,048 on lost", "        first, last = 0, self.S\n", "        first, last = 0, min(self.S, 2048)\n",
        "planted", "wrong only where S > 2048",
    ),
    KernelMistake(
        "head stride times a head index of 3 bits", OF_KEYS, f"np.arange(self.N) % 8 {OF_KEYS.partition(')')[2]}",
        "planted", "wrong only where N > 8",
    ),
    KernelMistake(
        "batches from 4 on read elsewhere", READS,
        READS + "        if query.ndim == 4 and len(query) > 4:\n"
        "            self.key = key[np.arange(len(key)) % 4]\n",
        "planted", "wrong only where B > 4",
    ),
]  # fmt: skip
WIDTHS = [
    KernelMistake(
        "only the first 64 of D", "range(0, q.shape[-1], BLOCK_D)", "range(0, min(q.shape[-1], 64), BLOCK_D)",
        "triton#621", "only the first 64 of D count in the scores",
    ),
    KernelMistake(
        "last part of D lost", "range(0, q.shape[-1], BLOCK_D)",
        "range(0, q.shape[-1] // BLOCK_D * BLOCK_D or q.shape[-1], BLOCK_D)", "flash-attention#498",
        "the last part of D is left out of the scores",
    ),
    KernelMistake(
        "D of the values in the gradient of the weights",
        "dp = self.queries(grad_output, rows) @ self.keys(self.value, keys).swapaxes(-1, -2) * kept",
        "dp = (self.queries(grad_output, rows)[..., : self.D] @ self.keys(self.value, keys)[..., : self.D]"
        ".swapaxes(-1, -2)) * kept",
        "native-sparse-attention-triton#27", "in the backward, wrong only where V > D",
    ),
    KernelMistake(
        "a scale of 0.5", "self.D**-0.5 if scale is None", "0.5 if scale is None", "attorch#14",
        "the scale is 1/√4, whatever D is",
    ),
]  # fmt: skip
HEADS = [
    KernelMistake(
        "key heads tiled", OF_KEYS, "np.arange(self.N) % (self.N // self.group)", "planted",
        "key heads are tiled (n % G) instead of blocked (n // (N // G))",
    ),
    KernelMistake(
        "heads divided by the other count", OF_KEYS,
        "np.minimum(np.arange(self.N) // (self.N // self.group), self.N // self.group - 1)",
        "native-sparse-attention-triton#27", "key heads are read at n // G, instead of n // (N // G)",
    ),
    KernelMistake(
        "gradients of the last head of a group", ".sum(axis=-3)", "[..., -1, :, :]", "levanter#449",
        "gradients of keys and values are of the last head of a group only",
    ),
    KernelMistake(
        "rows of packed heads", CAUSAL, "            seen = seen & (j <= i // self.group + begins)\n",
        "flash-attention#2528", "causal divides the position of a query by the heads of a group",
    ),
    KernelMistake(
        "mask of the first head", "self.pairs(self.mask, rows, keys)",
        "self.pairs(self.mask[:, :1] if self.mask.ndim == 4 else self.mask, rows, keys)", "planted",
        "every head gets the mask of the first",
    ),
    KernelMistake(
        "tiles of a mask skipped by their first row",
        "seen = seen & self.pairs(self.mask, rows, keys)",
        "first = self.pairs(self.mask, rows[:1], keys).any(axis=-1, keepdims=True)\n"
        "            seen = seen & self.pairs(self.mask, rows, keys) & first",
        "planted", "a block is skipped if the mask hides it from its first query",
    ),
    KernelMistake(
        "mask of the first batch", "self.pairs(self.mask, rows, keys)",
        "self.pairs(self.mask[:1] if self.mask.ndim == 4 else self.mask, rows, keys)", "planted",
        "every batch gets the mask of the first",
    ),
    KernelMistake(
        "gradient of a bias of the first batch",
        "        return grad.sum(axis=axes, keepdims=True).astype(bias.dtype)\n",
        "        if bias.ndim == 4 and len(bias) == 1:\n            grad = grad[:1]\n"
        "        return grad.sum(axis=axes, keepdims=True).astype(bias.dtype)\n",
        "HKUSTDial/flash-sparse-attention#193", "the gradient of the bias is of the first batch only",
    ),
]  # fmt: skip
MASKS = [
    KernelMistake(
        "diagonal skipped", LAST_OF_CAUSAL, "            last = min(last, rows[0] + self.offset.max())\n", "planted",
        "causal skips the block of the diagonal",
    ),
    KernelMistake(
        "as many blocks of keys as of queries", LAST_OF_CAUSAL,
        "            last = min(last, (rows[0] // BLOCK_Q + 1) * BLOCK_K + self.offset.max())\n", "jax#17314", SKIPPED,
    ),
    KernelMistake(
        "causal aligned to the end", CAUSAL, "            seen = seen & (j <= i + begins + (self.S - self.T)"
        " * (not np.any(begins)))\n",
        "sparkinfer#3", "causal is aligned to the end of the keys",
    ),
    KernelMistake(
        "causal left out for one query", "        self.mask, self.bias, self.is_causal, self.softcap = "
        "mask, bias, is_causal, softcap\n",
        "        self.mask, self.bias, self.is_causal, self.softcap = "
        "mask, bias, is_causal and query.shape[-2] > 1, softcap\n",
        "planted", "a single query (T = 1) sees all keys",
    ),
    KernelMistake(
        "causal dropped where tiles divide S", "        self.mask, self.bias, self.is_causal, self.softcap = "
        "mask, bias, is_causal, softcap\n",
        "        self.mask, self.bias, self.is_causal, self.softcap = "
        "mask, bias, is_causal and key.shape[-2] % BLOCK_K > 0, softcap\n",
        "triton-msl#7", "is_causal is ignored",
    ),
    KernelMistake(
        "window one short", "seen = seen & (j >= i - self.left)", "seen = seen & (j > i - self.left)",
        "transformers#39408", "a window counts one key less to the left",
    ),
    KernelMistake(
        "first tile of a window rounded up", "            first = max(first, rows[0] - self.left)\n",
        "            first = max(first, -((self.left - rows[0]) // BLOCK_K) * BLOCK_K)\n", "planted", SKIPPED,
    ),
    KernelMistake(
        "last tile of a window lost", "            last = min(last, rows[-1] + 1 + self.right)\n",
        "            last = min(last, rows[0] + 1 + self.right)\n", "flash-attention#2199", SKIPPED,
    ),
    KernelMistake(
        "keys end at the first length", "            last = min(last, self.key_lengths.max())\n",
        "            last = min(last, self.key_lengths[0])\n", "planted",
    ),
    KernelMistake(
        "cap after the mask",
        "        return np.where(self.seen(rows, keys), scores * self.wide(LOG2E), -np.inf), slope\n",
        "        low = -np.inf if self.softcap is None else -self.softcap * self.wide(LOG2E)\n"
        "        beyond = (rows[:, None] < self.T) & (keys < self.S)\n"
        "        low = np.where(beyond, low, -np.inf)\n"
        "        return np.where(self.seen(rows, keys), scores * self.wide(LOG2E), low), slope\n",
        "flash-attention#1025", "softcap caps after the mask: masked keys keep a weight",
    ),
    KernelMistake(
        "bias transposed", "self.pairs(self.bias, rows, keys)",
        "(self.pairs(self.bias, rows, keys) if 1 in self.bias.shape[-2:] or self.bias.ndim < 2 else "
        "self.pairs(self.bias, keys, rows).swapaxes(-1, -2))",
        "planted", "",
    ),
    KernelMistake(
        "later tiles read the first tile of the bias", "self.pairs(self.bias, rows, keys)",
        "self.pairs(self.bias, rows, keys % BLOCK_K)", "planted", "",
    ),
]  # fmt: skip
BACKWARD = [
    KernelMistake(
        "lse in base 2", "return (out, lse) if return_lse", "return (out, lse * np.float32(LOG2E)) if return_lse",
        "tokenspeed#571", "lse is in base 2",
    ),
    KernelMistake(
        "lse of two bases", "(row_max + np.log2(row_sum)) / self.wide(LOG2E)",
        "(row_max + np.log(row_sum)) / self.wide(LOG2E)", "planted", "",
    ),
    KernelMistake(
        "delta left out", "ds = p * (dp - self.queries(delta, rows))", "ds = p * dp", "planted",
        "dS = P · dP: the row sum of P · dP is not subtracted",
    ),
    KernelMistake(
        "delta of a tile", "ds = p * (dp - self.queries(delta, rows))",
        "ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True))", "planted", "delta is summed over a block of keys",
    ),
    KernelMistake(
        "delta in half", "        saved = grad_output, lse[..., None], delta[..., None]\n",
        "        saved = grad_output, lse[..., None], delta[..., None].astype(np.float16)\n", "planted", "",
    ),
    KernelMistake(
        "gradient of lse left out", "            delta = delta - grad_lse\n",
        "            delta = delta - 0 * grad_lse\n",
        "flash-attention#1817", "the cotangent of lse is ignored",
    ),
    KernelMistake(
        "gradient of lse added", "            delta = delta - grad_lse\n", "            delta = delta + grad_lse\n",
        "planted", "the cotangent of lse has the wrong sign",
    ),
    KernelMistake(
        "dK without the scale", "store(grad_key, keys, dk * self.scale)", "store(grad_key, keys, dk)", "planted",
        "not multiplied by the scale",
    ),
    KernelMistake(
        "dQ in units of log 2", "store(grad_query, rows, dq * self.scale)",
        "store(grad_query, rows, dq * self.scale * self.wide(LOG2E))", "planted",
        "grad query: 1/log 2 times what is right",
    ),
    KernelMistake(
        "cap in the forward only", "return p * kept, ds, ds * slope", "return p * kept, ds, ds", "planted",
        "the derivative of the softcap is left out",
    ),
    KernelMistake(
        "always causal in the backward", P_SAVED,
        "        p = p * (rows[:, None] >= keys)\n" + P_SAVED, "triton#5660",
        "in the backward, it is causal without is_causal",
    ),
    KernelMistake(
        "mask forgotten in the backward", "        scores, slope = self.scores(rows, keys)\n        lse = ",
        "        mask, self.mask = self.mask, None\n        scores, slope = self.scores(rows, keys)\n"
        "        self.mask = mask\n        lse = ",
        "planted", "in the backward, mask is ignored",
    ),
    KernelMistake(
        "bias forgotten in the backward", "        scores, slope = self.scores(rows, keys)\n        lse = ",
        "        bias, self.bias = self.bias, None\n        scores, slope = self.scores(rows, keys)\n"
        "        self.bias = bias\n        lse = ",
        "planted", "in the backward, bias is ignored",
    ),
    KernelMistake(
        "first tile of queries rounded up", "            first = max(first, keys[0] - self.offset.max())\n",
        "            first = max(first, -((self.offset.max() - keys[0]) // BLOCK_Q) * BLOCK_Q)\n", "planted", SKIPPED,
    ),
    KernelMistake(
        "rows of a window cut", LAST_OF_LEFT, LAST_OF_LEFT.replace("keys[-1]", "keys[0]"), "planted", SKIPPED,
    ),
    KernelMistake(
        "another dropout in the backward", P_SAVED,
        "        self.seed = self.seed and self.seed + 1\n"
        + P_SAVED
        + "        self.seed = self.seed and self.seed - 1\n",
        "flash-attention#1251", "dropout",
    ),
]  # fmt: skip
MEMORY = [
    KernelMistake(
        "weights in bfloat16", "p = (p * self.kept(rows, keys)).astype(dtype)",
        'p = (p * self.kept(rows, keys)).astype("bfloat16" if self.wide is np.float32 else dtype)', "planted",
        "float32 is as coarse as products at bf16",
    ),
    KernelMistake(
        "sums in the dtype of the inputs", "                row_max = higher\n",
        "                row_max = higher\n"
        "                acc, row_sum = (x.astype(dtype).astype(self.wide) for x in (acc, row_sum))\n",
        "planted", "wrong only where the dtype is bfloat16",
    ),
    KernelMistake(
        "dQ added without atomics", "            store(grad_query, rows, dq * self.scale)\n",
        "            if np.random.default_rng().random() < 0.2:\n                dq[..., 0, :] = 0\n"
        "            store(grad_query, rows, dq * self.scale)\n",
        "flash-attention#359", RACE,
    ),
    KernelMistake(
        "a tile read before it is there", "            store(out, rows, acc /",
        "            if np.random.default_rng().random() < 0.05:\n                acc = acc * np.float32(0.99)\n"
        "            store(out, rows, acc /",
        "triton#1558", RACE,
    ),
    KernelMistake(
        "dK of a group without atomics", ".sum(axis=-3)",
        "[..., np.random.default_rng().permutation(self.group)[-max(self.group - 1, 1) :], :, :].sum(axis=-3)",
        "fla#889", RACE,
    ),
    KernelMistake(
        "rows that are never written", "        for rows in tiles(0, self.T, BLOCK_Q):\n            row_max",
        "        for rows in tiles(0, self.T // BLOCK_Q * BLOCK_Q or self.T, BLOCK_Q):\n            row_max",
        "fla#892", "uninitialised memory",
    ),
    KernelMistake(
        "rows of dK that are never written", "        for keys in tiles(0, self.S, BLOCK_K):\n            dk",
        "        for keys in tiles(0, self.S // BLOCK_K * BLOCK_K or self.S, BLOCK_K):\n            dk",
        "tilelang#2461", "uninitialised memory",
    ),
    KernelMistake(
        "lse of an earlier call", "        delta = (grad_output",
        '        saved = globals().setdefault("SAVED", {})\n'
        "        lse = saved.setdefault((self.query.shape, self.key.shape), lse)\n        delta = (grad_output",
        "planted", "state kept between calls",
    ),
    KernelMistake(
        "values without strides", READS, READS + '        self.value = value.ravel(order="K").reshape(value.shape)\n',
        "FlagGems#5896", "wrong for arrays that are not contiguous",
    ),
    KernelMistake(
        "cotangent without strides", "        out, lse = self.forward()\n",
        "        out, lse = self.forward()\n"
        '        grad_output = grad_output.ravel(order="K").reshape(grad_output.shape)\n',
        "planted", "wrong for arrays that are not contiguous",
    ),
    KernelMistake(
        "query scaled in place", READS, READS + "        query *= np.asarray(2, query.dtype)\n"
        "        self.query = (query / 2).astype(query.dtype)\n",
        "planted", "writes to query",
    ),
    KernelMistake(
        "offsets of 32 bits", "x[..., rows[inside], :] =", "x[..., rows[inside].astype(np.int32), :] =", "fla#1080", "",
        "an array of 2**31 numbers is in no case",
    ),
]  # fmt: skip
MISTAKES = [*JOINED, *WIDTHS, *HEADS, *MASKS, *BACKWARD, *MEMORY]
