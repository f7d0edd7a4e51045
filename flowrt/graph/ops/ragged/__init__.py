"""Ragged tensors: rows of different lengths, as their elements in succession and where each row begins.

Everything is composed of operations on these two tensors, so it has their gradients.

ragged_tensor     `RaggedTensor`: made from rows, dense and sparse tensors, and made into them
values            `RaggedTensorValue`, and constants of nested lists
elementwise       operations on the elements of ragged tensors
rows              rows picked, joined, repeated and masked
reducing          sums, means and extremes along dimensions
"""
