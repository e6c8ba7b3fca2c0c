"""Where lanes stand and wait: control flow, barriers, mbarriers, asynchronous copies, wgmma."""
