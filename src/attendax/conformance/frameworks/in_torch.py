"""Functions of torch tensors, eager, on the CPU or another device."""

import contextlib
import functools
import re

import numpy as np
import torch

from .shared import after_more_calls, afterwards, by_hand, called, changed, chunked, closing, freed, loss_of, memory

HEADER = "import contextlib\nimport functools\n\nimport numpy as np\nimport torch"
WIDE = ""
wide = contextlib.nullcontext  # it keeps float64
WAYS = {
    "gradients on": ("with_gradients", "forward", None),
    "plain attention kernel": ("by_plain_kernel", "forward", "gradient"),
    "gradient checkpointing": ("recomputed", None, "gradient"),
}
LACKS = re.compile(  # the last is what torch.func asks of an autograd.Function
    "not implemented|not supported|does(n't| not) support|has no forward|Batching rule|TransformType.Vmap|"
    "no autograd formula|setup_context staticmethod"
)


def on(device):
    """Python that makes tensors on a device: "cuda:0"."""
    return f"torch.set_default_device({device!r})"


def placed(device):
    """Make tensors on a device."""
    return torch.device(device) if device else contextlib.nullcontext()


def is_lack(error: Exception) -> bool:
    """Tell whether the error says that there is no such kernel or derivative: torch says so in a RuntimeError."""
    return isinstance(error, RuntimeError) and LACKS.search(str(error)) is not None


def tensor(array):
    """A tensor of the same numbers, and of a view the same view; bfloat16 by way of float32, which holds it."""
    narrow = str(array.dtype) == "bfloat16"
    whole, steps = memory(array)
    made = torch.from_numpy(np.array(whole, np.float32 if narrow else array.dtype))
    made = made.to(torch.get_default_device())
    made = made.to(torch.bfloat16) if narrow else made
    return made if steps is None else made.as_strided(array.shape, steps)


asarray = tensor


@contextlib.contextmanager
def watched(arrays):
    """Gives a function: the names of the arrays whose tensors were written to since."""
    global tensor
    made, plain = [], tensor

    def noted(array):
        made.append((array, plain(array)))
        return made[-1][1]

    def written():
        return [k for k, x in arrays.items() if any(array is x and changed(x, to_numpy(t)) for array, t in made)]

    tensor = noted
    try:
        yield written
    finally:
        tensor = plain


def to_numpy(x):
    """The numbers of a tensor, in its dtype."""
    x = x.detach().cpu()
    return x.float().numpy().astype("bfloat16") if x.dtype == torch.bfloat16 else x.numpy()


def leaves_of(found, prefix=""):
    """The leaves as NumPy arrays."""
    return {f"{prefix}{k}": to_numpy(x) for k, x in found.items()}


def tensors(arrays):
    """Every array as a tensor; what is none as it is."""
    return {k: tensor(x) if hasattr(x, "shape") else x for k, x in arrays.items()}


def bind(attend, options):
    """A function of the arrays, the options as tensors."""
    return functools.partial(called, attend, options=tensors(options))


closing_over = functools.partial(closing, lambda kind, x: tensor(x))


def ruled(call, pulled):
    """A function whose gradients are those of ``pulled``."""

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(*arrays):
            return call(*arrays)

        @staticmethod
        def setup_context(context, inputs, output):
            context.save_for_backward(*inputs)

        @staticmethod
        def backward(context, *cotangents):
            return pulled(context.saved_tensors, *cotangents)

    return Call.apply


with_backward = functools.partial(by_hand, ruled)
poison = functools.partial(freed, lambda shape, bits, kind: torch.full(shape, bits, dtype=getattr(torch, kind)))


def forward(attend, arrays, options):
    """out (and lse)."""
    with torch.no_grad():
        given = tensors(arrays)
        poison(given)
        return leaves_of(bind(attend, options)(given))


eager = forward


def pulled_back(results, leaves, cotangents):
    """Gradients by name: by ``torch.autograd.grad``, or where that finds none, by ``.backward()``.

    Nothing goes through a result that is detached, beside one that is not; what torch says is not connected is 0.
    """
    if cotangents is not None and any(x.requires_grad for x in results):
        pairs = [(x, c) for x, c in zip(results, cotangents, strict=True) if x.requires_grad]
        results, cotangents = map(list, zip(*pairs, strict=True))
    arrays, found = list(leaves.values()), []
    with contextlib.suppress(RuntimeError):  # a checkpoint that is entered again, for one, knows the other way alone
        found = list(torch.autograd.grad(results, arrays, cotangents, allow_unused=True, retain_graph=True))
    if all(x is None for x in found):
        torch.autograd.backward(results, cotangents, retain_graph=True)
        found = [x.grad for x in arrays]
    return {k: torch.zeros_like(x) if g is None else g for (k, x), g in zip(leaves.items(), found, strict=True)}


def gradient_of(attend, arrays, options, cotangents, times=1):
    """Gradients of Σ cotangent · result, as tensors; of so many backwards through one graph the last."""
    leaves = {k: x.requires_grad_() for k, x in tensors(arrays).items()}
    poison(leaves)
    results = bind(attend, options)(leaves)
    given = [tensor(cotangents[k]).to(x.dtype) for k, x in results.items()]
    found = {}
    for _ in range(times):
        for x in leaves.values():
            x.grad = None
        found = pulled_back(list(results.values()), leaves, given)
    return found


def gradient(attend, arrays, options, cotangents):
    """Gradients of Σ cotangent · result."""
    return leaves_of(gradient_of(attend, arrays, options, cotangents), "grad ")


def held(attend, arrays, options):
    """out (and lse), and the same tensors after more calls."""
    with torch.no_grad():
        return after_more_calls(lambda arrays: bind(attend, options)(tensors(arrays)), arrays, to_numpy)


def gradient_held(attend, arrays, options, cotangents):
    """Gradients, and the same tensors after more calls; and those of a second backward through one graph."""
    found = after_more_calls(lambda x: gradient_of(attend, x, options, cotangents), arrays, to_numpy, "grad ")
    return found | leaves_of(gradient_of(attend, arrays, options, cotangents, times=2), "again ")


def gradient_of_a_loss(attend, arrays, options, cotangents, how):
    """Gradients of a loss; its cotangents are for those who need them by hand."""
    leaves = {k: x.requires_grad_() for k, x in tensors(arrays).items()}
    return leaves_of(pulled_back([loss_of(bind(attend, options)(leaves), how)], leaves, None), "grad ")


def jvp(attend, arrays, options, tangents):
    """The movement of the results along the tangents."""
    return leaves_of(torch.func.jvp(bind(attend, options), (tensors(arrays),), (tensors(tangents),))[1], "tangent ")


def pulled(call, leaves, cotangents):
    """Gradients of Σ cotangent · result by ``torch.func``, as tensors."""
    results, pull, *_ = torch.func.vjp(call, leaves)
    return pull({k: cotangents[k].to(x.dtype) for k, x in results.items()})[0]


def second(attend, arrays, options, cotangents, tangents, how):
    """The movement of the gradients along the tangents: by their jvp, or by the gradient of <gradient, tangents>."""
    run = functools.partial(pulled, bind(attend, options), cotangents=tensors(cotangents))
    if how == "forward over reverse":
        found = torch.func.jvp(run, (tensors(arrays),), (tensors(tangents),))[1]
    else:
        given = tensors(tangents)
        along = torch.func.grad(lambda leaves: sum((g * given[k]).sum() for k, g in run(leaves).items()))
        found = along(tensors(arrays))
    return leaves_of(found, "second ")


def vmap(attend, arrays, options, mapped):
    """The function under vmap over the axes that are named."""
    if set(options) & set(mapped):
        raise NotImplementedError("the kit maps no options in torch")
    axes = ({k: mapped.get(k) for k in arrays},)
    return leaves_of(torch.func.vmap(bind(attend, options), axes)(tensors(arrays)))


def per_example_gradient(attend, arrays, options, cotangents, mapped):
    """vmap of the gradient: one gradient for each example, also of what is not mapped."""
    axes = ({k: mapped.get(k) for k in arrays}, 0)
    one = functools.partial(pulled, bind(attend, options))
    found = torch.func.vmap(one, axes)(tensors(arrays), tensors(cotangents))
    return leaves_of(found, "grad ")


def changed_in_place(attend, arrays, options, changed):
    """out (and lse) of a second call, after other numbers were written into tensors that the first was given."""
    given = tensors(arrays | options)
    with torch.no_grad():
        bind(attend, {})(given)
        for name, x in changed.items():
            given[name].copy_(tensor(x))
        return leaves_of(bind(attend, {})(given))


def custom_rule(attend, arrays, options):
    """Tell whether the result requires grad where arrays do; an operator without a formula says so when asked."""
    results = bind(attend, options)({k: x.requires_grad_() for k, x in tensors(arrays).items()})
    try:
        [x.sum().backward(retain_graph=True) for x in results.values() if x.requires_grad]
    except Exception as error:
        own = not isinstance(error, NotImplementedError) and has_own_rule([x.grad_fn for x in results.values()])
        return {"rule": np.array(own or not is_lack(error))}
    return {"rule": np.array(any(x.requires_grad for x in results.values()))}


def has_own_rule(nodes):
    """Tell whether an autograd.Function is among what results were computed by."""
    seen = set()
    while nodes := [node for node in nodes if node is not None and node not in seen]:
        seen.update(nodes)
        nodes = [other for node in nodes for other, _ in node.next_functions]
    return any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in seen)


def unwritten(attend, arrays, options):
    """The arrays after a call that was given NumPy's own memory."""

    def shared(x):
        return x if not hasattr(x, "shape") else tensor(x) if str(x.dtype) == "bfloat16" else torch.from_numpy(x)

    with torch.no_grad():
        called(attend, {k: shared(x) for k, x in arrays.items()}, {k: shared(x) for k, x in options.items()})
    return afterwards(arrays, options)


def within(context, apply):
    """The model, called within a context."""

    def run(*inputs, **options):
        with context():
            return apply(*inputs, **options)

    return run


with_gradients = functools.partial(within, torch.enable_grad)
by_plain_kernel = functools.partial(within, lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))


def recomputed(apply):
    """The model, computed again for its gradient."""
    from torch.utils.checkpoint import checkpoint

    def run(inputs, **options):
        return checkpoint(lambda inputs: apply(inputs, **options), inputs, use_reentrant=False)

    return run


def in_float64(attend, arrays, options):
    """out of a model in float64."""
    return forward(attend, {k: x.astype(float) if x.dtype == np.float32 else x for k, x in arrays.items()}, options)


def dtypes(attend, arrays, options):
    """The names of the dtypes in which a call computes its parts."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found: set[str] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            results = function(*args, **(kwargs or {}))
            several = results if isinstance(results, (tuple, list)) else [results]
            found.update(str(x.dtype).removeprefix("torch.") for x in several if hasattr(x, "dtype"))
            return results

    with torch.no_grad(), Watch():
        bind(attend, options)(tensors(arrays))
    return found


def gradient_of_embedded(attend, arrays, options, cotangents, embedding):
    """The gradient of Σ cotangent · result with respect to what an embedding gives for tokens."""
    leaves = []

    def leaf(module, given, found):
        leaves.append(found.detach().requires_grad_())
        return leaves[-1]

    hook = embedding.register_forward_hook(leaf)
    try:
        out = bind(attend, options)(tensors(arrays))["out"]
    finally:
        hook.remove()
    if not leaves:
        raise NotImplementedError("the embedding that was found in it is not called")
    pulled = torch.autograd.grad(out, leaves, tensor(cotangents["out"]).to(out.dtype), allow_unused=True)
    pairs = zip(leaves, pulled, strict=False)  # a part that is computed again leaves more
    found = sum((torch.zeros_like(x) if g is None else g for x, g in pairs), torch.zeros(()))
    return {"grad query": to_numpy(found.to(out.dtype))}


in_steps = torch.no_grad()(functools.partial(chunked, tensor, lambda *x: to_numpy(torch.cat(*x))))
