import pytest

from machine import circumstances, parse_query

pytestmark = pytest.mark.unit

ANSWER = "NVIDIA H200, 580.65, 1755 MHz, 1980 MHz, 3201 MHz, 655.1 W, 700.00 W, 61\n"


def test_the_answer_of_nvidia_smi_is_read_by_field():
    fields = parse_query(ANSWER)
    assert fields["name"] == "NVIDIA H200"
    assert fields["clocks.sm"] == "1755 MHz"
    assert fields["temperature.gpu"] == "61"


@pytest.mark.parametrize("answer", ["", "\n", "No devices were found\n"])
def test_no_answer_is_no_fields(answer):
    assert parse_query(answer) == {}


def test_circumstances_name_date_command_and_versions(monkeypatch):
    monkeypatch.setattr("sys.argv", ["tools/bench.py", "--workload", "L=768, D=32"])
    found = circumstances()
    assert found["command"] == "python3 tools/bench.py --workload 'L=768, D=32'"
    assert found["date"].endswith("+00:00")
    assert "numpy" in found["versions"]
