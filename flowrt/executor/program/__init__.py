"""A compiled partition at run time: basic blocks of bound calls, and their drivers.

instruction          instructions as data: calls, machine code, moves, stream waits; printed as Python calls
primitive_action     a primitive of oneDNN's on arrays of the program
updates              updates of variables, adjacent ones joined
program              `Program`: basic blocks, separated by waits for tensors that have not arrived
control_flow         loops and branches between basic blocks
arguments            arguments of a call: bound in advance, or read when the call is made
instruction_builder  collects the instructions of one program while it is bound
edge_keys            the rendezvous keys of sends, receives and stream events
joint_reduction     collectives among devices of one task
interleave           programs of several devices, linearised into one without waits
runner               inline, one thread per device, or in a seeded order (tests)
continuation         a program without a thread, resumed by the sender of the awaited tensor
time_slice           number of iterations in one call of machine code between checks for deadlines
group_steps          steps in collectives that span several graphs, and their failure
"""
