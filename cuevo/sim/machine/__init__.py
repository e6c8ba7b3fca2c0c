"""The state of a chunk of threadblocks, and the operands that instructions bind to it."""
