"""The loop compiler: groups of operations as typed scalar programs, and their text. Pure: it knows no
array, device or library.

    op's rule -> LoopProgram -> LoopNest -> LLVM IR (`flowrt.device.llvm` compiles it)
                                         -> CUDA C (`flowrt.device.cuda`)

loop_program              `LoopProgram`: typed scalar SSA
loop_formats              float32 and float64: bits, limits, polynomials
loop_math                 exp, tanh etc., expanded to arithmetic
nest                      `LoopNest`: the loops over rows and columns, and the place of each value in them
nest_printer              `NestPrinter`: the walk through a nest that its printers share
llvm_text, cuda_text      text of one value
llvm_loops, cuda_loops    text of a loop nest
cuda_grid                 `Grid`: the threads of a GPU that compute a nest
control_nest, llvm_nest   loops and branches around scalars, compiled loops and rows of lists; their IR
llvm_product              IR of matrix products
llvm_rows                 IR that copies rows by index
llvm_philox               IR that draws uniform numbers
"""
