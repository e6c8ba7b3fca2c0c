import contextlib
import itertools

import pytest

from cuevo.ops.tuning.measure import Entrant, Times, time_interleaved, turns, warm_up
from measure import (
    burst_length,
    ex2_share,
    host_microseconds,
    teraflops,
    time_in_a_row,
    time_sustained,
)

pytestmark = pytest.mark.unit


class ManualClock:
    """A stream whose time passes only when a call says so, in milliseconds."""

    def __init__(self):
        self.now = 0.0
        self.held = 0
        self.waits = 0

    def record(self):
        return self.now

    def elapsed(self, start, end):
        return end - start

    def synchronize(self):
        self.waits += 1

    def hold(self):
        self.held += 1
        self.now += 1.0

    def takes(self, milliseconds, log=None, name=""):
        def call():
            self.now += milliseconds
            if log is not None:
                log.append(name)

        return call


def test_times_are_order_statistics():
    times = Times.of([5.0, 1.0, 3.0, 2.0, 4.0, 100.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    assert (times.low, times.median, times.high, times.count) == (2.0, 6.0, 10.0, 11)
    assert Times.of([2.5]) == Times(2.5, 2.5, 2.5, 1)


def test_every_round_has_everybody_once_and_begins_with_the_next():
    order = turns(["a", "b", "c"], 4)
    assert [names[0] for names in order] == ["a", "b", "c", "a"]
    assert all(sorted(names) == ["a", "b", "c"] for names in order)
    assert turns(["a", "b", "c"], 4) == order
    assert turns([], 2) == [(), ()]


def test_nobody_always_follows_the_same_one():
    names = [str(i) for i in range(20)]
    before = {name: set() for name in names}
    for order in turns(names, 15):
        for first, second in itertools.pairwise(order):
            before[second].add(first)
    assert min(map(len, before.values())) > 5
    assert [order[0] for order in turns(names, 5)] == ["0", "4", "8", "12", "16"]


def test_interleaved_times_are_each_entrants_own():
    clock = ManualClock()
    entrants = {"fast": Entrant([clock.takes(0.5)]), "slow": Entrant([clock.takes(4.0)])}
    times = time_interleaved(entrants, clock, repeats=6)
    assert times["fast"].median == pytest.approx(0.5)
    assert times["slow"].median == pytest.approx(4.0)
    assert times["slow"].count == 6
    assert clock.held == 6


def test_no_two_calls_in_a_row_use_the_same_inputs():
    clock = ManualClock()
    log = []
    entrants = {
        name: Entrant([clock.takes(1.0, log, number) for number in range(3)]) for name in "ab"
    }
    time_interleaved(entrants, clock, repeats=9)
    assert len(log) == 18
    assert all(before != after for before, after in itertools.pairwise(log))
    assert {log.count(number) for number in range(3)} == {6}


def test_what_a_result_ends_with_is_not_counted():
    clock = ManualClock()

    class Result:
        def __del__(self):
            clock.now += 100.0

    def call():
        clock.now += 1.0
        return Result()

    times = time_interleaved({"a": Entrant([call])}, clock, repeats=3)
    assert times["a"].high == pytest.approx(1.0) and clock.now == pytest.approx(306.0)


def test_calls_in_a_row_follow_each_other():
    clock = ManualClock()
    log = []
    entrants = {
        name: Entrant([clock.takes(took, log, f"{name}{number}") for number in range(2)])
        for name, took in (("a", 0.5), ("b", 4.0))
    }
    times = time_in_a_row(entrants, clock, calls=3, rounds=4)
    assert times["a"].median == pytest.approx(0.5) and times["b"].median == pytest.approx(4.0)
    assert (times["a"].count, clock.held, clock.waits) == (4, 8, 8)
    burst = ["a0", "a1", "a0", "a1", "a0"]  # all once, then those that count
    assert log[:5] == burst and log.count("a0") == 12


def test_halfway_comes_once_and_in_the_middle():
    clock = ManualClock()
    seen = []
    entrants = {"a": Entrant([clock.takes(1.0)])}
    time_interleaved(entrants, clock, 10, halfway=lambda: seen.append(clock.now))
    assert seen == [pytest.approx(10.0)]  # five rounds of a hold and a call, 1 ms each


def test_warm_up_makes_every_call_and_then_waits():
    clock = ManualClock()
    log = []
    entered = []

    @contextlib.contextmanager
    def context():
        entered.append(True)
        yield

    calls = [clock.takes(1.0, log, number) for number in range(3)]
    warm_up(Entrant(calls, context), clock, rounds=2)
    assert log == [0, 1, 2, 0, 1, 2]
    assert entered == [True]
    assert clock.waits == 1


def test_host_time_is_that_of_one_call(monkeypatch):
    clock = ManualClock()
    log = []
    ticks = iter(range(1000))
    monkeypatch.setattr("measure.time.perf_counter", lambda: next(ticks) * 1e-3)
    entrant = Entrant([clock.takes(1.0, log, "call"), clock.takes(9.0, log, "never")])
    # Every burst lasts one tick of a millisecond, so each of its 8 calls 125 microseconds.
    assert host_microseconds(entrant, clock, calls=8, bursts=3) == pytest.approx(125.0)
    assert log == ["call"] * (3 * (1 + 8))  # the first of a burst is not counted


@pytest.mark.parametrize(
    ("milliseconds", "calls"), [(0.0, 64), (0.06, 64), (2.0, 25), (10.0, 5), (90.0, 4)]
)
def test_a_burst_is_short_enough_for_the_launch_queue(milliseconds, calls):
    assert burst_length(milliseconds) == calls


def test_rates():
    assert teraflops(operations=4 * 10**12, milliseconds=8.0) == pytest.approx(500.0)
    # 132 SMs at 1.98 GHz make 4.18e12 exponentials a second: 535 TF/s at D = 32.
    scores = 10**9
    share = ex2_share(scores, 1.0, multiprocessors=132, clock_hz=1.98e9)
    assert share == pytest.approx(1e12 / 4.181760e12)
    assert teraflops(4 * scores * 32, 1.0) / share == pytest.approx(535.3, rel=1e-3)


def test_alone_everybody_runs_in_bursts_and_is_read_in_the_last_round():
    clock, log, read = ManualClock(), [], []
    entrants = {
        "a": Entrant([clock.takes(10.0, log, "a0"), clock.takes(20.0, log, "a1")]),
        "b": Entrant([clock.takes(50.0, log, "b")]),
    }
    times = time_sustained(
        entrants, clock, settle=0.0, seconds=0.0, rounds=2, reading=lambda name: read.append(name)
    )
    # A burst of one call, then one of 50 ms or 4 calls; both twice, to settle and to count.
    once = ["a0", *["a0", "a1", "a0", "a1", "a0"]] * 2 + ["b", *["b"] * 4] * 2
    assert log == once * 2
    assert (times["a"].median, times["a"].count) == (14.0, 2)
    assert (times["b"].median, times["b"].count) == (50.0, 2)
    assert read == ["a", "b"]
