"""An adapter: how a library's function is called by the protocol, and what its documentation says of it."""

import functools
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attendax.conformance import Implementation
from attendax.conformance.adapters.implementation import RANK_4 as RANK_4
from attendax.conformance.adapters.implementation import signature
from attendax.conformance.frameworks.text import defined, import_line, resolve

GROUPED = {"grouped heads": "as many heads in all arrays"}  # what several libraries lack, and why
HEADS = {"rank 2": "arrays have an axis of heads"}
LAYER = GROUPED | {"rank 2": "the layer splits the heads", "heads apart": "its output projection adds the heads"}


class Adapter(NamedTuple):
    """A library's function, called by the protocol.

    Attributes:
        call: ``call(fn, query, key, value, *, mask=None, ...)`` with the keywords that ``fn`` offers. A reproduction
            prints its source, so it imports what it needs itself.
        function: what it is for, "module:name".
        package: whose version is told.
        setup: Python to be run before ``function`` is imported.
        options: keywords that ``call`` is always given.
        offers: the keywords that ``fn`` offers, where the signature of ``call`` does not name them.
        arrays, means, lacks, backward: as of ``Implementation``; ``backward`` is given
            ``fn`` first, as ``call``.
    """

    call: Callable[..., Any]
    function: str
    arrays: str = "jax"
    package: str = ""
    means: Mapping[str, str] = {}
    lacks: Mapping[str, str] = {}
    backward: Callable[..., Any] | None = None
    setup: str = ""
    options: Mapping[str, Any] = {}
    offers: str = ""

    def implementation(self, name: str, fn: Any = None, path: str | None = None) -> Implementation:
        """The library's function, or ``fn`` in its place, by the protocol; the library has to be installed."""
        exec(self.setup)
        path = path or (self.function if fn is None else None)
        fn = resolve(self.function) if fn is None else fn
        words = "".join(f", {name}={x!r}" for name, x in self.options.items())
        lines = [self.setup, f"import functools\n{import_line(fn, path)}\n\n", defined(self.call) + "\n\n"]
        lines.append(f"attend = functools.partial({self.call.__name__}, fn{words})")
        if self.backward:
            by = self.backward.__name__
            lines += [defined(self.backward, (self.call,)), f"attend.backward = functools.partial({by}, fn)"]
        attend: Any = functools.partial(self.call, fn, **self.options)
        if self.offers:
            attend.__signature__ = signature(self.offers.split())
        return Implementation(
            attend, name, self.arrays,
            self.backward and functools.partial(self.backward, fn), self.means, self.lacks,
            "\n".join(filter(None, lines)), version=version_of(self.package),
        )  # fmt: skip


def version_of(package: str) -> str:
    """The installed version of a distribution, or nothing."""
    try:
        return importlib.metadata.version(package) if package else ""
    except importlib.metadata.PackageNotFoundError:
        return ""
