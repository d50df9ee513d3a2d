"""Functions and layers of PyTorch."""

from .adapter import LAYER, RANK_4, Adapter


def one_mask(mask, bias, is_causal, said):
    """The one attn_mask: boolean it is a mask, floating a bias; not beside is_causal."""
    import torch

    if (mask is not None and mask.is_floating_point()) or (bias is not None and bias.dtype == torch.bool):
        raise NotImplementedError("attn_mask is a mask where boolean and a bias where floating")
    if (mask is not None) + (bias is not None) + is_causal > 1:
        raise NotImplementedError(said)
    return bias if mask is None else mask


def torch_sdpa(
    fn, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, dropout_rate=0.0, dropout_rng=None
):  # fmt: skip
    """One attn_mask: boolean it is a mask, floating a bias; not beside is_causal."""
    import torch

    given = one_mask(mask, bias, is_causal, "one of attn_mask and is_causal")
    if dropout_rng is not None:
        torch.manual_seed(dropout_rng)
    grouped = query.ndim > 2 and query.shape[-3] != key.shape[-3]
    return fn(query, key, value, given, dropout_rate, is_causal, scale=scale, enable_gqa=grouped)


def torch_mha(
    fn, query, key, value, *, mask=None, bias=None, is_causal=False, dropout_rate=0.0, dropout_rng=None,
    need_weights=False,
):  # fmt: skip
    """A layer of identities on (B, T, N * D); True in its masks means drop; (B, 1, 1, S) is its key_padding_mask."""
    import torch

    (*batch, heads, length, width), padding = query.shape, None
    if heads * width > 4096:
        raise NotImplementedError("no layer wider than 4,096: its weights are the square of it")
    full = (*batch, heads, length, key.shape[-2])
    if mask is not None and mask.ndim == 4 and mask.shape[:3] == (*batch, 1, 1) and not mask.is_floating_point():
        mask, padding = None, mask[:, 0, 0].logical_not()
    given = one_mask(mask, bias, is_causal, "one attn_mask, and is_causal is a hint that it is causal")
    if bias is not None:
        given = bias if bias.ndim == 2 else bias.reshape((1,) * (query.ndim - bias.ndim) + bias.shape)
    elif given is not None and given.dtype == torch.bool:
        given = given.logical_not()
    if is_causal:  # which must come with its mask
        given = torch.ones(full[-2:], dtype=torch.bool).triu(1)
    if given is not None:  # axes of 1 are repeated: the layer takes (T, S) and (B * N, T, S)
        sizes = zip(given.shape, full[len(full) - given.ndim :], strict=True)
        given = given.expand([n if m == 1 else m for m, n in sizes])
        given = given.flatten(0, -3) if given.ndim == 4 else given
    try:
        layer = fn(heads * width, heads, dropout_rate, bias=False, batch_first=True, dtype=query.dtype)
    except RuntimeError as error:  # it draws its weights
        if "vmap" not in str(error):
            raise
        raise NotImplementedError("a layer is made outside of vmap") from error
    eye = torch.eye(heads * width, dtype=query.dtype)
    weights = {"in_proj_weight": torch.cat([eye, eye, eye]), "out_proj.weight": eye}
    if dropout_rng is not None:
        torch.manual_seed(dropout_rng)
    tokens = {id(x): x.transpose(-3, -2).flatten(-2) for x in (query, key, value)}  # what is one array stays one
    arrays = tuple(tokens[id(x)] for x in (query, key, value))
    options = {"attn_mask": given, "key_padding_mask": padding, "need_weights": need_weights, "is_causal": is_causal}
    out = torch.func.functional_call(layer, weights, arrays, options)[0]
    return out.unflatten(-1, (heads, width)).transpose(-3, -2)


def torch_flex(fn, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, return_lse=False):
    """Call flex attention, not compiled; a mask and causality are a mask_mod, a bias is a score_mod."""
    import torch
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

    full, block_mask, score_mod = (*query.shape[:-1], key.shape[-2]), None, None

    def wide(x, wanted):
        fits = x.ndim != 3 and all(m in (1, n) for m, n in zip(x.shape[::-1], full[::-1], strict=False))
        if x.is_floating_point() != wanted or not fits:
            raise NotImplementedError("a mask_mod and a score_mod are the caller's functions")
        return x.expand(full)

    if mask is not None or is_causal:
        seen = torch.ones(full, dtype=torch.bool) if mask is None else wide(mask, False)

        def mask_mod(b, n, t, s):
            return seen[b, n, t, s] & (t >= s) if is_causal else seen[b, n, t, s]

        block_mask = create_block_mask(mask_mod, *full, device="cpu")
    if bias is not None:
        added = wide(bias, True)

        def score_mod(score, b, n, t, s):
            return score + added[b, n, t, s]

    given = {"return_aux": AuxRequest(lse=True)} if return_lse else {}
    grouped = query.shape[-3] != key.shape[-3]
    found = fn(query, key, value, score_mod, block_mask, scale, grouped, **given)
    return (found[0], found[1].lse) if return_lse else found


SDPA = "torch.nn.functional:scaled_dot_product_attention"
MHA = LAYER | {"V != D": "one width for keys and values", "rank 5": "one batch axis"}
ADAPTERS = {
    "torch-sdpa": Adapter(torch_sdpa, SDPA, arrays="torch", package="torch"),
    "torch-mha": Adapter(torch_mha, "torch.nn:MultiheadAttention", arrays="torch", package="torch", lacks=MHA),
    "torch-mha-weights": Adapter(torch_mha, "torch.nn:MultiheadAttention", arrays="torch", package="torch", lacks=MHA,
        means={"empty": "NaN"}, options={"need_weights": True}),
    "torch-flex": Adapter(torch_flex, "torch.nn.attention.flex_attention:flex_attention", arrays="torch",
        package="torch", lacks=RANK_4),
}  # fmt: skip
