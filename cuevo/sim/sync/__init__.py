"""Control flow, and all that lanes wait for: barriers of blocks and clusters, mbarriers, groups of
copies, asynchronous units, wgmma. Nothing here knows the machine; it is given its parts.
"""
