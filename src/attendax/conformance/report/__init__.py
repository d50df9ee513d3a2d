"""A report: the outcomes of an implementation, written as JSON, as Markdown and as a page."""

from .junit import junit
from .markdown import markdown
from .outcomes import Outcomes, to_json
from .page import page


class Report(Outcomes):
    """All cases of one implementation: the ``Outcomes``, with their attributes, and how they are written."""

    __slots__ = ()

    def to_json(self) -> str:
        """The report as JSON; a number that is not finite is a string."""
        return to_json(self.to_dict())

    def to_markdown(self) -> str:
        """Counts, a table of laws, and each failure with its reproduction."""
        return markdown(self)

    def to_junit(self) -> str:
        """The report as JUnit's XML."""
        return junit(self)

    def to_html(self) -> str:
        """A page of its own, without anything from elsewhere."""
        return page([self])
