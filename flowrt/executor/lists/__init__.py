"""Lists of tensors in loops, and loop bodies compiled to machine code.

swapping        ``while_loop(swap_memory=True)``: elements swapped out to host memory
loop_lists      the lists that can be opened while a loop runs
open_lists      lists that a loop only pushes to or pops from: plain Python lists
row_access      accesses to rows of lists, as steps of machine code
list_rows       lists as rows of one array, read or written in order
indexed_rows    the same, at computed positions
compiled_body   loops and branches that consist of machine code only, as one function
"""
