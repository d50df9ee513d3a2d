"""How `attendax.attention` is made fast: one contract, several backends, every direction of differentiation once."""
