"""Folders for programs without Python: kernels as fat binaries, and the planner in C that launches
them as Python does.
"""
