"""One call of the function that is judged: arrays in, arrays or an error in words out."""

import contextlib
import warnings
from typing import Any

import numpy as np

from ..adapters.implementation import Implementation
from ..cases.case import Inputs, Leaves
from ..frameworks import framework, needs
from ..protocol import Request
from .errors import Failed as Failed
from .errors import NoNumbers as NoNumbers
from .errors import first_line, text_of
from .process import Worker

WROTE = "wrote "  # the beginning of a leaf that names an array which the call wrote to


def call(implementation: Implementation, inputs: Inputs, direction: str, wrote: list[str] | None = None) -> Leaves:
    """Call the implementation in a direction: NumPy arrays by name. Nothing else runs it.

    The names of the caller's arrays that it wrote to are added to ``wrote``. Raises NotImplementedError where it has
    nothing of the kind, Failed where it raised, died, or took too long, and NoNumbers where it gives something else.
    """
    request, attend = asked(inputs, direction), implementation.attend
    found = attend.ask(request) if isinstance(attend, Worker) else answer(implementation, request)
    if wrote is not None:
        wrote += [leaf.removeprefix(WROTE) for leaf in found if leaf.startswith(WROTE)]
    return {leaf.removeprefix("after "): x for leaf, x in found.items() if not leaf.startswith(WROTE)}


def answer(implementation: Implementation, request: Request) -> Leaves:
    """Answer in this process, through the driver of its framework."""
    module = framework(implementation.arrays)
    name, _, how = request.direction.partition(", ")
    function = getattr(module, name.replace(" ", "_"), None)
    if function is None or ("gradient" in name and implementation.arrays == "numpy" and not implementation.backward):
        raise NotImplementedError(f"no {name} of functions of {implementation.arrays} arrays")
    if name == "forward" and implementation.eager:
        function = module.eager
    given = request.given | ({"how": how} if how else {})
    attend = implementation.attend
    if request.constants:
        attend = module.closing_over(attend, request.constants, request.known)
    mutable = request.arrays | request.options | request.known
    if name not in ("forward", "eager", *["gradient"] * (implementation.arrays == "numpy")):  # the kit itself writes
        mutable = {}
    mutable = {leaf: x for leaf, x in mutable.items() if isinstance(x, np.ndarray)}
    context = module.wide() if request.dtype == "float64" else contextlib.nullcontext()
    with warnings.catch_warnings(), context, module.placed(implementation.device), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            with module.watched(mutable) as written:
                found = function(attend, request.arrays, request.options, **given)
                wrote = written()
        except NotImplementedError as error:
            if not text_of(error).strip():
                raise Failed.by(error) from error
            raise
        except (Failed, NoNumbers):  # of what is no function of Python
            raise
        except (Exception, SystemExit) as error:
            if module.is_lack(error):
                raise NotImplementedError(first_line(error)) from error
            raise Failed.by(error) from error
    marks = {f"{WROTE}{leaf}": np.array(True) for leaf in wrote}
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
