"""GPUs through CuPy. Run on one H200, with CuPy 14.2; several GPUs only with a mock.

cuda_stream  streams and events
cuda_graph   capture and replay
cuda_blas    matrix products by cuBLAS
cuda         `CudaExecutor` (the only module that imports CuPy)
"""
