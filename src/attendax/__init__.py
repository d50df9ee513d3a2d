"""Attention with a proof: one written meaning in NumPy, the same in JAX, every gradient cross-checked."""

from . import conformance as conformance
from . import encoders as encoders
from . import masks as masks
from . import ops as ops
from . import params as params
from . import scores as scores
from . import spec as spec
from .kernels.attention import attention as attention
from .kernels.attention import merge as merge
from .kernels.explain import Explanation as Explanation
from .kernels.explain import explain as explain
from .kernels.inspection import AttentionStats as AttentionStats
from .kernels.inspection import attention_stats as attention_stats
from .kernels.inspection import weights_at as weights_at
