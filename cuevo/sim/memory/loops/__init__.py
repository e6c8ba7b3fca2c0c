"""Loops to compile: over the words of accesses to shared memory in which nothing is wrong."""
