import dataclasses
import enum
from typing import Literal

import pytest

from cuevo.cli.arguments.settings import configuration, describe_fields, split_settings
from cuevo.cli.arguments.usage import UsageError

pytestmark = pytest.mark.unit


class Cache(enum.Enum):
    ALWAYS = "ca"
    GLOBAL = "cg"


@dataclasses.dataclass(frozen=True)
class Config:
    head_dim: int
    """Elements of a row,
    a multiple of 8."""
    stages: int = 3
    ratio: float = 0.5
    lazy: bool = False
    mask: Literal["none", "bf16"] = "none"
    """Type of the mask."""
    limit: int | None = None
    cache: Cache = Cache.GLOBAL
    label: str = ""

    def __post_init__(self) -> None:
        if self.head_dim % 8:
            raise ValueError("head_dim must be a multiple of 8")


@dataclasses.dataclass(frozen=True)
class Narrower(Config):
    stages: int = 2
    """Always 2."""


DEFAULTS = {"head_dim": 16, "ratio": 0.25}


def read(*words, **options):
    return configuration(Config, split_settings(words), **options)


def test_every_type_is_read_from_text():
    config = read(
        "head_dim=0x20",
        "stages = 4",
        "ratio=1e-1",
        "lazy=Yes",
        "mask=bf16",
        "limit=7",
        "cache=ca",
        "label=a=b",
    )
    assert config == Config(32, 4, 0.1, True, "bf16", 7, Cache.ALWAYS, "a=b")


def test_what_is_not_set_keeps_its_default():
    assert read("head_dim=8") == Config(8)
    assert read("head_dim=8", "limit=none", "lazy=0") == Config(8, limit=None, lazy=False)


def test_defaults_may_be_others_than_those_of_the_dataclass():
    assert read(defaults=DEFAULTS) == Config(16, ratio=0.25)
    assert read("ratio=1", "stages=5", defaults=DEFAULTS) == Config(16, stages=5, ratio=1.0)
    described = {entry["name"]: entry for entry in describe_fields(Config, DEFAULTS)}
    assert described["head_dim"]["default"] == 16
    assert "required" not in described["head_dim"]
    assert described["ratio"]["default"] == 0.25
    assert described["stages"]["default"] == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["head_dim"], "a setting is written NAME=VALUE, not 'head_dim'."),
        (["=3"], "a setting is written NAME=VALUE, not '=3'."),
        (["head_dim=8", "head_dim=16"], "head_dim is set twice: to '8' and to '16'."),
        (["stages=2"], "a value is needed for: head_dim. Add --set head_dim=VALUE."),
        (["head_dim=wide"], "head_dim takes an integer, not 'wide'."),
        (["head_dim=8", "ratio=half"], "ratio takes a number, not 'half'."),
        (["head_dim=8", "mask=fp8"], "mask takes one of none, bf16, not 'fp8'."),
        (["head_dim=8", "cache=cv"], "cache takes one of ca, cg, not 'cv'."),
        (
            ["head_dim=8", "lazy=maybe"],
            "lazy takes one of true, yes, 1, false, no, 0, not 'maybe'.",
        ),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(words, sentence):
    with pytest.raises(UsageError) as raised:
        read(*words)
    assert str(raised.value) == sentence


def test_an_unknown_parameter_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match=r"no parameter 'stage'\. Did you mean stages\?"):
        read("head_dim=8", "stage=2")


def test_what_the_configuration_refuses_is_no_usage_error():
    with pytest.raises(ValueError, match="multiple of 8") as raised:
        read("head_dim=9")
    assert not isinstance(raised.value, UsageError)


def test_fields_are_described_by_type_default_and_docstring():
    described = {entry["name"]: entry for entry in describe_fields(Config)}
    assert described["head_dim"] == {
        "name": "head_dim",
        "type": "an integer",
        "required": True,
        "meaning": "Elements of a row,\na multiple of 8.",
    }
    assert described["stages"]["default"] == 3
    assert described["stages"]["meaning"] == ""
    assert described["mask"]["type"] == "none or bf16"
    assert described["mask"]["meaning"] == "Type of the mask."
    assert described["limit"]["type"] == "an integer or none"


def test_fields_of_a_base_class_are_described_there():
    described = {entry["name"]: entry for entry in describe_fields(Narrower)}
    assert list(described) == [field.name for field in dataclasses.fields(Config)]
    assert described["mask"]["meaning"] == "Type of the mask."
    assert (described["stages"]["default"], described["stages"]["meaning"]) == (2, "Always 2.")
