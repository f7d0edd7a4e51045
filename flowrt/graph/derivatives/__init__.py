"""Automatic differentiation: derivatives are graph operations.

gradients        reverse mode
jvp              forward rules derived from reverse rules
forward_mode     forward mode
custom_gradient  functions with user-defined derivatives
"""
