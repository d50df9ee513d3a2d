"""Whole encoders: configuration, initialisation, application, and weights from real checkpoints.

Sentences are one floor up: ``encoders.sentences`` reads a checkpoint with its tokenizer, ``encoders.embedding`` turns a
stream of texts into embeddings. Neither is needed for an encoder of one's own.
"""

from .bert import load_bert as load_bert
from .encoder import EncoderConfig as EncoderConfig
from .encoder import encode as encode
from .encoder import encoder_shapes as encoder_shapes
from .encoder import init_encoder as init_encoder
from .encoder import layer_attention as layer_attention
