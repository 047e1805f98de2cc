import asyncio

import pytest

from gateway.simulator.plan import Begin, End, Remember, Send, Silence, Step, Wait
from gateway.simulator.refusal import Refusal
from gateway.simulator.runner import Pace, run
from gateway.simulator.wire import Wire


class RecordingCarrier:
    """Notes what it is asked to say, with the event loop's time."""

    def __init__(self) -> None:
        self.wire = Wire(lambda wire: pytest.fail("never opened"), lambda wire: None)
        self.said: list[str] = []
        self.times: list[float] = []

    def accept(self) -> None:
        self.said.append("accept")

    def begin(self) -> None:
        self.said.append("begin")

    def send(self, event: Send) -> None:
        self.said.append(event.type)
        self.times.append(asyncio.get_running_loop().time())

    def refuse(self, refusal: Refusal) -> None:
        self.said.append(f"refuse {refusal.status}")

    def close(self, code: int) -> None:
        self.said.append(f"close {code}")

    def mute_pongs(self) -> None:
        self.said.append("mute")

    def split_chunks(self, size: int) -> None:
        self.said.append(f"split {size}")

    def end(self) -> None:
        self.said.append("end")


def events(count: int) -> list[Step]:
    return [Send(f"event {number}", b"{}") for number in range(count)]


async def test_steps_are_carried_out_in_order() -> None:
    carrier = RecordingCarrier()
    steps = [Begin(), *events(1), Remember(), *events(1), End()]

    await run(steps, carrier, remember=lambda: carrier.said.append("remember"))

    assert carrier.said == ["begin", "event 0", "remember", "event 0", "end"]


def test_events_keep_their_distance_whatever_each_of_them_costs() -> None:
    pace = Pace(2.0, now=10.0)

    assert [pace.wait(now) for now in (10.0, 10.5, 13.0, 17.0, 17.0)] == [0.0, 1.5, 1.0, 0.0, 1.0]


async def test_events_are_not_sent_before_they_are_due() -> None:
    carrier = RecordingCarrier()
    began = asyncio.get_running_loop().time()

    await run(events(3), carrier, interval=0.02)

    # The loop's clock has a resolution, so a due time may be met a moment early.
    assert carrier.times[2] - began > 0.035


async def test_other_tasks_run_between_two_events_also_without_an_interval() -> None:
    carrier = RecordingCarrier()

    async def other() -> None:
        for _ in range(3):
            carrier.said.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(run(events(3), carrier), other())

    assert carrier.said.index("other") < carrier.said.index("event 1")


@pytest.mark.parametrize("step", [Silence(), Wait(3600)])
async def test_silence_lasts_until_it_is_cancelled(step: Step) -> None:
    carrier = RecordingCarrier()
    task = asyncio.create_task(run([Begin(), step, End()], carrier))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert carrier.said == ["begin"]
