"""Encoders, encoder blocks and multi-head attention beside their peers: `run` measures, `markdown` shows.

The judge is the specification on the same weights, in float64 for the layers, in float32 for whole encoders; of the
texts end to end it looks at some. A contestant that is wrong, or cannot take part, is reported and not timed.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import encoder_contestants as contestants
from attendax import spec
from attendax.encoders import encode
from attendax.encoders.embedding import embed_by_specification
from attendax.encoders.sentences import packaged_weights, tokenize
from attendax.params import EncoderBlockParams, MultiHeadParams
from harness import Clock, Contestant, Unable, measure
from tables import remarks, table

OURS = "attendax"
TOLERANCE = 1e-4  # of the largest entry of an array, or of 1
BUDGET_S = 10.0  # for the turns of a case
STREAM = 2048  # tokens of a call: small batches follow each other, as sentences do; the first after another
# contestant's turn takes up to 1.5 times as long as the rest (32 x 16 tokens: 55 ms, not 37)
JUDGED_TEXTS = 20
WORDS = ["a", "the", "music", "river", "food", "history", "attention", "philosophical", "window", "quickly", "between"]


class Workload(NamedTuple):
    """A thing that is measured: (B, T) of the encoder, (B, T, M, N, F) of the layers, and how many texts end to end."""

    weights: Path | None = None  # None: all-MiniLM-L6-v2 from its package
    encoders: tuple[tuple[int, int], ...] = ((1, 16), (32, 16), (32, 128), (8, 256))
    layers: tuple[tuple[int, ...], ...] = ((8, 128, 768, 12, 3072), (32, 128, 384, 12, 1536))
    texts: int = 1000


WORKLOAD = Workload()


class Case(NamedTuple):
    name: str
    sentences: int
    peers: dict[str, Callable[[], contestants.Built]]
    right: Callable[[], list[np.ndarray]]
    chosen: Any = slice(None)  # which rows of a result the judge looks at
    batches: int = 1  # how often a call computes it; figures are of one


def run(
    rounds: int, progress: Callable[[str], Any], workload: Workload = WORKLOAD, clock: Clock | None = None
) -> dict[str, Any]:
    """Records by case and contestant, and what was left out and why."""
    results: dict[str, Any] = {"cases": {}, "left_out": []}
    todo = []
    try:
        checkpoint = contestants.Checkpoint(workload.weights or packaged_weights())
        todo += [_encoder(checkpoint, *size) for size in workload.encoders]
        todo += [_end_to_end(checkpoint, workload.texts)]
    except (FileNotFoundError, ModuleNotFoundError) as error:
        results["left_out"].append(f"whole encoders: {str(error).replace(sys.executable, 'python')}")
    for sizes in workload.layers:
        todo += [make(*sizes, training) for make in (_block, _multi_head) for training in (False, True)]
    for case in todo:
        progress(case.name)
        results["cases"][case.name] = _case(case, rounds, progress, clock)
    return results


def _case(case: Case, rounds: int, progress: Callable[[str], Any], clock: Clock | None) -> list[dict[str, Any]]:
    records, ready, right = {}, [], case.right()
    for name, build in case.peers.items():
        records[name] = {"case": case.name, "contestant": name}
        try:
            start = time.perf_counter()
            call, to_numpy, temporaries = build()
            results = call()
            first_call_s = time.perf_counter() - start
            error = _error([one[case.chosen] for one in to_numpy(results)], right)
        except Unable as reason:
            records[name] |= {"status": "unable", "reason": str(reason)}
            continue
        except Exception as reason:
            shown = f"{type(reason).__name__}: {' '.join(str(reason).split())[:300]}"
            records[name] |= {"status": "failed", "reason": shown}
            continue
        records[name] |= {"error": error, "judged_by": "specification", "first_call_s": first_call_s}
        if not error <= TOLERANCE:
            records[name] |= {"status": "wrong", "reason": f"wrong by {error:.1e}"}
            continue
        records[name] |= {"status": "timed", "temporary_bytes": temporaries}
        ready.append(Contestant(name, _repeated(call, case.batches), first_call_s, temporaries))
    timings = measure(ready, rounds=rounds, budget_s=BUDGET_S, clock=clock, progress=lambda: progress(case.name))
    for name, timing in timings.items():
        records[name] |= {
            "seconds": [seconds / case.batches for seconds in timing.seconds],
            "median_s": timing.median / case.batches,
            "quartiles_s": [seconds / case.batches for seconds in timing.quartiles],
            "ratio": list(timing.ratio_to(timings[OURS])) if OURS in timings else None,
            "sentences_per_s": case.sentences * case.batches / timing.median,
            "page_faults": timing.page_faults / case.batches,
            "rounds_thrown_away": timing.thrown_away,
            "rounds_disturbed": timing.disturbed,
        }
    return list(records.values())


def _repeated(call: Callable[[], Any], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            call()

    return run


def _error(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest difference of any entry, over the largest entry of that array, or 1 where that is smaller."""
    worst = 0.0
    for a, b in zip(got, wanted, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"a result of shape {a.shape}, expected {b.shape}")
        worst = float(np.maximum(worst, np.abs(a - b).max() / max(1.0, float(np.abs(b).max()))))  # keeps a NaN
    return worst


def _encoder(checkpoint: contestants.Checkpoint, B: int, T: int) -> Case:
    config = checkpoint.ours.config
    ids, mask = np.random.default_rng(0).integers(0, config.vocab_size, (B, T)), np.ones((B, T), bool)
    peers = {
        OURS: contestants.our_encoder,
        "torch": contestants.torch_encoder,
        "onnxruntime": contestants.onnx_encoder,
    }

    def right():
        params = jax.tree.map(np.asarray, checkpoint.ours.params)
        return [encode(ids, params, config=config, mask=mask, twin=spec)]

    batches = max(1, STREAM // (B * T))
    return Case(f"encoder {B} x {T}", B, _bound(peers, checkpoint, ids, mask), right, batches=batches)


def _end_to_end(checkpoint: contestants.Checkpoint, number: int) -> Case:
    texts = mixed_texts(number)
    chosen = np.linspace(0, number - 1, min(number, JUDGED_TEXTS)).astype(int)
    peers = {OURS: contestants.our_embedding, "sentence-transformers": contestants.sentence_transformers}

    def right():
        encoder = checkpoint.ours
        return [np.stack([embed_by_specification(encoder, tokenize(encoder, texts[k])) for k in chosen])]

    name = f"{number:,} texts of mixed length, end to end"
    return Case(name, number, _bound(peers, checkpoint, texts), right, chosen)


def mixed_texts(number: int) -> list[str]:
    """Texts of 5 to 200 words, half of them below 25: lengths as many collections of sentences have them."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(3.2, 0.8, number)), 5, 200).astype(int)
    return [" ".join(rng.choice(WORDS, length)) + "." for length in lengths]


def _block(B: int, T: int, M: int, N: int, F: int, training: bool) -> Case:
    rng, draw = _drawing()
    params = EncoderBlockParams(
        _attention(draw, M), draw(M, F), draw(F), draw(F, M), draw(M), *(draw(M) for _ in "1234")
    )
    x, cotangent = (rng.standard_normal((B, T, M), np.float32) for _ in range(2))
    peers = {OURS: contestants.our_block, "torch.nn.TransformerEncoderLayer": contestants.torch_block}

    def right():
        wide = jax.tree.map(lambda array: array.astype(np.float64), (x, params, cotangent))
        options = {"num_heads": N, "norm": "post", "activation": "gelu", "eps": contestants.EPS}
        output = spec.encoder_block(*wide[:2], **options)
        if not training:
            return [output]
        grad_x, grads = spec.encoder_block_backward(wide[2], *wide[:2], **options)
        return [output, grad_x, *jax.tree.leaves(grads)]

    name = f"encoder block {B} x {T} x {M}, {'training step' if training else 'eval'}"
    return Case(name, B, _bound(peers, params, N, x, cotangent, training), right)


def _multi_head(B: int, T: int, M: int, N: int, F: int, training: bool) -> Case:
    del F
    rng, draw = _drawing()
    params = _attention(draw, M)
    x, cotangent = (rng.standard_normal((B, T, M), np.float32) for _ in range(2))
    peers = {OURS: contestants.our_multi_head, "torch.nn.MultiheadAttention": contestants.torch_multi_head}

    def right():
        wide = jax.tree.map(lambda array: array.astype(np.float64), (params, x, cotangent))
        output, cache = spec.multi_head_attention_forward(*[wide[1]] * 3, num_heads=N, **wide[0]._asdict())
        if not training:
            return [output]
        *of_inputs, grads = spec.multi_head_attention_backward(wide[2], cache)
        return [output, sum(of_inputs), *(grads[name] for name in MultiHeadParams._fields)]

    name = f"multi-head attention {B} x {T} x {M}, {'training step' if training else 'eval'}"
    return Case(name, B, _bound(peers, params, N, x, cotangent, training), right)


def _drawing() -> tuple[np.random.Generator, Callable[..., np.ndarray]]:
    """Weights of about the size that keeps the variance; no bias is 0."""
    rng = np.random.default_rng(0)
    return rng, lambda *shape: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def _attention(draw: Callable[..., np.ndarray], M: int) -> MultiHeadParams:
    return MultiHeadParams(*(draw(M, M) for _ in "QKVO"), *(draw(M) for _ in "QKVO"))


def _bound(peers: dict[str, Callable], *arguments: Any) -> dict[str, Callable[[], contestants.Built]]:
    return {name: lambda build=build: build(*arguments) for name, build in peers.items()}


HEADER = ("contestant", "ms", "quartiles", f"x {OURS}", "sentences/s", "first call s", "page faults", "error")


def markdown(results: dict[str, Any]) -> str:
    """A table for each case, and who was not timed and why."""
    about = results["about"]
    parts = ["## Encoders\n", f"commit {about['commit'][:7]}, {about['date'][:10]}\n"]
    parts.append("".join(f"- left out: {what}\n" for what in results["left_out"]))
    for name, records in results["cases"].items():
        rows = [_row(record) for record in records if record["status"] == "timed"]
        parts += [f"### {name}\n", table(HEADER, rows)]
        parts.append("".join(f"- {remark}\n" for remark in remarks(records)))
    return "\n".join(part for part in parts if part)


def _row(record: dict[str, Any]) -> list[str]:
    low, high = (1e3 * x for x in record["quartiles_s"])
    return [
        record["contestant"],
        f"{1e3 * record['median_s']:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{record['ratio'][0]:.2f}" if record["ratio"] else "",
        f"{record['sentences_per_s']:.1f}",
        f"{record['first_call_s']:.2f}",
        f"{record['page_faults']:.0f}",
        f"{record['error']:.0e}",
    ]
