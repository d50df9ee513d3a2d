"""A function of the protocol, and what is declared of it."""
