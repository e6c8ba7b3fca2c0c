"""Arithmetic with the bits of the hardware: float32, float64 and 16-bit floats, the blocks of
tensor cores, and the approximate functions (ex2, lg2, rcp, rsqrt) from their tables.
"""
