"""Named shapes of attention, each with the model that it comes from: batch, heads, queries, keys, width."""

from typing import NamedTuple


class Shape(NamedTuple):
    """B, N, G, T, S, D as everywhere in the library, whether it is causal, where it is from, and what else it asks for.

    ``variant`` is one of "", "padding", "window", "softcap", "bias", "alibi", "segments", "dropout"; see ``workload``.
    """

    B: int
    N: int
    G: int
    T: int
    S: int
    D: int
    causal: bool
    source: str
    variant: str = ""


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
    "cross": Shape(1, 8, 8, 64, 4096, 64, False, "Jaegle et al. 2021, Perceiver: few latents over many inputs"),
    "decode": Shape(1, 32, 8, 1, 8192, 128, False, "one new token of Llama 3 8B over a cache of 8,192"),
    "ragged": Shape(2, 5, 5, 97, 257, 48, False, "no model: no size is a multiple of another"),
    "padding": Shape(8, 12, 12, 512, 512, 64, False, f"{BERT}; texts of 128 to 512 tokens", "padding"),
    "window-256": Shape(
        1, 12, 12, 4096, 4096, 64, False, "Beltagy et al. 2020, Longformer base: 256 keys to either side", "window"
    ),
    "softcap": Shape(1, 8, 4, 1024, 1024, 256, True, "Gemma Team 2024, Gemma 2 2B: scores capped at 50", "softcap"),
    "bias": Shape(
        1, 12, 12, 512, 512, 64, False, "Raffel et al. 2020, T5 base: a learned bias, which gets its gradient", "bias"
    ),
    "alibi": Shape(1, 16, 16, 1024, 1024, 64, True, "Press et al. 2022; BLOOM 560M: 16 heads of 64", "alibi"),
    "segments": Shape(
        8, 12, 12, 512, 512, 64, False, "Krell et al. 2021: four texts packed into each row of BERT base", "segments"
    ),
    "dropout": Shape(8, 12, 12, 128, 128, 64, False, f"{BERT}; weights dropped at a rate of 0.1", "dropout"),
    "long-4096": Shape(1, 8, 8, 4096, 4096, 64, False, LONG),
    "long-4096-causal": Shape(1, 8, 8, 4096, 4096, 64, True, LONG),
    "long-8192": Shape(1, 8, 8, 8192, 8192, 64, False, LONG),
    "long-16384": Shape(1, 8, 8, 16384, 16384, 64, False, LONG),
}

LENGTHS = {
    f"length-{T}": Shape(1, 2, 2, T, T, 64, False, "no model: 2 heads of 64, the cost against the length")
    for T in (256, 512, 1024, 2048, 4096, 8192, 16384)
}

SHORT = ("minilm-128", "bert-base-128", "vit-b-16", "ragged", "cross", "decode", "gpt2-1024")
EVERY_DIRECTION = ("minilm-128", "bert-base-512", "gpt2-1024", "ragged", "bias")  # where jvp and HVP are measured
