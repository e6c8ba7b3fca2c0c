"""Attention of every pair to what a few templates have in its place."""

import numpy as np
from clients.frameworks import EVERYWHERE, check
from clients.modules import Client, template_points, weights


@EVERYWHERE
def test_few_keys(framework: str, device: str) -> None:
    templates, length, channels = 4, 5, 8
    shapes = {
        "pair": (1, length, length, channels),
        "templates": (1, templates, length, length, channels),
        **weights(channels, 2, 16),
    }
    del shapes["bias"]
    check(Client(template_points, shapes, np.array([[1.0, 0.0, 1.0, 1.0]])), framework, device)
