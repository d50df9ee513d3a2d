"""The random driver: attention as users call it, at random, against its definition in float64 NumPy.

``python -m tests.fuzz --minutes M --seed S`` runs in the root of the repository. A case is a small value (``case``),
from which its arrays (``data``), the right answer (``reference``) and a JAX program (``program``) follow; ``judge``
holds the program's results against the answer, ``shrink`` makes a failing case smaller.
"""
