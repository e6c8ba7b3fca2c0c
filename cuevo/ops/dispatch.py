"""Which kernel of an operation runs: its variants are kernels for one architecture and later each.

The highest variant that the device and the problem satisfy wins, unless it defers to a lower one
that is better at the problem. A configuration of a variant's own Config class names that variant,
and so does the environment variable ``CUEVO_VARIANT``, such as ``CUEVO_VARIANT=sm_75``; the
configuration counts for more. A mapping of fields is for variants that have all of them. A call
that was made before keeps its plan, and with it the variant that was right then.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from cuevo.architectures import Architecture
from cuevo.ops.plans import C, HostHalf, P

__all__ = ["ENVIRONMENT", "KernelVariant", "dispatch"]

ENVIRONMENT = "CUEVO_VARIANT"


class KernelVariant(HostHalf[P, C], Protocol[P, C]):
    """The host half of a kernel that is one variant of an operation."""

    @property
    def MINIMUM_ARCH(self) -> int: ...  # noqa: N802

    def candidates(self, problem: P) -> Iterator[tuple[C, float]]: ...


R = TypeVar("R", bound=KernelVariant[Any, Any])


def dispatch(
    variants: Sequence[R], problem: object, arch: Architecture, config: object = None
) -> R:
    """The variant for `problem` on `arch`.

    variants : of one operation, the highest first. One with a function ``defers(problem, arch)`` is
        passed over where that is true and a lower one serves.
    config : what the caller configures with, if anything: an instance of a Config, or a mapping.

    Raises ValueError where no variant serves the problem, with every variant's objections, and for
    an environment variable that names no variant.

    >>> from cuevo.architectures import architecture
    >>> from cuevo.ops.forward import VARIANTS
    >>> from cuevo.kernels.forward import Problem
    >>> problem = Problem(1, 1, 1, 64, 64, head_dim=32, dtype="f16")
    >>> [dispatch(VARIANTS, problem, architecture(f"sm_{number}")).NAME for number in (75, 86)]
    ['evoformer_forward_sm75', 'evoformer_forward_sm80']
    """
    named = [each for each in variants if isinstance(config, each.Config)]
    if named:
        # Variants may share a Config class: then it is the one that can run this.
        return next(
            (each for each in named if not _problem_violations(each, config, problem, arch)),
            named[0],
        )
    forced = os.environ.get(ENVIRONMENT)
    if forced:
        return _forced(variants, forced)
    if isinstance(config, Mapping):
        variants = [each for each in variants if config.keys() <= _names(each.Config)] or variants
    objections = {each: _objections(each, problem, arch) for each in variants}
    serving = [each for each, reasons in objections.items() if not reasons]
    for each in serving:
        defers = getattr(each, "defers", None)
        if defers is None or each is serving[-1] or not defers(problem, arch):
            return each
    lines = [f"  {each.NAME}: {'; '.join(reasons)}" for each, reasons in objections.items()]
    raise ValueError("\n".join([f"no kernel serves {problem} on {arch.name}:", *lines]))


def _forced(variants: Sequence[R], name: str) -> R:
    found = {f"sm_{each.MINIMUM_ARCH}": each for each in variants}
    if name not in found:
        raise ValueError(
            f"{ENVIRONMENT}: expected one of {', '.join(found)}, the variants of "
            f"{variants[0].NAME.rpartition('_')[0]}; got {name!r}"
        )
    return found[name]


def _names(config: Any) -> set[str]:
    return {field.name for field in fields(config)}


def _problem_violations(
    each: KernelVariant[Any, Any], config: object, problem: object, arch: Architecture
) -> tuple[str, ...]:
    return each.violations(each.adapt(config, problem), arch, problem)


def _objections(each: KernelVariant[Any, Any], problem: object, arch: Architecture) -> list[str]:
    """Why no candidate of a variant serves the problem, each reason once; empty if one does."""
    reasons: dict[str, None] = {}
    for config, _ in each.candidates(problem):
        found = each.violations(config, arch, problem)
        if not found:
            return []
        reasons |= dict.fromkeys(found)
    return list(reasons)
