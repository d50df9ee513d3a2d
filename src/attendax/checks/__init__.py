"""The one border check: named axes in, one clear error out (L14). Shared by NumPy and JAX, so both say the same."""

from .attention import ACTIVATIONS as ACTIVATIONS
from .attention import NORMS as NORMS
from .attention import attention as attention
from .attention import bias as bias
from .attention import block_options as block_options
from .attention import encoder_block as encoder_block
from .attention import mask as mask
from .attention import merge_heads as merge_heads
from .attention import modified as modified
from .attention import multi_head as multi_head
from .attention import pairs_to_merge as pairs_to_merge
from .attention import positions as positions
from .attention import softmax as softmax
from .attention import split_heads as split_heads
from .shapes import FLOATING as FLOATING
from .shapes import check as check
from .shapes import fail as fail
from .values import boolean as boolean
from .values import heads as heads
from .values import instance as instance
from .values import integer as integer
from .values import is_traced as is_traced
from .values import key_words as key_words
from .values import lengths as lengths
from .values import number as number
from .values import one_of as one_of
