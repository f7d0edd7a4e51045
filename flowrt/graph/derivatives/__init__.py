"""Derivatives as more graph.

gradients        reverse mode
jvp              forward rules derived from reverse rules
forward_mode     forward mode
custom_gradient  functions with derivatives given by hand
"""
