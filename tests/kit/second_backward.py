"""Attention in torch whose first backward writes its result into what was saved for the second."""

import functools


@functools.cache
def attention():
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(context, query, key, value):
            context.weights = (query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5).softmax(-1)
            context.save_for_backward(query, key, value)
            return context.weights @ value

        @staticmethod
        def backward(context, cotangent):
            (query, key, value), weights = context.saved_tensors, context.weights
            of_value = weights.swapaxes(-1, -2) @ cotangent
            dweights = cotangent @ value.swapaxes(-1, -2)
            dweights -= (dweights * weights).sum(-1, keepdim=True)
            dscores = weights.mul_(dweights).mul_(query.shape[-1] ** -0.5)
            return dscores @ key, dscores.swapaxes(-1, -2) @ query, of_value

    return Attention


def attend(query, key, value):
    return attention().apply(query, key, value)
