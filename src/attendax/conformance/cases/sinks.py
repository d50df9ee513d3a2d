"""Sinks: for each query head the score of one more key, which every query sees and whose value is 0 (L2).

A sink is learned by gpt-oss: a share of the weight that gives nothing.
"""

from typing import Any

from .biases import BIAS, FULL_MASK
from .case import GRADIENT, Case
from .given import LSE, NOTHING, Given, case, mask, words
from .gradients import FORWARD_OVER, REVERSE_OVER

SINKS = Given("sinks = rng.standard_normal(N).astype(dtype)", "sinks=sinks")
EMPTY = mask("rng.random((B, N, T, S)) < 0.5; mask[:, 1, 2] = False")
UNITS = dict.fromkeys(("grad sinks", "second sinks"), 1.0)  # sums that may cancel, of terms that add up to about 1


def sinks(name: str, law: str, about: str, given: Given = NOTHING, **more: Any) -> Case:
    """A call with sinks; its gradients where a direction says so."""
    return case(name, law, about, SINKS & given, **more)._replace(units=UNITS if "direction" in more else {})


def gradient(name: str, about: str, given: Given = NOTHING, **more: Any) -> Case:
    """Gradients of everything, the sinks too."""
    return sinks(f"gradient: {name}", "L13", about, given, direction=GRADIENT, **more)


VALUES = [
    sinks("sinks", "L2", "each head has its own"),
    sinks("sinks and scale", "L2", "the scale is not applied to them", words("scale=0.1")),
    sinks("sinks, softcap and bias", "L2", "neither changes them",
        Given("sinks = 2 * sinks") & words("softcap=1.0") & BIAS),
    sinks("sinks, grouped heads", "L2", "one for each query head", N=6),
    sinks("sinks, window", "L4", "that looks ahead: it takes none of them", words("window=(1, 2)"), T=7, N=4, G=4),
    sinks("sinks, masked", "L2", "no mask forbids them", FULL_MASK),
    sinks("sinks, long", "L2", "counted once, T = 131, S = 257", T=131, S=257),
    sinks("sinks, lse", "L9", "lse counts them", LSE),
    sinks("sinks, large scores", "L7", "of 100, as the sinks", Given("query, sinks = 50 * query, 100 + 10 * sinks")),
    sinks("sinks of -inf", "L7", "take no weight", Given("sinks[1] = -np.inf") & LSE),
    sinks("sinks, empty row", "L5", "out is 0, and lse the sink", EMPTY & LSE),
]  # fmt: skip
GRADIENTS = [
    gradient("sinks", "of the sinks, too"),
    gradient("sinks, masked", "summed over all queries", FULL_MASK),
    gradient("sinks, grouped heads", "one for each query head", N=6),
    gradient("sinks, lse", "through both results", LSE),
    sinks("jvp: sinks", "L12", "forward mode", LSE, direction="jvp", needs=("gradient of sinks",)),
    sinks("second order: sinks", "L12", "forward over reverse", direction=FORWARD_OVER, least="law"),
    sinks("second order: sinks, the other way", "L12", "reverse over reverse", direction=REVERSE_OVER, least="law"),
]
CASES = [*VALUES, *GRADIENTS]
