"""Test any attention function: cases that each cite a law, verdicts, and scripts that reproduce faults.

The function is ``fn(query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None, return_lse=False,
offset=0, sinks=None)``. It takes arrays (..., N, T, D), (..., G, S, D), (..., G, S, V) and returns (..., N, T, V), with
``return_lse`` also (..., N, T). Cases pass only the keywords that they need. A keyword that the signature lacks, or for
which the function raises ``NotImplementedError`` with a message, is not offered.

- ``mask`` is boolean, True = may look. ``is_causal`` begins at key 0.
- ``offset`` (B,) is the position of the first query among the keys, for ``is_causal`` with a cache.
- ``window`` is (left, right), None = no bound. Lengths are (B,), segment ids (B, T) and (B, S).
- ``sinks`` (N,) are the scores of one more key with value 0 for each query head. Mask, bias, scale and softcap do not
  change them.
- ``dropout_rng`` is a JAX key, or an integer if the arrays are not JAX arrays.

The specification, ``attendax.spec``, says what is right. Each name is imported when it is first used, because the
process that calls the function needs few of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters.implementation import Implementation as Implementation
    from .cases import CASES as CASES
    from .cases import CLAIMS as CLAIMS
    from .cases import Case as Case
    from .checking import assert_conforms as assert_conforms
    from .checking import assert_refuses as assert_refuses
    from .checking import check as check
    from .contract import Contract as Contract
    from .contract import describe as describe
    from .differences import directional_difference as directional_difference
    from .gradients import assert_gradients as assert_gradients
    from .judge.verdicts import Finding as Finding
    from .judge.verdicts import Verdict as Verdict
    from .models import assert_model as assert_model
    from .models import check_model as check_model
    from .report import Report as Report
    from .report.outcomes import Outcome as Outcome

_MODULES = {
    "CASES": "cases", "CLAIMS": "cases", "Case": "cases", "Contract": "contract", "describe": "contract",
    "Finding": "judge.verdicts", "Implementation": "adapters.implementation", "Outcome": "report.outcomes",
    "Report": "report", "Verdict": "judge.verdicts", "assert_conforms": "checking", "assert_gradients": "gradients",
    "assert_model": "models", "assert_refuses": "checking", "check": "checking", "check_model": "models",
    "directional_difference": "differences",
}  # fmt: skip
__all__ = list(_MODULES)


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for every name there could be

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value
