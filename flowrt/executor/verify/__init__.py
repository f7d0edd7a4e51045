"""Verification of bound programs, with ``FLOWRT_CHECK=1`` and in tests; nothing here runs otherwise.

node_accesses    what each node reads and writes, by the graph and the places of its tensors
memory_contents  the value in each byte, as the instructions leave it
stream_clocks    the order that a program's waits guarantee
verify_calls     what is called are the instructions
verify_program   every read finds the value that the graph says it reads
"""
