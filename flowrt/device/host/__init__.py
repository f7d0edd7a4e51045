"""The host: NumPy and its BLAS.

host_blas   how long OpenBLAS's threads spin
host        `HostExecutor`
"""
