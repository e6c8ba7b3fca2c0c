"""Trains a small Evoformer with cuevo's attention and with plain float32 attention, from one seed.

    python3 tools/train_block.py --framework torch --json RUN.json --png RUN.png
    python3 tools/train_block.py --framework jax --steps 50 --json RUN.json

The block: attention along the rows of an MSA representation with the bias of the pairs, triangle
attention around the starting node, and a transition behind each; two layers of it. The task: a
fixed random function of the inputs, with noise, by the mean of squared differences, with Adam; each
step has new inputs. Parameters, gradients and all sums are float32; cuevo's attention gets its
inputs in bfloat16.

Both runs begin with the same parameters and see the same inputs. The exit code is 1 when a loss has
not come down, or the means of the last tenth of the two differ by more than a tenth. From a
checkout without an install, set PYTHONPATH to the checkout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from machine import circumstances

Tree = dict[str, Any]
Attention = Callable[..., Any]

STEPS = {"torch": 200, "jax": 50}
LAYERS = 2
LEARNING_RATE = 2e-3
NOISE = 0.3
CLOSE = 0.1


@dataclass(frozen=True)
class Sizes:
    rows: int = 32
    residues: int = 96
    channels: int = 64
    heads: int = 4
    head_dim: int = 16


# -- The model, for arrays of either framework -----------------------------------------------------


def make_parameters(sizes: Sizes, rng: np.random.Generator) -> Tree:
    channels, width = sizes.channels, sizes.heads * sizes.head_dim
    shapes = {}
    for layer in range(LAYERS):
        for part in ("row", "triangle"):
            name = f"{layer} {part}"
            shapes[f"{name} qkv"] = (channels, 3 * width)
            shapes[f"{name} bias"] = (channels, sizes.heads)
            shapes[f"{name} gate"] = (channels, width)
            shapes[f"{name} out"] = (width, channels)
            shapes[f"{name} wide"] = (channels, 2 * channels)
            shapes[f"{name} narrow"] = (2 * channels, channels)
    shapes |= {"msa head": (channels, 1), "pair head": (channels, 1)}
    return {
        name: (rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)
        for name, shape in shapes.items()
    }


def make_task(sizes: Sizes, seed: int, step: int) -> Tree:
    """Inputs and targets of a step, and a mask that leaves out a tenth of the residues of every
    row.
    """
    n, length, channels = sizes.rows, sizes.residues, sizes.channels
    weights = np.random.default_rng((seed, 0)).standard_normal((channels, 1), np.float32)
    weights *= np.float32(channels**-0.5)
    rng = np.random.default_rng((seed, step))
    msa = rng.standard_normal((1, n, length, channels), np.float32)
    pair = rng.standard_normal((1, length, length, channels), np.float32)
    kept = rng.random((1, n, 1, 1, length)) < 0.9
    of_residue = msa.swapaxes(1, 2).reshape(1, length, n * channels)
    mixed = (of_residue @ of_residue.swapaxes(1, 2))[..., None] / np.float32((n * channels) ** 0.5)
    means = msa.mean(axis=2, keepdims=True) * np.float32(length**0.5)
    noise = [
        np.float32(NOISE) * rng.standard_normal((1, rows, length, 1), np.float32)
        for rows in (n, length)
    ]
    return {
        "msa": msa,
        "pair": pair,
        "mask": np.where(kept, 0, -1e4).astype(np.float32),
        "pair mask": np.zeros((1, length, 1, 1, length), np.float32),
        "msa target": np.tanh(msa @ weights + means @ weights) + noise[0],
        "pair target": np.tanh(pair @ weights + mixed) + noise[1],
    }


def normalise(x: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / ((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) ** 0.5


def attend(name: str, p: Tree, sizes: Sizes, x: Any, pair: Any, mask: Any, call: Attention) -> Any:
    """Gated attention along the rows of x [B, N, L, C], with a bias from pair [B, L, L, C]."""
    x, shape = normalise(x), (*x.shape[:3], 3, sizes.heads, sizes.head_dim)
    qkv = (x @ p[f"{name} qkv"]).reshape(shape)
    bias = (normalise(pair) @ p[f"{name} bias"]).swapaxes(1, 3).swapaxes(2, 3)
    out = call(qkv[..., 0, :, :], qkv[..., 1, :, :], qkv[..., 2, :, :], mask, bias[:, None])
    gate = 0.5 + 0.5 * (x @ p[f"{name} gate"]) / (1 + abs(x @ p[f"{name} gate"]))
    return (out.reshape(gate.shape) * gate) @ p[f"{name} out"]


def transition(name: str, p: Tree, x: Any) -> Any:
    wide = normalise(x) @ p[f"{name} wide"]
    return (wide * (wide > 0)) @ p[f"{name} narrow"]


def loss_of(p: Tree, task: Tree, sizes: Sizes, call: Attention) -> Any:
    msa, pair = task["msa"], task["pair"]
    for layer in range(LAYERS):
        row, triangle = f"{layer} row", f"{layer} triangle"
        msa = msa + attend(row, p, sizes, msa, pair, task["mask"], call)
        msa = msa + transition(row, p, msa)
        pair = pair + attend(triangle, p, sizes, pair, pair, task["pair mask"], call)
        pair = pair + transition(triangle, p, pair)
    of_msa = normalise(msa) @ p["msa head"] - task["msa target"]
    of_pair = normalise(pair) @ p["pair head"] - task["pair target"]
    return (of_msa * of_msa).mean() + (of_pair * of_pair).mean()


def adam(p: Tree, grads: Tree, state: Tree, step: int) -> tuple[Tree, Tree]:
    """One step, the first being step 1; `state` has both moments of every parameter."""
    new, moments = {}, {}
    for name, grad in grads.items():
        first, second = state[name]
        first = 0.9 * first + 0.1 * grad
        second = 0.999 * second + 0.001 * grad * grad
        size = (second / (1 - 0.999**step)) ** 0.5 + 1e-8
        new[name] = p[name] - LEARNING_RATE * first / (1 - 0.9**step) / size
        moments[name] = (first, second)
    return new, moments


# -- Frameworks ------------------------------------------------------------------------------------


def train_torch(
    parameters: Tree, task: Callable[[int], Tree], sizes: Sizes, steps: int, with_cuevo: bool
) -> list[float]:
    import torch

    from cuevo.torch import evoformer_attention

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def fast(*operands: Any) -> Any:
        halves = [x.to(torch.bfloat16).contiguous() for x in operands]
        return evoformer_attention(*halves).float()

    def plain(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        scores = torch.einsum("bnqhd,bnkhd->bnhqk", q, k) * q.shape[-1] ** -0.5
        weights = (scores + mask + bias).softmax(-1)
        return torch.einsum("bnhqk,bnkhd->bnqhd", weights, v)

    p = {name: torch.tensor(x, device=device) for name, x in parameters.items()}
    state: Tree = {name: (torch.zeros_like(x), torch.zeros_like(x)) for name, x in p.items()}
    losses = []
    for step in range(1, steps + 1):
        p = {name: x.detach().requires_grad_() for name, x in p.items()}
        given = {name: torch.tensor(x, device=device) for name, x in task(step).items()}
        loss = loss_of(p, given, sizes, fast if with_cuevo else plain)
        grads = dict(zip(p, torch.autograd.grad(loss, list(p.values())), strict=True))
        with torch.no_grad():
            p, state = adam(p, grads, state, step)
        losses.append(loss.detach())
    return [float(x) for x in losses]


def train_jax(
    parameters: Tree, task: Callable[[int], Tree], sizes: Sizes, steps: int, with_cuevo: bool
) -> list[float]:
    import jax
    import jax.numpy as jnp

    from cuevo.jax import evoformer_attention

    def fast(*operands: Any) -> Any:
        halves = [x.astype(jnp.bfloat16) for x in operands]
        return evoformer_attention(*halves).astype(jnp.float32)

    def plain(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k) * q.shape[-1] ** -0.5
        weights = jax.nn.softmax(scores + mask + bias, axis=-1)
        return jnp.einsum("bnhqk,bnkhd->bnqhd", weights, v)

    def update(p: Tree, state: Tree, step: Any, given: Tree) -> Any:
        call = fast if with_cuevo else plain
        loss, grads = jax.value_and_grad(lambda p: loss_of(p, given, sizes, call))(p)
        return *adam(p, grads, state, step), loss

    jitted = jax.jit(update)
    p = {name: jnp.asarray(x) for name, x in parameters.items()}
    state: Tree = {name: (jnp.zeros_like(x), jnp.zeros_like(x)) for name, x in p.items()}
    losses = []
    with jax.default_matmul_precision("highest"):
        for step in range(1, steps + 1):
            p, state, loss = jitted(p, state, jnp.float32(step), task(step))
            losses.append(loss)
    return [float(x) for x in losses]


TRAINERS = {"torch": train_torch, "jax": train_jax}


# -- The command -----------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    summary, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--framework", choices=sorted(TRAINERS), default="torch")
    add("--steps", type=int, help="default: " + ", ".join(f"{n} {k}" for k, n in STEPS.items()))
    add("--seed", type=int, default=0)
    add("--rows", type=int, default=Sizes.rows, help="sequences of the MSA")
    add("--residues", type=int, default=Sizes.residues)
    add("--json", type=Path, help="where the curves are written")
    add("--png", type=Path, help="where they are drawn, if there is matplotlib")
    return parser


def draw(path: Path, title: str, curves: dict[str, list[float]]) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no matplotlib: not drawn", file=sys.stderr)
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axes.plot(range(1, len(losses) + 1), losses, style, label=name)
    axes.set(xlabel="step", ylabel="loss", yscale="log", title=title)
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    framework, seed = arguments.framework, arguments.seed
    steps = arguments.steps or STEPS[framework]
    sizes = Sizes(rows=arguments.rows, residues=arguments.residues)
    task = partial(make_task, sizes, seed)
    parameters = make_parameters(sizes, np.random.default_rng(seed))
    curves, seconds = {}, {}
    for name in ("cuevo", "plain float32"):
        start = time.perf_counter()
        with_cuevo = name == "cuevo"
        curves[name] = TRAINERS[framework](parameters, task, sizes, steps, with_cuevo)
        seconds[name] = round(time.perf_counter() - start, 2)
    ours, theirs = (np.array(losses) for losses in curves.values())
    print(f"{'step':>5} {'cuevo, bfloat16':>16} {'plain float32':>16}")
    for step in sorted({1, *range(steps // 10 or 1, steps + 1, steps // 10 or 1), steps}):
        print(f"{step:5} {ours[step - 1]:16.6f} {theirs[step - 1]:16.6f}")
    largest = float(np.max(np.abs(ours - theirs) / theirs))
    print(f"largest relative difference: {largest:.4f}; seconds: {seconds}")
    if arguments.json:
        record = {
            **circumstances(),
            "framework": framework,
            "seed": seed,
            "sizes": asdict(sizes),
            "layers": LAYERS,
            "learning_rate": LEARNING_RATE,
            "largest_relative_difference": largest,
            "seconds": seconds,
            "losses": curves,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if arguments.png:
        draw(arguments.png, f"two layers in {framework}", curves)
    learned = ours[-1] < ours[0] and theirs[-1] < theirs[0]
    last = slice(-max(1, steps // 10), None)
    return 0 if learned and abs(ours[last].mean() / theirs[last].mean() - 1) < CLOSE else 1


if __name__ == "__main__":
    sys.exit(main())
