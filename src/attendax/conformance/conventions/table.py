"""Conventions of attention: of each axis the values that are known, each a line of Python. The first is the law.

``formula`` evaluates a line, ``attendax diff`` prints it, and ``attendax check`` says its words: they cannot differ. In
the lines ``i`` are the positions of queries among the keys (a column), ``j`` those of keys (a row), ``rows`` the
queries counted from 0, ``n`` the query heads; the sizes have their letters; ``lengths`` are S if none are given.
"""

import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

KEY_BLOCKS = (4, 8, 16, 32, 64, 128, 256, 512)
WHERE_MASKED = "-inf where masked, before the softmax"
FINITE = "a finite number: they keep a weight where others are lower"
IGNORED = "ignored"
OVERFLOWS = "exp overflows: the row's largest score is not subtracted"
MEAN_ADDED = "the mean of the values, by a number that is added"  # which lets gradients through
SEES_ALL, SEES_LATER = OF_KEYS = "attention to all keys", "the mean of later keys"  # of a query without any key
SCALED_BIAS = "ALiBi of Falcon"
LEFT_OUT = "keys behind the last whole block are left out"
CONVENTION, UNUSUAL, DEFECT = "convention", "unusual", "defect"
ONE_QUERY = "a single query (T = 1) sees all keys"
JOINED = "blocks of keys are joined, but the {} is not multiplied by exp(old maximum - new maximum)"
SO_FAR, BLOCK_SIZES = "np.exp(s - so_far(s, {b}))", (2, *KEY_BLOCKS)
INSTEAD, ADDED_INSTEAD = "mask in place of causal", "mask or bias in place of causal"
IN_TURN = "batches in turn"  # of masks and biases that are repeated in the wrong order
CAUSAL_INSTEAD = "causal in place of mask"
IN_PLACE = {INSTEAD: ("mask", "is_causal"), CAUSAL_INSTEAD: ("is_causal", "mask")}  # what counts, what is left out
OF_VALID = "aligned to the end of the key lengths"  # of causal, and of a window
EQUAL_LENGTHS = "aligned to the start, if there are as many queries as keys"  # of causal
NEARER = "aligned to the end, to the start where T > S"  # of causal
OF_GROUPS = "by the place in a group"  # the order of heads
NOT_GIVEN, OF_ROOTS = "0 is not given", "product of two roots"  # of a given scale
EXPECT = '--expect "{axis}={value}"'  # of a convention that can be stated


class Line(NamedTuple):
    """A value of an axis.

    A value that is not the first of its axis, the law, has a kind: a convention is documented by its source, what is
    unusual is right only if it is meant, and all others are defects.
    """

    text: str  # Python
    words: str = ""  # of a function that has it, a sentence
    flag: str = ""  # what declares it, or repairs it
    kind: str = DEFECT
    source: str = ""  # that documents it as meant

    def with_number(self, old: str, new: str) -> "Line":
        """The line with another number."""
        return self._replace(text=self.text.replace(old, new), words=self.words.replace(old, new))


Axis = dict[str, Line]


def python(value: str) -> str:
    """Python for a number as it is written: 1/√(3·D)."""
    text = re.sub(r"√(\w+)", r"\1 ** 0.5", value)
    text = re.sub(r"√(\([^)]*\))", r"\1 ** 0.5", text).replace("·", " * ").replace("²", " ** 2")
    return text.replace("log(", "np.log(")


def words_of_scale(name: str) -> str:
    """The sentence on the scale of a call that passes none."""
    if name == "1":
        return "scores are not scaled"
    if "log(S)" in name:
        return f"the scale grows with log S: {name}"
    if name == "√D" or name.isalpha():
        return f"scores are multiplied by {name}"
    return f"the scale is {name}" + ("" if any(x.isalpha() for x in name) else ", whatever D is")


def cap_unless_given(value: str) -> str:
    """Python for the cap of a call, by its softcap as ``given``."""
    return f"{value} if given is None else given"


def words_of_cap(value: str) -> str:
    """The sentence on a cap that no option asks for."""
    return f"scores are always capped: {value} · tanh(s / {value})"


def _of(name: str, text: str, words: str, sizes: tuple[int, ...] = KEY_BLOCKS, flag: str = "", *kind: str) -> Axis:
    """A value for each of some sizes, which is ``{b}`` in what is given."""
    return {name.format(b=b): Line(text.format(b=b), words.format(b=b), flag, *kind) for b in sizes}


MISCOUNTED = {  # names of windows that count other keys than their own and those between: what each side has more
    "one less to the left": (" + 1", ""), "one more to the left": (" - 1", ""),
    "one less to the right": ("", " - 1"), "one more to the right": ("", " + 1"),
    "one less": (" + 1", " - 1"), "one more": (" - 1", " + 1"),
}  # fmt: skip


def _sides(prefix: str, words: str, begins: str) -> Axis:
    """A window that begins somewhere and is miscounted, in each way."""

    def line(name: str, left: str, right: str) -> Line:
        text = f"(j >= i{begins} - left{left}) & (j <= i{begins} + right{right})"
        side = name.removeprefix("one ") + " on both sides" * ("to the" not in name)
        return Line(text, words.format(side))

    return {prefix + name: line(name, *sides) for name, sides in MISCOUNTED.items()}


OF_SCALES = {
    "1": (UNUSUAL, "T5; keras.layers.Attention"), "1/D": (UNUSUAL, "muP (Yang et al. 2022)"),
    "1/√V": (CONVENTION, "GPT-2 of transformers, where V is D"),
}  # fmt: skip
ROTARY = {"neighbours": "RoFormer; LLaMA", "halves of a head": "GPT-NeoX; Llama of transformers"}  # pairs: sources
TABLE: dict[str, Axis] = {
    # Which pairs are seen, by each option; then by all together.
    "causal": {
        "aligned to the start": Line("j <= i", "causal is aligned to the start of the keys", EXPECT),
        "aligned to the end": Line("j <= i + S - T", "causal is aligned to the end of the keys", EXPECT,
            CONVENTION, "FlashAttention 2.1"),
        "aligned to the start, and a single query sees all": Line("(j <= i) | (T == 1)",
            f"{ONE_QUERY}: causal is left out there", EXPECT, CONVENTION,
            "transformers, integrations/sdpa_attention.py"),
        "without its own key": Line("j < i", "causal leaves out a query's own key (j < i)", kind=UNUSUAL),
        "aligned to the end, without its own key": Line("j < i + S - T",
            "causal is aligned to the end of the keys, without a query's own key (j < i + S - T)", kind=UNUSUAL),
        "aligned to the start, and one key ahead": Line("j <= i + 1",
            "causal lets a query see one key ahead (j <= i + 1)"),
        "aligned to the end, and one key ahead": Line("j <= i + S - T + 1",
            "causal is aligned to the end of the keys, and one key ahead is seen (j <= i + S - T + 1)"),
        "moved by T - S": Line("j <= i + T - S",
            "causal moves the diagonal by queries less keys (j <= i + T - S), the wrong way"),
        "aligned to the start, and all behind the queries seen": Line("(j <= i) | (j >= T)",
            "causal lets a query see all keys behind the queries (j <= i or j >= T)"),
        "what comes after": Line("j >= i",
            "causal is reversed: a query sees its own key and those after it (j >= i)"),
        "by the group": Line("j <= i // (N // G)", "causal divides the position of a query by the heads of a group"),
        IGNORED: Line("j >= 0", "is_causal is ignored"),
        **_of("without the block of {b}", "j < i // {b} * {b}", "causal skips the block of the diagonal",
              KEY_BLOCKS[2:]),
    },
    "offset": {
        "as given": Line("offset"),
        IGNORED: Line("0 * offset", "offset is ignored"),
        "twice": Line("2 * offset", "the offset of a cache is added twice"),
        "first batch": Line("offset[:1]", "every batch gets the offset of the first"),
        "largest of the batch": Line("offset.max()", "every batch gets the largest offset"),
    },
    "window": {
        "its own key between": Line("(j >= i - left) & (j <= i + right)"),
        **_sides("", "a window counts one key {}", ""),
        "sides exchanged": Line("(j >= i - right) & (j <= i + left)", "a window exchanges its sides, left and right"),
        "end": Line("(j >= i + S - T - left) & (j <= i + S - T + right)", "a window is aligned to the end of the keys",
            kind=CONVENTION, source="FlashAttention 2.3"),
        **_sides("end, ", "a window is aligned to the end of the keys, and counts one key {}", " + S - T"),
        "before": Line("(j >= i - left) & (j <= i)", "a window has no keys ahead"),
        "turned": Line("(j < i - left) | (j > i + right)", "a window hides the keys that it should show"),
        "what comes before": Line("j < i - left", "a window shows the keys before it, and hides its own"),
        "half": Line("(j >= i - left / 2) & (j <= i + right / 2)", "a window counts half of the keys on each side"),
        IGNORED: Line("j >= 0", "window is ignored"),
    },
    "key_lengths": {
        "as given": Line("j < lengths"),
        "too short": Line("j < lengths - 1", "key lengths are off by one, too short"),
        "too long": Line("j < lengths + 1", "key lengths are off by one, too long"),
        "of queries": Line("(rows < lengths) & (j >= 0)", "key lengths hide queries, not keys"),
        "the last": Line("j >= S - lengths", "key lengths keep the last keys, not the first"),
        "first batch": Line("j < lengths[:1]", "every batch gets the key length of the first"),
        "largest of the batch": Line("j < lengths.max()", "every batch gets the largest key length"),
        "at least 1": Line("j < np.maximum(lengths, 1)", "a key length of 0 counts as 1", kind=UNUSUAL),
        IGNORED: Line("j >= 0", "key_lengths is ignored"),
    },
    "segments": {
        "their own": Line("of_queries[..., :, None] == of_keys[..., None, :]"),
        "swapped": Line("of_keys[..., :, None] == of_queries[..., None, :]",
            "segment ids of queries and keys are swapped"),
        "of keys": Line("of_keys[..., :, None] == of_keys[..., None, :]", "queries are given the keys' segment ids"),
        "and earlier": Line("of_queries[..., :, None] >= of_keys[..., None, :]",
            "a query sees the keys of earlier segments as well"),
        "first batch": Line("of_queries[:1, ..., :, None] == of_keys[:1, ..., None, :]",
            "every batch gets the segment ids of the first"),
        "0 is padding": Line(
            "(of_queries[..., :, None] == of_keys[..., None, :]) & (of_keys[..., None, :] != 0)",
            "segment id 0 is padding: no query sees it", kind=CONVENTION, source="packed examples of T5X and MaxText"),
        "0 alone": Line("(of_queries[..., :, None] != 0) & (of_keys[..., None, :] != 0)",
            "segment ids hide padding, 0, and no other segments"),
        IGNORED: Line("j >= 0", "key_segment_ids is ignored"),
    },
    "mask": {
        "True attends": Line("mask"),
        "True drops": Line("~mask", "True in a mask means drop", EXPECT, CONVENTION,
            "torch.nn.MultiheadAttention"),
        "turned": Line("mask.swapaxes(-1, -2)", "the mask is read with queries and keys swapped"),
        "first batch": Line("mask[:1]", "every batch gets the mask of the first"),
        "first head": Line("mask[:, :1]", "every head gets the mask of the first"),
        "first of all": Line("mask[:1, :1]", "every batch and every head gets the mask of the first"),
        IN_TURN: Line(
            "mask[(n + N * np.arange(len(mask))[:, None]) % len(mask), n % mask.shape[1]]",
            "head n of batch b gets the mask of batch (b·N + n) % B: masks are repeated in the wrong order"),
        IGNORED: Line("mask | True", "mask is ignored"),
        **{
            f"tiles of {n * b} by {b}": Line(
                f"by_first_query(mask, {n * b}, {b})", "a block is skipped if the mask hides it from its first query"
            )
            for b in KEY_BLOCKS
            for n in (1, 2)
        },
    },
    "joins": {
        "and": Line("seen"),
        **{
            f"{one} or {other}": Line(
                f"either('{one}', '{other}')", f"{one} and {other} are joined by or: a key that one allows is seen"
            )
            for one, other in itertools.combinations(("causal", "window", "key_lengths", "segments", "mask"), 2)
        },
        INSTEAD: Line("in_place('mask', 'causal')", "causal is left out if a mask is given",
            kind=UNUSUAL, source="custom_mask of FlashInfer"),
        ADDED_INSTEAD: Line("in_place('mask bias', 'causal')", "causal is left out if a mask or a bias is given",
            kind=UNUSUAL, source="custom_mask of FlashInfer"),
        CAUSAL_INSTEAD: Line("in_place('is_causal', 'mask')", "a mask is left out if causal is given",
            kind=UNUSUAL, source="attn_mask_type of Megatron Core"),
    },
    "pairs": {
        "seen": Line("seen"),
        "swapped": Line("~seen if hides else seen", "the pairs that are allowed and those that are not are swapped"),
        "causal": Line("seen & ((j <= i) | is_causal | instead)", "it is causal without is_causal"),
        "causal to the end": Line("seen & ((j <= i + S - T) | is_causal | instead)",
            "it is causal without is_causal, aligned to the end of the keys"),
        "causal except for its own key": Line("seen & ((j < i) | is_causal | instead)",
            "it is causal without is_causal, and leaves out a query's own key"),
        "causal to the end except for its own key": Line("seen & ((j < i + S - T) | is_causal | instead)",
            "it is causal without is_causal, aligned to the end of the keys, and leaves out a query's own key"),
        "causal except for a single query": Line("seen & ((j <= i) | (T == 1) | is_causal | instead)",
            "it is causal without is_causal, and a single query (T = 1) sees all keys"),
        "causal with as many queries as keys": Line("seen & ((j <= i) | (T != S) | is_causal | instead)",
            "it is causal without is_causal, if there are as many queries as keys"),
        **_of("whole blocks of {b}", "seen & (j < S // {b} * {b})", LEFT_OUT),
        **_of("one whole block of {b}", "seen & (j < (S // {b} * {b} or S))", LEFT_OUT),
        **_of("last block of {b}", "seen & (j >= (S - 1) // {b} * {b})", "only the last block of keys counts"),
    },
    # Scores.
    "heads": {
        "repeat": Line("n // (N // G)"),
        "tile": Line("n % G", "key heads are tiled (n % G) instead of blocked (n // (N // G))"),
        "n // G": Line("(n // G).clip(max=G - 1)", "key heads are read at n // G, instead of n // (N // G)"),
        "first": Line("0 * n", "every query head reads the first key head"),
        "tile, of keys": Line("n % G, n // (N // G)", "key heads are tiled (n % G), value heads are blocked"),
        "tile, of values": Line("n // (N // G), n % G", "value heads are tiled (n % G), key heads are blocked"),
    },
    "scale": {x: Line(python(x), words_of_scale(x), "", *OF_SCALES.get(x, (DEFECT,)))
              for x in ("1/√D", "1", "1/D", "1/√(N·D)", "√D", "1/√V", "1/√N", "1/√T", "1/√S")},
    "given_scale": {
        "as given": Line("given"),
        "times 1/√D": Line("given / D ** 0.5", "a given scale is multiplied by 1/√D", kind=UNUSUAL),
        NOT_GIVEN: Line("given or 1 / D ** 0.5", "a scale of 0 counts as not given", kind=CONVENTION,
            source="`scale or 1/√D`, as in the NKI kernels of AWS Neuron"),
        OF_ROOTS: Line("np.sqrt(given) ** 2",
            "queries and keys are multiplied by the root of a given scale: a negative one gives NaN", kind=CONVENTION,
            source="Attention of ONNX, reference implementation"),
        "squared": Line("given ** 2", "a given scale is applied twice"),
        "divides": Line("1 / given", "a given scale divides the scores"),
        IGNORED: Line("1 / D ** 0.5", "scale is ignored"),
    },
    "width": {
        "D": Line("d >= 0"),
        **_of("{b} of D", "d < {b}", "only the first {b} of D count in the scores", (32, 64, 128)),
        **_of("whole blocks of {b}", "d < (D // {b} * {b} or D)", "the last part of D is left out of the scores",
              KEY_BLOCKS[1:6]),
    },
    "split": {
        "heads apart": Line("q, k, v"),
        **{
            f"{one} for {other}": Line(text, f"{one} are in the place of {other}")
            for one, other, text in (("keys", "queries", "k, k, v"), ("queries", "keys", "q, q, v"),
                                     ("keys", "values", "q, k, k"), ("values", "keys", "q, v, v"))
        },
        "keys reshaped": Line("q, k.reshape(*k.shape[:2], k.shape[3], -1).swapaxes(-1, -2), v",
            "keys are reshaped to (.., D, S) instead of transposed: their numbers are mixed"),
        **{
            f"{which} mixed": Line(
                text, f"{whose} are split into heads by a reshape without a transpose: tokens are mixed"
            )
            for which, whose, text in (
                ("all", "arrays", "mixed(q), mixed(k), mixed(v)"), ("queries", "queries", "mixed(q), k, v"),
                ("keys", "keys", "q, mixed(k), v"), ("values", "values", "q, k, mixed(v)"),
                ("keys and values", "keys and values", "q, mixed(k), mixed(v)"),
            )
        },
    },
    "join": {
        "heads apart": Line("out"),
        "mixed": Line("out.reshape(out.swapaxes(1, 2).shape).swapaxes(1, 2)",
            "heads of the result are joined by a reshape without a transpose: tokens are mixed"),
        "not swapped": Line("mixed(out)",
            "heads of the result are reshaped to (.., N, T, V) instead of swapping axes"),
        "tokens first": Line("out.reshape(T, len(out), n.size, V).transpose(1, 2, 0, 3)",
            "the result is reshaped to (T, B, N·V) without a transpose: tokens, batches and heads are mixed"),
        OF_GROUPS: Line("out[:, n % G * (N // G) + n // G]",
            "with grouped heads, the heads of the result are ordered by the place in a group, not by the group"),
    },
    "norm": {
        "none": Line("q, k"),
        "unit": Line("unit(q), unit(k)", "queries and keys are divided by their length",
            kind=UNUSUAL, source="Henry et al. 2020; Swin Transformer V2"),
        "root mean square": Line("unit(q) * D ** 0.5, unit(k) * D ** 0.5",
            "queries and keys are divided by their root mean square",
            kind=UNUSUAL, source="QK norm of Qwen3 and Gemma 3"),
    },
    "rotary": {
        "none": Line("q, k"),
        **{pairs: Line(f"turned(q, {pairs!r}), turned(k, {pairs!r})",
               f"queries and keys are rotated by their positions, in pairs of {pairs}", kind=CONVENTION, source=source)
           for pairs, source in ROTARY.items()},
    },
    "order": {
        "scale, softcap, bias, mask": Line("scale softcap bias mask"),
        "bias, scale, softcap, mask": Line("bias scale softcap mask", "the scale is also applied to the bias",
            kind=UNUSUAL, source=SCALED_BIAS),
        "scale, bias, softcap, mask": Line("scale bias softcap mask", "softcap caps after the bias is added",
            kind=CONVENTION, source="Tokamax, logits_soft_cap of dot_product_attention"),
        "scale, bias, mask, softcap": Line("scale bias mask softcap",
            "softcap caps after the mask: masked keys keep a weight", WHERE_MASKED),
        "softcap, scale, bias, mask": Line("softcap scale bias mask", "softcap caps before the scale"),
        "scale, mask, softcap, bias": Line("scale mask softcap bias",
            "softcap caps after the mask: masked keys keep a weight", WHERE_MASKED),
    },
    "softcap": {
        "cap · tanh(s / cap)": Line("cap * np.tanh(s / cap)"),
        "tanh(s / cap)": Line("np.tanh(s / cap)", "softcap is tanh(s / cap) without · cap"),
        "s / (1 + |s| / cap)": Line("s / (1 + abs(s) / cap)",
            "softcap is s / (1 + |s| / cap), not cap · tanh(s / cap)"),
        IGNORED: Line("s", "softcap is ignored"),
    },
    "cap": {  # of a call without softcap
        "none": Line("given"),
        **{x: Line(cap_unless_given(x), words_of_cap(x), "", CONVENTION, source)
           for x, source in (("30", "Grok-1"), ("50", "Gemma 2"))},
    },
    "bias": {
        "added": Line("bias"),
        "subtracted": Line("-bias", "the bias is subtracted"),
        "turned": Line("bias.swapaxes(-1, -2)", "the bias is read with queries and keys swapped"),
        "first batch": Line("bias[:1]", "every batch gets the bias of the first"),
        "first head": Line("bias[:, :1]", "every head gets the bias of the first"),
        "first of all": Line("bias[:1, :1]", "every batch and every head gets the bias of the first"),
        IN_TURN: Line(
            "bias[(n + N * np.arange(len(bias))[:, None]) % len(bias), n % bias.shape[1]]",
            "head n of batch b gets the bias of batch (b·N + n) % B: biases are repeated in the wrong order"),
        "scaled": Line("bias * scale", "the scale is also applied to the bias", kind=UNUSUAL, source=SCALED_BIAS),
        IGNORED: Line("0 * bias", "bias is ignored"),
    },
    "alibi": {
        "none": Line("0.0"),
        "slope · j": Line("slopes(N)[:, None, None] * j", "ALiBi is always added: slope · j",
            kind=UNUSUAL, source="BLOOM; Press et al. 2022"),
        "-slope · |i - j|": Line("-slopes(N)[:, None, None] * abs(i - j)", "ALiBi is always added: -slope · |i - j|",
            kind=UNUSUAL, source="Press et al. 2022, of two sides"),
        "-slope · |i + S - T - j|": Line("-slopes(N)[:, None, None] * abs(i + S - T - j)",
            "ALiBi is always added: -slope · |i + S - T - j|", kind=UNUSUAL, source="FlashAttention 2.4"),
    },
    "fill": {
        "-inf": Line("np.where(seen, s, -np.inf)"),
        "0": Line("np.where(seen, s, 0)", "masked scores are 0 instead of minus infinity", WHERE_MASKED),
        "0 and 1": Line("s + seen", "the mask is added to the scores as 0 and 1", WHERE_MASKED),
        **_of("-{b}", "np.where(seen, s, -{b})", "masked scores are -{b} only: they keep a weight", (1, 10),
              WHERE_MASKED),
        **_of("-{b}", "np.where(seen, s, -{b})", f"masked scores are {FINITE}", (100,), WHERE_MASKED),
        **_of("-{b}", "np.where(seen, s, -{b})", f"masked scores are {FINITE}", (10**4, 10**9), WHERE_MASKED,
              CONVENTION, "GPT-2 of transformers 4.0, -1e4; The Annotated Transformer, -1e9"),
        **_of("less {b}", "s - {b} * ~seen", "masked scores are lowered by {b} only: they keep a weight", (10,),
              WHERE_MASKED),
        **_of("less {b}", "s - {b} * ~seen", f"masked scores are lowered by {FINITE}", (100,), WHERE_MASKED),
    },
    # Weights and results.
    "weights": {
        "softmax": Line("softmax(s)"),
        "over queries": Line("softmax(s, -2)", "softmax runs over the queries"),
        "over heads": Line("softmax(s, -3)", "softmax runs over the heads"),
        "turned": Line("softmax(s).swapaxes(-1, -2)", "the weights are transposed before they multiply the values"),
        "not divided": Line("np.exp(s - top(s))", "the softmax is not divided by its sum"),
        **_of("outputs of blocks of {b} as they are", f"{SO_FAR} / np.exp(s - top(s)).sum(-1, keepdims=True)",
              JOINED.format("output"), BLOCK_SIZES),
        **_of("sums of blocks of {b} as they are", f"np.exp(s - top(s)) / {SO_FAR}.sum(-1, keepdims=True)",
              JOINED.format("sum"), BLOCK_SIZES),
        **_of("blocks of {b} as they are", f"{SO_FAR} / {SO_FAR}.sum(-1, keepdims=True)",
              JOINED.format("output and sum"), BLOCK_SIZES),
        "masked after": Line("softmax(without('mask')) * seen", "the mask is applied after the softmax"),
        "causal after": Line("softmax(s) * (j <= i)", "it is causal without is_causal, by zeros after the softmax"),
        "bias after": Line("softmax(without('bias')) + bias", "the bias is added after the softmax"),
        **_of("keys padded to blocks of {b}", "softmax(s, added=0 if hides else -S % {b})",
              "keys of zeros that fill the last block of {b} are counted", KEY_BLOCKS, "mask what lies beyond S"),
        "softmax, 1 added": Line("softmax(s, added=1)", "1 is added to the sum of the softmax",
            kind=UNUSUAL, source="Miller 2023, Attention Is Off By One"),
        "sigmoid": Line("1 / (1 + np.exp(-s))", "weights are the sigmoid of the scores, not their softmax",
            kind=UNUSUAL, source="Ramapuram et al. 2024, sigmoid attention"),
        "sigmoid, less log S": Line("1 / (1 + S * np.exp(-s))", "weights are the sigmoid of the scores less log S",
            kind=UNUSUAL, source="Ramapuram et al. 2024, sigmoid attention"),
        "ReLU": Line("np.maximum(s, 0)", "weights are the ReLU of the scores, not their softmax", kind=UNUSUAL),
        "ReLU over S": Line("np.maximum(s, 0) / S", "weights are the ReLU of the scores, divided by S",
            kind=UNUSUAL, source="Wortsman et al. 2023"),
        **_of("top {b}", "softmax(np.where(s >= largest(s, {b}), s, -np.inf))",
              "only the {b} largest scores of a query count", (1, *KEY_BLOCKS), "", UNUSUAL, "Gupta et al. 2021"),
    },
    "empty": {
        "0": Line("0.0", "a query without any key gets 0", EXPECT),
        "the mean of the values": Line("v.sum(-2, keepdims=True) / max(S, 1)",
            "a query without any key gets the mean of the values", EXPECT, CONVENTION,
            "masking writes a finite number, as in jax.nn.dot_product_attention"),
        SEES_ALL: Line("softmax(without('mask')) @ v", "a query without any key sees all keys", "", CONVENTION,
            "a finite number is added where masked, as in BERT, modeling.py"),
        "NaN": Line("np.nan", "a query without any key gets NaN", EXPECT, CONVENTION,
            "a softmax of -inf, as in torch.nn.MultiheadAttention"),
    },
    "lse": {
        "base e": Line("lse"),
        "base 2": Line("lse / np.log(2)", "lse is in base 2", EXPECT, CONVENTION,
            "FlashInfer"),
        "without the maximum": Line("lse - np.where(np.isfinite(largest), largest, 0)",
            "lse is of the sum alone: the row's largest score is not added", kind=UNUSUAL),
    },
    # The backward.
    "delta": {
        "over all keys": Line("x.sum(-1, keepdims=True)"),
        "left out": Line("0 * x", "dS = P · dP: the row sum of P · dP is not subtracted"),
        "over queries": Line("x.sum(-2, keepdims=True)", "delta is summed over the queries, not over the keys"),
        **_of("over blocks of {b}", "in_blocks(x, {b})", "delta is summed over a block of keys, not over all"),
    },
    "of_scores": {
        "P · (dP - delta)": Line("p * (dp - delta)"),
        "dP - delta": Line("dp - delta", "dS = dP - delta: it is not multiplied by the weights"),
        "P · dP - delta": Line("p * dp - delta", "dS = P · dP - delta: delta is not multiplied by the weights"),
        "P · (1 - P) · dP": Line("p * (1 - p) * dp",
            "dS = P · (1 - P) · dP: the derivative of each weight by its own score alone"),
    },
    "gradient_scale": {
        "once": Line("scale, scale"),
        "not": Line("1.0, 1.0", "gradients of queries and keys are not multiplied by the scale"),
        "twice": Line("scale ** 2, scale ** 2", "gradients of queries and keys are multiplied by the scale twice"),
        "not of keys": Line("scale, 1.0", "the gradient of the keys is not multiplied by the scale"),
        "not of queries": Line("1.0, scale", "the gradient of the queries is not multiplied by the scale"),
        "twice of keys": Line("scale, scale ** 2", "the gradient of the keys is multiplied by the scale twice"),
        "twice of queries": Line("scale ** 2, scale", "the gradient of the queries is multiplied by the scale twice"),
    },
    "slope": {"of the softcap": Line("slope"), "left out": Line("1.0", "the derivative of the softcap is left out")},
    "through_lse": {"added": Line("x"), "subtracted": Line("-x", "the cotangent of lse has the wrong sign")},
    "group": {  # what is of one gradient comes first, since there may be no time to try all
        "sum": Line("x.sum(-3)"),
        "mean": Line("x.mean(-3)", "gradients of keys and values are the mean over the heads of a group, not the sum"),
        **{f"{which} head of {whose}": Line(f"x[..., {k}, :, :] if of == {whose!r} else x.sum(-3)",
            f"the gradient of the {whose} is of the {which} head of a group only")
            for which, k in (("first", 0), ("last", -1)) for whose in ("keys", "values")},
        "first head": Line("x[..., 0, :, :]", "gradients of keys and values are of the first head of a group only"),
        "last head": Line("x[..., -1, :, :]", "gradients of keys and values are of the last head of a group only"),
    },
    "of_bias": {
        "all": Line("ds"),
        "first batch": Line("ds[:1]", "the gradient of the bias is of the first batch only"),
        "first batch, of rank 4": Line("ds[:1] if rank == 4 and len(bias) == 1 else ds",
            "the gradient of the bias is of the first batch only"),
    },
    "gradients": {
        "their own": Line("keys, values"),
        "swapped": Line("values, keys", "gradients of keys and of values are swapped"),
    },
}  # fmt: skip
ROUNDED = "({}) * (1 + 2**-23 * (-1.0) ** j)"  # of ALiBi in float32, whose far distances are large numbers
UNSEARCHED: dict[str, Axis] = {  # values that calls of their own tell from others
    "alibi": {
        f"{value}, rounded": Line(ROUNDED.format(line.text), kind=UNUSUAL)
        for value, line in TABLE["alibi"].items() if value != "none"
    },
    "norm": {  # with as large an eps as models have
        "unit, eps": Line("unit(q, 1e-5), unit(k, 1e-5)", kind=UNUSUAL),
        "root mean square, eps": Line("unit(q, 1e-5 * D) * D ** 0.5, unit(k, 1e-5 * D) * D ** 0.5", kind=UNUSUAL),
    },
    "rotary": {
        f"{pairs}, rounded": Line(", ".join(f"turned({x}, {pairs!r}, rounded=True)" for x in "qk"), kind=UNUSUAL)
        for pairs in ROTARY
    },
    "causal": {
        OF_VALID: Line("j <= i + lengths - T", "causal is aligned to the end of the keys by their lengths", EXPECT,
            CONVENTION, "flash_attn_with_kvcache of FlashAttention 2.2"),
        EQUAL_LENGTHS: Line("(j <= i) | (T != S)",
            "causal is aligned to the start, and left out unless there are as many queries as keys", EXPECT,
            CONVENTION, "ChatGLM2, CoreAttention"),
        NEARER: Line("j <= i + max(S - T, 0)",
            "causal is aligned to the end of the keys, or to the start if there are more queries", EXPECT,
            CONVENTION, "FlashAttention 2.1, where T <= S"),
    },
    "window": {
        OF_VALID: Line("(j >= i + lengths - T - left) & (j <= i + lengths - T + right)",
            "a window is aligned to the end of the keys by their lengths",
            kind=CONVENTION, source="attention_ref in the tests of FlashAttention 2.3"),
        "end, the start where T > S": Line(
            "(j >= i + max(S - T, 0) - left) & (j <= i + max(S - T, 0) + right)",
            "a window is aligned to the end of the keys, or to the start if there are more queries",
            kind=CONVENTION, source="FlashAttention 2.3, where T <= S"),
    },
    "empty": {
        MEAN_ADDED: Line("v.sum(-2, keepdims=True) / max(S, 1)", "a query without any key gets the mean of the values",
            "", CONVENTION, "the lowest finite number is added where masked, as in Llama of transformers"),
        SEES_LATER: Line("softmax(np.where(by_mask, 0, -np.inf)) @ v / by_mask.any(-1, keepdims=True)",
            "a query whose own keys are all masked gets the mean of later keys", "", CONVENTION,
            "a finite number where causal hides, as in GPT-NeoX, and a mask of -inf"),
    },
}  # fmt: skip
DECLARED = {  # short names of values of the axes causal and empty
    "start": "aligned to the start", "end": "aligned to the end",
    "decode": "aligned to the start, and a single query sees all", "zero": "0", "mean": "the mean of the values",
    "nan": "NaN",
}  # fmt: skip


def in_full(means: Mapping[str, str]) -> dict[str, str]:
    """Values by axis; a short name of a value stands for it."""
    return {axis: DECLARED.get(x, x) if axis in ("causal", "empty") else x for axis, x in means.items()}


FORMULAS = {"causal": "j", "fill": "less "}  # how values begin that no table has, as describe writes them
NUMBER_AXES = ("scale", "given_scale", "bias", "cap")  # whose value may be any number


def known_values(axis: str) -> tuple[str, ...]:
    """The values of an axis that have names."""
    return (*TABLE[axis], *UNSEARCHED.get(axis, ()))


def is_value(axis: str, value: str) -> bool:
    """Tell whether this may be a value of an axis."""
    is_formula = axis in FORMULAS and value.startswith(FORMULAS[axis])
    return axis in NUMBER_AXES or is_formula or value in known_values(axis)


BACKWARD_AXES = ("delta", "of_scores", "gradient_scale", "slope", "through_lse", "group", "of_bias", "gradients")
ASKS = {  # the options without which an axis makes no difference, any of them
    "causal": ("is_causal",), "offset": ("offset",), "window": ("window",), "reach": ("window",),
    "key_lengths": ("key_lengths",),
    "segments": ("query_segment_ids",), "mask": ("mask",), "given_scale": ("scale",), "order": ("softcap", "bias"),
    "softcap": ("softcap",), "bias": ("bias",), "lse": ("return_lse",), "slope": ("softcap",),
    "through_lse": ("return_lse",), "of_bias": ("bias",),
    "joins": ("is_causal", "window", "key_lengths", "query_segment_ids", "mask"),
}  # fmt: skip
SLOPES = {  # the derivative of each softcap
    "cap * np.tanh(s / cap)": "1 - np.tanh(s / cap) ** 2",
    "np.tanh(s / cap)": "(1 - np.tanh(s / cap) ** 2) / cap",
    "s / (1 + abs(s) / cap)": "(1 + abs(s) / cap) ** -2",
    "s": "1.0",
}
