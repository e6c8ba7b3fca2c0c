import pytest

from cuevo.ops.tuning.measure import input_sets
from workloads import BACKWARD, FORWARD, Workload, key_of, select

pytestmark = pytest.mark.unit

MEBI = 2**20


def test_operations_are_those_of_two_products():
    workload = Workload(rows=2, heads=3, length=5, head_dim=8)
    multiply_adds_of_one_product = 2 * 3 * 5 * 5 * 8
    assert workload.scores == 150
    assert workload.operations == 2 * 2 * multiply_adds_of_one_product


def test_traffic_counts_every_tensor_once():
    workload = Workload(rows=2, heads=3, length=5, head_dim=8)
    q, mask, pair = 2 * 5 * 3 * 8, 2 * 5, 3 * 5 * 5
    assert workload.traffic_bytes(element_size=2) == 2 * (4 * q + mask + pair)


def test_backward_has_five_products():
    workload = Workload(rows=2, heads=3, length=5, head_dim=8)
    assert workload.backward_operations == 2 * 5 * (2 * 3 * 5 * 5 * 8)


def test_the_traffic_of_backward_has_every_gradient():
    workload = Workload(rows=2, heads=3, length=5, head_dim=8)
    q, mask, pair, lse = 2 * 5 * 3 * 8, 2 * 5, 3 * 5 * 5, 2 * 3 * 5
    dout_qkv_out_and_gradients = 5 * q + 3 * q
    expected = 2 * (dout_qkv_out_and_gradients + 2 * mask + 2 * pair) + 4 * lse
    assert workload.backward_traffic_bytes() == expected


def test_a_contender_is_called_by_name_biases_and_gradients():
    assert key_of("cuevo", "both") == "cuevo, both"
    assert key_of("cuevo", "both", "pair") == "cuevo, both, bias grads pair"


def test_the_published_figures_follow_from_the_table():
    # 0.793 ms at 768,4,768,32 are 293 TF/s, and 0.567 ms at 512,4,512,64 are 242.
    times = {"768,4,768,32": (0.793, 293), "512,4,512,64": (0.567, 242)}
    named = {str(workload): workload for workload in FORWARD}
    for name, (milliseconds, teraflops) in times.items():
        assert named[name].operations / milliseconds / 1e9 == pytest.approx(teraflops, rel=0.01)


def test_without_filters_everything_is_selected():
    assert select([]) == list(FORWARD)


def test_conditions_select_among_the_workloads_that_are_given():
    assert select(["D=8"], BACKWARD) == [Workload(512, 8, 512, 8)]
    with pytest.raises(ValueError, match="no workload has D=8"):
        select(["D=8"], FORWARD)


def test_a_whole_workload_need_not_be_known():
    assert select(["7,5,100,40", "768,4,768,32"]) == [
        Workload(7, 5, 100, 40),
        Workload(768, 4, 768, 32),
    ]


def test_conditions_must_all_be_met():
    assert select(["L=768,D=48"]) == [Workload(48, 16, 768, 48)]
    assert {workload.heads for workload in select(["H=16"])} == {16}


def test_no_workload_is_selected_twice():
    assert select(["D=64", "512,4,512,64"]) == [Workload(512, 4, 512, 64)]


@pytest.mark.parametrize("text", ["768", "1,2,3", "L=", "L=768;D=32", "X=3", "", "0,4,768,32"])
def test_a_filter_of_no_known_form_is_refused(text):
    with pytest.raises(ValueError, match=r"is written|1 or more"):
        select([text])


def test_a_condition_that_nothing_meets_lists_what_there_is():
    with pytest.raises(ValueError, match=r"no workload has L=777; there are 128,8,256,32"):
        select(["L=777"])


@pytest.mark.parametrize("workload", FORWARD, ids=str)
def test_the_other_input_sets_do_not_fit_in_l2(workload):
    traffic = workload.traffic_bytes()
    count = input_sets(traffic, l2_bytes=60 * MEBI, free_bytes=140_000 * MEBI)
    assert (count - 1) * traffic >= 2 * 60 * MEBI or count == 16


def test_input_sets_are_limited_by_memory_and_number():
    traffic = Workload(128, 8, 256, 32).traffic_bytes()
    assert input_sets(traffic, 60 * MEBI, free_bytes=0) == 1
    assert input_sets(traffic, 60 * MEBI, free_bytes=4 * traffic) == 2
    assert input_sets(Workload(1, 1, 8, 8).traffic_bytes(), 60 * MEBI, free_bytes=2**40) == 16
