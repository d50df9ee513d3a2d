"""The matrix: what the kit finds in other libraries, and what is known of them.

``attendax check --all-installed`` runs it, and ``--all-models`` the table of models and layers. Judging one of these
libraries alone reads what is known, too.
"""

from . import findings, findings_elsewhere
from . import models as models
from .contracts import DOCUMENTED as DOCUMENTED
from .installed import all_installed as all_installed
from .of_models import all_models as all_models

KNOWN = findings.KNOWN | findings_elsewhere.KNOWN
