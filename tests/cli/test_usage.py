import json
import shlex

import pytest

from cuevo import __version__
from cuevo.cli import build_parser, doctor, main
from cuevo.cli.arguments.usage import UsageError, unknown
from cuevo.errors import CuevoError

pytestmark = pytest.mark.unit

COMMANDS = (
    "demo",
    "kernels",
    "layout",
    "render",
    "assemble",
    "check",
    "plan",
    "tune",
    "roofline",
    "doctor",
)


def test_help_teaches_commands_examples_and_exit_codes(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command}" in text
        assert f"cuevo {command}" in text
    assert "exit codes:\n  0 " in text
    assert "CUEVO_CACHE_DIR" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_of_itself(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert "examples:\n  cuevo " in text
    parser = build_parser()
    for line in text.splitlines():
        if line.startswith(f"  cuevo {command} "):
            words = shlex.split(line.split("|")[0])[1:]
            assert parser.parse_args(words).run is not None


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"cuevo {__version__}\n"


def test_no_command_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CuevoError("the device is gone"), 1),
        (ValueError("q must have five axes"), 1),
        (OSError("disk full"), 1),
        (UsageError("give --arch once"), 2),
    ],
)
def test_an_error_is_a_sentence_and_an_exit_code(error, code, capsys, monkeypatch):
    def examine():
        raise error

    monkeypatch.delenv("CUEVO_TRACEBACK", raising=False)
    monkeypatch.setattr(doctor, "examine", examine)
    assert main(["doctor"]) == code
    captured = capsys.readouterr()
    assert captured.err == f"cuevo: {error}\n"
    assert captured.out == ""
    monkeypatch.setenv("CUEVO_TRACEBACK", "1")
    with pytest.raises(type(error)):
        main(["doctor"])


def test_an_interrupt_is_no_traceback(monkeypatch):
    def examine():
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", examine)
    assert main(["doctor"]) == 130


def test_a_misspelt_name_is_answered_with_the_nearest():
    sentence = str(unknown("kernel", "evoformer_foward", ["evoformer_forward", "gemm"]))
    assert "Did you mean evoformer_forward?" in sentence
    assert "Known: evoformer_forward, gemm." in sentence
    assert "Did you mean" not in str(unknown("kernel", "zzz", ["gemm"]))


def test_json_is_all_that_is_printed(capsys):
    main(["doctor", "--json"])
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)) == {"healthy", "checks"}
    assert captured.err == ""
