"""``pytest --attention=module:function``: a test for each case. ``attendax_pytest`` has the options and loads this."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from ..adapters.implementation import Implementation
from ..cases import Case
from ..cases.how import How
from ..checking import judge
from ..judge.asking import asked, chosen
from ..judge.verdicts import Verdict
from ..report.outcomes import Outcome
from ..worker.place import implement


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the cases to what was collected, before ``-k`` chooses."""
    here = str(config.invocation_params.dir)
    if here not in sys.path:
        sys.path.insert(0, here)
    for path in config.getoption("attention"):
        items.extend(session.genitems(Attention.from_parent(session, name=path, nodeid=path)))


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, with which all comes again."""
    return f"attention: seed {config.getoption('attention_seed')}"


class Attention(pytest.Collector):
    """A function, whose cases are its tests."""

    def collect(self) -> Iterator[pytest.Item]:
        """The cases.

        Raises:
            pytest.Collector.CollectError: there is no such function, or no such case.
        """
        option = self.config.getoption
        try:
            given = {"profile": option("attention_profile"), "budget": option("attention_budget")}
            how = How(option("attention_seed"), **given).checked()
            only, level = option("attention_only"), option("attention_level")
            chosen(only, level, how)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made, cases, _ = asked(implement(self.name, adapter=option("attention_adapter")), only, level, how)
        except Exception as error:
            words = str(error).removeprefix("check: ") or type(error).__name__
            raise self.CollectError(f"--attention={self.name}: {words}") from error
        for case in cases:
            yield Question.from_parent(self, name=case.name, made=made, case=case, how=how)


class Question(pytest.Item):
    """A case."""

    def __init__(self, *, made: Implementation, case: Case, how: How, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.made, self.case, self.how = made, case, how
        self.extra_keyword_matches.add(case.law)  # of -k

    def runtest(self) -> None:
        """Judge it.

        Raises:
            Fault: something is wrong.
        """
        outcome = judge(self.made, self.case, self.how)
        if outcome.verdict is Verdict.NOT_OFFERED:
            pytest.skip(f"not offered: {outcome.finding.message}")
        if outcome.verdict in (Verdict.CONVENTION, Verdict.BY_DESIGN):
            self.user_properties.append((outcome.verdict.name.lower(), outcome.finding.message))
        if outcome.verdict.fails:
            raise Fault(outcome)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> Any:
        """The law, the case, what was found, and the script that shows it."""
        if not isinstance(excinfo.value, Fault):
            return super().repr_failure(excinfo)
        outcome = excinfo.value.outcome
        head = f"{self.case.law}, {self.case.name}: {self.case.about} (--attention-seed {self.how.seed})"
        return f"{head}\n{outcome.told()}\n\nThis script shows it:\n\n{outcome.reproduction}"

    def reportinfo(self) -> tuple[object, int | None, str]:  # type: ignore[override]
        """The head of a failure."""
        return self.path, None, f"{self.made.name}: {self.case.law}, {self.case.name}"


class Fault(Exception):
    """A case with a fault."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.told())
        self.outcome = outcome
