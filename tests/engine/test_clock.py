"""What :mod:`hosim.engine.clock` relies on in simpy beyond its public interface, and the order of events that it makes of that."""

import ast
import inspect
from heapq import heappop

import simpy
from hypothesis import given
from hypothesis import strategies as st
from simpy.events import NORMAL, URGENT

from hosim.engine import clock as clock_module
from hosim.engine.clock import Alarm, Clock

RELIED_ON = {"_queue", "_eid", "_now"}


def test_the_private_attributes_of_simpy_that_the_clock_uses():
    own = {"_schedule", "_sequence"}  # the alarm's, which simpy does not have
    used = {node.attr for node in ast.walk(ast.parse(inspect.getsource(clock_module))) if isinstance(node, ast.Attribute)}
    assert {name for name in used if name.startswith("_") and not name.startswith("__")} == RELIED_ON | own
    simpys = {*vars(simpy.Environment(1)), *vars(simpy.Event), *vars(simpy.Event(simpy.Environment()))}
    assert simpys >= RELIED_ON
    assert not simpys & own


def test_the_queue_is_a_heap_of_time_priority_number_and_event():
    env = simpy.Environment()
    later, sooner = env.timeout(7), env.timeout(3)
    urgent = env.event()
    env.schedule(urgent, URGENT, 3)
    assert URGENT < NORMAL
    assert [heappop(env._queue)[:2] for _ in range(3)] == [(3, URGENT), (3, NORMAL), (7, NORMAL)]
    assert all(isinstance(event.callbacks, list) for event in (later, sooner, urgent))


def test_event_numbers_rise_in_the_order_of_scheduling():
    env = simpy.Environment()
    first = next(env._eid)
    env.timeout(1)
    assert env._queue[0][2] == first + 1
    assert next(env._eid) == first + 2


def test_now_is_what_the_private_attribute_says():
    env = simpy.Environment(5)
    assert env._now == env.now == 5
    env._now = 9
    assert env.now == 9
    env.timeout(1)
    assert env._queue[0][0] == 10


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_alarms_ring_in_simpys_order(sleeps):
    """Processes that sleep twice wake in the same order under the clock as under simpy's own loop."""

    def simpys():
        env, rung = simpy.Environment(), []

        def process(k, delays):
            for delay in delays:
                yield env.timeout(delay)
                rung.append((env.now, k))

        for k, delays in enumerate(sleeps):
            env.process(process(k, delays))
        env.run()
        return rung

    def ours():
        clock, rung, alarms = Clock(), [], []

        def process(k, second):
            yield
            rung.append((clock.time, k))
            alarms[k].ring_at(clock.time + second)
            yield
            rung.append((clock.now, k))
            yield

        for k, (_, second) in enumerate(sleeps):
            alarms.append(Alarm(clock, process(k, second)))
        for alarm, (first, _) in zip(alarms, sleeps, strict=True):
            alarm.ring_at(first)
        clock.run_instants(lambda: None)
        return rung

    assert ours() == simpys()


def test_an_instant_is_settled_after_its_last_event_and_an_alarm_can_move():
    clock, seen = Clock(), []

    def process(name):
        while True:
            yield
            seen.append((clock.time, name))
            clock.unsettled.add(0)

    def settle():
        clock.unsettled.clear()
        seen.append((clock.time, "settled"))

    one, other, moved = (Alarm(clock, process(name)) for name in ("one", "other", "moved"))
    one.ring_at(4)
    moved.ring_at(9)
    other.ring_at(4)
    moved.move_to(2)
    clock.run_instants(settle)
    assert seen == [(2, "moved"), (2, "settled"), (4, "one"), (4, "other"), (4, "settled")]
