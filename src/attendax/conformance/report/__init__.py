"""A report: the outcomes of an implementation, written as JSON and as Markdown."""

from attendax.legible import one_line

from .markdown import markdown
from .outcomes import Outcomes, to_json
from .summary import summary


class Report(Outcomes):
    """A report of all cases of one implementation: the ``Outcomes``, with their attributes, and ways to write them."""

    __slots__ = ()

    def __str__(self) -> str:
        """The summary on one line."""
        return one_line(f"{f'{self.name} {self.version}'.strip()}: {summary(self)} {self.coverage}")

    def __repr__(self) -> str:
        """The summary in brackets; all of the report is in ``to_dict``."""
        return f"<Report {self}>"

    def __format__(self, spec: str) -> str:
        """Format it as a string."""
        return format(str(self), spec)

    def to_json(self) -> str:
        """The report as JSON; a number that is not finite is a string."""
        return to_json(self.to_dict())

    def to_markdown(self) -> str:
        """Counts, a table of laws, and each failure with its reproduction."""
        return markdown(self)
