"""Compiled loops and library calls that replace an op's kernel.

sized_call                     kernels with large outputs or of unknown size: memory from the pool
split_call                     kernels on large arrays, in parts that threads share
loop_layout, loop_operands     memory layout of a loop's arrays; operands of the loop
fused_program, fused_kernel    a fusion group -> scalar program -> callable
update_kernel                  variable updates: one pass over memory for all of an optimizer's
cuda_kernel, cuda_update       the same on a GPU
copy_kernels, small_calls      copies and small matrix products for use in compiled sequences
scalar_code                    scalar operations as code of a control nest
pool_kernels                   max pooling as compiled loops
random_kernels                 uniform random numbers by compiled loops
onednn_kernels                 convolution, pooling, normalization and matrix products by oneDNN
bound_primitive                convolutions and matrix products by oneDNN, on memory that stays
host_kernels                   choice among these for a node on the host
backend                        `Backend`: what a kind of device does better than the operations' kernels
device_backends                the backends of the host, CUDA and the null device
"""
