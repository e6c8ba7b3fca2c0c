"""Shipped kernels on tiny problems: their launches, to be made again with another text.

An `Original` is one call of the package. Its launches are recorded while it runs; `again` makes
one with a mutated kernel, and those that follow from it, and `check` compares what came out with
float64 and looks at the bytes around it.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from unittest.mock import patch

from helpers import attention_cases, backward_cases, gemm_cases
from helpers.backward_calls import arguments, configurations
from helpers.backward_cases import GRADS, BackwardCase
from helpers.gemm_cases import GemmCase
from helpers.guarded import Strided, check_guards

import cuevo
from cuevo.architectures import architecture
from cuevo.kernels import evoformer_backward_sm90a, evoformer_forward_sm90a
from cuevo.ops.attention_problem import state_problem
from cuevo.sim import LoadedKernel, SimExecutor
from cuevo.toolchain.template import RenderedKernel


@dataclass
class Launch:
    """One launch, and the bytes of what it may write as they were before."""

    kernel: RenderedKernel
    loaded: LoadedKernel
    geometry: tuple[Any, ...]
    buffers: Sequence[Any]
    before: list[tuple[int, bytes]]

    def run(self, loaded: LoadedKernel | None = None) -> None:
        (loaded or self.loaded).launch(*self.geometry, buffers=self.buffers)

    def uses(self, other: "Launch") -> bool:
        """Whether it has a buffer in common with what the other one may write."""
        written = [buffer.extent for buffer in other.buffers if not buffer.readonly]
        mine = [buffer.extent for buffer in self.buffers]
        return any(a < d and c < b for a, b in mine for c, d in written)


def _content(buffers: Sequence[Any]) -> list[tuple[int, bytes]]:
    """Address and bytes of all that may be written."""
    extents = [buffer.extent for buffer in buffers if not buffer.readonly]
    return [(begin, ctypes.string_at(begin, end - begin)) for begin, end in extents]


def _restore(contents: Sequence[tuple[int, bytes]]) -> None:
    for begin, content in contents:
        ctypes.memmove(begin, content, len(content))


class _Recorder(SimExecutor):
    """Keeps the launches of the kernels that it loads."""

    def __init__(self, arch: str) -> None:
        super().__init__(arch)
        self.launches: list[Launch] = []

    def load(self, kernel: RenderedKernel) -> Any:
        return _Recorded(self, kernel, super().load(kernel))


@dataclass
class _Recorded:
    owner: _Recorder
    kernel: RenderedKernel
    loaded: LoadedKernel
    spills: bool = False

    def launch(self, *geometry: Any, buffers: Sequence[Any] = (), stream: object = None) -> None:
        made = Launch(self.kernel, self.loaded, geometry, buffers, _content(buffers))
        self.owner.launches.append(made)
        made.run()


@dataclass
class Original:
    arch: str
    launches: list[Launch]
    check: Callable[[], None]
    after: list[tuple[int, bytes]] = field(default_factory=list)
    """Results of all launches together."""

    def __post_init__(self) -> None:
        for launch in self.launches:
            self.after += _content(launch.buffers)

    def find(self, kernel: str) -> int:
        """The place of the first launch of a kernel: its name, and after a colon its side."""
        name, _, side = kernel.partition(":")
        for place, launch in enumerate(self.launches):
            config = launch.kernel.values.get("config")
            if launch.kernel.name == name and side in ("", getattr(config, "side", None)):
                return place
        raise KeyError(kernel)

    def again(self, first: int, text: str | None = None) -> None:
        """Make the launch number `first` with `text`, and those that use what it writes."""
        again = [self.launches[first]]
        for launch in self.launches[first + 1 :]:
            if any(launch.uses(other) for other in again):
                again.append(launch)
        _restore(self.after)
        for launch in reversed(again):
            _restore(launch.before)
        changed = None
        if text is not None:
            kernel = replace(self.launches[first].kernel, text=text)
            changed = SimExecutor(self.arch).load(kernel)
        again[0].run(changed)
        for launch in again[1:]:
            launch.run()


# -- The calls -------------------------------------------------------------------------------------


def _forward(
    case: attention_cases.Case, pair: dict[str, Any] | None = None, config: Any = None
) -> Original:
    """A call, of this configuration or of the case's; where there is a layout `pair`, one that
    packs a pair bias of that.
    """
    inputs, results = attention_cases.make(case), attention_cases.make_results(case)
    if pair is not None:
        inputs["pair_bias"] = attention_cases.relaid(inputs["pair_bias"], **pair)
    place = _Recorder(case.arch)
    given = {name: x.array for name, x in (inputs | results).items()}
    options: dict[str, Any] = {"pack": None if pair is None else True}
    if config is not None:
        options["config"] = config
    elif case.shape is not None:
        options["config"] = _forward_config(case, inputs)
    cuevo.attention(**given, scale=case.scale, return_lse=True, device=place, **options)

    def check() -> None:
        out, lse = (results[name].array for name in ("out", "lse"))
        attention_cases.check(case, out, lse, inputs)
        check_guards(case, results)

    return Original(case.arch, place.launches, check)


def _forward_sm90a(
    values: str,
    keys: int = 70,
    head_dim: int = 16,
    *,
    asking: dict[str, Any] | None = None,
    **more: Any,
) -> Original:
    case = attention_cases.Case(
        "bf16", head_dim, 100, keys, rows=5, mask="f32", pair="bf16", values=values, scale=-0.3,
        arch="sm_90a", **more,
    )  # fmt: skip
    config = evoformer_forward_sm90a.Config(
        head_dim, block_rows=2, stages=2, blocks=1, continues=True
    )
    if asking:
        config = replace(config, producer="consumer", **asking)
    return _forward(case, config=config)


def _forward_config(case: attention_cases.Case, inputs: dict[str, Strided]) -> Any:
    views = attention_cases.host_views(inputs, readonly=True)
    return attention_cases.configuration(case, state_problem(**views), SimExecutor(case.arch))


def _backward(case: BackwardCase, mapped: Any = None, **short: int) -> Original:
    """A call; a side of the configuration `mapped`, or the keys' of the shape with the fields
    `short`.
    """
    inputs, call = arguments(case)
    results = backward_cases.make_results(case)
    place = _Recorder(case.arch)
    config = configurations(case, inputs, architecture(case.arch))
    if config and short:
        config["keys"] = replace(config["keys"], **short)
    if mapped is not None:
        config = {mapped.side: mapped}
    listed = [results["d" + name].array if "d" + name in results else None for name in GRADS]
    cuevo.attention_backward(**call, results=listed, device=place, config=config)

    def check() -> None:
        found = {name: x.array for name, x in results.items()}
        backward_cases.check(case, found, inputs)
        check_guards(case, results)

    return Original(case.arch, place.launches, check)


def _backward_sm90a() -> Original:
    """Threadblocks of three groups of two rows N, of which the last has one."""
    case = BackwardCase(
        "bf16", 16, 100, 70, rows=5, mask="f32", pair="bf16", pair_layout="aligned 16",
        scale=-0.3, arch="sm_90a", grads=("k", "v", "mask_bias"),
    )  # fmt: skip
    config = evoformer_backward_sm90a.Config(16, block_rows=2, block_streamed=32, stages=2)
    with patch.object(type(config), "groups", lambda self, *_: 3):
        return _backward(case, config)


def _backward_of_queries_sm90a() -> Original:
    """Threadblocks of two groups of four rows N, two a warpgroup, of which the last has one."""
    case = BackwardCase(
        "bf16", 16, 70, 150, rows=5, mask="f32", pair="bf16", pair_layout="aligned 16",
        scale=-0.3, arch="sm_90a", grads=("q", "pair_bias"),
    )  # fmt: skip
    config = evoformer_backward_sm90a.Config(
        16, side="queries", block_rows=4, warpgroup_rows=2, stages=2
    )
    with patch.object(type(config), "groups", lambda self, *_: 2):
        return _backward(case, config)


def _gemm(case: GemmCase, arch: str, **config: Any) -> Original:
    arrays, call = gemm_cases.arguments(case)
    was = gemm_cases.memory_of(arrays)
    place = _Recorder(arch)
    cuevo.gemm(**call, device=place, config=config or None)
    assert arrays.out is not None
    out = arrays.out.array

    def check() -> None:
        gemm_cases.check_near(case, out, arrays)
        gemm_cases.check_surroundings(case, arrays, was)

    return Original(arch, place.launches, check)


def _gemm_sm90a(
    *, m: int = 264, n: int = 44, a_order: str = "rows", b_order: str = "rows", **config: Any
) -> Original:
    """Four iterations along k, of which the last one is ragged."""
    case = GemmCase(
        m, n, 200, "f16", "f16", a_order=a_order, b_order=b_order,
        a_layout="aligned 16", b_layout="aligned 16",
    )  # fmt: skip
    return _gemm(case, "sm_90a", **config)


_BIASES: dict[str, Any] = dict(mask="f16", pair="f16", pair_layout="aligned 16")
CASES: dict[str, Callable[[], Original]] = {
    # Five tiles of 32 keys in three stages.
    "forward": lambda: _forward(attention_cases.Case("f16", 16, 40, 150, **_BIASES, shape=2)),
    "forward, rows": lambda: _forward(
        attention_cases.Case("f16", 16, 40, 150, rows=3, **_BIASES, shape=0)
    ),
    # Three heads side by side, for which four lanes are; then rows that begin two bytes off.
    "packed by tiles": lambda: _forward(
        attention_cases.Case("f16", 16, 5, 157, heads=3, pair="f16"), dict(order=(0, 1, 3, 4, 2))
    ),
    "packed by chunks": lambda: _forward(
        attention_cases.Case("f16", 16, 20, 149, pair="f16"), dict(shift=2)
    ),
    # Three works of three stages for one threadblock of two rows n, of which the last work has one.
    "forward on wgmma": lambda: _forward_sm90a("normal"),
    # All of them done again.
    "forward on wgmma, again": lambda: _forward_sm90a("offset", offset=-300.0),
    # Consumers ask for five stages each, a stage later for the pair bias, which has four.
    "forward on wgmma, late pair bias": lambda: _forward_sm90a(
        "normal", 150, asking=dict(stages=5, late_pair=True)
    ),
    # Two rows n a warpgroup, whose pair bias exponents add, and whose mask comes beside K.
    "forward on wgmma, two rows": lambda: _forward_sm90a(
        "normal", 152, 24, asking=dict(stages=4, row_warpgroups=2, warpgroup_rows=2, converts=True)
    ),
    "backward": lambda: _backward(
        # A scale below 0: q and k are multiplied by its sign.
        BackwardCase("f16", 16, 150, 150, **_BIASES, shape=3, scale=-0.25)
    ),
    # Four warps for two rows n each, whose sums meet in shared memory.
    "backward, rows": lambda: _backward(
        BackwardCase("f16", 16, 40, 70, rows=5, **_BIASES, shape=0)
    ),
    # 64 keys of one row n at a time, the last six of two; three rows.
    "backward, short": lambda: _backward(
        BackwardCase("f16", 16, 40, 70, rows=3, **_BIASES, shape=0),
        short_rows=2,
        short_stationary=16,
    ),
    # Four warps for two rows n each, and one buffer for the sums.
    "backward, one buffer": lambda: _backward(
        BackwardCase(
            "f16", 32, 40, 70, rows=5, mask="f16", pair="f32", pair_layout="aligned 16", shape=0
        )
    ),
    # Four stages of queries in a ring of two, two tiles of keys.
    "backward on wgmma": _backward_sm90a,
    # Five stages of keys in a ring of two, two tiles of queries.
    "backward on wgmma, queries": _backward_of_queries_sm90a,
    "backward, no sums": lambda: _backward(
        BackwardCase("f16", 16, 150, 70, grads=("q", "k", "v"), shape=0)
    ),
    # Whose partial sums have three terms.
    "backward, heads": lambda: _backward(
        BackwardCase("f16", 8, 16, 16, heads=3, mask="f16", grads=("mask_bias",))
    ),
    # Seven K tiles in four stages; four and three of them; seven in two stages.
    "gemm_sm80": lambda: _gemm(
        GemmCase(70, 60, 400, "f16", "f16", c="f32", beta=0.5), "sm_80", splits=1
    ),
    "gemm_sm80, splits": lambda: _gemm(GemmCase(30, 40, 400, "f16", "f16"), "sm_80", splits=2),
    # Three tiles of four iterations for one threadblock, in three stages: each tile begins with
    # another stage, and stages are filled again.
    "gemm_sm90a": lambda: _gemm_sm90a(block_n=64, stages=3, blocks=1),
    "gemm_sm90a, columns": lambda: _gemm_sm90a(
        block_n=64, stages=2, blocks=132, a_order="columns", b_order="columns"
    ),
    "gemm_sm75": lambda: _gemm(GemmCase(70, 60, 200, "f16", "f16", c="f32", beta=0.5), "sm_75"),
}


@cache
def original(name: str) -> Original:
    return CASES[name]()
