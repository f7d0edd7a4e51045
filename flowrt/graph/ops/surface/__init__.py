"""Python's operators on tensors (operators), and the import that registers every op (all)."""
