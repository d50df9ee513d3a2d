"""Conventions of attention: as a table, as the form of a function, and as the formula by which it computes."""
