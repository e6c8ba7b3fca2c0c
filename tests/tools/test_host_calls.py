from typing import Any

import pytest
from helpers.host_backend import HostBackend

import host_calls
from backends import Inputs


@pytest.mark.kernel
def test_every_call_is_timed_in_every_round(monkeypatch, capsys):
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("cuevo.torch")
    monkeypatch.setattr(host_calls, "ROUNDS", 2)
    monkeypatch.setattr(host_calls, "CALLS", 1)
    monkeypatch.setattr(host_calls, "host_microseconds", lambda entrant, clock, calls: 1.5)
    backend = HostBackend()

    def inputs(workload, dtype, seed):
        shapes = [(1, 2, 8, 1, 8)] * 3 + [(1, 2, 1, 1, 8), (1, 1, 1, 8, 8)]
        return Inputs(*(torch.ones(shape, dtype=torch.bfloat16) for shape in shapes))

    monkeypatch.setattr(backend, "inputs", inputs)
    host_calls.print_host_times(backend, [host_calls.DEFAULT], "bf16")
    printed = capsys.readouterr().out
    for name in ("cuevo.torch, forward", "SDPA, forward", "cuevo.torch, backward", "SDPA, back"):
        (line,) = (line for line in printed.splitlines() if name in line)
        assert line.count("1.5") == 3
