"""The compiled planner that tests call."""

import pytest
from helpers import c_planner
from helpers.c_planner import Planner
from helpers.drawn_calls import SELECTION


@pytest.fixture(scope="session")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return c_planner.compile_planner(SELECTION, tmp_path_factory.mktemp("planner"))
