"""A run: which cases are asked, in which order, until when, how often, and who is told."""
