"""The attention of MLX, which also runs on the CPUs of Linux; its arrays come from NumPy and go there."""

from .adapter import RANK_4, Adapter


def mlx_attention(fn, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None):
    """(B, N, T, D); one mask: boolean, additive, or "causal", which is aligned to the end."""
    import mlx.core
    import numpy

    if (mask is not None) + (bias is not None) + is_causal > 1:
        raise NotImplementedError("one mask: boolean, additive or causal")
    given = "causal" if is_causal else bias if mask is None else mask
    given = mlx.core.array(given) if hasattr(given, "shape") else given
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    with mlx.core.stream(mlx.core.cpu):
        out = fn(*(mlx.core.array(x) for x in (query, key, value)), scale=scale, mask=given)
        return numpy.array(out.astype(mlx.core.float32) if out.dtype == mlx.core.bfloat16 else out).astype(query.dtype)


def mlx_backward(fn, grad_output, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None):
    """By ``mlx.core.vjp``."""
    import mlx.core
    import numpy

    def run(query, key, value, *bias):
        given = "causal" if is_causal else bias[0] if bias else None if mask is None else mlx.core.array(mask)
        return fn(query, key, value, scale=query.shape[-1] ** -0.5 if scale is None else scale, mask=given)

    if (mask is not None) + (bias is not None) + is_causal > 1:
        raise NotImplementedError("one mask: boolean, additive or causal")
    arrays = [mlx.core.array(x) for x in (query, key, value, bias) if x is not None]
    with mlx.core.stream(mlx.core.cpu):
        found = mlx.core.vjp(run, arrays, [mlx.core.array(grad_output)])[1]
        wide = [x.astype(mlx.core.float32) if x.dtype == mlx.core.bfloat16 else x for x in found]
        return tuple(numpy.array(x).astype(query.dtype) for x in wide)


ADAPTERS = {
    "mlx": Adapter(
        mlx_attention, "mlx.core.fast:scaled_dot_product_attention", arrays="numpy", package="mlx", causal="end",
        empty_rows="mean", backward=mlx_backward, lacks=RANK_4,
    ),
}  # fmt: skip
