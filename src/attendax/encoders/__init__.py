"""Whole encoders: configuration, initialisation, application, and weights from real checkpoints.

Sentences are one floor up: ``encoders.sentences`` reads a checkpoint with its tokenizer, ``encoders.embedding`` turns a
stream of texts into embeddings. Neither is needed for an encoder of one's own.
"""

from .attention_maps import attention_rows as attention_rows
from .attention_maps import layer_attention as layer_attention
from .checkpoints.bert import load_bert as load_bert
from .checkpoints.bert import save_bert as save_bert
from .checkpoints.modernbert import load_modernbert as load_modernbert
from .checkpoints.modernbert import save_modernbert as save_modernbert
from .checkpoints.native import load as load
from .checkpoints.native import save as save
from .checkpoints.pytorch import load_torch as load_torch
from .checkpoints.pytorch import to_torch as to_torch
from .config import EncoderConfig as EncoderConfig
from .config import encoder_shapes as encoder_shapes
from .config import partition_specs as partition_specs
from .config import token_spec as token_spec
from .encoder import encode as encode
from .encoder import init_encoder as init_encoder
from .stack import LayerStack as LayerStack
from .stack import stack_layers as stack_layers
