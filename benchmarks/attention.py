"""Time one case: build every contestant, hold each against the judge, let those who are right take turns.

The result is a record for each contestant, whatever became of it: "timed", "wrong" (and so not timed), "unable",
"failed" or "slow", all but the first with the reason.
"""

from collections.abc import Callable, Sequence
from typing import Any

from contestants import OURS, PEERS, REFERENCES, build
from harness import Clock, Contestant, Unable, measure
from judge import SIGMAS, Judge, mean_of_dropped
from program import Program
from workload import Case

SLOW_S, SLOW_REFERENCE_S, TIMES_SLOWER = 0.5, 8.0, 3.0
EXACT_DROPOUT = (*(name for name in PEERS if name.startswith(OURS)), "numpy")  # one law says which weights are kept


class Judges:
    """The judges of a case, with dropout and without."""

    def __init__(self, case: Case) -> None:
        self.case, self.judge = case, Judge(case)
        self.without_dropout = Judge(case.without_dropout()) if case.rate else self.judge

    def admit(self, name: str, direction: str) -> tuple[dict[str, Any], Program | None]:
        """The record of a contestant, and its program where it may be timed."""
        record: dict[str, Any] = {"case": self.case.name, "measure": direction, "contestant": name}
        try:
            program, first_call_s, call_s, results = build(name, self.case, direction)
            judge, judged = self.judge, self.judge.name
            if self.case.rate and name not in EXACT_DROPOUT:  # random: its own way to draw is as good
                judge = self.without_dropout
                judged = f"{judge.name}, at rate 0; with dropout by the mean of its results"
                off = mean_of_dropped(program, self.case)
                if not abs(off) <= SIGMAS:
                    raise Wrong(f"the mean of its results is off by {off:.1f} standard deviations")
                results = build(name, judge.case, direction)[-1]
            error = judge.error(direction, results)
        except Unable as reason:
            return record | {"status": "unable", "reason": str(reason)}, None
        except Wrong as reason:
            return record | {"status": "wrong", "reason": str(reason)}, None
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            return record | {"status": "failed", "reason": reason}, None
        record |= {"error": error, "judged_by": judged}
        if not judge.is_right(error):
            return record | {"status": "wrong", "reason": f"wrong by {error:.1e}"}, None
        rest = {
            "first_call_s": first_call_s,
            "call_s": call_s,
            "temporary_bytes": program.temporary_bytes,
            "note": program.note,
        }
        return record | {"status": "timed"} | rest, program


class Wrong(Exception):
    """A result that cannot be right, found in another way than by comparison."""


def run(
    judges: Judges,
    direction: str,
    names: Sequence[str],
    *,
    rounds: int,
    budget_s: float | None,
    matmul_gflops: float,
    progress: Callable[[str], Any] = lambda what: None,
    clock: Clock | None = None,
) -> list[dict[str, Any]]:
    """The records of all contestants for one case in one direction."""
    records, ready = {}, []
    for name in names:
        progress(name)
        records[name], program = judges.admit(name, direction)
        if program is not None:
            ready.append(program.contestant(name, records[name]["first_call_s"]))
    leave_out_the_slow(records, ready)
    progress("taking turns")
    options = {"rounds": rounds, "budget_s": budget_s, "clock": clock}
    add_timings(records, ready, judges.case.flops(direction), matmul_gflops, **options)
    return list(records.values())


def leave_out_the_slow(records: dict[str, dict[str, Any]], ready: list[Contestant]) -> None:
    """Drop contestants that are slow, and many times slower than the fastest: they would take the time of the rest."""
    fastest = min((records[one.name]["call_s"] for one in ready), default=0.0)
    for one in list(ready):
        call_s = records[one.name]["call_s"]
        if call_s > max(SLOW_REFERENCE_S if one.name in REFERENCES else SLOW_S, TIMES_SLOWER * fastest):
            reason = (
                f"its first call took {call_s:.1f} s, compiling apart, the fastest {fastest:.1f} s: no turns for it"
            )
            records[one.name] |= {"status": "slow", "reason": reason}
            ready.remove(one)


def add_timings(
    records: dict[str, dict[str, Any]], ready: list[Contestant], flops: float, matmul_gflops: float, **options: Any
) -> None:
    """Measure, and write what was found into the records."""
    timings = measure(ready, **options)
    reference = timings.get(OURS) or next(iter(timings.values()), None)
    for name, timing in timings.items():
        gflops = flops / timing.median / 1e9
        records[name] |= {
            "seconds": timing.seconds,
            "median_s": timing.median,
            "quartiles_s": list(timing.quartiles),
            "ratio": list(timing.ratio_to(reference)),  # median and quartiles of the ratios to the first contestant
            "repeats": timing.repeats,
            "page_faults": timing.page_faults,
            "gflops": gflops,
            "share_of_matmul": gflops / matmul_gflops,
            "rounds_thrown_away": timing.thrown_away,
            "rounds_disturbed": timing.disturbed,
        }
