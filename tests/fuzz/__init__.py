"""The random driver: attention as users call it, at random, against its definition in float64 NumPy.

A case is a small value (``case``), from which its arrays (``data``), the right answer (``reference``) and a JAX program
(``program``) follow; ``judge`` holds the program's results against the answer. hypothesis draws cases, makes a failing
one smaller and keeps it (``python -m tests.fuzz``).
"""
