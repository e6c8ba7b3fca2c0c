"""The test kernels of the building blocks, for tools that launch them.

Cases, kernels, inputs and references are those of ``tests/blocks``; a suite names what a tool needs
of one of its modules, and ``tests/tools/test_block_kernels.py`` holds the suites to the tests'
counts. Importing this puts the checkout and its tests on the module path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from blocks import (
    test_accumulator,
    test_attention_products,
    test_copy_async,
    test_divide,
    test_emulated_exponentials,
    test_mma_multistage,
    test_mma_pipelined,
    test_output_tile,
    test_warp_iterator,
)
from blocks.harness import check_all
from blocks.products import sample
from helpers.covering import covering

from cuevo.errors import CuevoError
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor, LoadedKernel
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import RenderedKernel


@dataclass(frozen=True)
class Suite:
    """Subject of one check of ``tests/blocks`` is made on."""

    name: str
    cases: Callable[[], Sequence[Any]]
    """Every combination that the block admits."""
    few: Callable[[Sequence[Any]], list[Any]]
    """The cases that the CPU executor runs in the tests."""
    check: Callable[[Executor, Any], object]
    """Launches a case's kernel, once or on several extents; raises where a result is wrong."""

    def sample(self) -> list[Any]:
        """Cases in which all that can meet does; the first ones have most of it."""
        return self.few(self.cases())

    def failures(self, cases: Sequence[Any], place: Executor) -> str:
        """Complaints, with the number of cases; empty if there are none. All of them are run."""
        try:
            check_all(self.check, cases, place)
        except AssertionError as error:
            return str(error)
        return ""


_SUITES = (
    Suite(
        "mma_multistage", test_mma_multistage.cases, sample, test_mma_multistage.check_multistage
    ),
    Suite("mma_pipelined", test_mma_pipelined.cases, sample, test_mma_pipelined.check_pipelined),
    Suite("warp_iterator", test_warp_iterator.cases, covering, test_warp_iterator.check),
    Suite("warp_load", test_warp_iterator.loads, covering, test_warp_iterator.check_load),
    Suite("copy_async", test_copy_async.cases, covering, test_copy_async.check),
    Suite("attention_products", test_attention_products.cases, list, test_attention_products.check),
    Suite("divide", test_divide.divisions, list, test_divide.check),
    Suite(
        "emulated_exponentials",
        test_emulated_exponentials.cases,
        list,
        test_emulated_exponentials.check,
    ),
    Suite("accumulator", test_accumulator.reductions, list, test_accumulator.check_reduction),
    Suite("accumulator_rows", test_accumulator.examples, covering, test_accumulator.check_example),
    Suite(
        "output_tile",
        test_output_tile.cases,
        lambda _: test_output_tile.sample(),
        test_output_tile.check,
    ),
    Suite(
        "output_tile_prefetch",
        test_output_tile.prefetches,
        covering,
        test_output_tile.check_prefetch,
    ),
)
SUITES = {suite.name: suite for suite in _SUITES}


# -- Counting launches -----------------------------------------------------------------------------

Launched = Callable[[Any], None]
"""Called with the loaded kernel after each launch."""


class _Watched:
    """A loaded kernel that tells of its launches."""

    def __init__(self, loaded: LoadedKernel, launched: Launched) -> None:
        self._loaded = loaded
        self._launched = launched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, name)

    def launch(self, *arguments: Any, **options: Any) -> None:
        self._loaded.launch(*arguments, **options)
        self._launched(self._loaded)


class WatchedDevice(DriverExecutor):
    """The first device."""

    def __init__(self, launched: Launched) -> None:
        super().__init__(0)
        self._launched = launched

    def load(self, kernel: RenderedKernel) -> Any:
        return _Watched(super().load(kernel), self._launched)


class WatchedSim(SimExecutor):
    """The CPU executor; it counts bank conflicts."""

    def __init__(self, arch: str, launched: Launched) -> None:
        super().__init__(arch, profile=True)
        self._launched = launched

    def load(self, kernel: Any) -> Any:
        return _Watched(super().load(kernel), self._launched)


# -- Assembling ahead ------------------------------------------------------------------------------


class _Assembled(Exception):
    """A case's kernel is in the cache."""


class _Assembler:
    """In the place of an executor: assembles, and goes no further."""

    def __init__(self, arch: str) -> None:
        self.name = self.arch = arch

    def load(self, kernel: RenderedKernel) -> Any:
        assemble(kernel, self.arch)
        raise _Assembled


def assemble_all(chosen: Mapping[str, Sequence[Any]], arch: str) -> None:
    """Put the kernels of the cases, by suite, into the cache, on all processor cores.

    What cannot be assembled is left to the launch, which says so.
    """
    tasks = [(arch, name, case) for name, cases in chosen.items() for case in cases]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for _ in pool.map(assemble_case, tasks, chunksize=4):
            pass


def assemble_case(task: tuple[str, str, Any]) -> None:
    """Put the first kernel of a case into the cache; architecture, suite, case."""
    arch, name, case = task
    with suppress(_Assembled, CuevoError):
        SUITES[name].check(_Assembler(arch), case)
