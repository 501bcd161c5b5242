"""The cost of batches when the device is behind the host."""

from __future__ import annotations

from telephony_tts.engines.cosyvoice2.core.counters import MOST_IN_FLIGHT, Counters, InFlight
from telephony_tts.engines.cosyvoice2.core.scheduler import BatchCost, Stage
from telephony_tts.engines.cosyvoice2.model.border import HostMoment


class Device:
    """Has computed up to `at_ns`. Waiting advances it."""

    def __init__(self) -> None:
        self.at_ns = 0

    def moment(self, ns: int) -> Moment:
        return Moment(self, ns)


class Moment:
    def __init__(self, device: Device, ns: int) -> None:
        self.device, self.ns = device, ns

    def ns_after(self, begin: Moment) -> int | None:
        return self.ns - begin.ns if self.device.at_ns >= self.ns else None

    def wait(self) -> None:
        self.device.at_ns = max(self.device.at_ns, self.ns)


def test_a_batch_is_counted_when_the_device_has_finished_it_with_the_devices_time() -> None:
    device, counters = Device(), Counters()
    in_flight = InFlight(counters)
    in_flight.add(Stage.FLOW, 3, device.moment(0), device.moment(900), is_usual=True)
    in_flight.add(Stage.DECODE, 2, device.moment(1000), device.moment(1400), is_usual=True)
    assert counters.snapshot() == {} and not counters.costs
    device.at_ns = 1000
    in_flight.add(Stage.FLOW, 1, device.moment(1400), device.moment(1500), is_usual=False)
    assert counters.snapshot() == {"flow_batches": 1, "flow_rows": 3, "flow_s": 900e-9}
    device.at_ns = 2000
    in_flight.add(Stage.VOCODE, 1, device.moment(2000), device.moment(2000), is_usual=True)
    snapshot = counters.snapshot()
    assert (snapshot["flow_batches"], snapshot["flow_rows"], snapshot["decode_s"]) == (2, 4, 400e-9)
    assert counters.costs[Stage.FLOW].batch_ns == 900, "an unusual batch has no cost"


def test_costs_are_those_of_a_unit() -> None:
    """Of an id, and of a whole block's audio."""
    counters = Counters()
    counters.count_batch(Stage.DECODE, 2, 4000, size=4)
    counters.count_batch(Stage.VOCODE, 1, 300, size=0.6, is_alone=True)
    counters.count_batch(Stage.FLOW, 1, 70, is_alone=True)
    counters.count_batch(Stage.FLOW, 1, 70 + 160)
    assert counters.costs[Stage.DECODE] == BatchCost(1000, 500)
    assert counters.costs[Stage.VOCODE] == BatchCost(500, 500) == counters.alone_costs[Stage.VOCODE]
    assert counters.snapshot()["decode_s"] == 4000e-9 and counters.snapshot()["vocode_s"] == 300e-9


def test_each_row_counts_in_the_price_of_a_row() -> None:
    """A device computes 64 rows for little more than one. Else first audio of 64 would be held back for a price that
    only a stream alone has."""
    counters = Counters()
    for _ in range(20):
        counters.count_batch(Stage.FLOW, 1, 2500)
    assert counters.costs[Stage.FLOW] == BatchCost(2500, 2500)
    counters.count_batch(Stage.FLOW, 64, 6400)
    assert counters.costs[Stage.FLOW].row_ns < 1000, "but one batch does not decide alone"
    for _ in range(2):
        counters.count_batch(Stage.FLOW, 64, 6400)
    assert counters.costs[Stage.FLOW].row_ns < 250 and 2700 < counters.costs[Stage.FLOW].batch_ns < 3300
    counters.count_batch(Stage.FLOW, 1, 2500)
    assert counters.costs[Stage.FLOW].row_ns < 400, "a batch of one row has the weight of one row"


def test_the_vocoder_has_no_help_while_ids_are_drawn() -> None:
    counters = Counters()
    for stage in (Stage.FLOW, Stage.VOCODE):
        counters.count_batch(stage, 1, 160)
        for _ in range(50):
            counters.count_batch(stage, 1, 80, is_alone=True)
            counters.count_batch(stage, 1, 160)
    of_end, of_beginning = counters.alone_prices(draws=False), counters.alone_prices(draws=True)
    assert of_end[Stage.VOCODE].batch_ns == of_end[Stage.FLOW].batch_ns == of_beginning[Stage.FLOW].batch_ns == 80
    assert of_beginning[Stage.VOCODE] == counters.costs[Stage.VOCODE] and of_beginning[Stage.VOCODE].batch_ns > 100


def test_the_host_is_few_batches_ahead() -> None:
    device, in_flight = Device(), InFlight(Counters())
    for i in range(10):
        in_flight.add(Stage.FLOW, 1, device.moment(100 * i), device.moment(100 * i + 100), is_usual=True)
        in_flight.wait()
        assert device.at_ns == max(0, 100 * (i + 1 - MOST_IN_FLIGHT))


def test_on_a_cpu_a_batch_is_counted_at_once() -> None:
    times = iter([5, 12])
    counters = Counters()
    begin, end = (HostMoment(times.__next__) for _ in range(2))
    InFlight(counters).add(Stage.PREFILL, 1, begin, end, is_usual=True)
    assert counters.snapshot() == {"prefill_batches": 1, "prefill_rows": 1, "prefill_s": 7e-9}
