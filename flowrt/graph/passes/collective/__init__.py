"""Lowering of collectives.

collective_call     ranks, devices, algorithm and message names of one collective
expand_collective   as Send, Recv and Add nodes, by a `Schedule`
gather_together     a unit's gather, into one memory
native_collective   as a start and a wait, executed by a group member
lower_collectives   the pass
"""
