"""Modules of structure models with an attention in them, written from their shapes: each lays its
operands out as the models do. For arrays of torch and JAX alike.

A module takes its weights and inputs by name, masks included, and `attend(q, k, v, mask_bias,
pair_bias)`; what it gives is 0 where a mask says that nothing is there.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Tree = Mapping[str, Any]
Attend = Callable[[Any, Any, Any, Any, Any], Any]
FAR = 1e9
"""How far below the others a model moves the scores of absent keys."""


def normalise(x: Any) -> Any:
    centred = x - x.mean(-1)[..., None]
    return centred / ((centred * centred).mean(-1)[..., None] + 1e-5) ** 0.5


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + math.e**-x)


def project(p: Tree, name: str, x: Any) -> Any:
    """[..., H, D]: the weights are [C, H, D]."""
    channels, heads, head_dim = p[name].shape
    return (x @ p[name].reshape(channels, heads * head_dim)).reshape(*x.shape[:-1], heads, head_dim)


def bias_of(p: Tree, pair: Any) -> Any:
    """[B, 1, H, L, L] of a pair representation [B, L, L, C]: keys lie H elements apart."""
    return (pair @ p["bias"]).swapaxes(1, 3).swapaxes(2, 3)[:, None]


def wrap_up(p: Tree, x: Any, out: Any) -> Any:
    """The gate, and the sum over heads."""
    gated = out * sigmoid(project(p, "gate", x))
    width, channels = out.shape[-2] * out.shape[-1], p["out"].shape[-1]
    return gated.reshape(*x.shape[:-1], width) @ p["out"].reshape(width, channels)


def gated_attention(p: Tree, x: Any, attend: Attend, mask_bias: Any, pair_bias: Any) -> Any:
    """Along the rows of x [B, N, L, C]."""
    q, k, v = (project(p, name, x) for name in "qkv")
    return wrap_up(p, x, attend(q, k, v, mask_bias, pair_bias))


# -- The modules -----------------------------------------------------------------------------------


def starting_node(p: Tree, attend: Attend) -> Any:
    """Triangle attention around the starting node: row i attends to edges i-k."""
    x = normalise(p["pair"])
    mask_bias = FAR * (p["mask"] - 1)[:, :, None, None]
    return gated_attention(p, x, attend, mask_bias, bias_of(p, x)) * p["mask"][..., None]


def ending_node(p: Tree, attend: Attend) -> Any:
    """The same around the ending node: pair representation and mask transposed, and the result."""
    turned = {"pair": p["pair"].swapaxes(1, 2), "mask": p["mask"].swapaxes(1, 2)}
    return starting_node({**p, **turned}, attend).swapaxes(1, 2)


def ending_node_of_views(p: Tree, attend: Attend) -> Any:
    """The same, but projected as it lies: attention gets transposed views of everything."""
    x = normalise(p["pair"])
    q, k, v = (project(p, name, x).swapaxes(1, 2) for name in "qkv")
    mask_bias = FAR * (p["mask"] - 1).swapaxes(1, 2)[:, :, None, None]
    out = attend(q, k, v, mask_bias, bias_of(p, x).swapaxes(3, 4))
    return wrap_up(p, x, out.swapaxes(1, 2)) * p["mask"][..., None]


def msa_rows(p: Tree, attend: Attend) -> Any:
    """Attention along the rows of an MSA, with a bias of the pair representation; the mask is
    bool.
    """
    mask_bias = (p["mask"] > 0)[:, :, None, None]
    x, pair_bias = normalise(p["msa"]), bias_of(p, normalise(p["pair"]))
    return gated_attention(p, x, attend, mask_bias, pair_bias) * p["mask"][..., None]


def msa_columns(p: Tree, attend: Attend) -> Any:
    """Attention along the columns: transposed views, and no bias of pairs."""
    x = normalise(p["msa"])
    q, k, v = (project(p, name, x).swapaxes(1, 2) for name in "qkv")
    mask_bias = (p["mask"] > 0).swapaxes(1, 2)[:, :, None, None]
    out = attend(q, k, v, mask_bias, None)
    return wrap_up(p, x, out.swapaxes(1, 2)) * p["mask"][..., None]


def template_points(p: Tree, attend: Attend) -> Any:
    """Every pair attends to what the templates [B, T, L, L, C] have in its place: rows of one query
    and T keys; all share a mask of templates.
    """
    templates = p["templates"]
    batch, count, length = templates.shape[:3]
    x = normalise(p["pair"]).reshape(batch, length * length, 1, -1)
    of_pair = normalise(templates).reshape(batch, count, length * length, -1).swapaxes(1, 2)
    q, k, v = project(p, "q", x), project(p, "k", of_pair), project(p, "v", of_pair)
    mask_bias = (p["mask"] > 0)[:, None, None, None]
    out = wrap_up(p, x, attend(q, k, v, mask_bias, None))
    return out.reshape(batch, length, length, -1)


def heads_first(p: Tree, attend: Attend) -> Any:
    """Attention whose q, k and v are [B, N, H, L, D] in memory, slices of one projection."""
    x = normalise(p["pair"])
    batch, rows, length = x.shape[:3]
    channels, three, heads, head_dim = p["qkv"].shape
    qkv = (x @ p["qkv"].reshape(channels, -1)).reshape(batch, rows, length, three, heads, head_dim)
    # What one head of one row needs lies together from here on: the sum makes new memory.
    stored = qkv.swapaxes(2, 3).swapaxes(3, 4) + p["shift"][:, :, None]
    q, k, v = (stored[:, :, i].swapaxes(2, 3) for i in range(3))
    mask_bias = FAR * (p["mask"] - 1)[:, :, None, None]
    return wrap_up(p, x, attend(q, k, v, mask_bias, bias_of(p, x))) * p["mask"][..., None]


# -- Problems --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Client:
    """A module and the shapes of what it takes. Weights begin with the axis of channels; `mask` is
    1 where something is there, and everything else is normally distributed.
    """

    module: Callable[[Tree, Attend], Any]
    shapes: Mapping[str, tuple[int, ...]]
    mask: np.ndarray

    def arrays(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Weights and inputs, float64."""
        rng = np.random.default_rng(seed)
        inputs = ("pair", "msa", "templates")
        return {
            name: rng.standard_normal(shape) * (1.0 if name in inputs else shape[0] ** -0.5)
            for name, shape in self.shapes.items()
        }


def weights(channels: int, heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the projections of a gated attention, and of the bias."""
    inward = dict.fromkeys(("q", "k", "v", "gate"), (channels, heads, head_dim))
    return {**inward, "bias": (channels, heads), "out": (heads * head_dim, channels)}


def present(*lengths: int, of: int) -> np.ndarray:
    """[B, L]: for each of a batch the number of residues, all but the second one being there."""
    found = np.arange(of) < np.array(lengths)[:, None]
    found[:, 1] = False
    return found.astype(np.float64)


def of_pairs(residues: np.ndarray) -> np.ndarray:
    """[B, L, L]: where both are there."""
    return residues[:, :, None] * residues[:, None]
