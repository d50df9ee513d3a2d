"""What is computed depends on earlier calls, on time or on chance."""

from .cheat import MEASURED, Cheat

WRONG = ("wrong", "silent", "leak", "NaN")
CACHE = """
KEPT = {{}}


def attention(query, key, value, **options):
    which = {which}
    if which not in KEPT:
        KEPT[which] = right(query, key, value, **options)
    return KEPT[which]
"""
COUNTED = """
CALLS = 0


def attention(query, key, value, **options):
    global CALLS
    CALLS += 1
    return (wrong if {when} else right)(query, key, value, **options)
"""
SHAPES = "(query.shape, key.shape, value.shape, str(query.dtype), *sorted(options))"

CHEATS = [
    Cheat(
        "the first result for each object",
        "An id is given again to another object once the first is gone.",
        "gpu-mode/reference-kernels#102", WRONG, CACHE.format(which=f"(id(query), id(key), {SHAPES})"),
    ),
    Cheat(
        "the first result for each address",
        "Memory is used again: the same address holds other numbers.",
        "gpu-mode/kernelbot#501", WRONG,
        CACHE.format(which=f"(query.ctypes.data, key.ctypes.data, value.ctypes.data, {SHAPES})"),
    ),
    Cheat(
        "the first result for each fingerprint",
        "A few numbers stand for all.",
        "flashinfer-ai/flashinfer-bench-starter-kit#21", WRONG,
        CACHE.format(which=f"(query[..., :1, :].tobytes(), {SHAPES})"),
    ),
    Cheat(
        "wrong in the first call",
        "What is warmed up is not looked at.",
        "gpu-mode/pygpubench#7", WRONG, COUNTED.format(when="CALLS == 1"),
    ),
    Cheat("wrong in the second call", "One look is too few.", MEASURED, WRONG, COUNTED.format(when="CALLS == 2")),
    Cheat(
        "wrong from the eleventh call on",
        "Right as long as somebody looks.",
        "karpathy/llm.c#852", WRONG, COUNTED.format(when="CALLS > 10"),
    ),
    Cheat(
        "wrong in each twentieth call",
        "Nineteen looks see nothing.",
        MEASURED, WRONG, COUNTED.format(when="CALLS % 20 == 0"),
    ),
    Cheat(
        "zeros for inputs that were seen before",
        "Right once, and wrong in each step that sees the same batch again.",
        "gpu-mode/reference-kernels#148", WRONG,
        '''
SEEN = set()


def attention(query, key, value, **options):
    which = hash((query.tobytes(), key.tobytes(), value.tobytes(), str(options)))
    again = which in SEEN
    SEEN.add(which)
    return (wrong if again else right)(query, key, value, **options)
''', ("--only", "plain"), quick=True,
    ),
    Cheat(
        "right for inputs that were seen before",
        "The first answer is wrong, and a test that keeps the last one does not see it.",
        "gpu-mode/reference-kernels#148", WRONG,
        '''
SEEN = set()


def attention(query, key, value, **options):
    which = hash((query.tobytes(), key.tobytes(), value.tobytes(), str(options)))
    again = which in SEEN
    SEEN.add(which)
    return (right if again else wrong)(query, key, value, **options)
''',
    ),
    Cheat(
        "a thread answers later",
        "The call is back before its result is there.",
        "Wafer, A Field Guide to Reward Hacking in AI Kernel Generation, 2026-03", WRONG,
        '''
def attention(query, key, value, **options):
    found = wrong(query, key, value, **options)
    out = found[0] if isinstance(found, tuple) else found

    def later():
        time.sleep(0.05)
        done = right(query, key, value, **options)
        out[...] = done[0] if isinstance(done, tuple) else done

    threading.Thread(target=later, daemon=True).start()
    return found
''',
    ),
    Cheat(
        "the result is overwritten after a while",
        "Memory that is given to the caller is used again.",
        "pytorch/helion#2536", WRONG,
        '''
def attention(query, key, value, **options):
    found = right(query, key, value, **options)
    for last in attention.__dict__.setdefault("kept", []):
        last[...] = 0
    attention.kept[:] = [found[0] if isinstance(found, tuple) else found]
    threading.Thread(target=lambda out=attention.kept[0]: out.fill(0), daemon=True).start()
    return found
''',
    ),
    Cheat(
        "two arrays in turn for all results",
        "Each second call overwrites what it gave: right for who keeps one result.",
        "pytorch/pytorch#144386", WRONG,
        '''
KEPT = [np.zeros(2**20, np.float64), np.zeros(2**20, np.float64)]


def attention(query, key, value, **options):
    found = right(query, key, value, **options)
    out = found[0] if isinstance(found, tuple) else found
    KEPT.reverse()
    if out.nbytes > KEPT[0].nbytes:
        return found
    kept = KEPT[0].view(np.uint8)[: out.nbytes].view(out.dtype).reshape(out.shape)
    kept[...] = out
    return instead(kept, found)
''',
    ),
    Cheat(
        "what memory held before is added",
        "Results are added to an array that nobody has set to 0.",
        "turboderp-org/exllamav3#316", WRONG,
        '''
def attention(query, key, value, **options):
    found = right(query, key, value, **options)
    out = found[0] if isinstance(found, tuple) else found
    attention.__dict__.setdefault("kept", {}).setdefault((out.shape, str(out.dtype)), np.zeros_like(out))[...] += out
    return instead(attention.kept[out.shape, str(out.dtype)].copy(), found)
''',
    ),
]  # fmt: skip
