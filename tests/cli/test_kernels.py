import io
import json
import subprocess
import sys
from contextlib import redirect_stdout

import pytest

from cuevo.cli import main
from cuevo.cli.kernels import lowest_architecture, render_kernel
from cuevo.kernels import evoformer_forward_sm80, registry
from cuevo.toolchain.assembler import LOWEST_ARCH, assemble
from cuevo.toolchain.template import render

pytestmark = pytest.mark.unit

KERNEL = evoformer_forward_sm80.NAME


@pytest.fixture(scope="module")
def rendered():
    config = evoformer_forward_sm80.Config(head_dim=16, stages=2)
    return render(KERNEL, evoformer_forward_sm80.values(config))


SETTINGS = ["--set", "head_dim=16", "--set", "stages=2"]
every_kernel = pytest.mark.parametrize("name", registry())


def needed(name):
    """The settings without which a kernel has no instance."""
    return ["head_dim=32"] if name.startswith(("attention", "evoformer")) else []


def test_kernels_lists_every_kernel_and_parameter(listing):
    assert set(listing) == set(registry())
    parameters = {entry["name"]: entry for entry in listing[KERNEL]["parameters"]}
    assert parameters["head_dim"]["required"] is True
    assert parameters["stages"]["type"] == "an integer"
    assert parameters["stages"]["meaning"]
    assert listing[KERNEL]["lowest_arch"] == "sm_80"


def test_the_table_of_kernels_has_the_same(capsys):
    assert main(["kernels"]) == 0
    printed = capsys.readouterr().out
    for name, module in registry().items():
        assert name in printed
        assert module.SUMMARY in printed
    assert "required" in printed


@pytest.fixture(scope="module")
def listing():
    """What `cuevo kernels --json` prints, by kernel."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["kernels", "--json"]) == 0
    return {each["name"]: each for each in json.loads(printed.getvalue())}


@every_kernel
def test_defaults_are_an_instance_of_the_kernel(name, listing):
    module = registry()[name]
    config, rendered = render_kernel(module, needed(name), [lowest_architecture(module)])
    assert rendered.text.count(".visible .entry") == 1
    for entry in listing[name]["parameters"]:
        if "required" not in entry:
            assert entry["default"] == getattr(config, entry["name"])


@pytest.mark.parametrize(
    ("name", "instruction"), [("gemm_sm75", "m16n8k8"), ("gemm_sm70", "m8n8k4")]
)
def test_the_lower_variants_have_defaults_of_their_own(name, instruction):
    module = registry()[name]
    config, _ = render_kernel(module, ["block_k=64"], [])
    found = config.instruction, config.dtype, config.out_dtype, config.stages, config.block_k
    assert found == (instruction, "f16", "f16", 2, 64)
    config, _ = render_kernel(module, ["out_dtype=f32"], [])
    assert config.out_dtype == "f32"


def test_render_prints_what_is_assembled(capsys, rendered):
    assert main(["render", KERNEL, *SETTINGS]) == 0
    assert capsys.readouterr().out == rendered.text


def test_render_writes_a_file(capsys, tmp_path, rendered):
    path = tmp_path / "kernel.ptx"
    assert main(["render", KERNEL, *SETTINGS, "--output", str(path)]) == 0
    assert path.read_text(encoding="utf-8") == rendered.text
    assert capsys.readouterr().out == ""


def test_render_shows_where_lines_come_from(capsys, rendered):
    assert main(["render", KERNEL, *SETTINGS, "--origin"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rendered.text.splitlines())
    (entry,) = (number for number, line in enumerate(lines, 1) if ".visible .entry" in line)
    origin = rendered.origin(entry)
    assert lines[entry - 1].startswith(f"ptx/{KERNEL}.ptx:{origin.line} ")
    assert any(line.startswith("ptx/lib/") for line in lines)


def test_render_adds_line_information_when_asked(capsys, rendered):
    assert main(["render", KERNEL, *SETTINGS]) == 0
    assert ".loc " not in capsys.readouterr().out
    assert main(["render", KERNEL, *SETTINGS, "--loc"]) == 0
    assert capsys.readouterr().out == rendered.located.text
    assert main(["render", KERNEL, *SETTINGS, "--loc", "--origin"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(rendered.located.text.splitlines())
    number = next(number for number, line in enumerate(lines, 1) if " .loc " in line)
    origin = rendered.located.origin(number)
    assert lines[number - 1].split()[0] == f"{origin.file}:{origin.line}"
    assert lines[number - 1].split()[3] == str(origin.line)


def test_assemble_reports_what_the_assembler_says(capsys, rendered):
    command = ["assemble", KERNEL, *SETTINGS, "--arch", "sm_80", "--arch", "9.0", "--json"]
    assert main(command) == 0
    reports = json.loads(capsys.readouterr().out)
    assert [report["arch"] for report in reports] == ["sm_80", "sm_90"]
    for report in reports:
        cubin = assemble(rendered, report["arch"])
        assert report["kernel"] == rendered.describe()
        assert report["registers"] == cubin.resources.registers
        assert report["cubin_bytes"] == len(cubin.code)
        assert report["dynamic_shared"] > 0


@every_kernel
def test_the_default_architecture_is_one_that_the_assembler_knows(name, capsys):
    settings = [word for setting in needed(name) for word in ("--set", setting)]
    assert main(["assemble", name, *settings, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["arch"] == lowest_architecture(registry()[name], LOWEST_ARCH)


def test_an_architecture_that_the_assembler_does_not_know_is_refused(capsys):
    assert main(["assemble", "gemm_sm70", "--arch", "sm_70"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "in gemm_sm70(" in captured.err and "for sm_70, by nvJitLink" in captured.err


def test_the_table_has_a_column_for_each_architecture(capsys):
    assert main(["assemble", KERNEL, *SETTINGS, "--arch", "80", "--arch", "sm90"]) == 0
    printed = capsys.readouterr().out
    header = next(line for line in printed.splitlines() if "resource" in line)
    assert "sm_80" in header
    assert "sm_90" in header
    assert "spill stores" in printed


def test_assemble_writes_the_machine_code(capsys, tmp_path, rendered):
    path = tmp_path / "kernel.cubin"
    command = ["assemble", KERNEL, *SETTINGS, "--no-cache", "--output", str(path)]
    assert main(command) == 0
    assert path.read_bytes() == assemble(rendered, "sm_80").code


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        (["render", "evoformer_foward_sm80"], 2, f"Did you mean {KERNEL}?"),
        (["render", KERNEL], 2, "a value is needed for: head_dim."),
        (["render", KERNEL, "--set", "head_dim=16", "--set", "stage=2"], 2, "Did you mean stages?"),
        (["render", KERNEL, "--set", "head_dim=33"], 1, "multiple of 8"),
        (["render", KERNEL, *SETTINGS, "--arch", "sm_75"], 1, "cannot run on sm_75"),
        (["assemble", KERNEL, "--set", "head_dim=33"], 1, "multiple of 8"),
        (
            ["assemble", KERNEL, *SETTINGS, "--arch=80", "--arch=90", "--output=x.cubin"],
            2,
            "give --arch once",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(command, code, sentence, capsys, tmp_path):
    assert main(command) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("cuevo: ")
    assert sentence in captured.err


@pytest.mark.parametrize("name", ["ampere", "sm_", "8x"])
def test_an_architecture_is_a_number(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["assemble", KERNEL, *SETTINGS, "--arch", name])
    assert stopped.value.code == 2
    assert f"{name!r} is no architecture" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_gets_no_traceback():
    command = [sys.executable, "-m", "cuevo", "render", KERNEL, *SETTINGS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.wait(timeout=60)
    assert errors == ""
