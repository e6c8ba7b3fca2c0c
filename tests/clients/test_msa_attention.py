"""Attention along the rows of an MSA, with a bias of the pair representation, and along columns."""

from clients.frameworks import EVERYWHERE, check
from clients.modules import Client, msa_columns, msa_rows, present, weights


@EVERYWHERE
def test_rows(framework: str, device: str) -> None:
    rows, length, channels = 5, 21, 12
    shapes = {
        "msa": (2, rows, length, channels),
        "pair": (2, length, length, channels),
        **weights(channels, 2, 16),
    }
    mask = present(21, 13, of=length)[:, None].repeat(rows, 1)
    mask[1, 3:] = 0.0
    check(Client(msa_rows, shapes, mask), framework, device)


@EVERYWHERE
def test_columns(framework: str, device: str) -> None:
    rows, length, channels = 11, 6, 12
    shapes = {"msa": (1, rows, length, channels), **weights(channels, 2, 16)}
    del shapes["bias"]
    mask = present(9, of=rows)[:, :, None].repeat(length, 2)
    check(Client(msa_columns, shapes, mask), framework, device)
