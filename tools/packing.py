"""What cuevo makes of the pair bias of a benchmark: whether it is packed, and a call that does
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backends import Inputs


def packing_call(inputs: Inputs, passes: int) -> tuple[Callable[[], Any], int] | None:
    """A call that only packs the pair bias, and the bytes that it reads and writes; None where a
    call of cuevo with both biases reads that in place.
    """
    from cuevo.arrays import view
    from cuevo.cuda import resolve_stream
    from cuevo.executors import architecture_of, executor_for
    from cuevo.ops.attention_problem import state_problem
    from cuevo.ops.packing import is_packed, pack_biases
    from cuevo.ops.plan import PlanBuilder

    pair_bias = view(inputs.pair_bias)
    place = executor_for("sim" if pair_bias.device == "cpu" else None, {"pair_bias": pair_bias})
    problem = state_problem(view(inputs.q), view(inputs.k), view(inputs.v), None, pair_bias)
    if not is_packed(problem, pair_bias, inputs.pack, passes, architecture_of(place)):
        return None
    builder = PlanBuilder(("pair_bias",), (), {"pair_bias": pair_bias}, place)
    pack_biases(builder, problem, True)
    plan, stream = builder.plan, resolve_stream()
    nbytes = pair_bias.nbytes + plan.workspace_bytes
    if plan.in_place is None:
        return (lambda: plan.run_on_cpu([pair_bias], [], None)), nbytes
    return (lambda: plan.queue([0, pair_bias.pointer], stream, None)), nbytes
