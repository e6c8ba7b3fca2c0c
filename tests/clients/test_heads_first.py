"""Attention of operands that are [B, N, H, L, D] in memory."""

from clients.frameworks import EVERYWHERE, check
from clients.modules import Client, heads_first, of_pairs, present, weights


@EVERYWHERE
def test_slices_of_one_projection(framework: str, device: str) -> None:
    length, channels, heads, head_dim = 11, 12, 3, 16
    shapes = {
        "pair": (1, length, length, channels),
        **weights(channels, heads, head_dim),
        "qkv": (channels, 3, heads, head_dim),
        "shift": (3, heads, head_dim),
    }
    for name in "qkv":
        del shapes[name]
    mask = of_pairs(present(10, of=length))
    check(Client(heads_first, shapes, mask), framework, device)
