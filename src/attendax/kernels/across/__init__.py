"""A sequence on several devices, inside ``shard_map``: backends of the same primitives, whose blocks they are again.

Every device holds some queries and some keys. ``ring``: keys travel from device to device, one hop at a time (Liu et
al. 2023). ``gathered``: all keys come to every device. ``heads``: heads are exchanged for tokens, and every device has
all tokens of a few heads (Jacobs et al. 2023); that is an ordinary call. ``blocks`` says what travels with the keys,
``strategy`` which of the three is best.
"""
