"""Drivers run models, one for each library; imported when a model of it is judged.

A script prints the source of these functions, so each one uses nothing of this package but its neighbours in the file.
"""
