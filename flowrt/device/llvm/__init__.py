"""The host's compiler: LLVM IR as text, and machine code as Python functions.

llvm_text                        IR of one value
llvm_loops, llvm_iteration       IR of a loop program; of a nest of scalar loops
llvm_product, llvm_convolution   IR of matrix products and convolutions
llvm_rows                        IR that copies rows by index
code_cache                       machine code on disk, by content
host_jit                         IR -> machine code (the only module that imports llvmlite)
host_call                        machine code as built-in functions of Python
work_stealing, host_pool         a thread pool with work stealing
call_sequence, call_program      sequences of compiled calls; with loops and branches
row_stacks                       stacks of rows
"""
