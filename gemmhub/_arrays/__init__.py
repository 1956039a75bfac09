"""The direct array libraries: operands, allocation, clock and fast path of each."""
