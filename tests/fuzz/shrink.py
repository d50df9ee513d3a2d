"""Make a failing case smaller: give up one feature at a time, as long as the same law breaks."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from .case import Case

PLAIN: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Case)}
FEATURES = (
    "direction", "layers", "remat", "modifier", "bias", "dropout", "values", "size", "common", "scale",
    "lse", "wide", "implementation",
    "mask", "inside", "known", "one_head", "x64", "dtype", "bias_values", "loss", "wanted", "jit", "seed",
)  # fmt: skip


def smaller(case: Case) -> list[Case]:
    """The cases with one feature less, or with one size halved."""
    found = [
        dataclasses.replace(case, **{name: PLAIN[name]}) for name in FEATURES if getattr(case, name) != PLAIN[name]
    ]
    if case.maps:
        found.append(dataclasses.replace(case, maps=(), shared=(), inside=False))
        found.append(dataclasses.replace(case, shared=((),) * len(case.maps)))
    if case.mask is not None and case.mask[0] in ("and", "or", "not"):
        found += [dataclasses.replace(case, mask=part) for part in case.mask[1:]]
    if len(case.lead) > len(case.maps):
        found.append(dataclasses.replace(case, lead=case.lead[:-1]))
    found += [dataclasses.replace(case, known=tuple(x for x in case.known if x != name)) for name in case.known]
    found.append(dataclasses.replace(case, N=1, G=1))
    for name in ("T", "S", "D", "V"):
        size = getattr(case, name)
        found += [dataclasses.replace(case, **{name: n}) for n in (1, size // 2, size - 1) if 0 < n < size]
    found = [each.without() for each in found]
    return [each for each in dict.fromkeys(found) if each.is_valid() and each != case]


def shrunk(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """A case that fails, none of whose smaller ones does; or the smallest that is found in time."""
    end = time.monotonic() + seconds
    candidates = smaller(case)
    while candidates and time.monotonic() < end:
        candidate = candidates.pop(0)
        if fails(candidate):
            case, candidates = candidate, smaller(candidate)
    return case
