"""The matrix: what the kit finds in other libraries, and what is known of them.

``attendax check --all-installed`` runs it. Judging one of these libraries alone reads what is known, too.
"""

from . import findings, findings_elsewhere
from .contracts import DOCUMENTED as DOCUMENTED
from .installed import all_installed as all_installed

KNOWN = findings.KNOWN | findings_elsewhere.KNOWN
