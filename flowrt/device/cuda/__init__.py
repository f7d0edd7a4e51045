"""GPUs through CuPy, and the CUDA C of loops. Never run on real hardware yet.

cuda_text, cuda_loops   CUDA C of one value; of a loop program
cuda_stream             streams and events
cuda_graph              capture and replay
cuda_blas               matrix products by cuBLAS
cuda                    `CudaExecutor` (the only module that imports CuPy)
"""
