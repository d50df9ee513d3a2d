"""The base of the layer classes: weights as attributes, read and set by name, and their initial values."""

import math
from typing import Any

import numpy as np

from attendax.checks import FLOATING, fail

from .weighted_sum import Array


def generator(function: str, rng: Any) -> np.random.Generator:
    """A ``numpy.random.Generator``: the one given, or one made from a seed (None: a fresh one)."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        fail(type(error), function, f"rng must be a numpy.random.Generator or a seed, got {rng!r}.")


def glorot(rng: Any, rows: int, columns: int) -> Array:
    """Uniform in ±√(6 / (rows + columns)), so that variance neither grows nor fades (Glorot and Bengio 2010)."""
    limit = math.sqrt(6 / (rows + columns))
    return rng.uniform(-limit, limit, (rows, columns))


class Layer:
    """A layer whose weights are attributes with the names of the fields of ``Params``.

    ``forward`` keeps the arrays that ``backward`` needs, not copies: change inputs and weights in place only after it.
    """

    Params: Any = tuple

    @property
    def params(self) -> Any:
        """The weights as the NamedTuple ``Params``; the arrays themselves, not copies."""
        return self.Params(*(getattr(self, name) for name in self.Params._fields))

    def get_params(self) -> dict[str, Any]:
        """The weights that there are, name -> array: the arrays themselves, not copies."""
        return {name: value for name, value in self.params._asdict().items() if value is not None}

    def set_params(self, params: Any) -> None:
        """Set weights by name; what is not named stays.

        Args:
            params: dict, or the NamedTuple ``Params``.

        Raises:
            TypeError: not such a mapping, or a weight that is not a floating array.
            ValueError: an unknown name, or a weight of another shape.
        """
        for name, value in self._checked(params).items():  # all are checked before the first is set
            self._set_param(name, value)

    def _checked(self, params: Any) -> Any:
        """The dict of ``params``; every name, kind and shape in it fits."""
        function = f"{type(self).__name__}.set_params"
        if isinstance(params, self.Params):
            params = {name: value for name, value in params._asdict().items() if value is not None}
        if not isinstance(params, dict):
            fail(TypeError, function, f"params must be a dict or {self.Params.__name__}, got {type(params).__name__}.")
        current = self.get_params()
        for name, value in params.items():
            if name not in current:
                fail(ValueError, function, f"there is no weight {name!r}; there are {', '.join(current)}.")
            self._check_param(function, name, value, current[name])
        return params

    def _check_param(self, function: str, name: str, value: Any, current: Any) -> None:
        if str(getattr(value, "dtype", None)) not in FLOATING:
            kind = getattr(value, "dtype", type(value).__name__)
            fail(TypeError, function, f"{name} must be a floating array, got {kind}.")
        if value.shape != current.shape:
            fail(ValueError, function, f"{name} has shape {value.shape} but must have {current.shape}.")

    def _set_param(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def _after_forward(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            fail(RuntimeError, type(self).__name__, "no forward has run yet; call forward first.")
        return value
