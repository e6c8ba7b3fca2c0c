"""`cuevo.load`: a kernel of the user's own, called with arrays on the CPU executor or on a GPU."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from cuevo.architectures import architecture
from cuevo.arrays import ArrayView, view
from cuevo.cuda import resolve_stream
from cuevo.errors import CuevoError
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.own.arguments import pack
from cuevo.executors.own.signature import Parameter, parameter_block, target_of
from cuevo.executors.own.texts import parameters_of, read_kernel
from cuevo.executors.placement import executor_for
from cuevo.executors.protocol import Executor
from cuevo.toolchain.header import load_header, parse_header
from cuevo.toolchain.template import RenderedKernel

__all__ = ["Kernel", "Launch", "load", "native_architecture", "with_struct"]

LOWEST = "sm_70"
"""Of the architectures that cuevo knows."""
_NO_VALUES: Mapping[str, object] = {}

Dim = int | Sequence[int]
"""Threadblocks of a grid or threads of a block, along one axis or up to three."""


def load(
    source: str | Path,
    entry: str | None = None,
    *,
    device: object = None,
    values: Mapping[str, object] = _NO_VALUES,
    directories: str | Path | Iterable[str | Path] = (),
    header: str | Path | None = None,
) -> "Kernel":
    """A kernel from a PTX file of any folder or from a text, plain or a template.

    source : a path, or the text itself: a str of more than one line.
    entry : name of the entry point; may be left out where there is only one.
    device : where it runs: None (each call where its arrays are: on their GPU, on the CPU executor
        for arrays in host memory), "sim" (the CPU executor, as the architecture of the text's
        ``.target``), "sim:sm_90", "cuda:0", or an executor.
    values, directories : what a template is given, and where its imports are looked for after its
        own folder; see `cuevo.executors.own.texts.read_kernel`.
    header : C header, or its text, that declares the struct of a kernel that takes one by value; a
        call may then give a mapping of its members. For a template, the ``cuevo.h`` that it sees.

    Raises ValueError for an argument that does not fit the text, OSError for a file that cannot be
    read, CuevoError, with file and line, for what is no kernel. The text is assembled, or parsed,
    by the first call.

    >>> import numpy as np
    >>> double = load(
    ...     '''.version 7.0
    ...     .target sm_80
    ...     .address_size 64
    ...     .visible .entry double(.param .u64 x, .param .u32 count) {
    ...         .reg .u64 address, offset; .reg .u32 i, n; .reg .f32 value; .reg .pred beyond;
    ...         mov.u32 i, %tid.x;
    ...         ld.param.u32 n, [count];
    ...         setp.ge.u32 beyond, i, n;
    ...         @beyond ret;
    ...         ld.param.u64 address, [x];
    ...         mul.wide.u32 offset, i, 4;
    ...         add.u64 address, address, offset;
    ...         ld.global.f32 value, [address];
    ...         add.f32 value, value, value;
    ...         st.global.f32 [address], value;
    ...         ret;
    ...     }
    ... ''')
    >>> x = np.ones(3, np.float32)
    >>> double[1, 32](x, 3)
    >>> x
    array([2., 2., 2.], dtype=float32)
    """
    rendered = read_kernel(source, entry=entry, values=values, directories=directories)
    if header is not None:
        rendered = with_struct(rendered, header)
    return Kernel(rendered, device)


class Kernel:
    """A kernel of the user's own; `load` makes it.

    ``kernel[grid, block](*arguments, shared=0, stream=None)`` launches it: see `Launch`.
    """

    def __init__(self, rendered: RenderedKernel, device: object = None) -> None:
        self.rendered = rendered
        """Text, and the origin of each of its lines."""
        self.parameters: tuple[Parameter, ...] = parameters_of(rendered)
        """What a call takes, in order."""
        self._device = device
        self._block = parameter_block(rendered.name, self.parameters)
        struct = rendered.params
        self.members = None if struct.fields == self._block.fields else struct
        """The struct that is the one parameter, where a header declares it."""
        if self.members and [each.count for each in self.parameters] != [struct.size]:
            raise CuevoError(
                f"{rendered.file}: {self!r} does not take the header's struct {struct.name}, of "
                f"{struct.size} bytes, as its one parameter"
            )

    @property
    def name(self) -> str:
        """The entry point."""
        return self.rendered.name

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    def __getitem__(self, shape: tuple[Dim, Dim]) -> "Launch":
        if not isinstance(shape, tuple) or len(shape) != 2:
            raise TypeError(f"write {self.name}[grid, block](...); got [{shape!r}]")
        grid, block = shape
        return Launch(self, _triple("grid", grid), _triple("block", block))

    def place(self, views: Mapping[str, ArrayView]) -> Executor:
        """Where a call on these arrays runs; ValueError where it cannot reach them."""
        device, on_host = self._device, [n for n, x in views.items() if x.device == "cpu"]
        if device in (None, "sim") and len(on_host) == len(views):
            device = f"sim:{native_architecture(self.rendered.text)}"
        place = executor_for(device, views)
        if isinstance(place, DriverExecutor) and on_host:
            raise ValueError(
                f"{on_host[0]}: the array is in host memory, where a kernel on {place.name} cannot "
                "reach it: copy it to the device, or load the kernel with device='sim'"
            )
        return place


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid and threadblock: call it with the arguments."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    def __call__(self, *arguments: object, shared: int = 0, stream: object = None) -> None:
        """Launch the kernel: on the CPU executor it is done on return, on a GPU it is queued.

        arguments : one a parameter: for a pointer an array of any library, which is read and
            written in place, or an address; for a number a number; for a struct its bytes, a
            ctypes.Structure, or, where a header declares it, a mapping of its members.
        shared : bytes of dynamic shared memory.
        stream : whatever `cuevo.cuda.resolve_stream` takes; for torch's tensors its current one.

        Raises TypeError or ValueError, before anything is launched, that names the parameter, its
        type and what was given; then what `Executor.load` and `LoadedKernel.launch` raise.
        """
        kernel = self.kernel
        of_structs = (each.values() for each in arguments if isinstance(each, Mapping))
        handle = resolve_stream(stream, chain(arguments, *of_structs))

        def read(array: object, name: str) -> ArrayView:
            return view(array, name=name, stream=handle)

        params, views = pack(kernel.parameters, kernel._block, arguments, read, kernel.members)
        loaded = kernel.place(views).load(kernel.rendered)
        buffers = [*views.values()]
        loaded.launch(self.grid, self.block, shared, params, buffers=buffers, stream=handle)


def native_architecture(text: str) -> str:
    """The architecture that the CPU executor runs a text as, unless it is told: the ``.target``, or
    the lowest that there is.
    """
    target = target_of(text)
    try:
        return architecture(target).name
    except ValueError:
        return LOWEST


def with_struct(rendered: RenderedKernel, header: str | Path) -> RenderedKernel:
    """The kernel with the struct that a header, or its text, declares for it."""
    is_text = isinstance(header, str) and "\n" in header
    found = parse_header(str(header), "header") if is_text else load_header(Path(header))
    if rendered.name not in found.kernels:
        listed = ", ".join(found.kernels) or "none"
        raise ValueError(f"header: it declares no kernel {rendered.name}; it declares: {listed}")
    return replace(rendered, params=found.kernels[rendered.name])


def _triple(name: str, sizes: Dim) -> tuple[int, int, int]:
    """One to three positive integers, the missing ones 1."""
    try:
        given = [operator.index(x) for x in (sizes if isinstance(sizes, Sequence) else (sizes,))]
    except TypeError:
        given = []
    if not 1 <= len(given) <= 3 or min(given) < 1:
        raise ValueError(f"{name}: expected one to three positive integers; got {sizes!r}")
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z
