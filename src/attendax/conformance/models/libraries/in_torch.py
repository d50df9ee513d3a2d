"""Models of torch tensors, eager; without gradients, as one serves them, unless gradients are asked for."""

import numpy as np
import torch

HEADER = "import numpy as np\nimport torch"
WAYS = {"gradients on": "with_gradients", "plain attention kernel": "by_plain_kernel"}


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
    pulled = torch.autograd.grad(found, leaves, tensor(cotangent).to(found.dtype), allow_unused=True)
    return sum((torch.zeros_like(x) if g is None else g for x, g in zip(leaves, pulled, strict=True)), torch.zeros(()))


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
