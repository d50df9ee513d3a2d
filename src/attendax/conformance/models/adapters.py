"""A model of each library as a function of inputs and keywords, in a few lines each.

A script prints the source of the one that is used and of what that uses, so each uses nothing else of this package.
"""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from .of_torch import of_torch, of_transformers
from .offers import Offer, Way, with_seed


def in_float64(model):
    """A copy of a module of flax or equinox, its weights in float64."""
    import jax

    def widened(x):
        return x.astype("float64") if hasattr(x, "dtype") and jax.numpy.issubdtype(x.dtype, jax.numpy.floating) else x

    with jax.enable_x64(True):
        if hasattr(model, "unbind"):  # of linen
            module, variables = model.unbind()
            return module.bind(jax.tree.map(widened, variables))
        if type(model).__module__.startswith("equinox."):
            return jax.tree.map(widened, model)
        from flax import nnx

        graph, state = nnx.split(model)
        return nnx.merge(graph, jax.tree.map(widened, state))


WIDE = {"float64": Way(in_float64, forward="in_float64", gradient=None)}


def _of_flax(model: Any, causal: bool | None) -> Offer:
    return Offer(from_module(model), "jax", from_module, ways=WIDE)


def from_module(model):
    """A module of nnx, one of linen that is bound to its variables, or one of equinox that takes a batch."""

    def apply(inputs, **options):
        return model(inputs, **options)

    apply.__signature__ = inspect.signature(type(model).__call__)
    return apply


def _of_equinox(model: Any, causal: bool | None) -> Offer:
    batch = Offer(from_module(model), "jax", from_module, ways=WIDE)
    return Offer(from_equinox(model), "jax", from_equinox, ways=WIDE, otherwise=batch)


def from_equinox(model):
    """A module of equinox, which takes one text: of a batch, each."""
    import jax

    def apply(inputs, **options):
        return jax.vmap(lambda one, given: model(one, **given))(inputs, options)

    apply.__signature__ = inspect.signature(type(model).__call__)
    return apply


def _of_keras(model: Any, causal: bool | None) -> Offer:
    import keras

    facts = {} if any(generators(model)) else {"lacks": {"dropout": "no layer of it draws"}}
    return Offer(from_keras(model), keras.backend.backend(), from_keras, facts)


def from_keras(model):
    """A model or layer of keras, in inference; with a seed in training."""

    def apply(inputs, seed=None, **options):
        with seeded(model, seed):
            return model(inputs, training=seed is not None, **options)

    apply.__signature__ = with_seed(inspect.signature(model.call))
    return apply


def generators(model):
    """The states of all that draws in a model of keras."""
    return [x for x in model.non_trainable_variables if x.path.endswith("seed_generator_state")]


@contextlib.contextmanager
def seeded(model, seed):
    """A model of keras whose generators begin at a seed, and forget it afterwards."""
    import keras
    from keras import ops

    if seed is None:
        yield
        return
    begun = [
        (x, ops.cast(ops.stack([ops.cast(seed, "int32"), 17 + k]), "uint32")) for k, x in enumerate(generators(model))
    ]
    with keras.StatelessScope(state_mapping=begun):
        yield


FAMILIES: dict[str, Callable[[Any, bool | None], Offer]] = {  # the first that is among the classes of a model
    "transformers.modeling_utils.PreTrainedModel": of_transformers,
    "keras.src.layers.layer.Layer": _of_keras,
    "torch.nn.modules.module.Module": of_torch,
    "flax.nnx.module.Module": _of_flax,
    "flax.linen.module.Module": _of_flax,
    "equinox._module._module.Module": _of_equinox,
}
