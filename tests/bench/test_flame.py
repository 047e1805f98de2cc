"""The picture shows what ran, and how much of the time."""

from tests.bench.flame import drawn, grown

LOOP = "main (manage.py:17);AsyncioSelectorReactor.run (twisted/internet/asyncioreactor.py:3)"
THREAD = "_bootstrap (threading.py:1);_worker (thread.py:81)"
SAMPLES = [
    f"{LOOP};Relay.run (gateway/turns/relay.py:9) 30",
    f"{LOOP} 60",
    f"{THREAD};_WorkItem.run (thread.py:2);write (django/db/x.py:4) 10",
    f"{THREAD} 900",
]


def test_shares_are_of_the_samples_in_which_something_was_done():
    loop, threads = grown(SAMPLES).above.values()
    assert (loop.name, loop.samples, threads.name, threads.samples) == (
        "AsyncioSelectorReactor.run",
        90,
        "_WorkItem.run",
        10,
    )


def test_each_frame_tells_its_share_and_narrow_ones_are_left_out():
    picture = drawn(grown([*SAMPLES, "f (a.py:1);g (<b>.py:2) 100000"]))
    assert "<title>g &lt;b&gt;.py 99.9 %</title>" in picture
    assert "Relay.run" not in picture
    assert "<title>Relay.run gateway/turns/relay.py 30.0 %</title>" in drawn(grown(SAMPLES))
