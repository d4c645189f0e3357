"""Several devices in one replay: what holds whatever they run."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, several

from hosim.engine import replay
from hosim.io import result_to_dict, to_json

anything = cases(max_ops=7, max_streams=2, fabrics=True, roomy=None)


def timelines(result):
    return [device.timeline for device in result.by_device]


@settings(max_examples=300, deadline=None)
@given(anything, st.data())
def test_folding_changes_nothing(case, data):
    _, machine, plan = case
    machine = data.draw(several(machine))
    folded, unfolded = replay(plan, machine, record=True), replay(plan, machine, record=True, fold=False)
    assert folded == unfolded
    assert folded.by_device == unfolded.by_device
    assert timelines(folded) == timelines(unfolded)
    assert len(folded.by_device) == machine.devices
    texts = {to_json(result_to_dict(replace(r, replay_s=0.0))) for r in (folded, unfolded)}
    assert len(texts) == 1  # to the byte


@given(anything, st.integers(2, 4))
def test_devices_that_share_nothing_are_one_each(case, count):
    _, machine, plan = case
    alone = replay(plan, machine, record=True)
    fabrics = tuple(replace(fabric, scope="device") for fabric in machine.fabrics)
    tiers = tuple(replace(tier, scope="device") for tier in machine.tiers)
    together = replay(plan, replace(machine, devices=count, fabrics=fabrics, tiers=tiers), record=True, fold=False)
    for device in together.by_device:
        assert replace(device, error=None) == replace(alone, error=None)
        assert device.timeline == alone.timeline
    assert replace(together, devices=None, error=None) == replace(alone, error=None)
