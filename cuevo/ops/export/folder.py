"""An exported folder: kernels, planner, manifest, and what build systems want."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from itertools import chain
from pathlib import Path

from cuevo import __version__
from cuevo.kernels.forward import LEAST_POWER, NEGLIGIBLE_SCALE
from cuevo.ops.attention_problem import MOST_EXTENT, MOST_POSITIONS, MOST_SCALE
from cuevo.ops.export import (
    backward,
    backward_small,
    forward,
    forward_mapped,
    packing,
    product,
    product_mapped,
    tables,
)
from cuevo.ops.export.instances import (
    KERNEL_FILE,
    Instances,
    Spilling,
    digest,
    fat_binaries,
    find_spilling,
    processes,
    require_extra,
)
from cuevo.ops.export.selection import Selection
from cuevo.toolchain.header import HEADER_NAME
from cuevo.toolchain.paths import ptx_directory

__all__ = ["planner", "write"]

_PARTS = (packing, forward, forward_mapped, backward, backward_small, product, product_mapped)
_SOURCES = Path(__file__).parent / "folder_in_c"
"""What is the same in every folder."""
_MANIFEST = "manifest.json"
_GENERATED = "/* Written by cuevo export, from the host halves of the kernels. */\n\n"


def planner(selection: Selection, instances: Instances) -> dict[str, str]:
    """The files of the planner by name, below the folder, for these problems; `instances` get the
    kernels that it launches.
    """
    found = {f"include/{HEADER_NAME}": (ptx_directory() / HEADER_NAME).read_text(encoding="utf-8")}
    for path in sorted(path for path in _SOURCES.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8")
        found[path.relative_to(_SOURCES).as_posix()] = text.replace("@VERSION@", __version__)
    listed = chain(
        (_GENERATED, tables.CHOICE),
        tables.served(selection),
        (packing.constants(), forward_mapped.constants(), backward_small.constants()),
        (product.constants(selection), _constants()),
        *(part.tables(selection, instances) for part in _PARTS),
    )
    found["src/tables.h"] = "\n".join(listed)
    found["src/formulas.h"] = _formulas()
    kernels = "".join(f'    {{"{each.file}", "{each.name}"}},\n' for each in instances)
    found["src/cuevo_kernels.c"] = (
        f'{_GENERATED}#include "cuevo_launch.h"\n\n'
        f"const cuevo_kernel cuevo_kernels[] = {{\n{kernels}}};\n"
        f"const uint32_t cuevo_kernel_count = sizeof cuevo_kernels / sizeof cuevo_kernels[0];\n"
    )
    return found


@cache
def _formulas() -> str:
    functions = (text for part in _PARTS for text in part.formulas())
    return "\n".join((_GENERATED, *functions))


def _constants() -> str:
    return (
        f"#define MOST_EXTENT {MOST_EXTENT}\n"
        f"#define MOST_POSITIONS {MOST_POSITIONS}\n"
        f"#define MOST_SCALE {MOST_SCALE!r}\n"
        f"#define NEGLIGIBLE_SCALE {NEGLIGIBLE_SCALE!r}\n"
        f"#define LEAST_POWER {LEAST_POWER!r}\n"
    )


def write(
    selection: Selection,
    folder: Path,
    *,
    workers: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write the folder for these problems, and return its files; kernels of an export before this
    one go, whatever else is there stays.

    workers : processes that assemble.
    report : is told how far it has come.

    Raises AssemblerError, OSError; CuevoError without the extra ``export``.
    """
    require_extra()
    spilling: set[Spilling] = set()
    known: set[Spilling] = set()
    with processes(workers) as each:
        while True:
            instances = Instances(spilling)
            files = planner(selection, instances)
            listed = [*instances]
            new = [instance for instance in listed if not instance.pairs() <= known]
            if not new:
                break
            if not known:
                report(f"{len(listed)} kernels for {', '.join(selection.architectures)}")
            spilling |= find_spilling(new, each)
            known |= {pair for instance in new for pair in instance.pairs()}
        contents = fat_binaries(listed, each)
    kernels = {}
    for instance, content in zip(listed, contents, strict=True):
        kernels[instance.file] = {
            "sha256": digest(content),
            "bytes": len(content),
            "entry": instance.name,
            "architectures": list(instance.architectures),
            "instance": instance.render().describe(),
        }
    manifest = {
        "cuevo": __version__,
        "operations": list(selection.operations),
        "head_dims": list(selection.head_dims),
        "dtypes": list(selection.dtypes),
        "architectures": list(selection.architectures),
        "masks": list(selection.masks),
        "pairs": list(selection.pairs),
        **({"products": asdict(selection.products)} if "gemm" in selection.operations else {}),
        "files": {name: digest(text.encode()) for name, text in sorted(files.items())},
        "kernels": kernels,
    }
    for name in _kernels_of(folder / _MANIFEST) - kernels.keys():
        (folder / name).unlink(missing_ok=True)
    written = dict(zip(kernels, contents, strict=True))
    written |= {name: text.encode() for name, text in files.items()}
    written[_MANIFEST] = (json.dumps(manifest, indent=1) + "\n").encode()
    for name, content in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return [folder / name for name in written]


def _kernels_of(manifest: Path) -> set[str]:
    """The kernels of the export that has written a manifest; none where there is none."""
    try:
        found = json.loads(manifest.read_bytes())
        return {name for name in found["kernels"] if KERNEL_FILE.fullmatch(name)}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return set()
