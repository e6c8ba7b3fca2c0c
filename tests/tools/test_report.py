import math

import pytest

from cuevo.ops.tuning.measure import Times
from report import Result, cells, memory_line, own_times, print_table
from workloads import Workload

pytestmark = pytest.mark.unit


def measured(name, biases, milliseconds, error=2e-3):
    times = Times(milliseconds, milliseconds, milliseconds, 9)
    return Result("8,4,16,32", name, biases, error, times, 100.0, 0.25, 12.34)


RESULTS = [
    measured("cuevo", "both", 0.5),
    measured("cuevo", "pair", 0.4),
    measured("cuevo stages=4", "both", 0.6),
    measured("SDPA cuDNN", "pair", 1.2),
    Result("8,4,16,32", "FlexAttention", "both", reason="RuntimeError: no"),
]


def test_ratios_are_to_the_first_configuration_of_cuevo():
    assert own_times(RESULTS) == {"both": 0.5, "pair": 0.4}


def test_a_row_has_time_rates_error_and_the_ratio_to_each_of_ours():
    assert cells(RESULTS[3], own_times(RESULTS)) == [
        "SDPA cuDNN",
        "pair",
        "1.200",
        "100.0",
        "25.0%",
        "2.0e-03",
        "12.3",
        "2.40",
        "3.00",
    ]


def test_what_has_no_time_has_a_dash():
    assert cells(RESULTS[4], own_times(RESULTS)) == ["FlexAttention", "both", "-", "", "", ""]


@pytest.mark.parametrize(("error", "wrong"), [(2e-3, False), (0.02, True), (math.nan, True)])
def test_an_error_beyond_rounding_is_wrong(error, wrong):
    assert measured("cuevo", "both", 1.0, error).is_wrong is wrong


def test_a_piped_table_is_plain_and_narrow(capsys):
    facts = {"input_sets": 3, "under_load": {"clocks.sm": "1755 MHz", "power.draw": "650 W"}}
    wrong = measured("cuevo", "none", 0.3, error=0.5)
    print_table(Workload(8, 4, 16, 32), [*RESULTS, wrong], facts)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    assert "1755 MHz, 650 W under load" in lines[1]
    assert sum(line.startswith("|") for line in lines) == len(RESULTS) + 3
    assert "FlexAttention, both: RuntimeError: no" in lines
    assert "cuevo, none: WRONG by 5.00e-01" in lines
    assert not any("\033" in line for line in lines)


def backward(name, biases, gradients, milliseconds, error=2e-3):
    times = Times(milliseconds, milliseconds, milliseconds, 9)
    errors = {"q": error / 2, "pair_bias": error}
    return Result(
        "8,4,16,32", name, biases, error, times, 100.0, None, 12.34,
        gradients=gradients, errors=errors,
    )  # fmt: skip


BACKWARD = [
    backward("cuevo", "both", "both", 0.5),
    backward("cuevo", "both", "pair", 0.4),
    backward("cuevo", "both", "none", 0.25),
    backward("cuevo keys.stages=2,queries.min_blocks=1", "both", "both", 0.6),
    backward("FlashAttention-2", "none", "none", 1.0),
    Result("8,4,16,32", "FlexAttention", "both", reason="RuntimeError: no", gradients="pair"),
]
MEMORY = {"workspace": 2_500_000, "peak": 7_000_000, "results": 4_000_000, "compared_to": 9_123_456}


def test_ratios_in_backward_go_by_the_gradients_of_biases():
    ours = own_times(BACKWARD)
    assert ours == {"both": 0.5, "pair": 0.4, "none": 0.25}
    shown = ["FlashAttention-2", "none", "none", "1.000", "100.0", "2.0e-03", "12.3"]
    assert cells(BACKWARD[4], ours) == [*shown, "2.00", "2.50", "4.00"]
    assert cells(BACKWARD[5], ours) == ["FlexAttention", "both", "pair", "-", "", ""]


def test_a_backward_table_has_gradients_their_errors_and_memory(capsys):
    facts = {"input_sets": 3, "under_load": {}, "memory": MEMORY}
    print_table(Workload(8, 4, 16, 32), BACKWARD, facts)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[2].startswith("memory: workspace 2.5 MB; ")
    heading = [cell.strip() for cell in lines[4].strip("|").split("|")]
    ratios = ["x both", "x pair", "x none"]
    figures = ["ms", "TF/s", "error", "host us"]
    assert heading == ["contender", "biases", "bias grads", *figures, *ratios]
    named = "cuevo, both, bias grads both: errors dq 1.0e-03, dpair_bias 2.0e-03"
    assert named in lines
    assert "FlexAttention, both, bias grads pair: RuntimeError: no" in lines


def test_memory_is_said_in_megabytes():
    compared = "memory: workspace 2.5 MB; 3 q + lse + delta + fp32 bias gradients 9.1 MB"
    assert memory_line(MEMORY) == f"{compared}; peak of a call 7.0 MB, results 4.0 MB of it"
    assert memory_line({**MEMORY, "peak": None}) == compared
    assert memory_line({"reason": "RuntimeError: no"}) == "memory: RuntimeError: no"
