"""Lowering of collectives.

collective_call     ranks, devices, algorithm and message names of one collective
expand_collective   as Send, Recv and Add nodes, by a `Schedule`
native_collective   as a start and a wait, for a group's member to carry out
lower_collectives   the pass
"""
