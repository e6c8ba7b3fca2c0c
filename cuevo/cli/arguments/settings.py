"""Kernel parameters as text: the words `head_dim=32 stages=3` to a kernel's Config."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union

from cuevo.cli.arguments.usage import UsageError, unknown

T = TypeVar("T")

_NO_DEFAULTS: Mapping[str, object] = types.MappingProxyType({})

_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def split_settings(words: Iterable[str]) -> dict[str, str]:
    """`["head_dim=32", "stages=3"]` as a dictionary; a name given twice is an error."""
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"a setting is written NAME=VALUE, not {word!r}.")
        if name in settings:
            raise UsageError(f"{name} is set twice: to {settings[name]!r} and to {value!r}.")
        settings[name] = value.strip()
    return settings


def configuration(
    config_type: type[T], settings: Mapping[str, str], defaults: Mapping[str, object] = _NO_DEFAULTS
) -> T:
    """A kernel's Config with the named fields read from text and the others at their defaults.

    Args:
        config_type: a dataclass.
        settings: field name to text.
        defaults: field name to value, for fields that have another default than the dataclass says.

    Raises:
        UsageError: as `read_values`, or for a field without a default that no setting names.
        ValueError: whatever the dataclass itself refuses.
    """
    values = {**defaults, **read_values(config_type, settings)}
    missing = [
        field.name
        for field in dataclasses.fields(_dataclass(config_type))
        if field.name not in values and is_required(field)
    ]
    if missing:
        words = " ".join(f"{name}=VALUE" for name in missing)
        raise UsageError(f"a value is needed for: {', '.join(missing)}. Add --set {words}.")
    return config_type(**values)


def read_values(config_type: type[Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings with each text read as a value of the field's type.

    Raises:
        UsageError: a name that is no field, or a text that is no value of the field's type.
    """
    return read_fields(field_types(config_type), settings)


def field_types(config_type: type[Any]) -> dict[str, Any]:
    """Annotated type of each field of a Config."""
    kinds = typing.get_type_hints(config_type)
    return {field.name: kinds[field.name] for field in dataclasses.fields(_dataclass(config_type))}


def read_fields(kinds: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """As `read_values`, of fields of these types."""
    values = {}
    for name, text in settings.items():
        if name not in kinds:
            raise unknown("parameter", name, kinds)
        values[name] = read_value(text, kinds[name], name)
    return values


def read_value(text: str, kind: Any, name: str) -> Any:
    """One value of the annotated type `kind` (bool, int, float, str, enum, Literal, X | None)."""
    origin = typing.get_origin(kind)
    if origin is Union or isinstance(kind, types.UnionType):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        if len(members) < len(typing.get_args(kind)) and text.lower() == "none":
            return None
        if len(members) == 1:
            return read_value(text, members[0], name)
    if origin is Literal:
        options = {str(option): option for option in typing.get_args(kind)}
        return _choose(text, options, name)
    if kind is bool:
        return _choose(text.lower(), _BOOLEANS, name)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        options = {str(member.value): member for member in kind}
        return _choose(text, options, name)
    try:
        if kind is int:
            return int(text, 0)
        if kind is float:
            return float(text)
    except ValueError:
        raise UsageError(f"{name} takes {describe_type(kind)}, not {text!r}.") from None
    if kind is str:
        return text
    raise UsageError(f"{name} is of type {describe_type(kind)}, which text cannot give.")


def describe_type(kind: Any) -> str:
    """A type as a reader of a help page would say it."""
    if kind is int:
        return "an integer"
    if kind is float:
        return "a number"
    if kind is bool:
        return "true or false"
    if kind is type(None):
        return "none"
    if kind is str:
        return "text"
    origin = typing.get_origin(kind)
    if origin is Literal:
        return " or ".join(str(option) for option in typing.get_args(kind))
    if origin is Union or isinstance(kind, types.UnionType):
        return " or ".join(describe_type(member) for member in typing.get_args(kind))
    return getattr(kind, "__name__", str(kind))


def is_required(field: dataclasses.Field[Any]) -> bool:
    """Whether a dataclass field has neither a default nor a default factory."""
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def describe_fields(
    config_type: type[Any], defaults: Mapping[str, object] = _NO_DEFAULTS
) -> list[dict[str, Any]]:
    """Name, type in words, default or `required`, and docstring of each field of a Config;
    `defaults` as in `configuration`.
    """
    kinds = typing.get_type_hints(config_type)
    meanings = field_docstrings(config_type)
    described = []
    for field in dataclasses.fields(_dataclass(config_type)):
        entry: dict[str, Any] = {"name": field.name, "type": describe_type(kinds[field.name])}
        if field.name in defaults:
            entry["default"] = defaults[field.name]
        elif is_required(field):
            entry["required"] = True
        elif field.default is not dataclasses.MISSING:
            entry["default"] = field.default
        entry["meaning"] = meanings.get(field.name, "")
        described.append(entry)
    return described


def field_docstrings(config_type: type[Any]) -> dict[str, str]:
    """The string literals that follow the fields in the source of the class and of its bases;
    empty without a source.
    """
    found = {}
    for field, text in itertools.chain(*map(_neighbours, reversed(config_type.__mro__))):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = inspect.cleandoc(text.value.value)
    return found


def _neighbours(python_class: type[Any]) -> Iterable[tuple[ast.stmt, ast.stmt]]:
    """Every two statements that follow each other in the body of a class."""
    try:
        source = textwrap.dedent(inspect.getsource(python_class))
    except (OSError, TypeError):
        return []
    (definition,) = ast.parse(source).body
    return itertools.pairwise(getattr(definition, "body", []))


def _choose(text: str, options: Mapping[str, Any], name: str) -> Any:
    if text not in options:
        raise UsageError(f"{name} takes one of {', '.join(options)}, not {text!r}.")
    return options[text]


def _dataclass(config_type: type[Any]) -> type[Any]:
    if not dataclasses.is_dataclass(config_type):
        raise TypeError(f"{config_type!r} is not a dataclass")
    return config_type
