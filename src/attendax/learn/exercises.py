"""The path: every exercise with its questions, the way it is asked, and the formula that answers.

``texts/exercises.toml`` has them. Each question adds one thing: another number of tokens, a mask, a row without keys.
"""

import functools
import inspect
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attendax import spec

from . import formulas
from .arrays import Unusable, described
from .formulas import DRAWN, NETWORK, NORMS, PROJECTIONS, WIDE

TEXTS = Path(__file__).with_name("texts")
MODULES = ("attention_core", "multi_head", "positional", "transformer_block", "single_head")
RATE = 0.25
NOTHING = np.array([[True, True, False], [False, False, False]])
Inputs = dict[str, Any]


class Question(NamedTuple):
    """Inputs by their names, in the order of the arguments, and what is particular about them."""

    about: str
    inputs: Inputs


class Exercise(NamedTuple):
    """One function, or one method of a class, of a learner.

    ``ask(candidate, inputs)`` calls it and gives its results by name. ``text`` is its entry in the file of texts.
    """

    name: str
    text: dict[str, Any]
    questions: tuple[Question, ...]
    ask: Callable[[Any, Inputs], dict[str, Any]]

    @property
    def symbol(self) -> str:
        """The function or class in the learner's file."""
        return self.name.partition(".")[0]

    @property
    def random(self) -> bool:
        """Whether it drops weights, so that what is right depends on which."""
        return self.text["formula"] == "dropped"

    def formula(self, inputs: Inputs, off: formulas.Off, answer: Any) -> dict[str, Any]:
        """The results that the mistakes ``off`` give, for the weights that an answer has kept."""
        found = getattr(formulas, self.text["formula"])(
            **inputs, **(_kept(inputs, answer) if self.random else {}), off=off
        )
        named = found if isinstance(found, dict) else {self.text["results"]: found}
        return {name: value for name, value in named.items() if name[0] != "_"}

    @property
    def derivation(self) -> str:
        """The paragraphs of ``attendax.spec`` before its arguments."""
        function = getattr(spec, self.text.get("derived", self.name))
        return (inspect.getdoc(function) or "").partition("\nArgs:")[0].strip()


@functools.cache
def texts(name: str) -> dict[str, Any]:
    """A file of texts: the exercises, or the mistakes."""
    return tomllib.loads((TEXTS / f"{name}.toml").read_text("utf-8"))


@functools.cache
def path() -> tuple[Exercise, ...]:
    """All exercises, in the order in which they are learned."""
    return tuple(_exercise(*entry) for entry in texts("exercises").items())


def _exercise(name: str, text: dict[str, Any]) -> Exercise:
    rng = np.random.default_rng(15)
    questions = [Question(each["about"], _inputs(each, rng)) for each in text["questions"]]
    return Exercise(name, text, tuple(questions), ASKED.get(name, functools.partial(_plain, text["results"].split())))


def _inputs(question: dict[str, Any], rng: np.random.Generator) -> Inputs:
    """The inputs: numbers of two decimals in the shapes of the text, the same ones each time."""
    inputs: Inputs = {}
    for name, value in list(question.items())[1:]:
        if name == "mask" and isinstance(value, str):
            tokens = next(iter(inputs.values())).shape[-2] if inputs else 0
            value = {"none": None, "nothing": NOTHING, "causal": np.tri(tokens, dtype=bool)}[value]
        elif name == "blocks":
            value = [spec.TransformerEncoderBlock(2, 1, 3, rng=seed) for seed in range(int(value[0]))]
        elif isinstance(value, str):
            factor, _, shape = value.rpartition("* ")
            value = (float(factor or 1)) * rng.normal(size=tuple(map(int, shape.split()))).round(2)
        inputs[name] = np.array(value) if isinstance(value, list) and name != "blocks" else value
    return inputs


def _plain(names: list[str], function: Any, inputs: Inputs) -> dict[str, Any]:
    """The function of the inputs, and its results by name."""
    return named(names, function(*inputs.values()))


def named(names: list[str] | tuple[str, ...], found: Any) -> dict[str, Any]:
    """Results by name; a dict among them by its own names, and what a backward needs left out.

    Raises:
        Unusable: there are more or fewer.
    """
    if len(names) > 1 and not (isinstance(found, tuple) and len(found) == len(names)):
        wanted = ": is a `return` missing?" if found is None else f"; expected {', '.join(names)}"
        raise Unusable(described(found) + wanted)
    results = dict(zip(names, found if len(names) > 1 else (found,), strict=True))
    results.pop("cache", None)
    return results | (_weights(results.pop("grad_params")) if "grad_params" in results else {})


def _weights(grads: Any) -> dict[str, Any]:
    """A dict or NamedTuple of gradients, and that of the attention in it; those of biases that are None left out."""
    grads = grads._asdict() if hasattr(grads, "_asdict") else grads
    if not isinstance(grads, Mapping):
        raise Unusable(f"{described(grads)} as the gradients of the weights; expected a dict by name")
    inner = _weights(grads["attention"]) if "attention" in grads else {}
    return inner | {name: value for name, value in grads.items() if value is not None and name != "attention"}


def _backward(function: Any, inputs: Inputs) -> dict[str, Any]:
    """The backward of a forward that stands beside it."""
    beside = vars(sys.modules.get(function.__module__, formulas)) | getattr(function, "__globals__", {})
    if "multi_head_attention_forward" not in beside:
        raise NotImplementedError("multi_head_attention_forward")
    grad_output, *rest = inputs.values()
    _, cache = beside["multi_head_attention_forward"](*rest)
    return named(("grad_Q", "grad_K", "grad_V", "grad_params"), function(grad_output, cache))


def _multi_head_layer(layer_class: Any, inputs: Inputs) -> dict[str, Any]:
    grad_output, Q, K, V, *weights, num_heads, mask = inputs.values()
    given = dict(zip(PROJECTIONS, weights, strict=True))
    layer = layer_class(Q.shape[-1], num_heads)
    new = layer_class(64, 4)
    found = {f"shape of {name}": np.array(getattr(layer, name).shape) for name in given}
    found[DRAWN] = _drawn(*(getattr(new, name) for name in PROJECTIONS))
    layer.set_params(given)
    found["output"] = layer.forward(Q, K, V, mask)
    found |= named(("grad_Q", "grad_K", "grad_V", "grad_params"), layer.backward(grad_output))
    params = layer.get_params()
    if not isinstance(params, Mapping):
        raise Unusable(f"{described(params)} as get_params(); expected a dict by name")
    return found | {f"get_params()[{name!r}]": params.get(name) for name in given}


def _drawn(*weights: Any) -> np.ndarray:
    """Whether they are drawn, small, each its own."""
    small = all(0 < float(each.std()) < 0.5 for each in weights)
    return np.array(small and len({float(each.sum()) for each in weights}) == len(weights))


def _block(block_class: Any, inputs: Inputs) -> dict[str, Any]:
    block = block_class(inputs["x"].shape[-1], inputs["num_heads"], inputs["W1"].shape[1])
    block.attention.set_params({name: inputs[name] for name in PROJECTIONS})
    for name in (*NETWORK, *NORMS):
        setattr(block, name, inputs[name])
    output = block.forward(inputs["x"], inputs["mask"])
    if "grad_output" not in inputs:
        new = block_class(64, 4)
        facts = {DRAWN: _drawn(new.W1, new.W2), WIDE: np.array(tuple(new.W1.shape))}
        return {"output": output} | facts
    return named(("grad_x", "grad_params"), block.backward(inputs["grad_output"]))


def _single_head(layer_class: Any, inputs: Inputs) -> dict[str, Any]:
    x, causal, *_ = inputs.values()
    layer = layer_class(x.shape[-1], causal=causal)
    for name in list(inputs)[2:]:
        setattr(layer, name, inputs[name])
    deviation = _leading(layer_class(64).query_weights.std())
    return {"output": layer.forward(x), "deviation of query_weights, about": deviation}


def _dropout(layer_class: Any, inputs: Inputs) -> dict[str, Any]:
    *arrays, grad_output = inputs.values()
    layer = layer_class(RATE)
    output = layer.forward(*arrays)
    found = {"attention_weights": layer.attention_weights, "output": output}
    found |= named(("grad_query", "grad_key", "grad_value"), layer.backward(grad_output))
    layer.eval()
    return found | {"output after eval()": layer.forward(*arrays)}


def _kept(inputs: Inputs, answer: Any) -> dict[str, Any]:
    """The dropped weights, as the formula needs them; whether it was about the right share joins the answer."""
    kept = answer["attention_weights"] != 0
    possible = np.broadcast_to(True if inputs["mask"] is None else inputs["mask"], kept.shape)
    answer[formulas.KEPT] = np.array(0.6 < kept.sum() / possible.sum() < 0.9)
    return {"kept": kept, "rate": RATE}


def _learned(function: Any, inputs: Inputs) -> dict[str, Any]:
    if (table := function(*inputs.values())) is None:
        raise Unusable("None: is a `return` missing?")
    facts = {"deviation, about": _leading(table.std()), "mean, about": np.round(float(table.mean()), 1) + 0.0}
    return {"shape": np.array(table.shape)} | facts


def _leading(number: Any) -> np.ndarray:
    """To one digit."""
    return np.array(float(f"{float(number):.1g}"))


ASKED = {
    "multi_head_attention_backward": _backward,
    "MultiHeadAttention": _multi_head_layer,
    "learned_positional_encoding": _learned,
    "TransformerEncoderBlock": _block,
    "TransformerEncoderBlock.backward": _block,
    "Attention": _single_head,
    "ScaledDotProductAttention": _dropout,
}
