"""Modules of torch and its layers, and models of transformers, as functions; see ``adapters.py``."""

import contextlib
import inspect
import re
from typing import Any

from .runner import Offer, Way, with_seed

NO_RATE = {"lacks": {"dropout": "no rate of dropout above 0 is found in it"}}


def of_torch(model: Any, causal: bool | None) -> Offer:
    """Offer a torch module."""
    found = embedding_of_torch if embedding_of_torch(model) is not None else None
    return Offer(from_torch(model), "torch", from_torch, rates(model), TORCH_WAYS, found)


def rates(model: Any) -> dict[str, Any]:
    """Note that a torch module lacks dropout, if none of its modules has a rate."""
    named = (vars(module).items() for module in model.modules())
    dropped = any(x > 0 for pairs in named for k, x in pairs if (k == "p" or "drop" in k) and isinstance(x, float))
    return {} if dropped else NO_RATE


def embedding_of_torch(model):
    """The first embedding of a module; None where it has none."""
    import torch

    return next((module for module in model.modules() if isinstance(module, torch.nn.Embedding)), None)


def from_torch(model, training=False):
    """A torch module, in evaluation unless in training; with a seed in training."""
    model.train(training)

    def apply(inputs, seed=None, **options):
        with drawing(model, seed):
            return model(inputs, **options)

    apply.__signature__ = with_seed(inspect.signature(model.forward))
    return apply


@contextlib.contextmanager
def drawing(model, seed):
    """A torch module in training, whose dropout draws from a seed; as it was afterwards."""
    import torch

    if seed is None:
        yield
        return
    before = model.training
    with torch.random.fork_rng():
        torch.manual_seed(int(seed))
        model.train()
        try:
            yield
        finally:
            model.train(before)


def without_dropout(model):
    """A copy of a torch module, every rate of dropout 0."""
    import copy

    model = copy.deepcopy(model)
    for module in model.modules():
        for name, x in vars(module).items():
            if isinstance(x, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
    return model


def doubled(model):
    """A copy of a torch module in float64."""
    import copy

    return copy.deepcopy(model).double()


TORCH_WAYS = {  # of running any module
    "training mode": Way(without_dropout, more=(True,)),
    "float64": Way(doubled, forward="in_float64", gradient=None),
}


def from_torch_layer(layer, causal, training=False):
    """``nn.MultiheadAttention`` or ``nn.TransformerEncoderLayer``: masks in which True = may not look."""
    import torch

    layer.train(training)
    first = getattr(layer, "self_attn", layer).batch_first

    def apply(inputs, mask=None, seed=None):
        inputs = inputs if first else inputs.transpose(0, 1)
        length = inputs.shape[1 if first else 0]
        order = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
        dropped = None if mask is None else ~mask
        with drawing(layer, seed):
            if isinstance(layer, torch.nn.MultiheadAttention):
                found, _ = layer(inputs, inputs, inputs, key_padding_mask=dropped, attn_mask=order, need_weights=False)
            else:
                found = layer(inputs, src_mask=order, src_key_padding_mask=dropped)
        return found if first else found.transpose(0, 1)

    return apply


def of_transformers(model: Any, causal: bool | None) -> Offer:
    """Offer a model of transformers, which says most of this itself."""
    config, name = model.config, type(model).__name__
    facts = {"vocabulary": config.vocab_size} | places(model)
    facts |= {"layers": count} if (count := getattr(config, "num_hidden_layers", None)) else {}
    known = {"ForCausalLM": True, "LMHead": True, "ForMaskedLM": False}
    if causal is None and (told := [means for part, means in known.items() if part in name]):
        code = inspect.getsource(inspect.getmodule(type(model)) or type(model))
        asks = re.search(r"config\.is_decoder\b(?! =)", code)  # the future is hidden where it says so, as in encoders
        facts["causal"] = told[0] and (not asks or config.is_decoder)
    if (causal or facts.get("causal")) and keyword_of_cache(model):
        facts["cache"] = cache_of_transformers(model)
    facts |= rates(model)
    ways = dict(TORCH_WAYS)
    for other in {"eager", "sdpa"} - {getattr(config, "_attn_implementation", None)}:
        with contextlib.suppress(ValueError, ImportError):  # as it says where it has no such attention
            with_attention(model, other)
            ways[f"attention {other}"] = Way(with_attention, (other,))
    if getattr(model, "supports_gradient_checkpointing", False):
        ways["gradient checkpointing of layers"] = Way(with_checkpoints, more=(True,))
    return Offer(from_transformers(model), "torch", from_transformers, facts, ways, embedding_of_transformers)


def places(model: Any) -> dict[str, Any]:
    """The longest text of a model of transformers; and its padding token, where that is what places are counted by."""
    longest, first = getattr(model.config, "max_position_embeddings", None) or 0, first_place(model)
    found = {"longest": longest - first} if longest > first else {}
    return found | ({"pad": first - 1} if first else {})


def first_place(model):
    """The place of the first token: 0; of RoBERTa and its like the number after the padding token."""
    tables = (table for name, table in model.named_modules() if name.endswith("position_embeddings"))
    numbers = (getattr(table, "padding_idx", None) for table in tables)
    return next((1 + number for number in numbers if number is not None), 0)


def embedding_of_transformers(model):
    """The part that turns tokens into vectors: the last of those that share their weights, as T5 has them."""
    import torch

    first = model.get_input_embeddings()
    tables = (x for x in model.modules() if isinstance(x, torch.nn.Embedding))
    return [first, *(x for x in tables if x.weight is getattr(first, "weight", None))][-1]


def from_transformers(model, training=False):
    """A model of transformers, in evaluation unless in training: its logits, or its last hidden state."""
    model.train(training)
    first = first_place(model)

    def apply(inputs, mask=None, positions=None, seed=None):
        options = {} if positions is None else {"position_ids": positions + first}
        mask = None if mask is None else mask.long()
        with drawing(model, seed):
            found = model(input_ids=inputs, attention_mask=mask, use_cache=False, **options)
        return found.logits if "logits" in found else found.last_hidden_state

    if "position_ids" not in inspect.signature(model.forward).parameters:
        known = inspect.signature(apply).parameters
        apply.__signature__ = inspect.Signature([x for name, x in known.items() if name != "positions"])
    return apply


def with_checkpoints(model):
    """A copy that computes its layers again for their gradients, without dropout."""
    model = without_dropout(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def with_attention(model, implementation):
    """A copy with another attention."""
    import copy

    model = copy.deepcopy(model)
    model.set_attn_implementation(implementation)
    return model


def keyword_of_cache(model):
    """The keyword by which a model of transformers takes its cache; empty where it takes none."""
    takes = inspect.signature(model.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in takes), "")


def cache_of_transformers(model):
    """Its dynamic cache."""
    from transformers import DynamicCache

    name = keyword_of_cache(model)

    def init(batch, room):
        return DynamicCache(config=model.config)

    def step(inputs, cache):
        found = model(input_ids=inputs, **{name: cache}, use_cache=True)
        if getattr(found, name, None) is None:
            raise NotImplementedError(f"its results have no {name}")
        return found.logits if "logits" in found else found.last_hidden_state, getattr(found, name)

    def reorder(cache, rows):
        cache.reorder_cache(rows)
        return cache

    return init, step, reorder
