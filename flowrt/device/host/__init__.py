"""The host: NumPy and its BLAS.

host_blas      how long OpenBLAS's threads spin
host           `HostExecutor`
shared_calls   threads that share the parts of a kernel of NumPy's
"""
