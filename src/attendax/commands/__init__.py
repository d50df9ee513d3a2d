"""The commands ``attendax embed`` and ``attendax search``, and what they draw."""
