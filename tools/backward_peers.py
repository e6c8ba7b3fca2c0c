"""The contenders in backward: cuevo, and every other implementation that can be imported.

Only backward is timed: forward, with its graph, is done where the inputs are prepared. Every peer
has its leaves and dout in the layout that its kernels take, so that nothing is copied for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from backends import Backend, Inputs
from peers import Call, Contender, Loader, arguments_of, heads_first, heads_last, launches_of
from workloads import BIASES, QUICK_BACKWARD, Workload

GRADIENTS = {
    "both": ("q", "k", "v", "mask_bias", "pair_bias"),
    "pair": ("q", "k", "v", "pair_bias"),
    "none": ("q", "k", "v"),
}
"""Gradients that are computed, by which of `BIASES` the gradients are wanted of."""

COMPILED = QUICK_BACKWARD
"""Where FlexAttention takes part unasked: compiling it takes long."""


# -- cuevo ---------------------------------------------------------------------------------------


def cuevo_backward(changes: Mapping[str, Any]) -> list[Contender]:
    """cuevo with both biases and the gradients of both, of the pair bias, of none, for each label's
    changes of its configuration.
    """

    def prepare(gradients: str, config: Any, inputs: Inputs) -> Call:
        return _call(inputs, grads=GRADIENTS[gradients], config=config)

    def by_name(gradients: str, result: Sequence[Any]) -> dict[str, Any]:
        every = dict(zip(GRADIENTS["both"], result, strict=True))
        return {name: every[name] for name in GRADIENTS[gradients]}

    return [
        Contender(
            f"cuevo {label}".strip(),
            "both",
            partial(prepare, gradients, config),
            partial(by_name, gradients),
            describe=partial(_chosen_configurations, gradients, config),
            gradients=gradients,
        )
        for label, config in changes.items()
        for gradients in BIASES
    ]


def _call(inputs: Inputs, **options: Any) -> Call:
    import cuevo

    operands, biases = _operands(inputs), _biases(inputs)
    return partial(cuevo.attention_backward, *operands, **biases, pack=inputs.pack, **options)


def _operands(inputs: Inputs) -> tuple[Any, ...]:
    """The positional arguments of backward, out and lse from forward."""
    import cuevo

    out, lse = cuevo.attention(**arguments_of(inputs, "both"), return_lse=True)
    return inputs.dout, inputs.q, inputs.k, inputs.v, out, lse


def _biases(inputs: Inputs) -> dict[str, Any]:
    return {"mask_bias": inputs.mask_bias, "pair_bias": inputs.pair_bias}


_FROM_PROBLEM = ("head_dim", "dtype", "side", "pair", "first", "second", "sums")
"""Fields of a configuration that the workload and the gradients determine."""


def _chosen_configurations(
    gradients: str, changes: Mapping[str, Any] | None, inputs: Inputs
) -> str:
    """Those of the kernels which the call launches, of a table of tuned ones, too."""
    from cuevo.ops.backward import OPERATION, VARIANTS

    arguments = dict(zip(("dout", "q", "k", "v", "out", "lse"), _operands(inputs), strict=True))
    arguments |= _biases(inputs)
    options = (None, tuple(GRADIENTS[gradients]), None, inputs.pack)
    launches = launches_of(OPERATION, VARIANTS, arguments, options, changes)
    configs = [launch.config for launch in launches]
    return " ".join(
        f"{config.side}.{name}={value}"
        for config in sorted(configs, key=lambda config: config.side, reverse=True)
        for name, value in asdict(config).items()
        if name not in _FROM_PROBLEM
    )


def memory(backend: Backend, inputs: Inputs, workload: Workload) -> dict[str, int | None]:
    """Bytes of device memory of a call with both gradients of biases, and what they compare to."""
    import cuevo

    operands = _operands(inputs)
    options = {**_biases(inputs), "pack": inputs.pack}
    call = partial(cuevo.attention_backward, *operands, **options)
    call()
    pair = workload.heads * workload.length * workload.length
    mask = workload.rows * workload.length
    q = workload.tensor_bytes()
    lse = 4 * workload.rows * workload.heads * workload.length
    sums = 4 * (mask + pair)
    return {
        "workspace": cuevo.attention_backward_workspace(*operands, **options),
        "peak": backend.peak_bytes(call),
        "results": 3 * q + 2 * (mask + pair),
        "q": q,
        "lse": lse,
        "delta": lse,
        "fp32_bias_gradients": sums,
        "compared_to": 3 * q + 2 * lse + sums,
    }


# -- torch's own ---------------------------------------------------------------------------------


def backward_peers(asked: Collection[Workload] = ()) -> list[tuple[str, Loader]]:
    """The peers' loaders; `asked` are workloads where those that take long take part, too."""
    return [
        ("SDPA mem-efficient", partial(_sdpa, "EFFICIENT_ATTENTION", "pair")),
        ("FlexAttention", partial(_flex, "both", "pair", asked)),
        ("FlexAttention", partial(_flex, "pair", "pair", asked)),
        ("FlexAttention", partial(_flex, "both", "none", asked)),
        ("FlashAttention-2", partial(_sdpa, "FLASH_ATTENTION", "none")),
        ("cuEquivariance", _cuequivariance),
        ("trifast", _trifast),
    ]


def _leaf(tensor: Any) -> Any:
    """The same memory as the beginning of a graph."""
    return tensor.detach().requires_grad_()


def _gradients(out: Any, leaves: Sequence[Any], dout: Any) -> Call:
    """The call that is timed."""
    import torch

    return partial(torch.autograd.grad, out, tuple(leaves), dout, retain_graph=True)


def _named(result: Sequence[Any]) -> dict[str, Any]:
    """Gradients of q, k, v and, where there is a fourth, of the pair bias."""
    return dict(zip(GRADIENTS["pair"], result, strict=False))


def _named_heads_last(result: Sequence[Any]) -> dict[str, Any]:
    """`_named` of gradients [N, H, L, D] and, where there is a fourth, [H, L, L]."""
    *tensors, pair_bias = [*result, None] if len(result) == 3 else result
    named = _named([heads_last(x) for x in tensors])
    return named if pair_bias is None else {**named, "pair_bias": pair_bias[None, None]}


def _sdpa(backend_name: str, biases: str, name: str) -> Contender:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def prepare(inputs: Inputs) -> Call:
        # Views: [N, L, H, D] in memory is what these kernels take as it is.
        q, k, v = leaves = [_leaf(heads_first(x)) for x in (inputs.q, inputs.k, inputs.v)]
        mask = None
        if biases != "none":
            leaves.append(_leaf(inputs.pair_bias[0, 0]))
            mask = leaves[-1].expand(q.shape[0], *leaves[-1].shape)
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return _gradients(out, leaves, heads_first(inputs.dout))

    backend = getattr(SDPBackend, backend_name)
    return Contender(name, biases, prepare, _named_heads_last, gradients=biases)


def _flex(biases: str, gradients: str, asked: Collection[Workload], name: str) -> Contender:
    import torch
    from torch._functorch import config
    from torch.nn.attention.flex_attention import flex_attention

    def attend(q: Any, k: Any, v: Any, pair_bias: Any, mask_bias: Any) -> Any:
        def pair_only(score: Any, row: Any, head: Any, query: Any, key: Any) -> Any:
            return score + pair_bias[head, query, key]

        def both(score: Any, row: Any, head: Any, query: Any, key: Any) -> Any:
            return score + pair_bias[head, query, key] + mask_bias[row, key]

        return flex_attention(q, k, v, score_mod=both if biases == "both" else pair_only)

    compiled = torch.compile(attend, dynamic=False)

    def start() -> None:
        # Every workload has its own shapes; the compiler gives up on a function after a few.
        torch.compiler.reset()
        # A compiled backward that reuses what forward has saved runs only once.
        config.donated_buffer = False

    def prepare(inputs: Inputs) -> Call:
        # [N, H, L, D], contiguous: it copies what is not.
        q, k, v, dout = (
            heads_first(x).contiguous() for x in (inputs.q, inputs.k, inputs.v, inputs.dout)
        )
        leaves = [_leaf(x) for x in (q, k, v)]
        pair_bias, mask_bias = inputs.pair_bias[0, 0], inputs.mask_bias[0, :, 0, 0]
        if gradients == "pair":
            pair_bias = _leaf(pair_bias)
            leaves.append(pair_bias)
        out = compiled(*leaves[:3], pair_bias, mask_bias)
        return _gradients(out, leaves, dout)

    def refuses(workload: Workload) -> str:
        known = workload in COMPILED or workload in asked
        return "" if known else "takes long to compile: only where --workload names it"

    return Contender(
        name,
        biases,
        prepare,
        _named_heads_last,
        refuses=refuses,
        start=start,
        gradients=gradients,
    )


# -- other packages ------------------------------------------------------------------------------


def _cuequivariance(name: str) -> Contender:
    from cuequivariance_torch import triangle_attention

    def prepare(inputs: Inputs) -> Call:
        # [B, N, H, L, D], contiguous; its mask is True where a key is attended to.
        q, k, v, dout = (
            x.transpose(2, 3).contiguous() for x in (inputs.q, inputs.k, inputs.v, inputs.dout)
        )
        leaves = [_leaf(x) for x in (q, k, v, inputs.pair_bias)]
        out = triangle_attention(*leaves, mask=inputs.mask_bias == 0)
        return _gradients(out, leaves, dout)

    def by_name(result: Sequence[Any]) -> dict[str, Any]:
        *tensors, pair_bias = result
        return _named([*(x.transpose(2, 3) for x in tensors), pair_bias])

    return Contender(name, "both", prepare, by_name, gradients="pair")


def _trifast(name: str) -> Contender:
    from trifast import triangle_attention

    def prepare(inputs: Inputs) -> Call:
        # [B, H, N, L, D], contiguous; its mask is True where a key is left out.
        q, k, v, dout = (
            x.permute(0, 3, 1, 2, 4).contiguous()
            for x in (inputs.q, inputs.k, inputs.v, inputs.dout)
        )
        leaves = [_leaf(x) for x in (q, k, v, inputs.pair_bias[:, 0].contiguous())]
        mask = (inputs.mask_bias[:, :, 0, 0] != 0).contiguous()
        return _gradients(triangle_attention(*leaves, mask), leaves, dout)

    def by_name(result: Sequence[Any]) -> dict[str, Any]:
        *tensors, pair_bias = result
        return _named([*(x.permute(0, 2, 3, 1, 4) for x in tensors), pair_bias[:, None]])

    def refuses(workload: Workload) -> str:
        return "" if workload.rows == workload.length else "takes as many rows as residues only"

    return Contender(name, "both", prepare, by_name, refuses=refuses, gradients="pair")
