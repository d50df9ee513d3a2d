"""A report as JUnit has it, for the tables that continuous integration shows."""

import xml.etree.ElementTree as ElementTree

from ..judge.verdicts import Verdict
from .outcomes import Outcome, Outcomes
from .summary import clean


def junit(report: Outcomes) -> str:
    """One test suite, a test for each case: failures, and skips with their reason."""
    skipped, coverage = [o for o in report.cases if _skip(o)], report.coverage
    short = not report.judged or bool(coverage.gaps)
    counts = {"tests": len(report.cases) + short, "failures": len(report.failures) + short, "errors": 0}
    counts |= {"skipped": len(skipped)}
    suite = ElementTree.Element("testsuite", {"name": clean(report.name), **{k: str(n) for k, n in counts.items()}})
    properties = ElementTree.SubElement(suite, "properties")
    for kind, (judged, _) in coverage.judged.items():
        ElementTree.SubElement(properties, "property", {"name": f"judged {kind}", "value": str(judged)})
    ElementTree.SubElement(properties, "property", {"name": "coverage", "value": clean(str(coverage))})
    if short:
        test = ElementTree.SubElement(suite, "testcase", {"classname": clean(report.name), "name": "coverage"})
        ElementTree.SubElement(test, "failure", {"type": "coverage", "message": clean(str(coverage))})
    for outcome in report.cases:
        given = {"classname": f"{clean(report.name)}.{outcome.case.law}", "name": outcome.case.name}
        test = ElementTree.SubElement(suite, "testcase", given | {"time": f"{outcome.seconds:.3f}"})
        if reason := _skip(outcome):
            ElementTree.SubElement(test, "skipped", {"message": clean(reason)})
        elif outcome.verdict.fails:
            found = {"type": outcome.verdict.value, "message": clean(outcome.told())}
            ElementTree.SubElement(test, "failure", found).text = clean(outcome.reproduction)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _skip(outcome: Outcome) -> str:
    if outcome.known and outcome.verdict.fails:
        return f"known failure: {outcome.known}"
    apart = outcome.verdict in (Verdict.NOT_OFFERED, Verdict.BY_DESIGN, Verdict.NOT_JUDGED)
    return outcome.finding.message if apart else ""
