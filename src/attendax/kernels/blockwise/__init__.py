"""Attention tile by tile, in pure JAX: memory O(T + S), on any device.

Read ``algorithm`` first: it is the whole method on one page. ``tile`` is what happens in one tile. ``partition`` says
how the scores are cut and which tiles are visited, ``tiles`` where a tile lies.
"""
