"""Rendezvous within a task.

key     the name of one tensor on one edge, in one iteration
table   `RendezvousTable`: matches sends and receives; pure
inline  a dict, for programs interleaved on one thread
local   the table behind a lock
"""
