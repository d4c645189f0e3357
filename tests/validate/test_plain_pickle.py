"""Pickles read without trusting them: what is admitted, what is refused, and that nothing of a
refused one happens.
"""

import contextlib
import datetime
import gzip
import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.errors import InputError
from hosim.validate.snapshots import load_plain, read_snapshot

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
)
keys = st.text(max_size=20) | st.integers(0, (1 << 16) - 1)


def containers(inner):
    tuples = st.tuples(inner, inner) | st.tuples(inner, inner, inner, inner)
    return st.lists(inner, max_size=5) | tuples | st.dictionaries(keys, inner, max_size=5)


values = st.recursive(scalars, containers, max_leaves=20)


@given(values, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_containers_of_every_protocol_come_back(value, protocol):
    assert load_plain(pickle.dumps(value, protocol)) == value


class Touch:
    """On loading, opens a file for writing."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


class Stateful:
    def __setstate__(self, state):
        raise AssertionError("was called")

    def __getstate__(self):
        return {"a": 1}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_of_a_hostile_pickle_happens(tmp_path, protocol):
    path = tmp_path / "touched"
    hostile = pickle.dumps({"segments": [], "device_traces": [[Touch(path)]]}, protocol)
    with pytest.raises(InputError, match=r"the instruction (STACK_)?GLOBAL of .*open"):
        load_plain(hostile)
    assert not path.exists()
    pickle.loads(hostile)["device_traces"][0][0].close()
    assert path.exists()  # it would have


@pytest.mark.parametrize(
    "value",
    [
        print,
        Stateful(),
        datetime.date(2024, 1, 1),
        {1, 2},
        b"bytes",
        bytearray(b"x"),
        1j,
        frozenset({1}),
    ],
)
def test_whatever_is_not_plain_is_refused(value):
    with pytest.raises(InputError, match="expected plain containers only"):
        load_plain(pickle.dumps([value]))


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",  # GLOBAL and REDUCE by name
        b"(S'true'\nios\nsystem\n.",  # INST
        b"\x80\x02(cos\nsystem\no.",  # OBJ
        b"Pname\n.",  # a persistent id
        b"\x80\x02\x82\x01.",  # an extension by number
        b"\x80\x02]}b.",  # state set on a list
        b"\x80\x02]\x81.",  # a new object of what is no class
        b"\x80\x05\x97.",  # a buffer from outside
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # a terabyte of bytes
        b"\x8b" + struct.pack("<i", 1 << 30) + b".",  # a number of a gigabyte
        b"\x80\x02X" + struct.pack("<I", 1 << 31) + b"short.",
        b"\x80\x02h\x07.",  # a value that was never remembered
        b"\x80\x02.",
        b"\x80\x02]",
        b"\x80\x09].",
        b"(((",
        b"",
        b"I" + b"9" * 10_000 + b"\n.",
        b"\x80\x02}]K\x01s.",  # a list as a key
        b"\x80\x02K\x01K\x02a.",  # an append to a number
    ],
)
def test_odd_and_damaged_programs_end_in_one_clear_error(data):
    with pytest.raises(InputError) as caught:
        load_plain(data)
    assert "\n" not in str(caught.value)


def test_a_value_remembered_by_a_large_number_takes_no_room():
    assert load_plain(b"\x80\x02]r" + struct.pack("<I", 1 << 31) + b".") == []


@given(st.binary(max_size=60))
def test_no_bytes_lead_to_another_error(data):
    with contextlib.suppress(InputError):
        load_plain(data)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@given(
    key=st.integers(1 << 16)
    | st.integers(max_value=-1)
    | st.floats()
    | st.booleans()
    | st.none()
    | st.tuples(st.integers())
)
def test_keys_that_could_collide_are_refused(protocol, key):
    for hostile in ({key: None}, {"a": 1, key: 2}, [{"deep": {"a": 1, "b": 2, key: 3}}]):
        with pytest.raises(InputError, match="expected keys of dicts that are text, got "):
            load_plain(pickle.dumps(hostile, protocol))


def test_a_list_repeated_without_being_written_is_bounded(tmp_path):
    blocks = [{"size": 512, "requested_size": 1, "state": "inactive"}] * 2000
    segment = {
        "address": 0,
        "total_size": 1,
        "stream": 0,
        "segment_type": "small",
        "blocks": blocks,
    }
    path = tmp_path / "repeats.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment] * 2000, "device_traces": []}))
    assert path.stat().st_size < 20_000
    with pytest.raises(InputError, match=r"segments\[\d+\]: expected no more than \d+ blocks"):
        read_snapshot(path)


def test_a_program_of_too_many_instructions_is_refused(monkeypatch):
    """A list takes one byte in the file and 56 in memory."""
    monkeypatch.setenv("HOSIM_LIMITS", "values=100")
    with pytest.raises(InputError, match="expected at most 100 values, got more"):
        load_plain(b"]" * 1000 + b".")
    assert load_plain(b"]" * 99 + b".") == []


@pytest.mark.parametrize("zipped", [False, True])
def test_what_is_too_large_is_not_read(tmp_path, monkeypatch, zipped):
    monkeypatch.setenv("HOSIM_LIMITS", "file_bytes=1000,unpacked_bytes=1000")
    path = tmp_path / "large.json"
    path.write_bytes(gzip.compress(b" " * 10_000) if zipped else b" " * 10_000)
    with pytest.raises(InputError, match="expected at most 1kB "):
        read_snapshot(path)
