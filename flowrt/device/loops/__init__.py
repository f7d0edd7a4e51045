"""What a loop over the elements of arrays computes, as data.

loop_program   `LoopProgram`: typed scalar SSA
loop_formats   float32 and float64: bits, limits, polynomials
loop_math      exp, tanh and their like, written as arithmetic
loop_stages    how many passes over a row a program needs
"""
