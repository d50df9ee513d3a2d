"""Attention tile by tile, in pure JAX: memory O(T + S), on any device.

Read ``algorithm`` first, which has the whole method on one page. The module ``tile`` computes one tile. The module
``partition`` cuts the scores and chooses the tiles to visit; ``tiles`` knows where a tile lies.
"""
