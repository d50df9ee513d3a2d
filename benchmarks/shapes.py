"""Named shapes of attention, each with the model that it comes from: batch, heads, queries, keys, width."""

from typing import NamedTuple


class Shape(NamedTuple):
    """B, N, T, S, D as everywhere in the library, whether the model is causal, and where the numbers come from."""

    B: int
    N: int
    T: int
    S: int
    D: int
    causal: bool
    source: str


SHAPES = {
    "minilm-128": Shape(8, 12, 128, 128, 32, False, "all-MiniLM-L6-v2: 12 heads of 32"),
    "bert-base-128": Shape(8, 12, 128, 128, 64, False, "Devlin et al. 2019, BERT base: 12 heads of 64"),
    "bert-base-512": Shape(8, 12, 512, 512, 64, False, "Devlin et al. 2019, BERT base at its full length"),
    "vit-b-16": Shape(4, 12, 197, 197, 64, False, "Dosovitskiy et al. 2021, ViT-B/16: 196 patches and a class token"),
    "gpt2-1024": Shape(1, 12, 1024, 1024, 64, True, "Radford et al. 2019, GPT-2 small at its full length"),
    "ragged": Shape(2, 5, 97, 257, 48, False, "no model: no size is a multiple of another"),
}
