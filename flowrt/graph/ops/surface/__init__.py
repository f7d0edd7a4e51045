"""Tensors in Python, and all ops.

operators          Python's operators on tensors
slice_assignment   slices of variables, assigned
all                the import that registers every op
"""
