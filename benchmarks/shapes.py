"""Named shapes of attention, each with the model that it comes from: batch, heads, queries, keys, width."""

from typing import NamedTuple


class Shape(NamedTuple):
    """B, N, G, T, S, D as everywhere in the library, whether it is causal, and where the numbers come from."""

    B: int
    N: int
    G: int
    T: int
    S: int
    D: int
    causal: bool
    source: str


BERT = "Devlin et al. 2019, BERT base: 12 heads of 64"
LONG = "no model: 8 heads of 64 over a long text"

SHAPES = {
    "minilm-128": Shape(8, 12, 12, 128, 128, 32, False, "all-MiniLM-L6-v2: 12 heads of 32"),
    "bert-base-128": Shape(8, 12, 12, 128, 128, 64, False, BERT),
    "bert-base-512": Shape(8, 12, 12, 512, 512, 64, False, f"{BERT}, at its full length"),
    "vit-b-16": Shape(
        4, 12, 12, 197, 197, 64, False, "Dosovitskiy et al. 2021, ViT-B/16: 196 patches and a class token"
    ),
    "gpt2-1024": Shape(1, 12, 12, 1024, 1024, 64, True, "Radford et al. 2019, GPT-2 small at its full length"),
    "llama-2048": Shape(1, 32, 8, 2048, 2048, 128, True, "Dubey et al. 2024, Llama 3 8B: 32 heads of 128 over 8"),
    "long-4096": Shape(1, 8, 8, 4096, 4096, 64, False, LONG),
    "long-8192": Shape(1, 8, 8, 8192, 8192, 64, False, LONG),
    "long-16384": Shape(1, 8, 8, 16384, 16384, 64, False, LONG),
    "long-4096-causal": Shape(1, 8, 8, 4096, 4096, 64, True, LONG),
    "cross": Shape(1, 8, 8, 64, 4096, 64, False, "Jaegle et al. 2021, Perceiver: few latents over many inputs"),
    "decode": Shape(1, 32, 8, 1, 8192, 128, False, "one new token of Llama 3 8B over a cache of 8,192"),
    "ragged": Shape(2, 5, 5, 97, 257, 48, False, "no model: no size is a multiple of another"),
}
