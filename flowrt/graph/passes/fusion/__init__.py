"""Fusion: groups of operations that one compiled loop can compute.

group        what may be in a group
fuse         finds groups by scheduling, which keeps the graph acyclic
loop_budget  how many different loops are worth compiling
"""
