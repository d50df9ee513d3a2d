"""Attention tile by tile, in pure JAX: memory O(T + S), on any device.

Read ``algorithm`` first: it is the whole method on one page. ``tile_scores`` and ``tile_work`` are what happens in one
tile; ``partition``, ``tiles`` and ``schedule`` say how the scores are cut, and which tiles are visited. ``whole_heads``
is for heads so small that they need no tiles.
"""
