"""``attendax diff``: by which conventions do two functions differ, and what makes them equal?"""

from .report import Comparison as Comparison
from .report import diff as diff
