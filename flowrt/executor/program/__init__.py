"""A compiled partition as it runs: basic blocks of bound calls, and what drives them.

program              `Program`: basic blocks, separated by waits for tensors that have not arrived
control_flow         loops and branches between basic blocks
arguments            arguments of a call: bound in advance, or read when the call is made
instruction_builder  collects the instructions of one program while it is bound
edge_keys            the rendezvous keys of sends, receives and stream events
interleave           programs of several devices, linearised into one without waits
runner               inline, one thread per device, or in a seeded order (tests)
continuation         a program without a thread: the sender of what it waits for resumes it
time_slice           how many iterations one call of machine code may run before it checks for deadlines
group_steps          steps that take part in collectives of several graphs, and their failure
current_operation    which operation a thread is computing, seen from another thread
"""
