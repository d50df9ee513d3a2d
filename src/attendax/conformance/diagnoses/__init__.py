"""Diagnoses: the reasons for what was found, each tried by computing what it would give."""

from .grouping import diagnosed as diagnosed
