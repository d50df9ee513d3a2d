"""Mistakes in ``right_blockwise`` by somebody who had not seen the cases of the kit: each must be caught by some."""

from planted import ByOthers

MISTAKES = [
    ByOthers(
        name="late_rescale_returns_the_true_maximum",
        old="""        return largest, sum(np.exp(x - largest).sum(axis=-1, keepdims=True) for x in every)
""",
        new="""        shift, total = np.full_like(largest, -np.inf), np.zeros_like(largest)
        for x in every:
            top = x.max(axis=-1, keepdims=True, initial=-np.inf)
            moved = np.where(top > shift + 8, top, shift)  # rescale only where it is worth it
            base = np.where(moved == -np.inf, 0, moved)
            total = total * np.exp(shift - base) + np.exp(x - base).sum(axis=-1, keepdims=True)
            shift = moved
        return largest, total
""",
        why="The running sum is rescaled only when the maximum rises by more than 8, but the true maximum is handed on "
        "with a sum that belongs to the older one.",
        shown_by="S = 200 with a row whose largest score in the second block of 128 keys is 3 above that in the first.",
    ),
    ByOthers(
        name="causal_skip_forgets_the_offset",
        old="""            weights, allowed, _ = call.weights(rows, keys, largest, total)
""",
        new="""            if is_causal and keys.size and keys[0] > rows[-1]:
                continue  # above the diagonal
            weights, allowed, _ = call.weights(rows, keys, largest, total)
""",
        why="Tiles above the diagonal are skipped by their indices alone, so a positive offset loses whole key blocks "
        "of the output (lse stays right).",
        shown_by="is_causal, T = 4, S = 200, offset = 196: keys 128 and later never reach the output.",
    ),
    ByOthers(
        name="empty_rows_guarded_a_block_at_a_time",
        old="""        largest = np.where(largest == -np.inf, 0, largest)
""",
        new="""        if (largest == -np.inf).all():  # nothing to see for this block
            largest = np.zeros_like(largest)
""",
        why="inf - inf is guarded only where the whole block of rows is empty; an empty row among others gives NaN.",
        shown_by="A (T, S) mask with one row all False among full ones.",
    ),
    ByOthers(
        name="last_block_start_clamped",
        old="""    return [np.arange(start, min(start + block, length)) for start in range(0, length, block)]
""",
        new="""    starts = [max(min(start, length - block), 0) for start in range(0, length, block)]
    return [np.arange(start, min(start + block, length)) for start in starts]
""",
        why="The start of the last block is clamped so that the block is full, as dynamic_slice does; positions in the "
        "overlap are counted twice.",
        shown_by="S = 200 (no multiple of 128): keys 72 to 127 count twice.",
    ),
    ByOthers(
        name="causal_tiles_remembered_without_the_offset",
        old="""    def allowed(self, rows, keys):
        \"\"\"Which pairs of a tile may look at each other.\"\"\"
        i, j = rows[:, None], keys
        allowed = np.ones((*self.query.shape[:-2], len(rows), len(keys)), bool)
        begins = np.asarray(self.offset)[:, None, None, None] if np.ndim(self.offset) else self.offset
        if self.is_causal:
            allowed = allowed & (j <= i + begins)
""",
        new="""    def allowed(self, rows, keys, tiles={}):
        \"\"\"Which pairs of a tile may look at each other.\"\"\"
        i, j = rows[:, None], keys
        allowed = np.ones((*self.query.shape[:-2], len(rows), len(keys)), bool)
        begins = np.asarray(self.offset)[:, None, None, None] if np.ndim(self.offset) else self.offset
        if self.is_causal and np.ndim(begins):
            allowed = allowed & (j <= i + begins)
        elif self.is_causal:
            allowed = allowed & tiles.setdefault((rows.tobytes(), keys.tobytes()), j <= i + begins)
""",
        why="Causal tiles are remembered between calls by their rows and keys, but not by the offset.",
        shown_by="Two calls of the same shape in one process, first offset = 0, then offset = 3.",
    ),
    ByOthers(
        name="positions_in_int32_wrap_around",
        old="""        i, j = rows[:, None], keys
""",
        new="""        i, j = rows[:, None].astype(np.int32), keys.astype(np.int32)
""",
        why="Positions are int32, so query position plus a very large offset (or right side of a window) wraps around.",
        shown_by="is_causal with offset = 2**31 - 1 and T = 3: queries 1 and 2 see nothing.",
    ),
    ByOthers(
        name="segment_tiles_skipped_as_if_sorted",
        old="(self.query_ids[:, None, rows, None] == self.key_ids[:, None, None, keys])\n",
        new="""True
            ours, theirs = self.query_ids[:, rows], self.key_ids[:, keys]
            allowed = allowed & (ours[:, None, :, None] == theirs[:, None, None, :])
            if keys.size:  # no segment in common: skip the tile
                apart = (theirs[:, -1:] < ours[:, :1]) | (theirs[:, :1] > ours[:, -1:])
                allowed = allowed & ~apart[:, :, None, None]
""",
        why="A tile is skipped when the first and last segment ids say that no segment is shared, which supposes that "
        "the ids rise.",
        shown_by="Query ids [2, 1, 2], key ids [2, 2, 1]: the last key's id is below the first query's id.",
    ),
    ByOthers(
        name="lse_of_an_empty_row_is_plus_infinity",
        old="""        lse[..., rows] = (largest + np.log(total))[..., 0]
""",
        new="""        lse[..., rows] = np.where(total == 0, np.inf, largest + np.log(total))[..., 0]
""",
        why="A row that sees nothing gets lse = +inf, as some GPU kernels do for their own backward; merging then "
        "gives NaN or loses the other part.",
        shown_by="key_lengths = [0, 3] with return_lse.",
    ),
    ByOthers(
        name="first_key_block_of_the_window_is_negative",
        old="""        for keys in call.key_blocks():
            weights, allowed, _ = call.weights(rows, keys, largest, total)
""",
        new="""        first = 0 if window is None or window[0] is None else (rows[0] - window[0]) // BLOCK_K
        for keys in call.key_blocks()[first:]:
            weights, allowed, _ = call.weights(rows, keys, largest, total)
""",
        why="The index of the first key block within the window is not clamped at 0; a negative one counts from the "
        "end, which is the same block as long as there is only one.",
        shown_by="T = S = 140, window = (3, 0): the first 128 queries start at the last key block and give 0.",
    ),
    ByOthers(
        name="backward_retakes_lse_in_the_query_dtype",
        old="""        largest, total = call.normaliser(rows)
        delta = 0
""",
        new="""        largest, total = call.normaliser(rows)
        lse = (largest + np.log(np.where(total == 0, 1, total))).astype(query.dtype)  # as the forward stored it
        largest, total = lse.astype(call.wide), np.sign(total)
        delta = 0
""",
        why="Backward takes the weights as exp(score - lse) from an lse that was stored in float16 or bfloat16.",
        shown_by="bfloat16, query zero and a bias of 200, so every score is exact: lse 201.6 is stored as 202 and all "
        "weights shrink by a third; in float32 nothing changes.",
    ),
    ByOthers(
        name="bias_gradient_of_one_row_overwritten_by_the_next_block",
        old="""                grad_bias[..., rows[:, None], keys] = dscores
""",
        new="""                if np.atleast_2d(bias).shape[-2] == 1:  # one row for all queries
                    grad_bias[..., :1, keys] = dscores.sum(axis=-2, keepdims=True)
                else:
                    grad_bias[..., rows[:, None], keys] = dscores
""",
        why="For a bias repeated along the queries the sum of a block of queries is assigned instead of added, so the "
        "last block of queries wins.",
        shown_by="The bias gradient for bias (1, 1, 1, S) with T = 130, more than one block of queries.",
    ),
    ByOthers(
        name="softcap_derivative_from_the_score_with_bias",
        old="""                dscores = dscores * (1 - np.tanh(products / softcap) ** 2)
""",
        new="""                capped = np.where(allowed, call.scores(rows, keys)[0], 0)
                dscores = dscores * (1 - (capped / softcap) ** 2)
""",
        why="The derivative of the cap is taken from the final score, which holds the bias too.",
        shown_by="Gradients with softcap and a bias together; either alone is right.",
    ),
    ByOthers(
        name="masked_product_left_in_the_softcap_derivative",
        old="""        products = np.where(allowed, products, 0)
""",
        new="",
        why="Products of forbidden pairs are left as they are since the scores are masked later; the softcap "
        "derivative then multiplies a zero weight by NaN.",
        shown_by="Gradients with softcap and a NaN in a key that key_lengths forbid.",
    ),
    ByOthers(
        name="cotangent_read_in_the_order_of_memory",
        old="""    cotangent = grad_output.astype(call.wide)
""",
        new="""    cotangent = grad_output.ravel(order="K").reshape(grad_output.shape).astype(call.wide)
""",
        why="The cotangent's buffer is read flat, without its strides; every other input is read with them.",
        shown_by="grad_output as a transposed view, e.g. (B, T, N, V) memory seen as (B, N, T, V).",
    ),
    ByOthers(
        name="backward_takes_every_window_for_causal",
        old="""            weights, dweights, allowed, products = call.dweights(rows, keys, cotangent, largest, total)
""",
        new="""            begins_at_0 = is_causal and not np.any(offset)
            if (begins_at_0 or window is not None) and keys.size and keys[0] > rows[-1]:
                continue  # the future
            weights, dweights, allowed, products = call.dweights(rows, keys, cotangent, largest, total)
""",
        why="Backward skips the tiles of the future for every window, though a window may look to the right.",
        shown_by="Gradients with T = S = 140, window = (2, 5), not causal: queries 123 to 127 see keys of the second "
        "block.",
    ),
]
