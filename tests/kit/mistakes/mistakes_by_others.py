"""Mistakes in ``right_attention`` by somebody who had not seen the cases of the kit: each must be caught by some."""

from planted import ByOthers

MISTAKES = [
    ByOthers(
        name="sum_of_powers_in_the_query_dtype",
        old="""    total = powers.sum(axis=-1, keepdims=True)
""",
        new="""    total = powers.astype(query.dtype).sum(axis=-1, keepdims=True).astype(wide)
""",
        why="The exponentials are summed in the dtype of the query; in bfloat16 a running sum of ones stops at 256.",
        shown_by="bfloat16, equal scores, S = 600: the weights sum to more than 2.",
    ),
    ByOthers(
        name="bias_rounded_to_the_query_dtype",
        old="""        scores = scores + np.where(allowed, bias.astype(wide), 0)
""",
        new="""        scores = scores + np.where(allowed, bias.astype(query.dtype).astype(wide), 0)
""",
        why="A float32 bias is rounded to the query's bfloat16 or float16 before it is added.",
        shown_by="bfloat16 query with a float32 bias of 100.0 and 100.2 (the same in bfloat16).",
    ),
    ByOthers(
        name="default_scale_from_the_width_of_the_values",
        old="""        scale = query.shape[-1] ** -0.5
""",
        new="""        scale = value.shape[-1] ** -0.5
""",
        why="The default scale is taken from the width of the values instead of that of the queries.",
        shown_by="D = 4, V = 9, no scale given.",
    ),
    ByOthers(
        name="square_mask_read_as_padding_of_the_batch",
        old="""        allowed = allowed & mask
""",
        new="""        if mask.ndim == 2 and query.ndim == 4 and mask.shape == (query.shape[0], S):
            mask = mask[:, None, None, :]  # of the batch and its keys
        allowed = allowed & mask
""",
        why="A mask (T, S) is taken for a padding mask (B, S) where B and T happen to agree.",
        shown_by="B = T = 3, S = 5, a mask of shape (3, 5) whose rows differ.",
    ),
    ByOthers(
        name="key_positions_in_the_dtype_of_the_lengths",
        old="""        allowed = allowed & (j < key_lengths[:, None, None, None])
""",
        new="""        allowed = allowed & (j.astype(key_lengths.dtype) < key_lengths[:, None, None, None])
""",
        why="Key positions are cast to the dtype of the lengths, and wrap around where that is narrow.",
        shown_by="int8 key_lengths of 100 with S = 200: key 128 has position -128 and counts.",
    ),
    ByOthers(
        name="query_segments_used_for_the_keys_at_equal_lengths",
        old="""        allowed = allowed & (query_ids[:, None, :, None] == key_ids[:, None, None, :])
""",
        new="""        theirs = key_ids if S != T else query_ids  # attention to itself
        allowed = allowed & (query_ids[:, None, :, None] == theirs[:, None, None, :])
""",
        why="Where T == S the call is taken for attention to itself and the key's segment ids are ignored.",
        shown_by="T = S = 4, query ids [0, 0, 1, 1], key ids [0, 1, 1, 1].",
    ),
    ByOthers(
        name="length_zero_raised_to_one",
        old="""        allowed = allowed & (j < key_lengths[:, None, None, None])
""",
        new="""        allowed = allowed & (j < np.maximum(key_lengths, 1)[:, None, None, None])  # no empty softmax
""",
        why="Lengths of zero are raised to one so that no softmax is empty; such a row then gives the padding.",
        shown_by="key_lengths = [0, 3].",
    ),
    ByOthers(
        name="scale_rounded_to_float32",
        old="""    scale = wide(scale)
""",
        new="""    scale = np.float32(scale)
""",
        why="The scale is a float32 also for float64 inputs; gradients agree with finite differences all the same.",
        shown_by="float64 with D = 6 (at D = 4, 16 or 64 the default scale is exact): 1e-8 off.",
    ),
    ByOthers(
        name="lse_is_zero_without_keys",
        old="""    steps = forward(query, key, value, allowed, bias, scale, softcap)
    kept = keep(steps""",
        new="""    if key.shape[-2] == 0:  # nothing to do
        out = np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
        return (out, np.zeros(query.shape[:-1], WIDE.get(query.dtype.name, np.float32))) if return_lse else out
    steps = forward(query, key, value, allowed, bias, scale, softcap)
    kept = keep(steps""",
        why="The early return for S = 0 gives lse = 0 (a sum of one) instead of -inf.",
        shown_by="S = 0 with return_lse.",
    ),
    ByOthers(
        name="mask_of_the_caller_narrowed_in_place",
        old="""        allowed = allowed & mask
    if bias""",
        new="""        allowed = np.logical_and(allowed, mask, out=mask if mask.shape == allowed.shape else None)
    if bias""",
        why="A mask of the full shape is used as the buffer for the result, so the caller's mask comes back narrower.",
        shown_by="A full (B, N, T, S) mask of True with is_causal: after the call it is causal itself.",
    ),
    ByOthers(
        name="mask_remembered_by_its_id",
        old="""    if mask is not None:
        allowed = allowed & mask
""",
        new="""    if mask is not None:
        known = vars(pairs).setdefault("known", {})
        _, seen = known.setdefault(id(mask), (mask, mask.copy()))  # held, so that the id stays its own
        allowed = allowed & seen
""",
        why="What a mask says is remembered by the identity of the array; a change in place between calls is missed.",
        shown_by="Two calls with the same mask array, one element set to False in between.",
    ),
    ByOthers(
        name="running_maximum_starts_at_minus_1e30",
        old="""    largest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
""",
        new="""    largest = np.max(scores, axis=-1, keepdims=True, initial=-1e30)
""",
        why="The maximum starts from a finite 'minus infinity', so a row whose real scores are all lower underflows to "
        "zero (an empty row is right).",
        shown_by="A bias of float32's finfo.min on a whole row: out is 0 instead of the mean of the values.",
    ),
    ByOthers(
        name="single_query_is_never_causal",
        old="""    if is_causal:
        allowed = allowed & (j <= i + begins)
""",
        new="""    if is_causal and T > 1:  # one query alone is a decoding step and sees every key
        allowed = allowed & (j <= i + begins)
""",
        why="The causal mask is skipped for one query, which is right only where it stands at the end of the keys.",
        shown_by="T = 1, S = 5, is_causal, offset = 2.",
    ),
    ByOthers(
        name="delta_from_the_output_before_dropout",
        old="""    delta = (dweights * weights).sum(axis=-1, keepdims=True)
""",
        new="""    delta = (cotangent * average(weights, v, allowed)).sum(axis=-1, keepdims=True)
""",
        why="delta is the cotangent times an output retaken without dropout.",
        shown_by="Gradients of query and key with dropout_rate = 0.5.",
    ),
    ByOthers(
        name="lse_cotangent_goes_through_dropout",
        old="""        dscores = dscores + weights * grad_lse[..., None]
""",
        new="""        dscores = dscores + weights * kept * grad_lse[..., None]
""",
        why="The gradient of lse uses the weights after dropout, though lse knows nothing of dropout.",
        shown_by="Gradients with grad_lse and dropout_rate = 0.5 together.",
    ),
    ByOthers(
        name="zero_cotangent_returns_before_lse",
        old="""    steps = forward(query, key, value, allowed, bias, scale, softcap)
    q, k, v, weights""",
        new="""    if not grad_output.any():  # nothing flows back
        return [np.zeros_like(x) for x in (query, key, value, bias) if x is not None]
    steps = forward(query, key, value, allowed, bias, scale, softcap)
    q, k, v, weights""",
        why="A cotangent of zeros returns at once, and the gradient that comes by lse is lost.",
        shown_by="grad_output all zero with grad_lse of ones (a loss of lse alone).",
    ),
    ByOthers(
        name="dropout_in_backward_without_its_scale",
        old="""    dweights = np.where(allowed, cotangent @ v.swapaxes(-1, -2), 0) * kept
""",
        new="""    dweights = np.where(allowed, cotangent @ v.swapaxes(-1, -2), 0) * (kept > 0)
""",
        why="The gradient of the weights is cut to the kept set but not divided by the share that stays.",
        shown_by="Gradients of query and key with dropout_rate = 0.5 (those of value are right).",
    ),
    ByOthers(
        name="dropout_in_backward_drawn_by_key_heads",
        old="    kept = keep(weights.shape, dropout_rate, dropout_rng)\n",
        new="""    kept = keep((*key.shape[:-2], *weights.shape[-2:]), dropout_rate, dropout_rng)
    if kept.ndim > 2:
        kept = np.repeat(kept, weights.shape[-3] // max(kept.shape[-3], 1), axis=-3)
""",
        why="Backward draws the kept set for each key head and repeats it, forward draws it for each query head.",
        shown_by="Gradients with dropout_rate = 0.5, four query heads on two key heads; at N = G nothing changes.",
    ),
    ByOthers(
        name="key_gradient_summed_over_strided_heads",
        old="""        gradient = gradient.reshape(*lead, G, -1, S, width).sum(axis=-3)
""",
        new="""        gradient = gradient.reshape(*lead, -1, G, S, width).sum(axis=-4)
""",
        why="Gradients of keys and values are summed over the heads n with the same n % G, while forward reads n // "
        "(N // G); for one key head the two are the same.",
        shown_by="Gradients with N = 4, G = 2.",
    ),
    ByOthers(
        name="bias_gradient_summed_in_the_bias_dtype",
        old="""    gradient = gradient.sum(axis=tuple(range(gradient.ndim - bias.ndim)))
""",
        new="""    gradient = gradient.astype(bias.dtype).sum(axis=tuple(range(gradient.ndim - bias.ndim)))
""",
        why="The gradient of a repeated bias is rounded to bfloat16 first and summed in bfloat16.",
        shown_by="A bfloat16 bias (1, S) repeated along T = 600 queries: the sum stops growing.",
    ),
    ByOthers(
        name="backward_forgets_that_a_bias_forbids",
        old="""    allowed = pairs(query, key, mask, is_causal, window, key_lengths, *ids, bias, offset)
    steps = forward(query, key, value, allowed, bias, scale, softcap)
    q, k""",
        new="""    allowed = pairs(query, key, mask, is_causal, window, key_lengths, *ids, None, offset)
    steps = forward(query, key, value, allowed, bias, scale, softcap)
    q, k""",
        why="Backward builds the mask without the -inf of the bias; the weights there are 0 all the same, but 0 * NaN "
        "is not.",
        shown_by="A bias of -inf over a key whose value is NaN: gradients of query and key become NaN.",
    ),
]
