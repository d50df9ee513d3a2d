"""Mistakes as learners type them: the exercise in which each is looked for, and a text of ``learner.py`` replaced."""

SOFTMAX, SCORES, SDPA = "softmax", "compute_attention_scores", "scaled_dot_product_attention"
BACK, FORWARD, HEADS_BACK = f"{SDPA}_backward", "multi_head_attention_forward", "multi_head_attention_backward"
BLOCK, BLOCK_BACK, DROPOUT = "TransformerEncoderBlock", "TransformerEncoderBlock.backward", "ScaledDotProductAttention"
TOTAL = "total = e.sum(axis=axis, keepdims=True)"
KT = "s = Q @ K.swapaxes(-1, -2)"
DIVIDED = "return s / sqrt(Q.shape[-1]) if scale else s"
APPLIED = """    if mask is not None:
        s = apply_attention_mask(s, mask, -inf)
    p = softmax(s)
    return p @ V, p

def pull"""
MASKED = "s = apply_attention_mask(s, mask, -inf)\n    p = softmax(s)\n    return p @ V, p\n\ndef pull"
PULL = "return p * (dp - inner)"
INNER = "inner = (dp * p).sum(axis=axis, keepdims=True)"
DQ, DK = "dQ = c * (ds @ K)", "dK = c * (ds.swapaxes(-1, -2) @ Q)"
SPLIT = "return x.reshape(B, T, num_heads, M // num_heads).swapaxes(1, 2)"
MERGE = "return x.swapaxes(1, 2).reshape(B, T, N * d)"
DW = "dW = (x.swapaxes(-1, -2) @ dy).sum(axis=0)"
ANGLE, SINES = "exponent = 2 * (column // 2) / d_model", "return where(column % 2 == 0, sin(angle), cos(angle))"
CAUSAL = "return position[None, :] <= position[:, None]"
PADDING = "return arange(max_length)[None, :] < lengths[:, None]"
SIGMA, DX = "sigma = (var + eps) ** 0.5", "dx = (dhat - first - second) / sigma"
H = "h = where(a > 0, a, 0.0)\n    return h @ W2 + b2"
DA = "da = dh * (a > 0)"
HALVES = "h = x + self.attention.forward(n1, n1, n1, mask)"
N2 = "n2 = layer_norm(h, self.gamma2, self.beta2)"
Y = "y = h + feed_forward(n2, self.W1, self.b1, self.W2, self.b2)"
STEP = "x = block.forward(x, mask)"
FACTOR = "factor = (uniform(*p.shape) >= self.dropout_p) / (1 - self.dropout_p)"

PLANTED = [
    ("axis ignored", SOFTMAX, "def softmax(x, axis=-1):", "def softmax(x, axis=-1):\n    axis = -1"),
    ("over everything", SOFTMAX, TOTAL, "m = x.max(); e = exp(x - m) if m > -inf else 0 * exp(x); total = e.sum()"),
    ("keepdims forgotten", SOFTMAX, TOTAL, "total = e.sum(axis=axis)"),
    ("no exp", SOFTMAX, "    m = largest(x, axis)", "    return x / x.sum(axis=axis, keepdims=True)\n    m = 0"),
    ("maximum not subtracted", SOFTMAX, "e = exp(x - where(m == -inf, 0.0, m))", "e = exp(x)"),
    ("empty row is NaN", SOFTMAX, "e = exp(x - where(m == -inf, 0.0, m))", "e = exp(x - m)"),
    ("empty row is NaN", SDPA, "e = exp(x - where(m == -inf, 0.0, m))", "e = exp(x - m)"),
    ("empty row is NaN", HEADS_BACK, "e = exp(x - where(m == -inf, 0.0, m))", "e = exp(x - m)"),
    ("over the queries", SDPA, MASKED, MASKED.replace("softmax(s)", "softmax(s, -2)")),
    ("scale missing", SCORES, DIVIDED, "return s"),
    ("scale missing", SDPA, DIVIDED, "return s"),
    ("divided by d", SCORES, DIVIDED, "return s / Q.shape[-1] if scale else s"),
    ("multiplied by √d", SCORES, DIVIDED, "return s * sqrt(Q.shape[-1]) if scale else s"),
    ("divided by √T", SCORES, DIVIDED, "return s / sqrt(Q.shape[-2]) if scale else s"),
    ("flag scale ignored", SCORES, DIVIDED, "return s / sqrt(Q.shape[-1])"),
    ("every axis turned", SCORES, KT, "s = Q @ K.T"),
    ("three axes only", SCORES, KT, "s = Q @ K.transpose(0, 2, 1)"),
    ("keys not turned", SCORES, KT, "s = Q @ K"),
    ("keys ask queries", SCORES, KT, "s = K @ Q.swapaxes(-1, -2)"),
    ("mask inverted", "apply_attention_mask", "where(mask, scores, mask_value)", "where(mask, mask_value, scores)"),
    ("mask_value ignored", "apply_attention_mask", "where(mask, scores, mask_value)", "where(mask, scores, -1e9)"),
    ("mask multiplied", "apply_attention_mask", "where(mask, scores, mask_value)", "scores * mask"),
    ("mask inverted", SDPA, MASKED, MASKED.replace("mask, -inf", "~mask, -inf")),
    ("mask ignored", SDPA, MASKED, MASKED.replace("s = apply", "t = apply")),
    ("mask turned", SDPA, MASKED, MASKED.replace("mask, -inf", "mask.T, -inf")),
    ("mask multiplied", SDPA, MASKED, MASKED.replace("apply_attention_mask(s, mask, -inf)", "s * mask")),
    ("forbidden score finite", SDPA, MASKED, MASKED.replace("-inf", "-1e9")),
    (
        "forbidden score lowered",
        SDPA,
        MASKED,
        MASKED.replace("apply_attention_mask(s, mask, -inf)", "s + ~mask * -1e9"),
    ),
    (
        "masked after softmax",
        SDPA,
        APPLIED,
        "    p = softmax(s) * (1 if mask is None else mask)\n    return p @ V, p\n\ndef pull",
    ),
    ("weights turned", SDPA, MASKED, MASKED.replace("p @ V", "p.swapaxes(-1, -2) @ V")),
    ("scores returned", SDPA, MASKED, MASKED.replace("p @ V, p", "p @ V, s")),
    ("row sum forgotten", "softmax_backward", PULL, "return p * dp"),
    ("row sum forgotten", BACK, PULL, "return p * dp"),
    ("row sum forgotten", HEADS_BACK, PULL, "return p * dp"),
    ("row sum forgotten", BLOCK_BACK, PULL, "return p * dp"),
    ("diagonal only", BACK, PULL, "return p * (1 - p) * dp"),
    ("row sum without weights", BACK, INNER, "inner = dp.sum(axis=axis, keepdims=True)"),
    ("row mean", BACK, INNER, "inner = dp.mean(axis=axis, keepdims=True)"),
    ("sum over the queries", BACK, INNER, "inner = (dp * p).sum(axis=-2, keepdims=True)"),
    ("factor p forgotten", BACK, PULL, "return dp - inner"),
    ("x taken for its softmax", "softmax_backward", "p = softmax(x, axis)\n", "p = x\n"),
    ("dV not turned", BACK, "dV = p.swapaxes(-1, -2) @ grad_output", "dV = p @ grad_output"),
    ("dK not turned", BACK, DK, "dK = c * (ds @ Q)"),
    ("gradient not scaled", BACK, "c = 1 / sqrt(Q.shape[-1])", "c = 1"),
    ("gradient not scaled", HEADS_BACK, "c = 1 / sqrt(Q.shape[-1])", "c = 1"),
    ("gradient scaled twice", BACK, "c = 1 / sqrt(Q.shape[-1])", "c = 1 / Q.shape[-1]"),
    ("only dQ scaled", BACK, DK, DK.replace("c * ", "")),
    ("only dK scaled", BACK, DQ, DQ.replace("c * ", "")),
    ("results in another order", BACK, "return dQ, dK, dV\n\ndef additive", "return dK, dQ, dV\n\ndef additive"),
    (
        "mask ignored",
        BACK,
        "_, p = scaled_dot_product_attention(Q, K, V, mask)",
        "_, p = scaled_dot_product_attention(Q, K, V)",
    ),
    ("sign turned", BACK, "return dQ, dK, dV\n\ndef additive", "return -dQ, -dK, -dV\n\ndef additive"),
    ("tanh forgotten", "additive_attention", "hidden = tanh(", "hidden = ("),
    ("additive scores scaled", "additive_attention", "s = hidden @ v", "s = hidden @ v / sqrt(v.shape[0])"),
    ("heads cut without a turn", "split_heads", SPLIT, "return x.reshape(B, num_heads, T, M // num_heads)"),
    ("heads behind tokens", "split_heads", SPLIT, SPLIT.removesuffix(".swapaxes(1, 2)")),
    (
        "heads interleaved",
        "split_heads",
        SPLIT,
        "return x.reshape(B, T, M // num_heads, num_heads).transpose(0, 3, 1, 2)",
    ),
    ("heads merged without a turn", "merge_heads", MERGE, "return x.reshape(B, T, N * d)"),
    ("W_Q for the keys", FORWARD, "k = split_heads(K @ W_K, num_heads)", "k = split_heads(K @ W_Q, num_heads)"),
    ("values from the keys", FORWARD, "v = split_heads(V @ W_V, num_heads)", "v = split_heads(K @ W_V, num_heads)"),
    ("W_O forgotten", FORWARD, "output = context @ W_O", "output = context"),
    (
        "one head",
        FORWARD,
        "    q = split_heads(Q @ W_Q, num_heads)",
        "    num_heads = 1\n    q = split_heads(Q @ W_Q, num_heads)",
    ),
    (
        "mask ignored",
        FORWARD,
        "heads, weights = scaled_dot_product_attention(q, k, v, mask)",
        "heads, weights = scaled_dot_product_attention(q, k, v)",
    ),
    ("dW turned", HEADS_BACK, DW, "dW = (dy.swapaxes(-1, -2) @ x).sum(axis=0)"),
    ("batch not summed", HEADS_BACK, DW, DW.removesuffix(".sum(axis=0)")),
    ("first text only", HEADS_BACK, DW, DW.replace(".sum(axis=0)", "[0]")),
    ("batch averaged", HEADS_BACK, DW, DW.replace("sum", "mean")),
    ("W not turned in the backward", HEADS_BACK, "return dy @ W.T, dW", "return dy @ W, dW"),
    (
        "W skipped in the backward",
        HEADS_BACK,
        "return dQ, dK, dV, {",
        "dQ, dK, dV = map(merge_heads, (dq, dk, dv))\n    return dQ, dK, dV, {",
    ),
    (
        "W_O skipped in the backward",
        HEADS_BACK,
        'dheads = split_heads(dC, c["N"])',
        'dheads = split_heads(grad_output, c["N"])',
    ),
    (
        "dW_O from the output",
        HEADS_BACK,
        'affine_backward(grad_output, c["context"], c["W_O"])',
        'affine_backward(grad_output, c["output"], c["W_O"])',
    ),
    (
        "gradient cut without a turn",
        HEADS_BACK,
        'dheads = split_heads(dC, c["N"])',
        'dheads = dC.reshape(c["q"].shape)',
    ),
    ("exponent doubled", "sinusoidal_encoding", ANGLE, "exponent = 4 * (column // 2) / d_model"),
    ("every column its own frequency", "sinusoidal_encoding", ANGLE, "exponent = column / d_model"),
    ("sine and cosine swapped", "sinusoidal_encoding", SINES, "return where(column % 2 == 0, cos(angle), sin(angle))"),
    (
        "halves, not pairs",
        "sinusoidal_encoding",
        SINES,
        "a = angle[:, ::2]; return np.concatenate([sin(a), cos(a)], 1)[:, :d_model]",
    ),
    ("whole table added", "add_positional_encoding", "return x + pe[:T]", "return x + pe"),
    ("last rows of the table", "add_positional_encoding", "return x + pe[:T]", "return x + pe[-T:]"),
    ("x times √M", "add_positional_encoding", "return x + pe[:T]", "return x * sqrt(x.shape[-1]) + pe[:T]"),
    (
        "deviation 1",
        "learned_positional_encoding",
        "return 0.02 * normal(max_length, d_model)",
        "return normal(max_length, d_model)",
    ),
    (
        "table of zeros",
        "learned_positional_encoding",
        "return 0.02 * normal(max_length, d_model)",
        "return zeros((max_length, d_model))",
    ),
    ("mask inverted", "create_causal_mask", CAUSAL, CAUSAL.replace("<=", ">")),
    ("mask turned", "create_causal_mask", CAUSAL, CAUSAL.replace("<=", ">=")),
    ("itself forbidden", "create_causal_mask", CAUSAL, CAUSAL.replace("<=", "<")),
    ("one key ahead", "create_causal_mask", CAUSAL, CAUSAL.replace("<= position[:, None]", "<= position[:, None] + 1")),
    ("numbers, not booleans", "create_causal_mask", CAUSAL, "return 1.0 * (position[None, :] <= position[:, None])"),
    ("one token more", "create_padding_mask", PADDING, PADDING.replace("<", "<=")),
    ("eps outside the root", "layer_norm", SIGMA, "sigma = var ** 0.5 + eps"),
    ("divided by the variance", "layer_norm", SIGMA, "sigma = var + eps"),
    ("divided by M - 1", "layer_norm", SIGMA, "sigma = (x.var(axis=-1, ddof=1, keepdims=True) + eps) ** 0.5"),
    ("mean not subtracted", "layer_norm", "return (x - mean) / sigma, sigma", "return x / sigma, sigma"),
    (
        "norm over the tokens",
        "layer_norm",
        "    mean = x.mean(axis=-1, keepdims=True)\n    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)",
        "    mean = x.mean(axis=-2, keepdims=True)\n    var = ((x - mean) ** 2).mean(axis=-2, keepdims=True)",
    ),
    ("gamma and beta swapped", "layer_norm", "return gamma * hat + beta", "return beta * hat + gamma"),
    ("mean and deviation constant", "layer_norm_backward", DX, "dx = dhat / sigma"),
    ("mean constant", "layer_norm_backward", DX, "dx = (dhat - second) / sigma"),
    ("deviation constant", "layer_norm_backward", DX, "dx = (dhat - first) / sigma"),
    ("gamma forgotten in dx", "layer_norm_backward", "dhat = grad_output * gamma", "dhat = grad_output"),
    ("deviation not divided by", "layer_norm_backward", DX, DX.removesuffix(" / sigma")),
    ("dgamma from x", "layer_norm_backward", "dgamma = (grad_output * hat)", "dgamma = (grad_output * x)"),
    ("activation forgotten", "feed_forward", H, "h = a\n    return h @ W2 + b2"),
    (
        "activation on the output",
        "feed_forward",
        H,
        H.replace("return h @ W2 + b2", "y = h @ W2 + b2\n    return where(y > 0, y, 0.0)"),
    ),
    ("slope forgotten", "feed_forward_backward", DA, "da = dh"),
    ("slope of the gradient", "feed_forward_backward", DA, "da = dh * (dh > 0)"),
    ("activation for its slope", "feed_forward_backward", DA, "da = dh * h"),
    (
        "biases averaged",
        "feed_forward_backward",
        "da.sum(axis=(0, 1)), grad_output.sum(axis=(0, 1))",
        "da.mean(axis=(0, 1)), grad_output.mean(axis=(0, 1))",
    ),
    (
        "norms last",
        BLOCK,
        HALVES + "\n        " + N2 + "\n        " + Y,
        "h = layer_norm(x + self.attention.forward(x, x, x, mask), self.gamma1, self.beta1); n2 = h\n        "
        "y = layer_norm(h + feed_forward(h, self.W1, self.b1, self.W2, self.b2), self.gamma2, self.beta2)",
    ),
    (
        "residual from the norm",
        BLOCK,
        HALVES + "\n        " + N2 + "\n        " + Y,
        HALVES.replace("x +", "n1 +") + "\n        " + N2 + "\n        " + Y.replace("h +", "n2 +"),
    ),
    ("second residual from x", BLOCK, Y, Y.replace("h +", "x +")),
    ("one norm for both", BLOCK, N2, "n2 = layer_norm(h, self.gamma1, self.beta1)"),
    ("mask ignored", BLOCK, HALVES, "h = x + self.attention.forward(n1, n1, n1)"),
    ("first residual forgotten in the backward", BLOCK_BACK, "dx = dh + dx1", "dx = dx1"),
    ("second residual forgotten in the backward", BLOCK_BACK, "dh = grad_output + dh2", "dh = dh2"),
    ("dy around both", BLOCK_BACK, "dx = dh + dx1", "dx = grad_output + dx1"),
    ("queries only", BLOCK_BACK, "dn1 = dq + dk + dv", "dn1 = dq"),
    ("every block reads x", "stack_encoder_blocks", STEP, "x = block.forward(first, mask)"),
    ("mask not handed on", "stack_encoder_blocks", STEP, "x = block.forward(x)"),
    ("scale missing", "Attention", DIVIDED, "return s"),
    ("output_weights forgotten", "Attention", "return mixed @ self.output_weights", "return mixed"),
    ("one key ahead", "Attention", CAUSAL, CAUSAL.replace("<= position[:, None]", "<= position[:, None] + 1")),
    ("kept weights not raised", DROPOUT, FACTOR, FACTOR.removesuffix(" / (1 - self.dropout_p)") + " * 1.0"),
    ("divided by the rate", DROPOUT, FACTOR, FACTOR.replace("(1 - self.dropout_p)", "self.dropout_p")),
    ("the others dropped", DROPOUT, FACTOR, FACTOR.replace(">=", "<")),
    (
        "nothing dropped",
        DROPOUT,
        "self.dropout_p, self.training = dropout_p, True",
        "self.dropout_p, self.training = dropout_p, False",
    ),
    (
        "dropout forgotten in the backward",
        DROPOUT,
        "self.kept = query, key, value, p, factor",
        "self.kept = query, key, value, p, 1.0",
    ),
]
TWO = [  # two at once: each is named
    (
        ("divided by d", "mask turned"),
        SDPA,
        [(DIVIDED, "return s / Q.shape[-1]"), (MASKED, MASKED.replace("mask, -inf", "mask.T, -inf"))],
    ),
    (
        ("row sum forgotten", "gradient not scaled"),
        HEADS_BACK,
        [(PULL, "return p * dp"), ("c = 1 / sqrt(Q.shape[-1])", "c = 1")],
    ),
    (
        ("halves, not pairs", "odd width fails"),
        "sinusoidal_encoding",
        [
            (
                SINES,
                "a = angle[:, ::2]; return np.concatenate([sin(a), cos(a)], 1).reshape(max_length, d_model)",
            )
        ],
    ),
]
