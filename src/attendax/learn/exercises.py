"""The course: every exercise with its questions, which are inputs, and the way in which its function is called.

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

from .arrays import UnexpectedResult

TEXTS = Path(__file__).with_name("texts")
INITIAL = "the initial weights are random, small, and different from each other"
PROJECTIONS = ("W_Q", "W_K", "W_V", "W_O")
MANY = "many"  # input of dropout for statistics: never cut, never shown
GRADS = ("grad_Q", "grad_K", "grad_V", "grad_params")
Inputs = dict[str, Any]


class Question(NamedTuple):
    """Inputs by their names, in the order of the arguments, and their description."""

    about: str
    inputs: Inputs

    @property
    def batch(self) -> int:
        """The number of texts; 0 if no array has an axis for them."""
        arrays = (value for value in self.inputs.values() if isinstance(value, np.ndarray) and value.ndim > 2)
        return next((len(array) for array in arrays), 0)

    def of_text(self, text: int) -> "Question":
        """The question with one text of its batch; only arrays of three axes or more have the axis of texts."""
        mine = {k: x[text : text + 1] for k, x in self.inputs.items() if k not in (MANY, "blocks") and np.ndim(x) > 2}
        return Question(self.about, self.inputs | mine)


class Exercise(NamedTuple):
    """One function, or one method of a class, of a learner.

    ``call(candidate, inputs)`` returns its results by name. ``text`` is its entry in the file of texts.
    """

    name: str
    text: dict[str, Any]
    questions: tuple[Question, ...]
    call: Callable[[Any, Inputs], dict[str, Any]]

    @property
    def symbol(self) -> str:
        """The function or class in the learner's file."""
        return self.name.partition(".")[0]

    @property
    def derivation(self) -> str:
        """The paragraphs of ``attendax.spec`` before its arguments."""
        docstring = inspect.getdoc(getattr(spec, self.text.get("derived", self.name))) or ""
        return docstring.partition("\nArgs:")[0].strip()


@functools.cache
def texts(name: str) -> dict[str, Any]:
    """A file of texts: the exercises, or the mistakes."""
    return tomllib.loads((TEXTS / f"{name}.toml").read_text("utf-8"))


MODULES = tuple(dict.fromkeys(entry["file"] for entry in texts("exercises").values()))


@functools.cache
def path() -> tuple[Exercise, ...]:
    """All exercises, in the order of the course."""
    return tuple(_exercise(*entry) for entry in texts("exercises").items())


def _exercise(name: str, text: dict[str, Any]) -> Exercise:
    rng = np.random.default_rng(15)
    questions = tuple(Question(each["about"], _inputs(each, rng)) for each in text["questions"])
    call = CALLS.get(name, lambda function, inputs: by_name(text["results"].split(), function(*inputs.values())))
    return Exercise(name, text, questions, call)


def _inputs(question: dict[str, Any], rng: np.random.Generator) -> Inputs:
    """The inputs: reproducible random numbers of two decimals, in the shapes of the text."""
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


def by_name(names: Sequence[str], returned: Any) -> dict[str, Any]:
    """Results by name, those in a dict by its keys, without the cache.

    Raises:
        UnexpectedResult: there are more or fewer.
    """
    values = returned if len(names) > 1 else (returned,)
    if not isinstance(values, tuple) or len(values) != len(names):
        raise UnexpectedResult(returned, ", ".join(names))
    results = dict(zip(names, values, strict=True))
    results.pop("cache", None)
    weights = _weights(results.pop("grad_params", {}), "the gradients of the weights")
    return results | {f"grad_{name}": value for name, value in weights.items()}


def _weights(params: Any, role: str) -> dict[str, Any]:
    """A dict or NamedTuple of weights, with those of the attention in it, without biases that are None."""
    params = params._asdict() if hasattr(params, "_asdict") else params
    if not isinstance(params, Mapping):
        raise UnexpectedResult(params, "a dict by name", f" as {role}")
    inner = _weights(params["attention"], role) if "attention" in params else {}
    return inner | {name: value for name, value in params.items() if value is not None and name != "attention"}


def _backward(function: Any, inputs: Inputs) -> dict[str, Any]:
    """The backward on the cache of the forward in the same file."""
    unwrapped = inspect.unwrap(function)
    code = getattr(unwrapped, "__code__", None)
    if code and code.co_names == ("NotImplementedError",):  # not written yet, whether the forward is or not
        function(None, None)
    forward = getattr(unwrapped, "__globals__", {}).get("multi_head_attention_forward")
    if forward is None:
        raise NotImplementedError("multi_head_attention_forward")
    grad_output, *rest = inputs.values()
    _, cache = forward(*rest)
    return by_name(GRADS, function(grad_output, cache))


def _multi_head_layer(layer_class: Any, inputs: Inputs) -> dict[str, Any]:
    grad_output, Q, K, V, *weights, num_heads, mask = inputs.values()
    layer = layer_class(Q.shape[-1], num_heads)
    results = {f"shape of {name}": np.array(getattr(layer, name).shape) for name in PROJECTIONS}
    results |= _initial(layer_class(64, 4), PROJECTIONS)
    layer.set_params(dict(zip(PROJECTIONS, weights, strict=True)))
    results["output"] = layer.forward(Q, K, V, mask)
    results |= by_name(GRADS, layer.backward(grad_output))
    params = _weights(layer.get_params(), "get_params()")
    return results | {f"get_params()[{name!r}]": params.get(name) for name in PROJECTIONS}


def _initial(layer: Any, names: Sequence[str]) -> dict[str, Any]:
    weights = [getattr(layer, name) for name in names]
    small = all(0 < float(each.std()) < 0.5 for each in weights)
    own = len({float(each.sum()) for each in weights}) == len(weights)
    return {INITIAL: small and own}


def _block(block_class: Any, inputs: Inputs) -> dict[str, Any]:
    new = block_class(64, 4)
    block = block_class(inputs["x"].shape[-1], inputs["num_heads"], inputs["W1"].shape[1])
    block.attention.set_params({name: inputs[name] for name in PROJECTIONS})
    rest = [name for name in inputs if name[-1] in "12"]
    for name in rest:
        setattr(block, name, inputs[name])
    output = block.forward(inputs["x"], inputs["mask"])
    if "grad_output" in inputs:
        return by_name(("grad_x", "grad_params"), block.backward(inputs["grad_output"]))
    initial = [abs(getattr(new, name) - float("gamma" in name)).max() == 0 for name in rest if name[0] != "W"]
    width = {"shape of W1 for M = 64 and the default d_ff": np.array(tuple(new.W1.shape))}
    constants = {"gamma1 and gamma2 are 1 at the beginning, biases and betas 0": all(initial)}
    return {"output": output} | _initial(new, ("W1", "W2")) | width | constants


def _single_head(layer_class: Any, inputs: Inputs) -> dict[str, Any]:
    x, causal, *_ = inputs.values()
    layer, new = layer_class(x.shape[-1], causal=causal), layer_class(64)
    for name in list(inputs)[2:]:
        setattr(layer, name, inputs[name])
    return {"output": layer.forward(x), "deviation of query_weights, about": _leading(new.query_weights.std())}


def _dropout(layer_class: Any, inputs: Inputs) -> dict[str, Any]:
    *arrays, rate, many = list(inputs.values())[:6]
    layer, other = layer_class(rate), layer_class(0.4)
    results = {"output": layer.forward(*arrays), "attention_weights": layer.attention_weights}
    if "grad_output" in inputs:
        results |= by_name(("grad_query", "grad_key", "grad_value"), layer.backward(inputs["grad_output"]))
    layer.eval()
    results["output after eval()"] = layer.forward(*arrays)
    results["attention_weights after eval()"] = layer.attention_weights
    first, second = ((other.forward(many, many, many), other.attention_weights != 0)[1] for _ in range(2))
    shared = [(first == first[:1]).all(), (first == first[:, :1]).all(), (first == first[..., :1]).all()]
    results["share of the weights that dropout keeps with p = 0.4, about"] = _leading((first * 1.0).mean())
    results["each weight has its own random number"] = not any(map(bool, shared))
    return results | {"each forward has new random numbers": bool((first != second).any())}


def _learned(function: Any, inputs: Inputs) -> dict[str, Any]:
    if (table := function(*inputs.values())) is None:
        raise UnexpectedResult(table, "an array")
    mean, deviation = float(table.mean()), float(table.std())
    results = {"shape": np.array(table.shape), "deviation, about": _leading(deviation)}
    results["mean, about"] = np.round(mean, 1) + 0.0
    return results | {"some numbers lie beyond two deviations": bool((abs(table - mean) > 2 * deviation).any())}


def _leading(number: Any) -> float:
    """Round to one digit."""
    return float(f"{float(number):.1g}")


CALLS = {"multi_head_attention_backward": _backward, "MultiHeadAttention": _multi_head_layer, "Attention": _single_head}
CALLS |= {"TransformerEncoderBlock": _block, "TransformerEncoderBlock.backward": _block}
CALLS |= {"learned_positional_encoding": _learned, "ScaledDotProductAttention": _dropout}
