"""Loading and running: the face (`executor`), a function made ready (`program`), the loop that runs
a chunk of threadblocks (`schedule`), what it may take (`budget`), and the counts of a launch
(`profile`).
"""
