"""The commands that need none of the kit: ``demo``, ``embed``, ``learn``, ``grade``."""
