"""The windows of generic addresses: global memory has the addresses of the host, the other state
spaces have windows that no host address falls into.
"""

SIZE = 1 << 32
WINDOWS = {"shared": 1 << 60, "local": 2 << 60, "const": 3 << 60, "param": 4 << 60}
"""Generic address of what has the address 0 in its state space."""
CODE = 5 << 60
"""Where functions have addresses; nothing can be read there."""
FIRST = min(WINDOWS.values())
"""First address above global memory."""
