"""Judge anyone's attention: cases that each cite a law, verdicts, and reproductions; right is what ``spec`` says.

Each name is imported when it is first asked for: the process that calls the function needs few of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters import ADAPTERS as ADAPTERS
    from .adapters.implementation import Adapter as Adapter
    from .adapters.implementation import Implementation as Implementation
    from .cases import CASES as CASES
    from .cases import CLAIMS as CLAIMS
    from .cases import Case as Case
    from .checking import assert_conforms as assert_conforms
    from .checking import assert_refuses as assert_refuses
    from .checking import check as check
    from .differences import directional_difference as directional_difference
    from .gradients import assert_gradients as assert_gradients
    from .judge.verdicts import Finding as Finding
    from .judge.verdicts import Verdict as Verdict
    from .models import assert_model as assert_model
    from .models import check_model as check_model
    from .report import Report as Report
    from .report.outcomes import Outcome as Outcome

_MODULES = {
    "ADAPTERS": "adapters", "Adapter": "adapters.implementation", "CASES": "cases", "CLAIMS": "cases", "Case": "cases",
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
