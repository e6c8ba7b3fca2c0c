"""The state of a chunk of threadblocks (`state`), and the operands that instructions bind to it
(`binder`, and `wgmma_operands` for matrices in shared memory).
"""
