"""The path: every exercise with its questions, the way it is asked, and the formula that answers.

``texts/exercises.toml`` has them. Each question adds one thing: another number of tokens, a mask, a row without keys.
"""

import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attendax import spec

from .arrays import Unusable

TEXTS = Path(__file__).with_name("texts")
PROJECTIONS = ("W_Q", "W_K", "W_V", "W_O")
GRADS = ("grad_Q", "grad_K", "grad_V", "grad_params")
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
    def derivation(self) -> str:
        """The paragraphs of ``attendax.spec`` before its arguments."""
        said = inspect.getdoc(getattr(spec, self.text.get("derived", self.name))) or ""
        return said.partition("\nArgs:")[0].strip()


@functools.cache
def texts(name: str) -> dict[str, Any]:
    """A file of texts: the exercises, or the mistakes."""
    return tomllib.loads((TEXTS / f"{name}.toml").read_text("utf-8"))


MODULES = tuple(dict.fromkeys(entry["file"] for entry in texts("exercises").values()))


@functools.cache
def path() -> tuple[Exercise, ...]:
    """All exercises, in the order in which they are learned."""
    return tuple(_exercise(*entry) for entry in texts("exercises").items())


def _exercise(name: str, text: dict[str, Any]) -> Exercise:
    rng = np.random.default_rng(15)
    questions = tuple(Question(each["about"], _inputs(each, rng)) for each in text["questions"])
    ask = ASKED.get(name, lambda function, inputs: named(text["results"].split(), function(*inputs.values())))
    return Exercise(name, text, questions, ask)


def _inputs(question: dict[str, Any], rng: np.random.Generator) -> Inputs:
    """The inputs: numbers of two decimals in the shapes of the text, the same ones each time."""
    inputs: Inputs = {}
    for name, value in list(question.items())[1:]:
        if name == "mask" and isinstance(value, str):
            tokens = next(iter(inputs.values())).shape[-2]
            value = {"none": None, "causal": np.tri(tokens, dtype=bool)}[value]
        elif name == "blocks":
            value = [spec.TransformerEncoderBlock(4, 2, 3, rng=seed) for seed in range(int(value[0]))]
        elif isinstance(value, str):
            factor, _, shape = value.rpartition("* ")
            value = (float(factor or 1)) * rng.normal(size=tuple(map(int, shape.split()))).round(2)
        inputs[name] = np.array(value) if isinstance(value, list) and name != "blocks" else value
    return inputs


def named(names: Sequence[str], found: Any) -> dict[str, Any]:
    """Results by name; a dict among them by its own names, and what a backward needs left out.

    Raises:
        Unusable: there are more or fewer.
    """
    given = found if len(names) > 1 else (found,)
    if not isinstance(given, tuple) or len(given) != len(names):
        raise Unusable(found, ", ".join(names))
    results = dict(zip(names, given, strict=True))
    results.pop("cache", None)
    weights = _weights(results.pop("grad_params", {}), "the gradients of the weights")
    return results | {f"grad_{name}": value for name, value in weights.items()}


def _weights(given: Any, role: str) -> dict[str, Any]:
    """A dict or NamedTuple of weights, and that of the attention in it; biases that are None left out."""
    given = given._asdict() if hasattr(given, "_asdict") else given
    if not isinstance(given, Mapping):
        raise Unusable(given, "a dict by name", f" as {role}")
    inner = _weights(given["attention"], role) if "attention" in given else {}
    return inner | {name: value for name, value in given.items() if value is not None and name != "attention"}


def _backward(function: Any, inputs: Inputs) -> dict[str, Any]:
    """The backward of a forward that stands beside it."""
    beside = getattr(inspect.unwrap(function), "__globals__", {})
    if "multi_head_attention_forward" not in beside:
        raise NotImplementedError("multi_head_attention_forward")
    grad_output, *rest = inputs.values()
    _, cache = beside["multi_head_attention_forward"](*rest)
    return named(GRADS, function(grad_output, cache))


def _multi_head_layer(layer_class: Any, inputs: Inputs) -> dict[str, Any]:
    grad_output, Q, K, V, *weights, num_heads, mask = inputs.values()
    layer = layer_class(Q.shape[-1], num_heads)
    found = {f"shape of {name}": np.array(getattr(layer, name).shape) for name in PROJECTIONS}
    found |= _drawn(layer_class(64, 4), PROJECTIONS)
    layer.set_params(dict(zip(PROJECTIONS, weights, strict=True)))
    found["output"] = layer.forward(Q, K, V, mask)
    found |= named(GRADS, layer.backward(grad_output))
    params = _weights(layer.get_params(), "get_params()")
    return found | {f"get_params()[{name!r}]": params.get(name) for name in PROJECTIONS}


def _drawn(layer: Any, names: Sequence[str]) -> dict[str, Any]:
    weights = [getattr(layer, name) for name in names]
    small = all(0 < float(each.std()) < 0.5 for each in weights)
    own = len({float(each.sum()) for each in weights}) == len(weights)
    return {"the initial weights are drawn, small, each its own": small and own}


def _block(block_class: Any, inputs: Inputs) -> dict[str, Any]:
    new = block_class(64, 4)
    block = block_class(inputs["x"].shape[-1], inputs["num_heads"], inputs["W1"].shape[1])
    block.attention.set_params({name: inputs[name] for name in PROJECTIONS})
    rest = [name for name in inputs if name[-1] in "12"]
    for name in rest:
        setattr(block, name, inputs[name])
    output = block.forward(inputs["x"], inputs["mask"])
    if "grad_output" in inputs:
        return named(("grad_x", "grad_params"), block.backward(inputs["grad_output"]))
    begin = [abs(getattr(new, name) - float("gamma" in name)).max() == 0 for name in rest if name[0] != "W"]
    wide = {"shape of W1 where M = 64 and no d_ff is given": np.array(tuple(new.W1.shape))}
    begun = {"gamma1 and gamma2 are 1 at the beginning, biases and betas 0": all(begin)}
    return {"output": output} | _drawn(new, ("W1", "W2")) | wide | begun


def _single_head(layer_class: Any, inputs: Inputs) -> dict[str, Any]:
    x, causal, *_ = inputs.values()
    layer, new = layer_class(x.shape[-1], causal=causal), layer_class(64)
    for name in list(inputs)[2:]:
        setattr(layer, name, inputs[name])
    return {"output": layer.forward(x), "deviation of query_weights, about": _leading(new.query_weights.std())}


def _dropout(layer_class: Any, inputs: Inputs) -> dict[str, Any]:
    *arrays, rate, many = list(inputs.values())[:6]
    layer, other = layer_class(rate), layer_class(0.4)
    found = {"output": layer.forward(*arrays), "attention_weights": layer.attention_weights}
    if "grad_output" in inputs:
        found |= named(("grad_query", "grad_key", "grad_value"), layer.backward(inputs["grad_output"]))
    layer.eval()
    found |= {"output after eval()": layer.forward(*arrays), "attention_weights after eval()": layer.attention_weights}
    first, second = ((other.forward(many, many, many), other.attention_weights != 0)[1] for _ in range(2))
    shared = [(first == first[:1]).all(), (first == first[:, :1]).all(), (first == first[..., :1]).all()]
    found["share of the weights that is kept where p = 0.4, about"] = _leading((first * 1.0).mean())
    found["each weight is dropped by a draw of its own"] = not any(map(bool, shared))
    return found | {"each forward draws anew": bool((first != second).any())}


def _learned(function: Any, inputs: Inputs) -> dict[str, Any]:
    if (table := function(*inputs.values())) is None:
        raise Unusable(table, "an array")
    mean, deviation = float(table.mean()), float(table.std())
    found = {"shape": np.array(table.shape), "deviation, about": _leading(deviation)}
    found["mean, about"] = np.round(mean, 1) + 0.0
    return found | {"some numbers lie beyond two deviations": bool((abs(table - mean) > 2 * deviation).any())}


def _leading(number: Any) -> float:
    """Round to one digit."""
    return float(f"{float(number):.1g}")


ASKED = {"multi_head_attention_backward": _backward, "MultiHeadAttention": _multi_head_layer, "Attention": _single_head}
ASKED |= {"TransformerEncoderBlock": _block, "TransformerEncoderBlock.backward": _block}
ASKED |= {"learned_positional_encoding": _learned, "ScaledDotProductAttention": _dropout}
