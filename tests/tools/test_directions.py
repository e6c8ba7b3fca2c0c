import pytest

from cuevo.cli.arguments.usage import UsageError
from directions import BACKWARD_PASS, DIRECTIONS, FORWARD_PASS

pytestmark = pytest.mark.unit


def test_the_directions_are_called_by_their_names():
    assert DIRECTIONS == {"forward": FORWARD_PASS, "backward": BACKWARD_PASS}


def test_forward_takes_settings_of_one_kernel():
    read = FORWARD_PASS.configurations(["stages=2,min_blocks=1"])
    assert read == {"": None, "stages=2,min_blocks=1": {"stages": 2, "min_blocks": 1}}


def test_backward_takes_settings_of_either_side():
    text = "keys.stages=2,queries.min_blocks=1,keys.stationary_in_registers=false"
    read = BACKWARD_PASS.configurations([text, "queries.stages=3"])
    keys = {"stages": 2, "stationary_in_registers": False}
    assert read[text] == {"keys": keys, "queries": {"min_blocks": 1}}
    assert read["queries.stages=3"] == {"queries": {"stages": 3}}
    assert list(read) == ["", text, "queries.stages=3"]


@pytest.mark.parametrize("text", ["stages=2", "rows.stages=2", "keys=2", "keysstages=2"])
def test_a_setting_of_no_side_is_refused(text):
    with pytest.raises(ValueError, match=r"takes keys\.NAME=VALUE or queries\.NAME=VALUE"):
        BACKWARD_PASS.configurations([text])


@pytest.mark.parametrize("text", ["keys.steps=2", "keys.stages=many", "keys.stages"])
def test_a_setting_that_is_none_is_refused(text):
    with pytest.raises(UsageError):
        BACKWARD_PASS.configurations([text])


def test_cuevo_competes_with_every_set_of_gradients():
    changes = BACKWARD_PASS.configurations(["keys.stages=2"])
    contenders = BACKWARD_PASS.cuevo(changes)
    assert [contender.key for contender in contenders] == [
        f"{name}, both, bias grads {gradients}"
        for name in ("cuevo", "cuevo keys.stages=2")
        for gradients in ("both", "pair", "none")
    ]
    assert [contender.variant for contender in contenders[:3]] == ["both", "pair", "none"]
