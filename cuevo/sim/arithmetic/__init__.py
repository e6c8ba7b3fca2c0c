"""Arithmetic with the bits of the hardware: floats, tensor cores, the approximate functions."""
