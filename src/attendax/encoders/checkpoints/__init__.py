"""Weights in and out: BERT and ModernBERT directories, state dicts of PyTorch, and files of our own."""
