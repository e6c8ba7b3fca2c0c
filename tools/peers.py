"""The contenders: cuevo, and every other implementation that can be imported.

A contender is given each input set once, outside of the timing, and returns the call to be timed;
views and copies into the layout that it likes best are made there, to its advantage. None is a
dependency: one that cannot be imported is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any

from backends import Inputs
from workloads import BIASES, Workload, key_of

Call = Callable[[], Any]


def _unchanged(result: Any) -> Any:
    return result


def _never(workload: Workload) -> str:
    return ""


def _nothing() -> None:
    pass


def _nothing_to_say(inputs: Inputs) -> str:
    return ""


@dataclass(frozen=True)
class Contender:
    """One implementation with one combination of biases."""

    name: str
    biases: str
    prepare: Callable[[Inputs], Call]
    as_output: Callable[[Any], Any] = _unchanged
    """From what a call returns to [1, N, L, H, D]; in backward to gradients by the names of their
    operands, in the layouts of `Inputs`.
    """
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    refuses: Callable[[Workload], str] = _never
    """Why a workload is out of reach; empty where it is not."""
    start: Callable[[], None] = _nothing
    """Called before each workload."""
    describe: Callable[[Inputs], str] = _nothing_to_say
    """The configuration for the inputs, in words."""
    gradients: str = ""
    """In backward, which of `BIASES` it computes the gradients of."""

    @property
    def key(self) -> str:
        return key_of(self.name, self.biases, self.gradients)

    @property
    def variant(self) -> str:
        """One of `BIASES`: the gradients in backward, the biases in forward."""
        return self.gradients or self.biases

    @property
    def is_cuevo(self) -> bool:
        return self.name.startswith("cuevo")


def cuevo_contenders(changes: Mapping[str, Any]) -> list[Contender]:
    """cuevo with each combination of biases, for each label's changes of its configuration."""
    import cuevo

    def prepare(biases: str, config: Any, inputs: Inputs) -> Call:
        arguments = arguments_of(inputs, biases)
        return partial(cuevo.attention, **arguments, pack=inputs.pack, config=config)

    return [
        Contender(
            f"cuevo {label}".strip(),
            biases,
            partial(prepare, biases, config),
            describe=partial(_chosen_configuration, biases, config),
        )
        for label, config in changes.items()
        for biases in BIASES
    ]


def arguments_of(inputs: Inputs, biases: str) -> dict[str, Any]:
    """q, k, v and the biases, as arguments of `cuevo.attention`."""
    arguments = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
    if biases == "both":
        arguments["mask_bias"] = inputs.mask_bias
    if biases != "none":
        arguments["pair_bias"] = inputs.pair_bias
    return arguments


def launches_of(
    operation: Any,
    variants: Iterable[Any],
    arguments: Mapping[str, Any],
    options: tuple[object, ...],
    changes: Any,
) -> list[Any]:
    """What a call launches of the kernels `variants`, with `changes` of its configuration."""
    arrays = tuple(map(arguments.get, operation.names))
    plan = operation.plan_on_device(arrays, options, None, changes)
    kernels = {variant.NAME for variant in variants}
    return [each for each in plan.every_launch if each.name in kernels]


def _chosen_configuration(biases: str, changes: Any, inputs: Inputs) -> str:
    """That of the kernel which the call launches, of a table of tuned ones, too."""
    from cuevo.ops.forward import OPERATION, VARIANTS

    options = (None, False, inputs.pack)
    launch = launches_of(OPERATION, VARIANTS, arguments_of(inputs, biases), options, changes)[0]
    config: Any = launch.config
    return " ".join([launch.name, *(f"{name}={value}" for name, value in asdict(config).items())])


Loader = Callable[[str], Contender]
"""Imports what a peer needs; called with its name."""


def import_peers(
    loaders: Iterable[tuple[str, Loader]],
) -> tuple[list[Contender], dict[str, str]]:
    """The peers that can be imported here, and why the others cannot."""
    found: list[Contender] = []
    absent: dict[str, str] = {}
    for name, load in loaders:
        try:
            found.append(load(name))
        except Exception as error:  # an import may fail in any way; the peer is optional
            absent[name] = first_line(error)
    return found, absent


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


# -- torch's own ---------------------------------------------------------------------------------


def heads_first(tensor: Any) -> Any:
    """[1, N, L, H, D] as a view [N, H, L, D]."""
    return tensor[0].transpose(1, 2)


def heads_last(result: Any) -> Any:
    """[N, H, L, D] as a view [1, N, L, H, D]."""
    return result.transpose(1, 2)[None]


def _sdpa(backend_name: str, biases: str, name: str) -> Contender:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def prepare(inputs: Inputs) -> Call:
        q, k, v = (heads_first(tensor) for tensor in (inputs.q, inputs.k, inputs.v))
        if biases == "none":
            return partial(scaled_dot_product_attention, q, k, v)
        heads, length = inputs.pair_bias.shape[2:4]
        mask = inputs.pair_bias[0].expand(q.shape[0], heads, length, length)
        return partial(scaled_dot_product_attention, q, k, v, attn_mask=mask)

    backend = getattr(SDPBackend, backend_name)
    return Contender(name, biases, prepare, heads_last, partial(sdpa_kernel, backend))


def _flex(name: str) -> Contender:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    def attend(q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any) -> Any:
        def score_mod(score: Any, row: Any, head: Any, query: Any, key: Any) -> Any:
            return score + pair_bias[head, query, key] + mask_bias[row, key]

        return flex_attention(q, k, v, score_mod=score_mod)

    compiled = torch.compile(attend, dynamic=False)

    def prepare(inputs: Inputs) -> Call:
        q, k, v = (heads_first(tensor) for tensor in (inputs.q, inputs.k, inputs.v))
        return partial(compiled, q, k, v, inputs.mask_bias[0, :, 0, 0], inputs.pair_bias[0, 0])

    # Every workload has its own shapes; the compiler gives up on a function after a few of them.
    return Contender(name, "both", prepare, heads_last, start=torch.compiler.reset)


# -- other packages ------------------------------------------------------------------------------


def _cuequivariance(name: str) -> Contender:
    from cuequivariance_torch import triangle_attention

    def prepare(inputs: Inputs) -> Call:
        # [B, N, H, L, D], contiguous; its mask is True where a key is attended to.
        q, k, v = (tensor.transpose(2, 3).contiguous() for tensor in (inputs.q, inputs.k, inputs.v))
        return partial(triangle_attention, q, k, v, inputs.pair_bias, mask=inputs.mask_bias == 0)

    return Contender(name, "both", prepare, lambda result: result.transpose(2, 3))


def _trifast(name: str) -> Contender:
    from trifast import triangle_attention

    def prepare(inputs: Inputs) -> Call:
        # [B, H, N, L, D], contiguous; its mask is True where a key is left out.
        q, k, v = (
            tensor.permute(0, 3, 1, 2, 4).contiguous() for tensor in (inputs.q, inputs.k, inputs.v)
        )
        mask = (inputs.mask_bias[:, :, 0, 0] != 0).contiguous()
        return partial(triangle_attention, q, k, v, inputs.pair_bias[:, 0].contiguous(), mask)

    def refuses(workload: Workload) -> str:
        return "" if workload.rows == workload.length else "takes as many rows as residues only"

    return Contender(
        name, "both", prepare, lambda result: result.permute(0, 2, 3, 1, 4), refuses=refuses
    )


def _bionemo(name: str) -> Contender:
    """Kernels for Hopper that are shipped assembled: pair bias, and the number of keys of a row."""
    import torch

    library = import_module("bionemo_ir.libs._cutedsl_kernels")
    special = next(x for x in dir(library) if x.endswith("triangle_attention_sm90_D32"))
    of_head_dim_32, general = getattr(library, special), library.triangle_attention

    def view(tensor: Any) -> Any:
        """Extents, and all strides but the last, which is 1."""
        make = {1: library.Tensor1View, 3: library.Tensor3View, 4: library.Tensor4View}
        extents, steps = tuple(tensor.shape), tensor.stride()[:-1]
        return make[tensor.ndim](tensor.data_ptr(), extents, steps, tensor.get_device())

    def prepare(inputs: Inputs) -> Call:
        q, k, v, pair = inputs.q[0], inputs.k[0], inputs.v[0], inputs.pair_bias[:, 0]
        rows, length, _, head_dim = q.shape
        launcher, configuration = of_head_dim_32, ()
        if head_dim != 32:
            types = {torch.bfloat16: general.DType.BFLOAT16, torch.float16: general.DType.FLOAT16}
            config = general.make_kernel_config(90, head_dim, length, types[q.dtype], False)
            launcher, configuration = general, (config,)
        lengths = torch.full((rows,), length, dtype=torch.int32, device=q.device)
        lse = q.new_empty((0, 0, 0), dtype=torch.float32)

        def call() -> Any:
            out = torch.empty_like(q)
            params = launcher.LaunchParams()
            params.q, params.k, params.v, params.output = map(view, (q, k, v, out))
            params.bias, params.actual_s_kv, params.lse = map(view, (pair, lengths, lse))
            params.softmax_scale, params.i_dim = head_dim**-0.5, rows
            params.stream = torch.cuda.current_stream().cuda_stream
            launcher.launch(*configuration, params)
            return out

        return call

    def refuses(workload: Workload) -> str:
        return "" if workload.head_dim in (32, 64) else "has head dims 32 and 64"

    return Contender(name, "pair", prepare, lambda result: result[None], refuses=refuses)


PEERS: dict[str, Loader] = {
    "SDPA mem-efficient": partial(_sdpa, "EFFICIENT_ATTENTION", "pair"),
    "SDPA cuDNN": partial(_sdpa, "CUDNN_ATTENTION", "pair"),
    "FlexAttention": _flex,
    "FlashAttention-2": partial(_sdpa, "FLASH_ATTENTION", "none"),
    "cuEquivariance": _cuequivariance,
    "trifast": _trifast,
    "bionemo-ir": _bionemo,
}
