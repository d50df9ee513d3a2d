"""The formulas of the path once more, each with the mistakes that people make in it.

``off`` names the mistakes that are made. With none of them a formula is that of ``attendax.spec``, and a test holds the
two together. A learner is told a mistake only where its answer, computed here, is the learner's answer to every
question. So these lines are written as learners write them, and raise where theirs raise.
"""

import math
from collections.abc import Collection
from typing import Any

import numpy as np

Array = np.ndarray
Off = Collection[str]
Answer = dict[str, Any]
PROJECTIONS = ("W_Q", "W_K", "W_V", "W_O")
NETWORK = ("W1", "b1", "W2", "b2")
NORMS = ("gamma1", "beta1", "gamma2", "beta2")
DRAWN, WIDE = "initial weights drawn, small, each its own", "shape of W1 where M = 64 and no d_ff is given"
KEPT = "about three quarters of the weights are kept"


def one_of(off: Off, others: dict[str, Any], correct: Any) -> Any:
    """The value of the mistake that is made; what is correct, where none of these is."""
    return next((value for name, value in others.items() if name in off), correct)


def turned(x: Array) -> Array:
    """The last two axes swapped."""
    return x.swapaxes(-1, -2)


def softmax(x: Array, axis: Any = -1, off: Off = ()) -> Array:
    """``exp(x) / Σ exp(x)``; 0 where every entry is -inf."""
    axis = one_of(off, {"axis ignored": -1, "over the queries": -2, "over everything": None}, axis)
    if "no exp" in off:
        return x / x.sum(axis=axis, keepdims=True)
    largest = np.zeros(()) if "maximum not subtracted" in off else x.max(axis=axis, keepdims=True)
    guarded = "empty row is NaN" not in off
    exponentials = np.exp(x - (np.where(largest == -np.inf, 0, largest) if guarded else largest))
    total = exponentials.sum(axis=axis, keepdims="keepdims forgotten" not in off)
    return exponentials / (np.where(total == 0, 1, total) if guarded else total)


def through_softmax(grad: Array, p: Array, axis: int = -1, off: Off = ()) -> Array:
    """``p (g - Σ g p)``."""
    axis = one_of(off, {"axis ignored": -1, "sum over the queries": -2}, axis)
    total, mean = grad.sum(axis=axis, keepdims=True), grad.mean(axis=axis, keepdims=True)
    others = {"row sum forgotten": 0, "diagonal only": p * grad, "row sum without weights": total, "row mean": mean}
    inner = grad - one_of(off, others, (grad * p).sum(axis=axis, keepdims=True))
    return inner if "factor p forgotten" in off else p * inner


def softmax_backward(grad_output: Array, x: Array, axis: int = -1, off: Off = ()) -> Array:
    """Through the softmax of x."""
    p = x if "x taken for its softmax" in off else softmax(x, axis, off)
    return through_softmax(grad_output, p, axis, off)


def scores(Q: Array, K: Array, scale: bool = True, off: Off = (), width: int | None = None) -> Array:
    """``Q Kᵀ / √d``."""
    Q, K = (K, Q) if "keys ask queries" in off else (Q, K)
    d = width or Q.shape[-1]
    others = {"scale missing": 1.0, "divided by d": 1 / d, "multiplied by √d": math.sqrt(d)}
    others |= {"divided by √T": Q.shape[-2] ** -0.5}
    factor = one_of(off, others, 1 / math.sqrt(d)) if scale or "flag scale ignored" in off else 1.0
    keys = K.T if "every axis turned" in off else K if "keys not turned" in off else turned(K)
    return factor * (Q @ (K.transpose(0, 2, 1) if "three axes only" in off else keys))


def masked(scores: Array, mask: Array, mask_value: float = -1e9, off: Off = ()) -> Array:
    """The scores, ``mask_value`` where the mask forbids."""
    value = -1e9 if "mask_value ignored" in off else mask_value
    lowered = np.where(mask, scores, scores + value)
    others = {"mask inverted": np.where(mask, value, scores), "mask multiplied": scores * mask}
    return one_of(off, others | {"forbidden score lowered": lowered}, np.where(mask, scores, value))


def weigh(scores: Array, mask: Array | None, off: Off = ()) -> Array:
    """Mask, then softmax over the keys."""
    if mask is None or "mask ignored" in off:
        return softmax(scores, -1, off)
    mask = turned(mask) if "mask turned" in off else mask
    if "masked after softmax" in off:
        return softmax(scores, -1, off) * mask
    finite = "forbidden score finite" in off or "forbidden score lowered" in off
    return softmax(masked(scores, mask, -1e9 if finite else -np.inf, off), -1, off)


def attention(Q: Array, K: Array, V: Array, mask: Array | None = None, off: Off = (), width: Any = None) -> Answer:
    """``softmax(Q Kᵀ / √d) V``."""
    s = scores(Q, K, "scaled after softmax" not in off, off, width)
    p = weigh(s, mask, off)
    p = p / math.sqrt(Q.shape[-1]) if "scaled after softmax" in off else p
    output = (turned(p) if "weights turned" in off else p) @ V
    allowed = s if mask is None else np.where(mask, s, -np.inf)
    return {"output": output, "weights": allowed if "scores returned" in off else p}


def attention_backward(
    grad_output: Array, Q: Array, K: Array, V: Array, mask: Any, off: Off = (), kept: Any = 1.0, width: Any = None
) -> Answer:
    """``dV = Pᵀ dO, dP = dO Vᵀ, dS = P (dP - Σ dP P), dQ = c dS K, dK = c dSᵀ Q``; kept: the factor of dropout."""
    p = attention(Q, K, V, mask, off, width)["weights"]
    kept = 1.0 if "dropout forgotten in the backward" in off else kept
    grad_values = (p * kept if "dV not turned" in off else turned(p * kept)) @ grad_output
    ds = through_softmax(grad_output @ turned(V) * kept, p, off=off)
    c = 1 / math.sqrt(width or Q.shape[-1])
    factors = {"gradient not scaled": (1, 1), "gradient scaled twice": (c * c, c * c)}
    factors |= {"only dQ scaled": (c, 1), "only dK scaled": (1, c)}
    for_query, for_key = one_of(off, factors, (c, c))
    grad_Q, grad_K = for_query * ds @ K, for_key * (ds if "dK not turned" in off else turned(ds)) @ Q
    grad_Q, grad_K = (grad_K, grad_Q) if "dQ and dK swapped" in off else (grad_Q, grad_K)
    return {"grad_Q": grad_Q, "grad_K": grad_K, "grad_V": grad_values}


def additive(Q: Array, K: Array, V: Array, W_q: Array, W_k: Array, v: Array, mask: Any, off: Off = ()) -> Answer:
    """Weights from ``vᵀ tanh(W_q q + W_k k)``."""
    joined = (Q @ W_q)[:, :, None, :] + (K @ W_k)[:, None, :, :]
    s = (joined if "tanh forgotten" in off else np.tanh(joined)) @ v
    p = weigh(s / math.sqrt(W_q.shape[-1]) if "additive scores scaled" in off else s, mask, off)
    return {"output": p @ V, "weights": p}


def split(x: Array, num_heads: int, off: Off = ()) -> Array:
    """(B, T, M) to (B, N, T, d)."""
    B, T, M = x.shape
    d = M // num_heads
    cut, apart = x.reshape(B, T, num_heads, d), x.reshape(B, T, d, num_heads).transpose(0, 3, 1, 2)
    others = {"heads cut without a turn": x.reshape(B, num_heads, T, d), "heads interleaved": apart}
    return one_of(off, others | {"heads behind tokens": cut}, cut.swapaxes(1, 2))


def merge(x: Array, off: Off = ()) -> Array:
    """(B, N, T, d) to (B, T, M)."""
    B, N, T, d = x.shape
    others = {"heads merged without a turn": x, "heads interleaved": x.transpose(0, 2, 3, 1)}
    return one_of(off, others, x.swapaxes(1, 2)).reshape(B, T, N * d)


def project(x: Array, W: Array, off: Off = ()) -> Array:
    """``x W``."""
    return x @ (W.T if "W turned" in off else W)


def through_project(grad: Array, x: Array, W: Array, off: Off = ()) -> tuple[Array, Array]:
    """``dx = dy Wᵀ, dW = Σ xᵀ dy`` over batch and sequence."""
    each = turned(x) @ grad
    by_text = {"batch not summed": each, "first text only": each[0], "batch averaged": each.mean(axis=0)}
    grad_W = one_of(off, by_text, each.sum(axis=0))
    grad_W = grad_W.T if "dW turned" in off else grad_W
    return grad @ (W if "W not turned in the backward" in off else W.T), grad_W


def heads(*, Q: Array, K: Array, V: Array, num_heads: int, mask: Any, off: Off = (), **w: Any) -> Answer:
    """Project, attend in every head, merge, project; with an underscore what the backward needs."""
    width = Q.shape[-1] if "divided by √M" in off else None
    num_heads = 1 if "one head" in off else num_heads
    q, k = project(Q, w["W_Q"], off), project(K, w["W_Q" if "W_Q for the keys" in off else "W_K"], off)
    v = project(K if "values from the keys" in off else V, w["W_V"], off)
    q, k, v = (split(x, num_heads, off) for x in (q, k, v))
    context = merge(attention(q, k, v, mask, off, width)["output"], off)
    output = context if "W_O forgotten" in off else project(context, w["W_O"], off)
    return {"output": output, "_qkv": (q, k, v), "_context": context, "_width": width}


def multi_head_backward(
    grad_output: Array, Q: Array, K: Array, V: Array, num_heads: int, mask: Any, off: Off = (), **w: Array
) -> Answer:
    """The lines of ``spec.multi_head_attention_backward``."""
    steps = heads(Q=Q, K=K, V=V, num_heads=num_heads, mask=mask, off=off, **w)
    before = steps["output"] if "dW_O from the output" in off else steps["_context"]
    grad_context, grad_W_O = through_project(grad_output, before, w["W_O"], off)
    grad_context = grad_output if "W_O skipped in the backward" in off else grad_context
    cut = {"heads cut without a turn"} if "gradient cut without a turn" in off else off
    (q, k, v), width = steps["_qkv"], steps["_width"]
    found = attention_backward(split(grad_context, num_heads, cut), q, k, v, mask, off, width=width)
    grads: Answer = {"W_O": grad_W_O}
    for each, x in zip("QKV", (Q, K, V), strict=True):
        inner = merge(found[f"grad_{each}"], off)
        dx, grads[f"W_{each}"] = through_project(inner, x, w[f"W_{each}"], off)
        grads[f"grad_{each}"] = inner if "W skipped in the backward" in off else dx
    return grads


def multi_head_layer(grad_output: Array, off: Off = (), **inputs: Any) -> Answer:
    """The results of the layer: results, gradients, and the weights that it was given."""
    found = heads(**inputs, off=off) | multi_head_backward(grad_output, **inputs, off=off)
    for name in PROJECTIONS:
        found |= {f"shape of {name}": np.array(inputs[name].shape), f"get_params()[{name!r}]": inputs[name]}
    return found | {DRAWN: np.array(True)}


def sinusoidal(max_length: int, d_model: int, off: Off = ()) -> Array:
    """Sines in the even columns, cosines in the odd ones."""
    if "odd width fails" in off and d_model % 2:
        raise ValueError("an odd width")
    position = np.arange(max_length)[:, None] + ("counted from 1" in off)
    column = np.arange(d_model)
    exponent = 2 * (column // 2) / d_model
    exponent = one_of(
        off, {"every column its own frequency": column / d_model, "exponent doubled": 2 * exponent}, exponent
    )
    angle = position / 10000.0**exponent
    if "halves, not pairs" in off:
        even = angle[:, ::2]
        return np.concatenate([np.sin(even), np.cos(even)], axis=1)[:, :d_model]
    first, second = (np.cos, np.sin) if "sine and cosine swapped" in off else (np.sin, np.cos)
    return np.where(column % 2 == 0, first(angle), second(angle))


def add_positions(x: Array, pe: Array, off: Off = ()) -> Array:
    """``x + pe[:T]``."""
    T = x.shape[1]
    if "whole table added" in off:
        return x + pe
    if {"last rows of the table", "one encoding for each text"} & set(off):
        return x + (pe[-T:] if "last rows of the table" in off else pe[: x.shape[0], None])
    return x * (math.sqrt(x.shape[-1]) if "x times √M" in off else 1) + pe[:T]


def learned(max_length: int, d_model: int, off: Off = ()) -> Answer:
    """The facts of a table that is drawn."""
    shape = (d_model, max_length) if "table turned" in off else (max_length, d_model)
    others = {"deviation 1": (1.0, 0.0), "table of zeros": (0.0, 0.0), "drawn from 0 to 1": (0.3, 0.5)}
    deviation, mean = one_of(off, others, (0.02, 0.0))
    return {"shape": np.array(shape), "deviation, about": np.array(deviation), "mean, about": np.array(mean)}


def causal(seq_length: int, off: Off = ()) -> Array:
    """True on and below the diagonal."""
    shift = -1 if "itself forbidden" in off else 1 if "one key ahead" in off else 0
    mask = np.tri(seq_length, k=shift, dtype=bool)
    mask = ~mask if "mask inverted" in off else mask.T if "mask turned" in off else mask
    others = {"0 and -inf": np.where(mask, 0.0, -np.inf), "numbers, not booleans": mask.astype(float)}
    return one_of(off, others, mask)


def padding(lengths: Array, max_length: int, off: Off = ()) -> Array:
    """True for real tokens."""
    position, lengths = np.arange(max_length), lengths[:, None]
    mask = position <= lengths if "one token more" in off else position < lengths
    mask = ~mask if "mask inverted" in off else mask
    return mask.astype(float) if "numbers, not booleans" in off else mask


def normalise(x: Array, eps: float, off: Off = ()) -> tuple[Array, Array]:
    """(x - mean) / deviation, and the deviation."""
    axis = one_of(off, {"norm over the tokens": -2, "norm over everything": None}, -1)
    mean = x.mean(axis=axis, keepdims=True)
    variance = x.var(axis=axis, keepdims=True, ddof=int("divided by M - 1" in off))
    others = {"eps outside the root": np.sqrt(variance) + eps, "divided by the variance": variance + eps}
    deviation = one_of(off, others | {"eps forgotten": np.sqrt(variance)}, np.sqrt(variance + eps))
    return (x if "mean not subtracted" in off else x - mean) / deviation, deviation


def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-6, off: Off = ()) -> Array:
    """``γ (x - mean) / √(var + eps) + β``."""
    hat, _ = normalise(x, eps, off)
    gamma, beta = (beta, gamma) if "gamma and beta swapped" in off else (gamma, beta)
    return (1 if "gamma forgotten" in off else gamma) * hat + (0 if "beta forgotten" in off else beta)


def layer_norm_backward(grad_output: Array, x: Array, gamma: Array, eps: float = 1e-6, off: Off = ()) -> Answer:
    """``dx = (dx̂ - mean(dx̂) - x̂ mean(dx̂ x̂)) / σ``."""
    hat, deviation = normalise(x, eps, off)
    inner = grad_output if "gamma forgotten in dx" in off else grad_output * gamma
    mean, off = np.sum if "sums instead of means" in off else np.mean, set(off)
    through_mean = 0 if off & {"mean and deviation constant", "mean constant"} else mean(inner, axis=-1, keepdims=True)
    along = hat * mean(inner * hat, axis=-1, keepdims=True)
    along = 0 if off & {"mean and deviation constant", "deviation constant"} else along
    grad = (inner - through_mean - along) / (1 if "deviation not divided by" in off else deviation)
    weights = {"grad_gamma": grad_output * (x if "dgamma from x" in off else hat), "grad_beta": grad_output}
    if "tokens not summed" not in off:
        over, tokens = np.mean if "tokens averaged" in off else np.sum, tuple(range(x.ndim - 1))
        weights = {name: over(value, axis=tokens) for name, value in weights.items()}
    return {"grad_x": grad} | weights


def feed_forward(x: Array, W1: Array, b1: Array, W2: Array, b2: Array, off: Off = ()) -> Array:
    """``ReLU(x W1 + b1) W2 + b2``."""
    a = project(x, W1, off) + (0 if "b1 forgotten" in off else b1)
    hidden = a if "activation forgotten" in off else np.maximum(a, 0)
    y = project(hidden, W2, off) + (0 if "b2 forgotten" in off else b2)
    return np.maximum(y, 0) if "activation on the output" in off else y


def feed_forward_backward(
    grad_output: Array, x: Array, W1: Array, b1: Array, W2: Array, b2: Array, off: Off = ()
) -> Answer:
    """``dh = dy W2ᵀ, da = dh (a > 0), dx = da W1ᵀ``."""
    a = x @ W1 + b1
    hidden = np.maximum(a, 0)
    grad_hidden, grad_W2 = through_project(grad_output, a if "dW2 before the activation" in off else hidden, W2, off)
    others = {"slope forgotten": 1, "slope of the gradient": grad_hidden > 0, "activation for its slope": hidden}
    grad_a = grad_hidden * one_of(off, others, a > 0)
    grad_x, grad_W1 = through_project(grad_a, x, W1, off)
    over = np.mean if "biases averaged" in off else np.sum
    axes = 0 if "biases summed over the batch only" in off else (0, 1)
    grad_b1, grad_b2 = over(grad_a, axis=axes), over(grad_output, axis=axes)
    return {"grad_x": grad_x, "grad_W1": grad_W1, "grad_b1": grad_b1, "grad_W2": grad_W2, "grad_b2": grad_b2}


def block(x: Array, num_heads: int, mask: Any, off: Off = (), **w: Array) -> Answer:
    """``h = x + A(N1(x)), y = h + F(N2(h))``; with an underscore what the backward needs."""

    def norm(tokens: Array, which: int) -> Array:
        which = 1 if "one norm for both" in off else which
        return layer_norm(tokens, w[f"gamma{which}"], w[f"beta{which}"], 1e-6, off)

    def half(tokens: Array, which: int) -> Array:
        if which == 1:
            return heads(Q=tokens, K=tokens, V=tokens, num_heads=num_heads, mask=mask, off=off, **w)["output"]
        return feed_forward(tokens, **{name: w[name] for name in NETWORK}, off=off)

    facts = {DRAWN: np.array(True), WIDE: np.array([64, 256])}
    if "norms last" in off:
        h = norm(x + half(x, 1), 1)
        return {"output": norm(h + half(h, 2), 2)} | facts
    n1 = x if "first norm forgotten" in off else norm(x, 1)
    h = one_of(off, {"residuals forgotten": 0, "residual from the norm": n1}, x) + half(n1, 1)
    n2 = h if "second norm forgotten" in off else norm(x if "second norm reads x" in off else h, 2)
    others = {"residuals forgotten": 0, "residual from the norm": n2, "second residual from x": x}
    return {"output": one_of(off, others, h) + half(n2, 2), "_n1": n1, "_h": h, "_n2": n2} | facts


def block_backward(grad_output: Array, x: Array, num_heads: int, mask: Any, off: Off = (), **w: Array) -> Answer:
    """``dh = dy + N2ᵀ(Fᵀ(dy)), dx = dh + N1ᵀ(Aᵀ(dh))``."""
    steps = block(x, num_heads, mask, **w)

    def through_norm(grad: Array, before: Array, which: int) -> Array:
        pulled = layer_norm_backward(grad, before, w[f"gamma{which}"], 1e-6, off)
        grads.update({f"gamma{which}": pulled["grad_gamma"], f"beta{which}": pulled["grad_beta"]})
        return grad if "norms skipped in the backward" in off else pulled["grad_x"]

    fed = feed_forward_backward(grad_output, steps["_n2"], **{name: w[name] for name in NETWORK}, off=off)
    grads = {name: fed[f"grad_{name}"] for name in NETWORK}
    none = {"residuals forgotten in the backward": 0}
    around = one_of(off, none | {"second residual forgotten in the backward": 0}, grad_output)
    dh = around + through_norm(fed["grad_x"], steps["_h"], 2)
    n1, weights = steps["_n1"], {name: w[name] for name in PROJECTIONS}
    attended = multi_head_backward(dh, n1, n1, n1, num_heads, mask, off, **weights)
    grads |= {name: attended[name] for name in PROJECTIONS}
    joined = attended["grad_Q"] if "queries only" in off else sum(attended[f"grad_{each}"] for each in "QKV")
    others = none | {"first residual forgotten in the backward": 0, "dy around both": grad_output}
    return {"grad_x": one_of(off, others, dh) + through_norm(joined, x, 1)} | grads


def stack(x: Array, blocks: list[Any], mask: Any, off: Off = ()) -> Array:
    """Block after block."""
    mask = None if "mask not handed on" in off else mask
    blocks = one_of(off, {"last block first": blocks[::-1], "one block left out": blocks[:-1]}, blocks)
    result = x
    for each in blocks:
        result = each.forward(x if "every block reads x" in off else result, mask)
    return result


def single_head(*, x: Array, off: Off = (), **w: Any) -> Answer:
    """``softmax(q kᵀ / √M) v W_o``."""
    mask = causal(x.shape[1], off) if w["causal"] else None
    q, k, v = (project(x, w[f"{name}_weights"], off) for name in ("query", "key", "value"))
    inside = set(off) - {"mask inverted", "mask turned"}  # they are in the mask by now
    mixed = attention(q, k, x if "values not projected" in off else v, mask, inside)["output"]
    output = mixed if "output_weights forgotten" in off else project(mixed, w["output_weights"], off)
    return {"output": output, "deviation of query_weights, about": np.array(1.0 if "deviation 1" in off else 0.02)}


def dropped(
    query: Array, key: Array, value: Array, mask: Any, grad_output: Array, rate: float, kept: Array, off: Off = ()
) -> Answer:
    """Attention whose weights were dropped where ``kept`` is False."""
    p = attention(query, key, value, mask, off)["weights"]
    share = 1.0 if "kept weights not raised" in off else rate if "divided by the rate" in off else 1 - rate
    factor = 1.0 if "nothing dropped" in off else np.where(kept, 1 / share, 0)
    w = p * factor
    if "dropped before softmax" in off:
        w = weigh(scores(query, key, off=off), kept if mask is None else kept & mask, off)
    found = {"output": w @ value, "attention_weights": p if "weights kept before dropout" in off else w}
    grads = attention_backward(grad_output, query, key, value, mask, off, factor)
    found |= {"grad_query": grads["grad_Q"], "grad_key": grads["grad_K"], "grad_value": grads["grad_V"]}
    found[KEPT] = np.array(not {"nothing dropped", "the others dropped"} & set(off))
    return found | {"output after eval()": (p / (1 - rate) if "raised in eval" in off else p) @ value}
