"""The options ``--attention`` of pytest, which imports this always: nothing else is imported before they are used.

It lies beside the package, not in it: importing the package would import JAX.
"""


def pytest_addoption(parser):
    """Add the options; the defaults change nothing."""
    group = parser.getgroup("attention", "attention, judged by attendax")
    path = "attention function, module:function: a test for each case (repeatable)"
    group.addoption("--attention", action="append", default=[], metavar="module:function", help=path)
    group.addoption("--attention-level", metavar="LEVEL", help="forward, gradient, backward or everything")
    profile = "numbers, robust or law [numbers]"
    group.addoption("--attention-profile", metavar="PROFILE", help=profile)
    group.addoption("--attention-seed", type=int, metavar="N", help="random seed [a new one, printed]")
    budget = "seconds for realistic sizes, 0 for none [12, for JAX 24]"
    group.addoption("--attention-budget", type=float, metavar="SECONDS", help=budget)
    only = "a law such as L6, or a part of the names of cases (repeatable)"
    group.addoption("--attention-only", action="append", default=[], metavar="L6", help=only)
    options = "other options of attendax check, in one text: what is asked, what functions mean, and how long"
    group.addoption("--attention-options", default="", metavar="'--claims row-invariance'", help=options)


def pytest_configure(config):
    """Load the collector if it is asked for."""
    if config.getoption("attention"):
        from attendax.conformance.command import pytest_plugin

        config.pluginmanager.register(pytest_plugin, "attendax-conformance")
