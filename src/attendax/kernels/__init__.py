"""The engine of ``attendax.attention``: a call on one device, several backends, and their derivatives."""
