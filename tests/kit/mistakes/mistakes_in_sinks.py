"""Mistakes that the cases of ``conformance.cases.gradients`` catch first."""

from mistakes_in_masks import given
from planted import Mistake

GRADIENT = "gradient = -delta if grad_lse is None else grad_lse[..., None] - delta\n"
RESULT = 'of_sinks(steps["share"], delta, grad_lse, sinks)]'

VALUES = [
    # every head has that of the first
    given("sinks", "if sinks is not None:", "    sinks = sinks[:1].repeat(len(sinks))"),
    # scaled, as if they were products
    given("sinks and scale", "if sinks is not None and scale is not None:",
          "    sinks = sinks * (scale * query.shape[-1] ** 0.5)"),
    # capped, as if they were scores
    given("sinks, softcap and bias", "if sinks is not None and softcap is not None:",
          "    sinks = softcap * np.tanh(sinks / softcap)"),
    # one for each key head
    given("sinks, grouped heads", "if sinks is not None and key.shape[1] < query.shape[1]:",
          "    sinks = sinks[: key.shape[1]].repeat(query.shape[1] // key.shape[1])"),
    given("sinks, window", "if window is not None and window[1]:", "    sinks = None"),
    # the column of the sink is masked, too
    given("sinks, masked", "if mask is not None:", "    sinks = None"),
    # every block of keys adds it
    given("sinks, long", "if sinks is not None and key.shape[-2] > 128:", "    sinks = sinks + np.log(np.float32(2))"),
    # that of the keys alone
    Mistake("sinks, lse", 'lse = steps["lse"].reshape(query.shape[:-1])',
            'lse = forward(query, key, value, allowed, bias, scale, softcap)["lse"]'),
    # the largest is not taken off
    Mistake("sinks, large scores", "largest = np.maximum(shift, column)", "largest = np.zeros_like(column)"),
    # what is not finite counts as 0
    Mistake("sinks of -inf", 'sinks.astype(steps["wide"])[:, None, None]\n    largest',
            'np.nan_to_num(sinks.astype(steps["wide"]), neginf=0)[:, None, None]\n    largest'),
    # a row without keys has no sink either
    Mistake("sinks, empty row", "share=share, lse=lse[..., 0]", 
            "share=share, lse=np.where(steps['total'] == 0, -np.inf, lse)[..., 0]"),
]  # fmt: skip
GRADIENTS = [
    Mistake("gradient: sinks", "return (share * gradient)", "return -(share * gradient)"),
    # summed over the queries that see all keys
    Mistake("gradient: sinks, masked", RESULT,
            RESULT.replace('steps["share"]', 'steps["share"] * allowed.all(axis=-1, keepdims=True)')),
    # the mean over a group
    Mistake("gradient: sinks, grouped heads", RESULT, f"{RESULT[:-1]} / (query.shape[1] // key.shape[1])]"),
    Mistake("gradient: sinks, lse", GRADIENT, "gradient = -delta\n"),
]  # fmt: skip
MISTAKES = [*VALUES, *GRADIENTS]
