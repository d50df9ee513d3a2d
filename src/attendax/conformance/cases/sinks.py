"""Sinks: for each query head the score of one more key, which every query sees and whose value is 0 (L2).

What gpt-oss learns: a share of the weight that gives nothing.
"""

from .case import Case
from .gradients import BIAS, FORWARD_OVER, FULL_MASK, REVERSE_OVER

SINKS = "sinks = rng.standard_normal(N).astype(dtype)"
EMPTY = "mask = rng.random((B, N, T, S)) < 0.5; mask[:, 1, 2] = False"


def case_of(name: str, law: str, about: str, lines: str = "", call: str = "", **more) -> Case:
    """A call with sinks; its gradients where a direction says so."""
    if "direction" in more:  # few numbers, each a sum that may cancel, of terms whose sizes add up to about 1
        more |= {"needs": ("gradient of sinks",), "units": dict.fromkeys(("grad sinks", "second sinks"), 1.0)}
    lines, call = "\n".join(filter(None, (SINKS, lines))), ", ".join(filter(None, ("sinks=sinks", call)))
    return Case(name, law, about, lines=lines, call=call, **more)


def gradient(name: str, about: str, lines: str = "", call: str = "", **more) -> Case:
    """Gradients of everything, the sinks too."""
    return case_of(f"gradient: {name}", "L13", about, lines, call, direction="gradient", **more)


VALUES = [
    case_of("sinks", "L2", "each head has its own"),
    case_of("sinks and scale", "L2", "the scale is not applied to them", call="scale=0.1"),
    case_of(
        "sinks, softcap and bias", "L2", "neither changes them", f"sinks = 2 * sinks; {BIAS}", "softcap=1.0, bias=bias"
    ),
    case_of("sinks, grouped heads", "L2", "one for each query head", sizes={"N": 6}),
    case_of("sinks, masked", "L2", "no mask forbids them", FULL_MASK, "mask=mask"),
    case_of("sinks, long", "L2", "counted once, T = 131, S = 257", sizes={"T": 131, "S": 257}),
    case_of("sinks, lse", "L9", "lse counts them", call="return_lse=True"),
    case_of("sinks, large scores", "L7", "of 100, as the sinks", "query, sinks = 50 * query, 100 + 10 * sinks"),
    case_of("sinks, empty row", "L5", "out is 0, and lse the sink", EMPTY, "mask=mask, return_lse=True"),
]
GRADIENTS = [
    gradient("sinks", "of the sinks, too"),
    gradient("sinks, masked", "summed over all queries", FULL_MASK, "mask=mask"),
    gradient("sinks, grouped heads", "one for each query head", sizes={"N": 6}),
    gradient("sinks, lse", "through both results", call="return_lse=True"),
    case_of("jvp: sinks", "L12", "forward mode", call="return_lse=True", direction="jvp"),
    case_of("second order: sinks", "L12", "forward over reverse", direction=FORWARD_OVER, least="law"),
    case_of("second order: sinks, the other way", "L12", "reverse over reverse", direction=REVERSE_OVER, least="law"),
]
CASES = [*VALUES, *GRADIENTS]
