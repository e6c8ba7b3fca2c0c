"""Control flow, and all that lanes wait for: barriers, mbarriers, asynchronous copies, wgmma."""
