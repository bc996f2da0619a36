"""The queue between the edges and the loop: order, room, and its end."""

from __future__ import annotations

import threading
import time
from queue import Empty

import pytest

from watcher.adapters.event_queue import EventQueue
from watcher.core import events as e

PATIENCE_S = 10.0


def arrival(number: int) -> e.Event:
    return e.RescanWanted(str(number))


def urgent(number: int) -> e.Event:
    return e.DrainRequested(str(number))


def test_what_is_under_way_goes_before_what_arrives_and_each_keeps_its_order() -> None:
    events = EventQueue()
    for number in range(3):
        events.put_arrival(arrival(number))
        events.put(urgent(number))

    taken = [events.get() for _ in range(6)]

    assert taken == [*map(urgent, range(3)), *map(arrival, range(3))]
    assert events.empty()


def test_a_queue_without_events_is_empty_at_once_and_after_a_wait() -> None:
    events = EventQueue()
    assert events.empty()
    for timeout_s in (0.0, -1.0, 0.01):
        with pytest.raises(Empty):
            events.get(timeout_s)


@pytest.mark.parametrize("lane", ["urgent", "arrival"])
def test_an_event_ends_the_wait_for_it(lane: str) -> None:
    events = EventQueue()
    put = events.put if lane == "urgent" else events.put_arrival
    threading.Timer(0.05, put, [arrival(1)]).start()

    assert events.get(PATIENCE_S) == arrival(1)


def test_an_arrival_that_finds_no_room_waits_for_it_and_holds_up_nothing_urgent() -> None:
    events = EventQueue(max_arrivals=2)
    events.put_arrival(arrival(0))
    events.put_arrival(arrival(1))
    waiting = threading.Thread(target=events.put_arrival, args=[arrival(2)])
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    events.put(urgent(0))
    assert events.get() == urgent(0)

    assert events.get() == arrival(0)

    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert [events.get(), events.get()] == [arrival(1), arrival(2)]


def test_closing_lets_go_of_who_waits_and_leaves_what_is_there() -> None:
    events = EventQueue(max_arrivals=1)
    events.put_arrival(arrival(0))
    waiting = threading.Thread(target=events.put_arrival, args=[arrival(1)])
    waiting.start()

    events.close()

    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    events.put(urgent(0))
    assert [events.get(), events.get()] == [urgent(0), arrival(0)]
    events.put_arrival(arrival(2))
    assert events.empty()


def test_nothing_is_lost_between_many_threads() -> None:
    events = EventQueue(max_arrivals=8)
    producers = [
        threading.Thread(target=lambda put=put: [put(arrival(number)) for number in range(500)])
        for put in (events.put, events.put_arrival, events.put_arrival)
    ]
    for producer in producers:
        producer.start()

    taken: list[e.Event] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(taken) < 1500 and time.monotonic() < deadline:
        try:
            taken.append(events.get(0.1))
        except Empty:
            continue

    assert len(taken) == 1500
    for producer in producers:
        producer.join(PATIENCE_S)
