"""Models of torch tensors, eager; without gradients, as one serves them, unless gradients are asked for."""

import numpy as np
import torch
import torch.utils.checkpoint

HEADER = "from functools import partial\n\nimport numpy as np\nimport torch\nimport torch.utils.checkpoint"
WAYS = {  # functions for the results and for the gradient
    "gradients on": ("with_gradients", None),
    "plain attention kernel": ("by_plain_kernel", "gradient_by_plain_kernel"),
    "gradient checkpointing": (None, "checkpointed"),
}


def results(found):
    """The results of each position, of what a call gives: the first of several."""
    found = found[0] if isinstance(found, (tuple, list)) else found
    return found.reshape(*found.shape[:2], -1)


def tensor(x):
    """A tensor of the same numbers; tokens and positions are int64, as ``Embedding`` has it."""
    x = torch.from_numpy(np.array(x))
    return x.long() if x.dtype == torch.int32 else x


def forward(apply, inputs, options):
    """Results (B, T, C)."""
    with torch.no_grad():
        return with_gradients(apply, inputs, options)


eager = forward


def with_gradients(apply, inputs, options):
    """The same, where gradients are recorded."""
    return results(apply(tensor(inputs), **{name: tensor(x) for name, x in options.items()}))


def by_plain_kernel(apply, inputs, options):
    """The same, by the kernel of ``scaled_dot_product_attention`` that is the formula."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return forward(apply, inputs, options)


def in_float64(apply, inputs, options):
    """The same of a model in float64."""
    inputs = tensor(inputs)
    return forward(apply, inputs.double() if inputs.is_floating_point() else inputs, options)


def gradient_by_plain_kernel(apply, inputs, options, cotangent, embedding=None):
    """The gradient, by the kernel that is the formula."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return gradient(apply, inputs, options, cotangent, embedding)


def checkpointed(apply, inputs, options, cotangent, embedding=None):
    """The gradient, with all that the model computes computed again for it."""

    def again(inputs, **options):
        return torch.utils.checkpoint.checkpoint(lambda x: apply(x, **options), inputs, use_reentrant=False)

    return gradient(again, inputs, options, cotangent, embedding)


def gradient(apply, inputs, options, cotangent, embedding=None):
    """Of Σ cotangent · results, with respect to the vectors: of tokens, what the embedding gives."""
    leaves = []

    def leaf(module, given, found):
        leaves.append(found.detach().requires_grad_())
        return leaves[-1]

    hook = None if embedding is None else embedding.register_forward_hook(leaf)
    inputs = tensor(inputs)
    if embedding is None:
        leaves.append(inputs.requires_grad_())
    try:
        found = results(apply(inputs, **{name: tensor(x) for name, x in options.items()}))
    finally:
        if hook is not None:
            hook.remove()
    pulled = torch.autograd.grad(found, tuple(leaves), tensor(cotangent).to(found.dtype), allow_unused=True)
    pairs = zip(leaves, pulled, strict=False)  # a part that is computed again leaves more
    return sum((torch.zeros_like(x) if g is None else g for x, g in pairs), torch.zeros(()))


def steps(cache, inputs, options, chunks, room, order):
    """Results (B, T, C), so many tokens at a time."""
    init, step, *reorder = cache
    found, start = [], 0
    with torch.no_grad():
        state = init(len(inputs), room)
        for count in chunks:
            given = {name: tensor(x[:, start : start + count]) for name, x in options.items()}
            one, state = step(tensor(inputs[:, start : start + count]), state, **given)
            found.append(results(one))
            if order and not start:
                state = reorder[0](state, torch.tensor(order))
            start += count
    return torch.cat(found, dim=1)


def to_numpy(x):
    """A copy: the model may write its next result to the same memory."""
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy().copy()
