"""`Session.partial_run`: one step in several calls.

partial_step  the state of such a step, as a value
partial_run   its execution
"""
