"""The bound of a kernel's time, from its machine code: `units` has the rates of a multiprocessor's
pipes, `counts` what a threadblock asks of them, `model` the time of a call, `plot` draws both.
"""
