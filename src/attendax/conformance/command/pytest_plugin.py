"""``pytest --attention=module:function``: a test for each case. ``attendax_pytest`` has the options and loads this."""

import argparse
import functools
import math
import pickle
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from ..cases import Case
from ..cases.how import How, drawn
from ..checking import by_description, judge
from ..judge.asking import asked, chosen
from ..judge.judging import rule_of
from ..judge.verdicts import Verdict
from ..report.known_failures import KnownFailures
from ..report.outcomes import Outcome, Outcomes
from ..run.run import repeated
from ..worker.calling import subject_of
from ..worker.place import implement
from .arguments import how_of, settled
from .options import GROUPS, add

OWN_OPTIONS = ("level", "profile", "seed", "budget", "only")  # which pytest has by a name of their own, too
OPTION_GROUPS = ("conventions", "cases", "more cases", "time and process")
ARGUMENTS = pytest.StashKey[argparse.Namespace]()
COLLECTED = pytest.StashKey[list["AttentionCollector"]]()
FOUND = pytest.StashKey[list[Outcomes]]()  # of each function, and with pytest-xdist in each process


class Words(argparse.ArgumentParser):
    """A parser of ``--attention-options``."""

    def error(self, message: str) -> NoReturn:
        """Refuse them."""
        raise pytest.UsageError(f"--attention-options: {message}; expected options of attendax check, as its help says")


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, as ``attendax check`` does; the seed is drawn here, the same for all processes of a run."""
    words = Words(add_help=False, allow_abbrev=False)
    for title in OPTION_GROUPS:
        add(words, title, GROUPS[title])
    args = words.parse_args(shlex.split(config.option.attention_options))
    own = {name: getattr(config.option, f"attention_{name}") for name in OWN_OPTIONS}
    vars(args).update({name: x for name, x in own.items() if x not in (None, [])})
    config.option.attention_seed = args.seed = drawn(args.seed)
    config.stash[ARGUMENTS], config.stash[COLLECTED], config.stash[FOUND] = args, [], []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the cases to what was collected, before ``-k`` chooses."""
    here = str(config.invocation_params.dir)
    if here not in sys.path:
        sys.path.insert(0, here)
    for path in config.getoption("attention"):
        items.extend(session.genitems(AttentionCollector.from_parent(session, name=path, nodeid=path)))


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, with which all comes again."""
    return f"attention: seed {config.getoption('attention_seed')}"


class AttentionCollector(pytest.Collector):
    """A function under test, whose cases are its tests: how it is judged, until when, and what was found so far."""

    def collect(self) -> Iterator[pytest.Item]:
        """The cases."""
        args, self.outcomes = self.config.stash[ARGUMENTS], list[Outcome]()
        try:
            how, only = how_of(args), args.only or ()
            unlimited = how.thorough or how.budget is not None  # pytest has the time
            self.how = how._replace(thorough=unlimited)
            chosen(only, args.level, self.how)
            self.known = KnownFailures.read(args.known_failures)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.settled = settled(args)
                given = {"in_process": args.in_process, "device": args.device, "how": self.how}
                make = functools.partial(implement, self.name, **given)
                made, self.understood = by_description(make, self.name, self.settled, in_process=args.in_process)
                self.made, cases, _ = asked(made, only, args.level, self.how)
        except Exception as error:
            words = str(error).removeprefix("check: ") or type(error).__name__
            raise self.CollectError(f"--attention={self.name}: {words}") from error
        end_of_time = time.monotonic() + (self.how.total_timeout or math.inf)
        self.left = lambda: end_of_time - time.monotonic()
        self.config.add_cleanup(subject_of(self.made).close)
        self.config.stash[COLLECTED].append(self)
        for case in cases:
            yield CaseItem.from_parent(self, name=case.name, case=case)

    def judged(self, case: Case) -> Outcome:
        """Judge a case, again where that is cheap, or as often as it is asked."""

        def once(case: Case, how: How) -> Outcome:
            return self.known.skipped(case) or self.known.marked(judge(self.made, case, how._replace(left=self.left)))

        self.outcomes.extend(repeated([once(case, self.how)], self.how, once, self.left))
        return self.outcomes[-1]

    def found(self) -> Outcomes:
        """The outcomes of all cases, without what only the script of a fault needs."""
        made, how, level = self.made, self.how, self.config.stash[ARGUMENTS].level
        kept = tuple(outcome._replace(got={}) for outcome in self.outcomes)
        subject_of(made).allow(how.patience, self.left)
        return Outcomes(
            made.name, made.version, made.arrays, kept, how.dtype, how.seed, level, profile=how.profile,
            gradients=rule_of(made, how), require=(*how.require, *how.claims), process=made.process,
        )  # fmt: skip


class CaseItem(pytest.Item):
    """A case."""

    parent: AttentionCollector

    def __init__(self, *, case: Case, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.case = case
        self.extra_keyword_matches.add(case.law)  # of -k

    def runtest(self) -> None:
        """Judge it; a fault shows the law, the case, what was found, and the script that shows it."""
        outcome, case = self.parent.judged(self.case), self.case
        if outcome.verdict in (Verdict.NOT_OFFERED, Verdict.NOT_JUDGED):
            pytest.skip(outcome.finding.said)
        if outcome.verdict is Verdict.CONVENTION:
            self.user_properties.append(("convention", outcome.finding.message))
        if outcome.verdict.fails and outcome.known:
            pytest.xfail(outcome.known)
        if outcome.verdict.fails:
            head = f"{case.law}, {case.name}: {case.about} (--attention-seed {self.parent.how.seed})"
            said = f"{head}\n{outcome.told()}\n\nThis script shows it:\n\n{outcome.reproduction}"
            pytest.fail(said, pytrace=False)
        found = None if outcome.known else self.parent.understood
        if found and (unsettled := found.open_in(case, self.parent.settled)):
            pytest.fail(f"{case.law}, {case.name}: {unsettled}", pytrace=False)

    def reportinfo(self) -> tuple[object, int | None, str]:  # type: ignore[override]
        """The head of a failure."""
        return self.path, None, f"{self.parent.made.name}: {self.case.law}, {self.case.name}"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a process of pytest-xdist has found."""
    if told := getattr(node, "workeroutput", {}).get("attention"):  # one that died has none
        node.config.stash[FOUND] += pickle.loads(told)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Too little that was judged is a fault, as it is to ``attendax check``."""
    config = session.config
    config.stash[FOUND] += [each.found() for each in config.stash[COLLECTED] if each.outcomes]
    if hasattr(config, "workeroutput"):
        config.workeroutput["attention"] = pickle.dumps(config.stash[FOUND])
    elif session.exitstatus == pytest.ExitCode.OK and not all(each.ok for each in whole(config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the coverage of each function."""
    for found in whole(config):
        terminalreporter.section(f"attention: {found.name}")
        nothing = "" if found.judged else "Nothing was judged as right. "
        terminalreporter.write_line(nothing + str(found.coverage))


def whole(config: pytest.Config) -> list[Outcomes]:
    """Join the outcomes of each function, of all processes."""
    joined: dict[str, Outcomes] = {}
    for part in config.stash[FOUND]:
        before = joined.get(part.name)
        joined[part.name] = before._replace(cases=before.cases + part.cases) if before else part
    return list(joined.values())
