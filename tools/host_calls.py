"""Host time of calls through torch: cuevo's operator, its bare functions, and SDPA's operator.

All contenders take turns in each of several rounds, so that a change of the processor's clock
meets all of them. What counts is the time until a call returns, not what the device does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from backends import Backend, Inputs
from cuevo.ops.tuning.measure import Clock, Entrant, turns, warm_up
from machine import circumstances
from measure import host_microseconds
from peers import arguments_of, heads_first
from report import print_rows
from workloads import Workload

ROUNDS = 33
"""Each contender is the first of a round three times, so that all meet the same before them."""
CALLS = 8
"""In a burst: few enough for the driver's launch queue never to be full."""
DEFAULT = Workload(128, 4, 128, 32)


def calls(inputs: Inputs) -> dict[str, Callable[[], Any]]:
    """What is timed, by name. cuevo has both biases and the gradients of both, SDPA the pair bias,
    which it takes expanded, with its gradient, or none.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    import cuevo
    from cuevo.torch import evoformer_attention

    def leaves(*tensors: Any) -> list[Any]:
        return [x.detach().clone().requires_grad_() for x in tensors]

    def backward(out: Any, *tensors: Any) -> Callable[[], Any]:
        dout = torch.ones_like(out)
        return partial(torch.autograd.grad, out, tensors, dout, retain_graph=True)

    given = arguments_of(inputs, "both")
    ours = leaves(*given.values())
    out = evoformer_attention(*ours)
    q, k, v, pair = leaves(*map(heads_first, ours[:3]), ours[4])
    mask = pair[0].expand(q.shape[0], -1, -1, -1)
    dout = torch.ones_like(out)
    shape = (*inputs.q.shape[:2], inputs.q.shape[3], inputs.q.shape[2])
    lse = torch.empty(shape, dtype=torch.float32, device=out.device)
    bare = cuevo.attention(**given, out=torch.empty_like(out), lse=lse, return_lse=True)
    operands = [dout, *list(given.values())[:3], *bare]
    biases = dict(list(given.items())[3:])
    results = [torch.empty_like(x) for x in given.values()]
    nbytes = cuevo.attention_backward_workspace(*operands, **biases, results=results)
    options: dict[str, Any] = {**biases, "results": results}
    if out.is_cuda:
        options["workspace"] = torch.empty(nbytes, dtype=torch.uint8, device=out.device)
    sdpa = scaled_dot_product_attention
    return {
        "cuevo.attention, out given": partial(cuevo.attention, **given, out=torch.empty_like(out)),
        "cuevo.attention": partial(cuevo.attention, **given),
        "cuevo.torch, no gradients": partial(evoformer_attention, *given.values()),
        "cuevo.torch, forward": partial(evoformer_attention, *ours),
        "SDPA, no gradients": partial(sdpa, q.detach(), k.detach(), v.detach(), mask.detach()),
        "SDPA, forward": partial(sdpa, q, k, v, mask),
        "SDPA without bias, forward": partial(sdpa, q, k, v),
        "cuevo.attention_backward, all given": partial(
            cuevo.attention_backward, *operands, **options
        ),
        "cuevo.torch, backward": backward(out, *ours),
        "SDPA, backward": backward(sdpa(q, k, v, mask), q, k, v, pair),
        "SDPA without bias, backward": backward(sdpa(q, k, v), q, k, v),
    }


def host_times(named: Mapping[str, Callable[[], Any]], clock: Clock) -> dict[str, list[float]]:
    """Microseconds of a call, from each round."""
    entrants = {name: Entrant([call]) for name, call in named.items()}
    for entrant in entrants.values():
        warm_up(entrant, clock)
    times: dict[str, list[float]] = {name: [] for name in named}
    for names in turns([*entrants], ROUNDS):
        for name in names:
            times[name].append(host_microseconds(entrants[name], clock, CALLS))
    return times


def print_host_times(backend: Backend, workloads: Sequence[Workload], dtype: str) -> None:
    """A table for each workload."""
    record = circumstances()
    print(f"{backend.facts.name}, {record['date']}  {record['command']}")
    for workload in workloads:
        inputs = backend.inputs(workload, dtype, 0)
        times = host_times(calls(inputs), backend)
        print(f"\nN,H,L,D = {workload}   host time of a call, us, in {ROUNDS} rounds")
        rows = [
            [name, f"{statistics.median(x):.1f}", f"{min(x):.1f}", f"{max(x):.1f}"]
            for name, x in times.items()
        ]
        print_rows(("call", "median", "least", "most"), rows)
