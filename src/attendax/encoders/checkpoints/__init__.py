"""Weights in and out: BERT and ModernBERT directories, state dicts of PyTorch, and files of our own."""

from .bert import load_bert as load_bert
from .bert import save_bert as save_bert
from .modernbert import load_modernbert as load_modernbert
from .modernbert import save_modernbert as save_modernbert
from .native import load as load
from .native import save as save
from .pytorch import load_torch as load_torch
from .pytorch import to_torch as to_torch
