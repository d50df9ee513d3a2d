"""Mistakes in the formulas of docs/proofs, each of which must stop the build: what it is, what is replaced, by what."""

from typing import NamedTuple


class Mistake(NamedTuple):
    """In which file, in words, what is replaced (it occurs once), and by what."""

    file: str
    what: str
    old: str
    new: str


TRUE_SCORE = "weight i j * (grad_weight i j - delta i) + weight i j * dlse g i"
KEY_SUM, QUERY_SUM = "Σ (i ∈ seers j) scale o * dz i j", "Σ (j ∈ seen i) scale o * dz i j"
ARRAY = "ds i j * slope_in (score_mod o) arrays i j (product i j) p"

MISTAKES = [
    # the law
    Mistake("Attention", "the mask is not looked at", "filter (allowed o i) (keys o)", "keys o"),
    Mistake("Attention", "an empty row has lse 0", "match seen i with [] => None",
        "match seen i with [] => Some (zero A)"),
    Mistake("Attention", "an lse without its shift", "Some (shift i + log A (total i))", "Some (log A (total i))"),
    Mistake("Attention", "weights are not divided", "e_to A (score i j - shift i) / total i.",
        "e_to A (score i j - shift i)."),
    Mistake("Attention", "the shift is in the sum alone", "weight i j := e_to A (score i j - shift i)",
        "weight i j := e_to A (score i j)"),
    Mistake("Attention", "out forgets dropout", "weight i j * kept o i j * x (value j c).",
        "weight i j * x (value j c)."),
    Mistake("Attention", "out sums over every key", "out i c := Σ (j ∈ seen i)", "out i c := Σ (j ∈ keys o)"),
    Mistake("Attention", "a product without its scale", "product i j := scale o * Σ", "product i j := Σ"),
    Mistake("Attention", "the bias is taken off", "(product i j) + x (bias", "(product i j) - x (bias"),
    # the backward
    Mistake("Attention", "the sign of delta", TRUE_SCORE, TRUE_SCORE.replace("- delta", "+ delta")),
    Mistake("Attention", "no delta", TRUE_SCORE, TRUE_SCORE.replace(" - delta i", "")),
    Mistake("Attention", "the sign of the gradient of lse", TRUE_SCORE, TRUE_SCORE.replace(") + weight", ") - weight")),
    Mistake("Attention", "the gradient of lse is dropped", TRUE_SCORE, TRUE_SCORE.split(" + ")[0]),
    Mistake("Attention", "the gradient of lse has no weight", TRUE_SCORE, TRUE_SCORE.replace("+ weight i j * ", "+ ")),
    Mistake("Attention", "delta without weights", "grad_weight i j * weight i j.", "grad_weight i j."),
    Mistake("Attention", "delta drops out twice", "grad_weight i j * weight i j.",
        "grad_weight i j * kept o i j * weight i j."),
    Mistake("Attention", "weights get their gradient without dropout", "dout g i c * x (value j c)) * kept o i j.",
        "dout g i c * x (value j c))."),
    Mistake("Attention", "no derivative of the modifier", "ds i j * slope (score_mod o) arrays i j (product i j) in",
        "ds i j in"),
    Mistake("Attention", "the modifier's derivative at the score", "slope (score_mod o) arrays i j (product i j) in",
        "slope (score_mod o) arrays i j (score i j) in"),
    Mistake("Attention", "queries get no scale", QUERY_SUM, QUERY_SUM.replace("scale o * ", "")),
    Mistake("Attention", "keys get no scale", KEY_SUM, KEY_SUM.replace("scale o * ", "")),
    Mistake("Attention", "queries get the keys that they may not look at", QUERY_SUM,
        QUERY_SUM.replace("seen i", "keys o")),
    Mistake("Attention", "keys get queries that may not look at them", KEY_SUM,
        KEY_SUM.replace("seers j", "queries o")),
    Mistake("Attention", "keys get themselves", KEY_SUM + " * x (query i d)", KEY_SUM + " * x (key j d)"),
    Mistake("Attention", "values forget dropout", "p i j * kept o i j * dout g i c", "p i j * dout g i c"),
    Mistake("Attention", "no mask on the gradient of the bias", "then true else false) (seen i).",
        "then true else false) (keys o)."),
    Mistake("Attention", "a repeated bias gets one reader's gradient alone", "Σ (j ∈ readers i b) ds i j",
        "Σ (j ∈ firstn 1 (readers i b)) ds i j"),
    Mistake("Attention", "the bias gets the gradient of the product", "Σ (j ∈ readers i b) ds i j",
        "Σ (j ∈ readers i b) dz i j"),
    Mistake("Attention", "the arrays get the gradient of the product", ARRAY, ARRAY.replace("ds", "dz")),
    Mistake("Attention", "the arrays' derivative at the score", ARRAY, ARRAY.replace("(product i j)", "(score i j)")),
    # modifiers
    Mistake("Modifiers", "tanh' = 1 - tanh", "one A - tanh_of A (z / cap) * tanh_of A (z / cap)",
        "one A - tanh_of A (z / cap)"),
    Mistake("Modifiers", "softcap's slope takes its cap", "one A - tanh_of A (z / cap) *",
        "cap - tanh_of A (z / cap) *"),
    Mistake("Modifiers", "a slope's sign", "then zero A - distance i j", "then distance i j"),
    Mistake("Modifiers", "a table gets every pair", "if same (entry i j) p then one A else zero A",
        "if same (entry i j) p then one A else one A"),
    Mistake("Modifiers", "the chain rule without its first factor", "(between a i j z) * slope first a i j z;",
        "(between a i j z);"),
    Mistake("Modifiers", "the second derivative at the first's input",
        "slope a i j z := slope second a i j (between a i j z)", "slope a i j z := slope second a i j z"),
    # sinks
    Mistake("Sinks", "a sink is seen by nobody", "| None => true end;", "| None => false end;"),
    Mistake("Sinks", "a logit's slope has the other sign", "then one A else zero A end",
        "then zero A - one A else zero A end"),
    # tiles
    Mistake("Tiles", "parts joined without rescaling", "exp (m - n) * a + exp (m' - n) * a')", "a + a')"),
    Mistake("Tiles", "a tile's backward takes the gradient of lse with the other sign", "* out o x i c - dlse g i)",
        "* out o x i c + dlse g i)"),
    Mistake("Tiles", "a tile's backward with weights that are not divided", "exp (score o x i j - lse_or_0 o x i)",
        "exp (score o x i j)"),
    Mistake("Tiles", "a merge of equal parts", "(exp (a - l) * u + exp (b - l) * v, Some l)", "((u + v) / 2, Some l)"),
    Mistake("Tiles", "a merged lse is the larger one", "let l := ln (exp a + exp b) in", "let l := Rmax a b in"),
    # layers
    Mistake("Layers", "a residual's gradient goes through alone", "to_input w x g a := g a + to_input f w x g a",
        "to_input w x g := to_input f w x g"),
    Mistake("Layers", "no mean in the gradient of layer norm", "(inner w g a - mean places (inner w g) - normal",
        "(inner w g a - normal"),
    Mistake("Layers", "layer norm's gradient forgets gamma", "a := g a * w (gamma a) in", "a := g a in"),
    Mistake("Layers", "gamma gets the gradient of the input itself", "gamma a => g a * normal x a",
        "gamma a => g a * x a"),
    Mistake("Layers", "softmax's gradient without its sum", "p x a * (g a - Σ (b ∈ places) g b * p x b)",
        "p x a * g a"),
    Mistake("Layers", "an activation without its slope", "to_input _ x g a := g a * slope (x a)",
        "to_input _ x g a := g a"),
]  # fmt: skip
