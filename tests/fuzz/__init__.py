"""The random driver: attention as users call it, at random, against its definition in float64 NumPy.

A case is a small value (``case``), from which its arrays (``data``), a JAX program and its right results (``program``)
follow; ``judge`` compares the two. hypothesis draws cases, makes a failing one smaller and keeps it
(``python -m tests.fuzz``).
"""
