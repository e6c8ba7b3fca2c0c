"""The state spaces of a launch, what their accesses cost, and who may see which byte: data races
and the happens-before relation.
"""
