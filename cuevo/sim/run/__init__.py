"""Loading a kernel, running its threadblocks in chunks, and counting what they did."""
