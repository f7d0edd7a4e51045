"""Programs of public repositories, run with `flowrt-tf1` as they are: see `__main__`."""
