"""GPUs through CuPy. Never run on real hardware yet.

cuda_stream  streams and events
cuda_graph   capture and replay
cuda_blas    matrix products by cuBLAS
cuda         `CudaExecutor` (the only module that imports CuPy)
"""
