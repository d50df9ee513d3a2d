"""Diagnoses: the reasons for what was found, each tried by computing what it would give."""

from .explaining import Reason as Reason
from .grouping import diagnosed as diagnosed
from .grouping import first_look as first_look
