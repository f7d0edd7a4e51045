"""The loop compiler: groups of operations as typed scalar programs, and their text. Pure: it knows no
array, device or library.

    op's rule  ->  LoopProgram  ->  LLVM IR (`flowrt.device.llvm` compiles it), CUDA C (`flowrt.device.cuda`)

loop_program                     `LoopProgram`: typed scalar SSA
loop_formats                     float32 and float64: bits, limits, polynomials
loop_math                        exp, tanh etc., expanded to arithmetic
nest                             `LoopNest`: the loops over rows and columns, with the place of each value
control_nest, llvm_nest          loops and branches around scalars, compiled loops and rows of lists; their IR
llvm_text, cuda_text             text of one value
llvm_loops, cuda_loops           text of a loop program
llvm_product, llvm_convolution   IR of matrix products and convolutions
llvm_rows                        IR that copies rows by index
llvm_philox                      IR that draws uniform numbers
"""
