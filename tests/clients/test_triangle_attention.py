"""Triangle attention around either node, and templates as a batch of it, with a pair bias as a
linear layer makes it: heads last.
"""

import pytest
from clients.frameworks import EVERYWHERE, check
from clients.modules import (
    Client,
    ending_node,
    ending_node_of_views,
    of_pairs,
    present,
    starting_node,
    weights,
)

NODES = {
    "starting": starting_node,
    "ending": ending_node,
    "ending, views": ending_node_of_views,
}


@pytest.mark.parametrize("node", NODES)
@EVERYWHERE
def test_one_chain(framework: str, device: str, node: str) -> None:
    length, channels = 19, 12
    shapes = {"pair": (1, length, length, channels), **weights(channels, 3, 16)}
    mask = of_pairs(present(17, of=length))
    check(Client(NODES[node], shapes, mask), framework, device)


@EVERYWHERE
def test_half_precision_and_a_length_of_whole_tiles(framework: str, device: str) -> None:
    length, channels = 16, 12
    shapes = {"pair": (1, length, length, channels), **weights(channels, 2, 32)}
    mask = of_pairs(present(16, of=length))
    check(Client(ending_node, shapes, mask), framework, device, "float16")


@EVERYWHERE
def test_templates_as_a_batch(framework: str, device: str) -> None:
    templates, length, channels = 3, 9, 8
    shapes = {"pair": (templates, length, length, channels), **weights(channels, 2, 16)}
    mask = of_pairs(present(9, 4, 7, of=length))
    check(Client(starting_node, shapes, mask), framework, device)
