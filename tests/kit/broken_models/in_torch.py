"""Models of torch: a small decoder or encoder, and the same with one piece that is wrong."""

import torch
from torch import nn
from torch.nn import functional as F

from . import Entry

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 40, 16, 2, 2, 160
torch.set_num_threads(1)  # models so small run slower on several


def rotated(x, positions):
    """Rotary encoding of (B, N, T, D) at positions (B, T)."""
    half = x.shape[-1] // 2
    angles = positions[:, None, :, None] * 100.0 ** (-torch.arange(half) / half)
    cos, sin, (a, b) = angles.cos(), angles.sin(), x.split(half, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    """Self-attention; ``visible`` is (B, T, S), True = may look."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def heads(self, x):
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def merged(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], WIDTH)

    def weigh(self, query, key, value, visible):
        return F.scaled_dot_product_attention(query, key, value, visible[:, None])

    def forward(self, x, positions, visible, cache, rotary):
        query, key, value = (self.heads(part) for part in self.qkv(x).chunk(3, -1))
        if rotary:
            query, key = rotated(query, positions), rotated(key, positions)
        if cache is not None:
            key, value = cache.update(key, value, positions)
        return self.out(self.merged(self.weigh(query, key, value, visible)))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x, *given):
        x = x + self.attention(self.first(x), *given)
        return x + self.mlp(self.second(x))


class Slots:
    """The keys and values of a layer, each row at its own places."""

    def __init__(self, batch, room):
        self.key, self.value = (torch.zeros(batch, HEADS, room, WIDTH // HEADS) for _ in range(2))

    def update(self, key, value, positions):
        rows = torch.arange(len(key))[:, None]
        self.key[rows, :, positions] = key.transpose(1, 2)
        self.value[rows, :, positions] = value.transpose(1, 2)
        return self.key, self.value


class Decoder(nn.Module):
    """A causal model; with ``causal = False`` an encoder."""

    causal, rotary, window, attention, slots = True, True, None, Attention, Slots

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block(self.attention) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        for block in self.blocks:
            nn.init.normal_(block.attention.qkv.weight, std=0.6)

    def order(self, positions, keys):
        """Which keys each query may look at by its place, (B, T, S)."""
        ahead = keys[:, None, :] - positions[:, :, None]
        visible = ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool)
        return visible if self.window is None else visible & (ahead.abs() < self.window)

    def visible(self, positions, mask, segment_ids):
        places = torch.arange(positions.shape[1]).expand_as(positions)
        visible = self.order(places, places)
        if mask is not None:
            visible = visible & mask[:, None, :]
            visible = visible | torch.eye(visible.shape[1], dtype=torch.bool)  # no row without keys
        if segment_ids is not None:
            visible = visible & (segment_ids[:, None, :] == segment_ids[:, :, None])
        return visible

    def positions(self, tokens, mask, given):
        return torch.arange(tokens.shape[1]).expand(tokens.shape) if given is None else given

    def run(self, tokens, positions, visible, caches=None):
        x = self.embed(tokens)
        if not self.rotary:
            x = x + self.place(positions)
        for k, block in enumerate(self.blocks):
            x = block(x, positions, visible, None if caches is None else caches[k], self.rotary)
        return self.head(self.norm(x))

    def forward(self, tokens, mask=None, segment_ids=None, positions=None):
        positions = self.positions(tokens, mask, positions)
        return self.run(tokens, positions, self.visible(positions, mask, segment_ids))

    def cache(self):
        """Functions ``init``, ``step`` and ``reorder``."""

        def init(batch, room):
            return {"layers": [self.slots(batch, room) for _ in self.blocks], "at": 0, "room": room}

        def step(tokens, cache, positions=None):
            if positions is None:
                positions = (cache["at"] + torch.arange(tokens.shape[1])).expand(tokens.shape)
            visible = self.order(positions, torch.arange(cache["room"]).expand(len(tokens), -1))
            found = self.run(tokens, positions, visible, cache["layers"])
            return found, cache | {"at": cache["at"] + tokens.shape[1]}

        def reorder(cache, rows):
            for slots in cache["layers"]:
                slots.key, slots.value = slots.key[rows], slots.value[rows]
            return cache

        return init, step, reorder


class Encoder(Decoder):
    causal, rotary = False, False


def of_tokens(**said):
    return {"vocabulary": VOCABULARY, "longest": LONGEST, **said}


DECODER = of_tokens(causal=True, positions="rotary", layers=LAYERS)
ENCODER = of_tokens(causal=False, positions="absolute", layers=LAYERS)
LAYER = {
    "inputs": "vectors", "width": WIDTH, "causal": False, "positions": "none", "longest": LONGEST,
    "heads": "broken_models.in_torch:read", "claims": ["mean of dropout"],
}  # fmt: skip


def with_cache(kind):
    """A function of tokens with the cache of the same model, and what is said of it."""
    model = kind()
    return model, DECODER | {"cache": model.cache()}


# what is wrong


class CausalOnlyBesideAMask(Decoder):
    """The triangle is part of the mask, and without a mask there is none."""

    def visible(self, positions, mask, segment_ids):
        if mask is None and segment_ids is None:
            return torch.ones(*positions.shape, positions.shape[1], dtype=torch.bool)
        return super().visible(positions, mask, segment_ids)


class CausalUnlessMasked(Decoder):
    """Any mask switches ``is_causal`` off."""

    def visible(self, positions, mask, segment_ids):
        if mask is not None:
            return mask[:, None, :].expand(-1, mask.shape[1], -1)
        return super().visible(positions, mask, segment_ids)


class BiasInPlaceOfMask(Decoder):
    """One of two kernels is given a learned bias where it should be given the bias and the mask."""

    class attention(Attention):
        def weigh(self, query, key, value, visible):
            bias = value.mean(-1)[:, :, None, :]
            if torch.is_grad_enabled():
                bias = bias.masked_fill(~visible[:, None], -torch.inf)
            return F.scaled_dot_product_attention(query, key, value, bias.expand(*query.shape[:3], -1))


class SoftmaxOverQueries(Decoder):
    """The weights of a key add up to one, not those of a query."""

    class attention(Attention):
        def weigh(self, query, key, value, visible):
            scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
            return scores.masked_fill(~visible[:, None], -1e9).softmax(-2) @ value


class MergedWithoutTranspose(Decoder):
    """Heads and positions are put side by side as they lie."""

    class attention(Attention):
        def merged(self, x):
            return x.reshape(x.shape[0], x.shape[2], WIDTH)


class MergedAcrossBatch(Encoder):
    """The axes of heads and batch are taken for each other when heads are merged."""

    class attention(Attention):
        def merged(self, x):
            return (
                x.transpose(0, 1)
                .reshape(HEADS, x.shape[0], x.shape[2], -1)
                .permute(2, 1, 0, 3)
                .reshape(x.shape[2], x.shape[0], WIDTH)
                .reshape(x.shape[0], x.shape[2], WIDTH)
            )


class BatchTakenForTime(nn.Module):
    """``nn.MultiheadAttention`` takes time first unless told, and is given batch first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.attention, self.head = nn.MultiheadAttention(WIDTH, HEADS), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.head(x + self.attention(x, x, x)[0])


class Filled(Attention):
    """Scores that are masked are a number."""

    low = -10000

    def weigh(self, query, key, value, visible):
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        return scores.masked_fill(~visible[:, None], self.low).softmax(-1) @ value


class MaskOfQueries(Encoder):
    """The padding mask stands on the axis of queries, and padding is a low number, not -inf."""

    attention = Filled

    def visible(self, positions, mask, segment_ids):
        if mask is None:
            return super().visible(positions, mask, segment_ids)
        return mask[:, :, None].expand(-1, -1, mask.shape[1])


class MaskInverted(Encoder):
    """True means padding where the mask is made, and "attend" where it is used."""

    def visible(self, positions, mask, segment_ids):
        return super().visible(positions, None if mask is None else ~mask, segment_ids)


class EmptyRowsAreNaN(Decoder):
    """Padding on the left sees no key: softmax of nothing, and the next layer multiplies it by 0."""

    class attention(Filled):
        low = -torch.inf

    def visible(self, positions, mask, segment_ids):
        visible = super().visible(positions, None, segment_ids)
        return visible if mask is None else visible & mask[:, None, :]


class PositionsCountPadding(Decoder):
    """Learned positions, counted from the first token of padding."""

    rotary = False

    def forward(self, tokens, mask=None):
        return super().forward(tokens, mask)


class PoolsPadding(Encoder):
    """What is added to every token is the mean of all, padding too."""

    def run(self, tokens, positions, visible, caches=None):
        found = super().run(tokens, positions, visible, caches)
        return found + found.mean(1, keepdim=True)


class WindowOneTooWide(Decoder):
    """A window of 4 that means 4 beside the token itself."""

    window = 5


class WindowDropped(Decoder):
    """The window is part of the mask of padding, and lost without one."""

    window = 4

    def visible(self, positions, mask, segment_ids):
        visible = super().visible(positions, mask, segment_ids)
        if mask is None:
            ahead = torch.arange(positions.shape[1])[None, :] - torch.arange(positions.shape[1])[:, None]
            return (ahead <= 0).expand_as(visible)
        return visible


class SegmentsIgnored(Decoder):
    """Segment ids are taken, and not used."""

    def visible(self, positions, mask, segment_ids):
        return super().visible(positions, mask, None)


class PackedPositionsGoOn(Decoder):
    """Texts in a row are kept apart, and their learned positions go on from one to the next."""

    rotary = False

    def forward(self, tokens, segment_ids=None):
        return super().forward(tokens, None, segment_ids)


class PositionsIgnored(Decoder):
    """Positions are taken, and counted anew."""

    rotary = False

    def positions(self, tokens, mask, given):
        return super().positions(tokens, mask, None)


class CausalFromTheFirstKey(Decoder):
    """Beside a cache the triangle still begins at the first key."""

    def cache(self):
        init, step, reorder = super().cache()

        def wrong(tokens, cache, positions=None):
            order = type(self).order
            count = tokens.shape[1]

            def first_key(model, positions, keys):
                return order(model, torch.arange(count).expand(len(tokens), -1), keys)

            self.order = first_key.__get__(self)
            try:
                return step(tokens, cache, positions)
            finally:
                del self.order

        return init, wrong, reorder


class PrefillNotCausal(Decoder):
    """With a cache there is no triangle: right for one token, wrong for the prefix."""

    def cache(self):
        init, step, reorder = super().cache()

        def wrong(tokens, cache, positions=None):
            end = cache["at"] + tokens.shape[1]
            self.order = lambda positions, keys: (keys[:, None, :] < end).expand(-1, positions.shape[1], -1)
            try:
                return step(tokens, cache, positions)
            finally:
                del self.order

        return init, wrong, reorder


class BeamsNotReordered(Decoder):
    """The last layer's cache stays in the old order."""

    def cache(self):
        init, step, reorder = super().cache()

        def wrong(cache, rows):
            reorder({"layers": cache["layers"][:-1]}, rows)
            return cache

        return init, step, wrong


class OneOffsetForAllRows(Decoder):
    """Keys are written at the places of the first row."""

    def cache(self):
        init, step, reorder = super().cache()

        def wrong(tokens, cache, positions=None):
            return step(tokens, cache, None if positions is None else positions[:1].expand_as(positions))

        return init, wrong, reorder


class MaskLostInCheckpoint(Encoder):
    """With gradient checkpointing blocks are called without the mask."""

    def forward(self, tokens, mask=None, checkpoint=False):
        return super().forward(tokens, None if checkpoint else mask)


class StoppedGradient(Decoder):
    """Keys and values are detached when they go into a cache, and they go there always."""

    class attention(Attention):
        def weigh(self, query, key, value, visible):
            return super().weigh(query, key.detach(), value.detach(), visible)


class DropsInEvaluation(Encoder):
    """The rate is given to a function, which drops whatever the mode is."""

    class attention(Attention):
        def weigh(self, query, key, value, visible):
            return F.scaled_dot_product_attention(query, key, value, visible[:, None], dropout_p=0.2)


class Dropping(nn.Module):
    """A layer of attention alone, of vectors; told how to read its weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.dropout = 0.2
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.qkv.bias)

    def split(self, x):
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def project(self, x):
        return self.qkv(x).chunk(3, -1)

    def scale(self, size):
        return size**-0.5

    def keep(self, weights):
        return F.dropout(weights, self.dropout, self.training)

    def forward(self, x, mask=None):
        query, key, value = (self.split(part) for part in self.project(x))
        scores = query @ key.transpose(-1, -2) * self.scale(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        found = self.keep(scores.softmax(-1)) @ value
        return self.out(found.transpose(1, 2).reshape(x.shape))


def read(layer):
    """The weights of the layer, as its documentation has them."""
    parts = zip("QKV", layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3), strict=True)
    found = {"num_heads": HEADS, "W_O": layer.out.weight.T.detach(), "b_O": layer.out.bias.detach()}
    for name, weight, bias in parts:
        found |= {f"W_{name}": weight.T.detach(), f"b_{name}": bias.detach()}
    return found


class DrawnOnce(Dropping):
    """What is dropped is drawn with a generator that begins anew at each call."""

    def keep(self, weights):
        drawn = torch.rand(weights.shape, generator=torch.Generator().manual_seed(0))
        return weights * (drawn >= self.dropout) / (1 - self.dropout) if self.training else weights


class KeptUnscaled(Dropping):
    """What is kept is multiplied by the rate of keeping, not divided."""

    def keep(self, weights):
        return F.dropout(weights, self.dropout, self.training) * (1 - self.dropout)


class StaysInTraining(Dropping):
    """A call in training leaves a state behind by which the next one still drops."""

    dropped = False

    def keep(self, weights):
        self.dropped = self.dropped or self.training
        return F.dropout(weights, self.dropout, self.dropped)


class HeadsInterleaved(Dropping):
    """The columns of a head are every second one, not a block."""

    def split(self, x):
        return x.view(*x.shape[:2], -1, HEADS).permute(0, 3, 1, 2)


class ScaledByModel(Dropping):
    """1/sqrt of the model's width, not of a head's."""

    def scale(self, size):
        return WIDTH**-0.5


class BiasLeftOut(Dropping):
    """The fused projection has no bias, though the layer has one."""

    def project(self, x):
        return (x @ self.qkv.weight.T).chunk(3, -1)


class KeyForValue(Dropping):
    """Keys and values are taken for each other in the fused projection."""

    def project(self, x):
        query, key, value = super().project(x)
        return query, value, key


CACHED = {
    kind: lambda kind=kind: with_cache(kind)
    for kind in (CausalFromTheFirstKey, PrefillNotCausal, BeamsNotReordered, OneOffsetForAllRows)
}
BROKEN = [
    Entry("causal only beside a mask", CausalOnlyBesideAMask, DECODER, "future", "facebookresearch/xformers#103"),
    Entry("causal unless masked", CausalUnlessMasked, DECODER, "future", "huggingface/transformers#41966"),
    Entry("a bias in place of the mask", BiasInPlaceOfMask, DECODER, "future", "huggingface/transformers#48748"),
    Entry("softmax over queries", SoftmaxOverQueries, DECODER, "future",
          "labmlai/annotated_deep_learning_paper_implementations#146"),
    Entry("merged without transpose", MergedWithoutTranspose, DECODER, "future",
          "jsbaan/transformer-from-scratch#6"),
    Entry("merged across the batch", MergedAcrossBatch, ENCODER, "batch",
          "gazelle93/Transformer-Various-Positional-Encoding#1"),
    Entry("batch taken for time", BatchTakenForTime, ENCODER | {"layers": 1}, "batch", "aipixel/AEMatter#3"),
    Entry("mask of queries", MaskOfQueries, ENCODER, "padding", "hyunwoongko/transformer#40"),
    Entry("mask inverted", MaskInverted, ENCODER, "padding", "InseeFrLab/torchTextClassifiers#92"),
    Entry("empty rows are NaN", EmptyRowsAreNaN, DECODER, "padding", "unslothai/unsloth#9848"),
    Entry("positions count padding", PositionsCountPadding,
          of_tokens(causal=True, positions="absolute", claims=["own positions"]), "padding", "ndif-team/nnsight#673"),
    Entry("padding is pooled", PoolsPadding, ENCODER, "padding", "jsboige/CoursIA#15045"),
    Entry("window one too wide", WindowOneTooWide, DECODER | {"window": 4}, "window", "huggingface/transformers#39408"),
    Entry("window dropped", WindowDropped, DECODER | {"window": 4}, "window", "unslothai/unsloth#8253"),
    Entry("segments ignored", SegmentsIgnored, DECODER, "packing", "huggingface/trl#784"),
    Entry("packed positions go on", PackedPositionsGoOn,
          of_tokens(causal=True, positions="absolute", claims=["own positions"]), "packing", "huggingface/nanoVLM#201"),
    Entry("positions ignored", PositionsIgnored, of_tokens(causal=True, positions="absolute"), "positions",
          "nishide-dev/unturtle#43"),
    Entry("causal from the first key", CACHED[CausalFromTheFirstKey], {}, "cache", "hyprstream/hyprstream#1521"),
    Entry("prefill is not causal", CACHED[PrefillNotCausal], {}, "cache", "Mikyx-1/TinyLLM#17"),
    Entry("beams not reordered", CACHED[BeamsNotReordered], {}, "cache", "huggingface/transformers#46612"),
    Entry("one offset for all rows", CACHED[OneOffsetForAllRows], {}, "cache", "Comfy-Org/ComfyUI#15698"),
    Entry("mask lost in a checkpoint", MaskLostInCheckpoint, ENCODER | {"ways": {"checkpoint": {"checkpoint": True}}},
          "ways", "lightly-ai/lightly#2049"),
    Entry("stopped gradient", StoppedGradient, DECODER, "gradient", ""),
    Entry("drops in evaluation", DropsInEvaluation, ENCODER, "ways", "pytorch/pytorch#124464"),
    Entry("drawn once", DrawnOnce, LAYER, "ways", "PaddlePaddle/Paddle#7796"),
    Entry("kept, and not scaled", KeptUnscaled, LAYER, "ways", "NVIDIA/apex#816"),
    Entry("stays in training", StaysInTraining, LAYER, "ways", ""),
    Entry("heads interleaved", HeadsInterleaved, LAYER, "heads", "awslabs/slapo#46"),
    Entry("scaled by the model's width", ScaledByModel, LAYER, "heads", "omihub777/ViT-CIFAR#11"),
    Entry("a bias left out", BiasLeftOut, LAYER, "heads", ""),
    Entry("keys for values", KeyForValue, LAYER, "heads", "tenstorrent/tt-mlir#8958"),
]  # fmt: skip
SOUND = [
    Entry("torch decoder", Decoder, DECODER),
    Entry("torch decoder with a cache", lambda: with_cache(Decoder), {}),
    Entry("torch encoder", Encoder, ENCODER),
    Entry("torch layer with dropout, and its weights", Dropping, LAYER),
]
