"""One call of the function that is judged: arrays in, arrays or an error in words out; here, or in its own process."""

import contextlib
from typing import Any

import numpy as np

from ..adapters.implementation import Implementation
from ..cases.case import Inputs, Leaves
from ..frameworks import framework, needs
from ..protocol import Request
from .errors import Failed as Failed
from .errors import NoNumbers as NoNumbers
from .errors import first_line, text_of
from .subject import Subject

WROTE = "wrote "  # the beginning of a leaf that names an array which the call wrote to


def call(implementation: Implementation, inputs: Inputs, direction: str, wrote: list[str] | None = None) -> Leaves:
    """Call the implementation in a direction: NumPy arrays by name. Nothing else runs it.

    The names of the caller's arrays that it wrote to are added to ``wrote``. Raises as ``Subject.ask``.
    """
    found = subject_of(implementation).ask(asked(inputs, direction))
    if wrote is not None:
        wrote += [leaf.removeprefix(WROTE) for leaf in found if leaf.startswith(WROTE)]
    return {leaf.removeprefix("after "): x for leaf, x in found.items() if not leaf.startswith(WROTE)}


def subject_of(implementation: Implementation) -> Subject:
    """The process that has the function; in this one, the function itself."""
    return implementation.attend if isinstance(implementation.attend, Subject) else Called(implementation)


class Called(Subject):
    """A function in this process, called by the driver of its framework."""

    def __init__(self, implementation: Implementation) -> None:
        self.implementation, self.driver = implementation, framework(implementation.arrays)

    def answer(self, request: Request) -> Leaves:
        """One call, and the marks of the arrays that it wrote to."""
        made, driver, of_numpy = self.implementation, self.driver, self.implementation.arrays == "numpy"
        name, _, how = request.direction.partition(", ")
        function = getattr(driver, name.replace(" ", "_"), None)
        if function is None or (of_numpy and "gradient" in name and not made.backward):
            raise NotImplementedError(f"no {name} of functions of {made.arrays} arrays")
        if name == "forward" and made.eager:
            function = driver.eager
        given, attend = request.given | ({"how": how} if how else {}), made.attend
        if request.constants:
            attend = driver.closing_over(attend, request.constants, request.known)
        own = name in ("forward", "eager", *["gradient"] * of_numpy)  # in others the kit itself writes
        mutable = request.arrays | request.options | request.known if own else {}
        context = driver.wide() if request.dtype == "float64" else contextlib.nullcontext()
        try:
            with context, driver.placed(made.device), driver.watched(mutable) as written:
                found = function(attend, request.arrays, request.options, **given)
                marks = {f"{WROTE}{leaf}": np.array(True) for leaf in written()}
        except NotImplementedError as error:
            if not text_of(error).strip():
                raise Failed.by(error) from error
            raise
        except Exception as error:
            if driver.is_lack(error):
                raise NotImplementedError(first_line(error)) from error
            raise
        return {leaf: _numbers(leaf, x) for leaf, x in found.items()} | marks


def asked(inputs: Inputs, direction: str) -> Request:
    """A call as the candidate sees it: the inputs, and what the direction needs beyond them."""
    kinds = inputs.extra.get("constants", {})
    known = {k: x for k, x in (inputs.extra | inputs.options | inputs.arrays).items() if k in kinds}
    arrays, options = ({k: x for k, x in some.items() if k not in kinds} for some in (inputs.arrays, inputs.options))
    extra = dict(inputs.extra)
    if "cotangent" in extra:
        lse = {"lse": extra["lse_cotangent"]} if "lse_cotangent" in extra else {}
        extra["cotangents"] = {"out": extra["cotangent"]} | lse
    given = {name: extra[name] for name in needs(direction)}
    return Request(direction, arrays, options, given, kinds, known, str(inputs.arrays["query"].dtype))


def _numbers(leaf: str, x: Any) -> np.ndarray:
    """A copy: the function may write its next result to the same memory."""
    kind = getattr(getattr(x, "dtype", None), "kind", None)
    if kind is None:
        raise NoNumbers(leaf, f"{leaf} is of type {type(x).__name__}, expected an array")
    if kind not in "fViub":
        raise NoNumbers(leaf, f"{leaf} is {x.dtype}, expected real numbers")
    return np.array(x)
