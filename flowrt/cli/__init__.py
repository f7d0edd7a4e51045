"""The command ``flowrt``: `devices`, `env` and `selftest`, one module each; `main` reads the command line."""
