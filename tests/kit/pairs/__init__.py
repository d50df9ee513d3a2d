"""Pairs of functions that should be equal and are not, each by a convention, each with where it was met.

``EXPECTED`` are the words that ``attendax diff`` has to say of it first.
"""
