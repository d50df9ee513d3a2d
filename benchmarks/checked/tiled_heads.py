"""Key heads are tiled where they should be repeated: query head n reads key head n modulo G."""

import torch


def attention(query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None):
    """The formula, step by step."""
    group = query.shape[-3] // key.shape[-3]
    key, value = (torch.cat([x] * group, dim=-3) for x in (key, value))
    scores = query.float() @ key.float().transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (torch.softmax(scores, -1) @ value.float()).to(query.dtype)
