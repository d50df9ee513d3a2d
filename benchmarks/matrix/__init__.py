"""The matrix: the kit's findings in every library that is installed.

``python -m benchmarks matrix`` runs it, and ``models`` the table of models and layers.
"""

from . import models as models
from .installed import all_installed as all_installed
from .of_models import all_models as all_models
