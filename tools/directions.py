"""Subjects of measurement: the forward or the backward pass of attention."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import backward_peers
import peers
from backends import Backend, Inputs
from checks import Expected, expected_gradients, expected_output
from peers import Contender, Loader
from workloads import BACKWARD, FORWARD, QUICK, QUICK_BACKWARD, Workload


@dataclass(frozen=True)
class Direction:
    """One of the passes: its problems, contenders and checks."""

    name: str
    workloads: Sequence[Workload]
    quick: Sequence[Workload]
    operations: Callable[[Workload], int]
    traffic: Callable[[Workload], int]
    """Bytes of one set of inputs with its results."""
    inputs: Callable[[Backend, Workload, str, int], Inputs]
    """Random inputs of a type, from a seed."""
    expected: Callable[[Backend, Inputs, Workload, str], Expected]
    """By the biases that a contender has."""
    configurations: Callable[[Sequence[str]], dict[str, Any]]
    """Label -> what to change in the configuration that cuevo chooses; nothing comes first."""
    cuevo: Callable[[Mapping[str, Any]], list[Contender]]
    """Contenders from `configurations`."""
    loaders: Callable[[Collection[Workload]], Sequence[tuple[str, Loader]]]
    """Contenders of the peers; given the workloads that were asked for by name."""
    passes: int = 1
    """Kernels that read the pair bias."""
    memory: Callable[[Backend, Inputs, Workload], Mapping[str, int | None]] | None = None
    """A line about device memory."""


def _forward_inputs(backend: Backend, workload: Workload, dtype: str, seed: int) -> Inputs:
    return backend.inputs(workload, dtype, seed)


def _backward_inputs(backend: Backend, workload: Workload, dtype: str, seed: int) -> Inputs:
    inputs = backend.inputs(workload, dtype, seed)
    shape = (1, workload.rows, workload.length, workload.heads, workload.head_dim)
    return replace(inputs, dout=backend.normal(shape, dtype, seed + 1000))


def _forward_configurations(texts: Sequence[str]) -> dict[str, Any]:
    from cuevo.cli.arguments.settings import read_values, split_settings
    from cuevo.kernels import evoformer_forward_sm80, evoformer_forward_sm90a

    def read(text: str) -> dict[str, Any]:
        settings = split_settings(text.split(","))
        # Fields that only the variant for sm_90a has ask for it.
        others = settings.keys() - {each.name for each in fields(evoformer_forward_sm80.Config)}
        variant = evoformer_forward_sm90a if others else evoformer_forward_sm80
        return read_values(variant.Config, settings)

    return {"": None, **{text: read(text) for text in texts}}


def _backward_configurations(texts: Sequence[str]) -> dict[str, Any]:
    from cuevo.cli.arguments.settings import read_values, split_settings
    from cuevo.kernels.evoformer_backward_sm80 import Config

    def read(text: str) -> dict[str, dict[str, Any]]:
        sides: dict[str, dict[str, str]] = {}
        for name, value in split_settings(text.split(",")).items():
            side, dot, field = name.partition(".")
            if side not in ("keys", "queries") or not dot:
                raise ValueError(
                    f"--config takes keys.NAME=VALUE or queries.NAME=VALUE, not {name!r}"
                )
            sides.setdefault(side, {})[field] = value
        return {side: read_values(Config, settings) for side, settings in sides.items()}

    return {"": None, **{text: read(text) for text in texts}}


def with_pair_bias(
    direction: Direction,
    layout: str = "contiguous",
    *,
    fp32: bool = False,
    pack: bool | None = None,
) -> Direction:
    """The pass with the pair bias in a layout of `PAIR_LAYOUTS`, in fp32 or the type of the rest,
    packed by cuevo or not.
    """

    def inputs(backend: Backend, workload: Workload, dtype: str, seed: int) -> Inputs:
        made = direction.inputs(backend, workload, dtype, seed)
        if fp32:
            shape = tuple(made.pair_bias.shape)
            made = replace(made, pair_bias=backend.normal(shape, "fp32", seed))
        if layout == "head-last":
            made = replace(made, pair_bias=backend.head_last(made.pair_bias))
        return replace(made, pack=pack)

    return replace(direction, inputs=inputs)


PAIR_LAYOUTS = ("contiguous", "head-last")

FORWARD_PASS = Direction(
    "forward",
    FORWARD,
    QUICK,
    operations=lambda workload: workload.operations,
    traffic=Workload.traffic_bytes,
    inputs=_forward_inputs,
    expected=expected_output,
    configurations=_forward_configurations,
    cuevo=peers.cuevo_contenders,
    loaders=lambda asked: list(peers.PEERS.items()),
)

BACKWARD_PASS = Direction(
    "backward",
    BACKWARD,
    QUICK_BACKWARD,
    operations=lambda workload: workload.backward_operations,
    traffic=Workload.backward_traffic_bytes,
    inputs=_backward_inputs,
    expected=expected_gradients,
    configurations=_backward_configurations,
    cuevo=backward_peers.cuevo_backward,
    loaders=backward_peers.backward_peers,
    passes=2,
    memory=backward_peers.memory,
)

DIRECTIONS = {direction.name: direction for direction in (FORWARD_PASS, BACKWARD_PASS)}
