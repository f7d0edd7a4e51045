"""Lists of tensors in loops, and loop bodies compiled to machine code.

list_transfer   lists sent to another device, element by element
swapping        ``while_loop(swap_memory=True)``: elements that wait in host memory
open_lists      lists that a loop only pushes to or pops from: plain Python lists
relocation      operands whose address changes per step
list_rows       lists as rows of one array, read or written in order
indexed_rows    the same, at computed positions
nested_lists    which lists of lists can be stored as rows
nested_rows     how these are stored
compiled_body   loops and branches that consist of compiled calls only
"""
