"""Libraries that take NumPy arrays: ONNX's Attention, by its reference and by onnxruntime; MLX on a CPU."""

from .adapter import RANK_4, Adapter


def onnx_attention(
    fn, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, serialized=False,
):  # fmt: skip
    """A model of one node, checked; one attn_mask: boolean it is a mask, floating a bias."""
    from onnx import checker, helper

    masks = [x for x in (mask, bias) if x is not None]
    if (mask is not None and mask.dtype.kind == "f") or (bias is not None and bias.dtype.kind == "b") or len(masks) > 1:
        raise NotImplementedError("one attn_mask, which is a mask where boolean and a bias where floating")
    if masks and 1 < masks[0].shape[-1] < key.shape[-2]:
        raise NotImplementedError("the last axis of attn_mask may be shorter: beyond it nothing is seen")
    if softcap == 0 or (window and -1 in window):
        raise NotImplementedError("a cap of 0 and a bound of -1 mean none")
    if key_lengths is not None and (is_causal or window):
        raise NotImplementedError("with nonpad_kv_seqlen the last query is beside the last key")
    lengths = [] if key_lengths is None else [("nonpad_kv_seqlen", key_lengths.astype("int64"))]
    given = dict([("Q", query), ("K", key), ("V", value), *[("attn_mask", x) for x in masks], *lengths])
    names = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    left, right = (-1 if side is None else side for side in window or (None, None))
    options = {"left_window_size": left, "right_window_size": right, "is_causal": int(is_causal)}
    options |= {name: x for name, x in [("scale", scale), ("softcap", softcap)] if x is not None}
    node = helper.make_node("Attention", [name if name in given else "" for name in names], ["Y"], **options)
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in given.items()}
    inputs = [helper.make_tensor_value_info(name, kinds[name], x.shape) for name, x in given.items()]
    outputs = [helper.make_tensor_value_info("Y", kinds["Q"], [None] * 4)]
    model = helper.make_model(helper.make_graph([node], "attention", inputs, outputs))
    checker.check_model(model, full_check=True)
    return fn(model.SerializeToString() if serialized else model).run(None, given)[0]


def one_mask(mask, bias, is_causal):
    """The one mask of MLX, and its name."""
    import mlx.core

    if (mask is not None) + (bias is not None) + is_causal > 1:
        raise NotImplementedError("one mask: boolean, additive or causal")
    given = bias if mask is None else mask
    return "causal" if is_causal else mlx.core.array(given) if hasattr(given, "shape") else given


def of_mlx(x, dtype):
    """A NumPy array."""
    import mlx.core
    import numpy

    return numpy.array(x.astype(mlx.core.float32) if x.dtype == mlx.core.bfloat16 else x).astype(dtype)


def mlx_attention(fn, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None):
    """(B, N, T, D); one mask: boolean, additive, or "causal", which is aligned to the end."""
    import mlx.core

    given, scale = one_mask(mask, bias, is_causal), query.shape[-1] ** -0.5 if scale is None else scale
    with mlx.core.stream(mlx.core.cpu):
        return of_mlx(fn(*(mlx.core.array(x) for x in (query, key, value)), scale=scale, mask=given), query.dtype)


def mlx_backward(fn, grad_output, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None):
    """Gradients by ``mlx.core.vjp``."""
    import mlx.core

    given, scale = one_mask(mask, bias, is_causal), query.shape[-1] ** -0.5 if scale is None else scale

    def run(query, key, value, *bias):
        return fn(query, key, value, scale=scale, mask=bias[0] if bias else given)

    arrays = [mlx.core.array(x) for x in (query, key, value, bias) if x is not None]
    with mlx.core.stream(mlx.core.cpu):
        found = mlx.core.vjp(run, arrays, [mlx.core.array(grad_output)])[1]
        return tuple(of_mlx(x, query.dtype) for x in found)


RANKS = RANK_4 | {"rank 3": "of rank 3 its heads are in the last axis"}
ADAPTERS = {
    "mlx": Adapter(mlx_attention, "mlx.core.fast:scaled_dot_product_attention", arrays="numpy", package="mlx",
        means={"causal": "end", "empty": "mean"}, backward=mlx_backward, lacks=RANK_4),
    "onnx-reference": Adapter(onnx_attention, "onnx.reference:ReferenceEvaluator", arrays="numpy", package="onnx",
        lacks=RANKS),
    "onnxruntime": Adapter(onnx_attention, "onnxruntime:InferenceSession", arrays="numpy", package="onnxruntime",
        lacks=RANKS | {"bfloat16": "NumPy has none"}, options={"serialized": True}),
}  # fmt: skip
