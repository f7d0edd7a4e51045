"""The host's compiler: LLVM IR, which `flowrt.loops` prints, to machine code as Python functions.

code_cache                    machine code on disk, by content
host_jit                      IR -> machine code (the only module that imports llvmlite)
host_call                     machine code as built-in functions of Python
work_stealing, host_pool      a thread pool with work stealing
call_sequence                 sequences of compiled calls
"""
