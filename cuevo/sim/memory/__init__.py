"""Global, shared, local and constant memory and tensor tiles; the cost of accesses (banks,
sectors); their order (data races, happens-before), with `loops` to compile; registers as matrices
of tensor cores (`fragments`).
"""
