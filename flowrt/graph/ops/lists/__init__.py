"""Lists of tensors.

tensor_lists    elements of a list
stacked_lists   whole lists <-> arrays
"""
