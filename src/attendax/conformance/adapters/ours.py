"""attendax itself: its function on every backend, and the specification."""

from .implementation import Adapter


def attention(
    fn, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None,
    return_lse=False, offset=0, sinks=None, implementation=None,
):  # fmt: skip
    """Call attention with each keyword of the protocol as a mask or a score modifier."""
    import jax

    from attendax import masks, scores

    allowed = [masks.causal(offset)] if is_causal else []
    allowed += [masks.window(*window, offset)] if window is not None else []
    allowed += [masks.padding(key_lengths)] if key_lengths is not None else []
    allowed += [masks.segments(query_segment_ids, key_segment_ids)] if query_segment_ids is not None else []
    joined = mask if not allowed or mask is None else masks.dense(mask)
    for one in allowed:
        joined = one if joined is None else joined & one
    modifiers = [] if softcap is None else [scores.softcap(softcap)]
    modifiers += [] if sinks is None else [scores.sink(sinks)]
    if isinstance(dropout_rng, int):
        dropout_rng = jax.random.key(dropout_rng)
    return fn(
        query, key, value, mask=joined, bias=bias, scale=scale, dropout_rate=dropout_rate, dropout_rng=dropout_rng,
        score_mod=scores.compose(*modifiers) if modifiers else None, return_lse=return_lse,
        implementation=implementation,
    )  # fmt: skip


def attention_backward(fn, grad_output, query, key, value, *, grad_lse=None, **options):
    """The specification's backward has the arguments of its forward."""
    from attendax import spec

    def backward(*arrays, return_lse, **options):
        found = spec.attention_backward(grad_output, *arrays, grad_lse=grad_lse, **options)
        sinks = [] if found.grad_score_mod is None else found.grad_score_mod.sinks()
        return [x for x in (*found[:4], *sinks) if x is not None]

    return attention(backward, query, key, value, **options)


ON = {name: {"implementation": name} for name in ("dense", "blockwise")}
ADAPTERS = {
    "attendax": Adapter(attention, "attendax:attention", package="attendax"),
    "attendax-dense": Adapter(attention, "attendax:attention", package="attendax", options=ON["dense"]),
    "attendax-blockwise": Adapter(attention, "attendax:attention", package="attendax", options=ON["blockwise"]),
    "attendax-spec": Adapter(
        attention, "attendax.spec:attention", arrays="numpy", package="attendax", backward=attention_backward
    ),
}
