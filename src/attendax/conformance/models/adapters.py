"""A model of each library as a function of inputs and keywords, in a few lines each.

A script prints the source of the one that is used, so each uses nothing of this package.
"""

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Offer(NamedTuple):
    """What an adapter makes of a model.

    Attributes:
        apply: from inputs and keywords to results.
        arrays: of which framework.
        made, given: the function that made ``apply`` of the model, if any did, and what else it was given.
        facts: what the model says of itself, under the names of ``check_model``.
        ways: other functions that have to give the same.
        embedding: of a torch module, gives what turns tokens into vectors.
    """

    apply: Callable[..., Any]
    arrays: str | None = None
    made: Callable[..., Any] | None = None
    facts: Mapping[str, Any] = {}
    ways: Mapping[str, Callable[..., Any]] = {}
    embedding: Any = None
    given: tuple[Any, ...] = ()


def _of_flax(model: Any, causal: bool | None) -> Offer:
    return Offer(from_flax(model), "jax", from_flax)


def from_flax(model):
    """A module of nnx, or one of linen that is bound to its variables."""

    def apply(inputs, **options):
        return model(inputs, **options)

    apply.__signature__ = inspect.signature(type(model).__call__)
    return apply


def _of_equinox(model: Any, causal: bool | None) -> Offer:
    return Offer(from_equinox(model), "jax", from_equinox)


def from_equinox(model):
    """A module of equinox, which takes one text: of a batch, each."""
    import jax

    def apply(inputs, **options):
        return jax.vmap(lambda one, given: model(one, **given))(inputs, options)

    apply.__signature__ = inspect.signature(type(model).__call__)
    return apply


def _of_keras(model: Any, causal: bool | None) -> Offer:
    import keras

    return Offer(from_keras(model), keras.backend.backend(), from_keras)


def from_keras(model):
    """A model or layer of keras, in inference."""

    def apply(inputs, **options):
        return model(inputs, training=False, **options)

    apply.__signature__ = inspect.signature(model.call)
    return apply


def _of_torch(model: Any, causal: bool | None) -> Offer:
    found = embedding_of_torch if embedding_of_torch(model) is not None else None
    return Offer(from_torch(model), "torch", from_torch, {}, {"training mode": in_training(model)}, found)


def embedding_of_torch(model):
    """The first embedding of a module; None where it has none."""
    import torch

    return next((module for module in model.modules() if isinstance(module, torch.nn.Embedding)), None)


def from_torch(model):
    """A module of torch, in evaluation."""
    model.eval()

    def apply(inputs, **options):
        return model(inputs, **options)

    apply.__signature__ = inspect.signature(model.forward)
    return apply


def in_training(model):
    """A copy of the module in training, without dropout."""
    import copy

    model = copy.deepcopy(model).train()
    for module in model.modules():
        for name, x in vars(module).items():
            if isinstance(x, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)

    def apply(inputs, **options):
        return model(inputs, **options)

    return apply


def _of_transformers(model: Any, causal: bool | None) -> Offer:
    config, name = model.config, type(model).__name__
    facts = {"vocabulary": config.vocab_size, "longest": getattr(config, "max_position_embeddings", None)}
    known = {"ForCausalLM": True, "LMHead": True, "ForMaskedLM": False}
    if causal is None and (told := [means for part, means in known.items() if part in name]):
        facts["causal"] = told[0] and getattr(config, "is_decoder", True)  # an encoder's head does not hide the future
    if causal or facts.get("causal"):
        facts["cache"] = cache_of_transformers(model)
    ways = {"training mode": in_training_of_transformers(model)}
    for name in {"eager", "sdpa"} - {getattr(config, "_attn_implementation", None)}:
        with contextlib.suppress(ValueError, ImportError):  # as it says where it has no such attention
            ways[f"attention {name}"] = with_attention_of_transformers(model, name)
    return Offer(from_transformers(model), "torch", from_transformers, facts, ways, embedding_of_transformers)


def embedding_of_transformers(model):
    """What turns tokens into vectors."""
    return model.get_input_embeddings()


def from_transformers(model):
    """A model of transformers, in evaluation: its logits, or its last hidden state."""
    model.eval()

    def apply(inputs, mask=None, positions=None):
        options = {} if positions is None else {"position_ids": positions}
        found = model(
            input_ids=inputs, attention_mask=None if mask is None else mask.long(), use_cache=False, **options
        )
        return found.logits if "logits" in found else found.last_hidden_state

    if "position_ids" not in inspect.signature(model.forward).parameters:
        apply.__signature__ = inspect.Signature(list(inspect.signature(apply).parameters.values())[:2])
    return apply


def in_training_of_transformers(model):
    """A copy in training, without dropout."""
    import copy

    copied = copy.deepcopy(model)
    apply = from_transformers(copied)
    copied.train()
    for module in copied.modules():
        for name, x in vars(module).items():
            if isinstance(x, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
    return apply


def with_attention_of_transformers(model, implementation):
    """A copy with another attention."""
    import copy

    copied = copy.deepcopy(model)
    copied.set_attn_implementation(implementation)
    return from_transformers(copied)


def cache_of_transformers(model):
    """Its dynamic cache."""
    from transformers import DynamicCache

    def init(batch, room):
        return DynamicCache(config=model.config)

    def step(inputs, cache):
        found = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        if getattr(found, "past_key_values", None) is None:
            raise NotImplementedError("its cache is not past_key_values")
        return found.logits if "logits" in found else found.last_hidden_state, found.past_key_values

    def reorder(cache, rows):
        cache.reorder_cache(rows)
        return cache

    return init, step, reorder


FAMILIES: dict[str, Callable[[Any, bool | None], Offer]] = {  # the first that is among the classes of a model
    "transformers.modeling_utils.PreTrainedModel": _of_transformers,
    "keras.src.layers.layer.Layer": _of_keras,
    "torch.nn.modules.module.Module": _of_torch,
    "flax.nnx.module.Module": _of_flax,
    "flax.linen.module.Module": _of_flax,
    "equinox._module._module.Module": _of_equinox,
}
