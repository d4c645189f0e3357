"""How much is read, unpacked and parsed of files that are too large, damaged in their size, or of
no known format.
"""

import csv
import gc
import gzip
import io
import json
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosim.base.collector import no_collection, rare_collection
from hosim.base.files import check_json, check_lines, content, csv_rows, mapped
from hosim.errors import InputError
from hosim.io import load_any, load_workload
from hosim.io.gate_files import read_toml

MIB = 1 << 20


class Work:
    """What was done: bytes read from files, bytes that gzip unpacked, texts that became data."""

    def __init__(self) -> None:
        self.read = self.unpacked = self.parsed = 0


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    done = Work()

    class Counted(io.FileIO):
        def readinto(self, buffer: Any) -> Any:
            count = super().readinto(buffer)
            done.read += count or 0
            return count

        def read(self, size: int = -1) -> Any:
            found = super().read(size)
            done.read += len(found or b"")
            return found

        def readall(self) -> Any:
            found = super().readall()
            done.read += len(found)
            return found

    class Unpacking:
        def __init__(self, wbits: int) -> None:
            self._inner = decompressobj(wbits)

        def decompress(self, data: bytes, most: int = 0) -> bytes:
            assert most > 0
            found = self._inner.decompress(data, most)
            done.unpacked += len(found)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    def parsed(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            done.parsed += 1
            return function(*arguments, **named)

        return counted

    def opened(path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if mode == "rb" and str(path).startswith((str(tmp_path), "/dev/")):
            return io.BufferedReader(Counted(path))
        return open_(path, mode, *arguments, **named)

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(io, "open", opened)  # what pathlib calls
    monkeypatch.setattr(zlib, "decompressobj", Unpacking)
    monkeypatch.setattr(json, "loads", parsed(json.loads))
    return done


open_, decompressobj = open, zlib.decompressobj


def sparse(path: Path, start: bytes, size: int) -> Path:
    """A file that begins with ``start`` and claims ``size`` bytes, most of them a hole."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


# ---- sizes of files


@pytest.mark.parametrize("name", ["w.json", "w.yaml", "w"])
def test_a_file_is_refused_by_its_size(tmp_path: Path, work: Work, name: str) -> None:
    path = sparse(tmp_path / name, b'{"format": "hosim.workload/1", ', 1 << 30)
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert (
        str(caught.value)
        == f'{path}: expected at most 192MiB in a file, got 1GiB; HOSIM_LIMITS="file_bytes=1GiB" '
        "raises this limit"
    )
    assert work.read == 0


def test_what_claims_no_size_is_read_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch, work: Work
) -> None:
    monkeypatch.setenv("HOSIM_LIMITS", "file_bytes=2MiB")
    with pytest.raises(
        InputError, match=r"^/dev/zero: expected at most 2MiB in a file, got more; "
    ):
        content("/dev/zero")
    assert 2 * MIB < work.read <= 3 * MIB
    with pytest.raises(
        InputError, match=r"^/dev/zero: expected a file, this is a device or a pipe; "
    ):
        load_any("/dev/zero")


def test_gzip_is_unpacked_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work
) -> None:
    """In one member, and in many members of 256 KiB."""
    monkeypatch.setenv("HOSIM_LIMITS", "unpacked_bytes=2MiB")
    zeros = gzip.compress(bytes(MIB // 4))
    for packed in (gzip.compress(bytes(32 * MIB)), zeros * 128):
        path = tmp_path / "w.json.gz"
        path.write_bytes(packed)
        work.unpacked = 0
        with pytest.raises(
            InputError, match=r"w\.json\.gz: expected at most 2MiB after unpacking, got more; "
        ):
            load_workload(path)
        assert 2 * MIB < work.unpacked <= 3 * MIB


def test_members_and_padding_of_gzip_are_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    for begin in (b"", b"a", bytes(MIB)):
        path.write_bytes(
            gzip.compress(begin)
            + gzip.compress(b"b")
            + bytes(1000)
            + gzip.compress(b"")
            + gzip.compress(b"c")
            + bytes(512)
        )
        with mapped(str(path)) as found:
            assert bytes(found) == begin + b"bc"
    for damaged in (gzip.compress(b"a") + b"x", gzip.compress(b"a") + gzip.compress(b"b")[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged gzip file"):
            content(str(path))


@given(
    st.integers(0, 3), st.integers(-3, 3), st.integers(0, 2), st.integers(-3, 3), st.integers(0, 9)
)
def test_a_file_comes_back_from_gzip(
    random: int, more: int, zeros: int, fewer: int, seed: int
) -> None:
    """Pieces of 256 KiB that end where the unpacked piece is full, among them: of what packs well,
    and of what does not.
    """
    whole = Random(seed).randbytes(max(0, (random << 18) + more)) + bytes(
        max(0, (zeros << 18) + fewer)
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.gz"
        path.write_bytes(gzip.compress(whole, 1))
        with mapped(str(path)) as found:
            assert bytes(found) == whole


# ---- what a format is recognised by


@pytest.mark.parametrize("start", [b"", b'{"a": 1, ', b"PK\x05\x06", b"format: "])
def test_a_file_of_no_known_format_is_read_for_64_kib(
    tmp_path: Path, work: Work, start: bytes
) -> None:
    path = sparse(tmp_path / "x", start, 1 << 30)
    with pytest.raises(InputError, match="its format is unknown"):
        load_any(path)
    assert 0 < work.read <= 64 * 1024


def test_a_packed_file_of_no_known_format_is_unpacked_for_64_kib(
    tmp_path: Path, work: Work
) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(bytes(32 * MIB)))
    with pytest.raises(InputError, match="its format is unknown"):
        load_any(tmp_path / "x.gz")
    assert work.read <= 64 * 1024
    assert work.unpacked <= MIB


# ---- what stands in a text


BOMBS = {
    "values": (b"[" + b"[]," * 5_000_000 + b"0]", "expected at most 10000000 values, got 100000"),
    "depth": (
        b"[" * 201 + b"]" * 201,
        "expected at most 200 levels of nesting, got more; HOSIM_LIMITS=",
    ),
    "digits": (b"7" * 5000, "expected at most 1000 digits in a number, got more; HOSIM_LIMITS="),
}
BEGINNINGS = {
    "workload": b'{"format": "hosim.workload/1"',
    "trace": b'{"traceEvents": 1',
    "execution trace": b'{"schema": "[pytorch|profiler|execution_"',
    "Chakra": b'{"workload_graph": 1',
    "inductor": b'{"buffers": 1, "size_alloc": 1',
    "hyper-parallel": b'{"storage_sizes": 1, "retained_sids": 1',
}


@pytest.mark.parametrize("form", BEGINNINGS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_text_of_json_is_refused_before_it_is_parsed(
    tmp_path: Path, work: Work, form: str, bomb: str
) -> None:
    content, message = BOMBS[bomb]
    (tmp_path / "x.json").write_bytes(BEGINNINGS[form] + b', "x": ' + content + b"}")
    with pytest.raises(InputError) as caught:
        load_any(tmp_path / "x.json")
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/x.json: ")
    assert work.parsed == 0


@pytest.mark.parametrize("form", BEGINNINGS)
def test_lists_that_are_never_closed(tmp_path: Path, form: str) -> None:
    """The parser ends them, when it has no room left for more."""
    (tmp_path / "x.json").write_bytes(BEGINNINGS[form] + b', "x": ' + b"[" * 100_000)
    with pytest.raises(
        InputError, match=r"x\.json: expected at most 200 levels of nesting, got more; "
    ):
        load_any(tmp_path / "x.json")


@pytest.mark.parametrize("form", BEGINNINGS)
def test_lists_that_the_parser_cannot_nest(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that is raised beyond what the parser of JSON can do."""
    monkeypatch.setenv("HOSIM_LIMITS", "nesting_depth=1000000")
    deep = b"[" * 100_000 + b"]" * 100_000
    (tmp_path / "x.json").write_bytes(BEGINNINGS[form] + b', "x": ' + deep + b"}")
    with pytest.raises(InputError) as caught:
        load_any(tmp_path / "x.json")
    assert str(caught.value).startswith(f"{tmp_path}/x.json: expected at most ")


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(item) for item in value.values()), default=0)
    return 1 + max((depth_of(item) for item in value), default=0) if isinstance(value, list) else 0


def is_deeper(text: bytes, deepest: int) -> bool:
    """Whether a text of JSON is refused for its depth."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOSIM_LIMITS", f"nesting_depth={deepest}")
        try:
            check_json(text, "x")
        except InputError as error:
            assert f"expected at most {deepest} levels of nesting" in str(error)
            return True
    return False


texts = st.text('ab"\\[]{},: ', max_size=6)
documents = st.recursive(
    texts | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@given(documents, st.integers(1, 6), st.booleans())
def test_depth_is_that_of_the_data(document: Any, deepest: int, spaced: bool) -> None:
    """Brackets, quotes and backslashes in strings do not count."""
    text = json.dumps(document, separators=None if spaced else (",", ":")).encode()
    assert is_deeper(text, deepest) == (depth_of(document) > deepest)


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("[]", 1),
        ("[[], [[]]]", 3),
        ('{"a": [], "b": [[], [[], []]]}', 4),
        ("[[[]], [[], [[]]]]", 4),
    ],
)
def test_the_deepest_list_need_not_come_first(text: str, depth: int) -> None:
    assert [is_deeper(text.encode(), most) for most in range(1, 6)] == [
        depth > most for most in range(1, 6)
    ]


def test_depth_is_that_of_the_data_whatever_a_string_escapes() -> None:
    """Every string of up to five quotes, backslashes, brackets and others, with a list behind
    it.
    """
    for length in range(6):
        for letters in product('"\\[a', repeat=length):
            text = json.dumps(["".join(letters), [1]]).encode()
            assert [is_deeper(text, deepest) for deepest in (1, 2)] == [True, False]


@given(st.lists(st.integers(1, 90), max_size=12), st.integers(10, 60))
def test_digits_are_found_wherever_they_stand(lengths: list[int], most: int) -> None:
    text = b"a" + b",".join(b"5" * n for n in lengths) + b"b"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOSIM_LIMITS", f"integer_digits={most}")
        if any(n > most for n in lengths):
            with pytest.raises(InputError, match=f"at most {most} digits"):
                check_lines(text, "x")
        else:
            check_lines(text, "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a:\n" + b"- x\n" * 500_000, "expected at most 500000 values, got 500001"),
        (b"[" * 300 + b"]" * 300, "expected at most 200 levels of nesting, got more"),
        (b"- " * 300, "expected at most 200 levels of nesting, got more"),
        (
            b"a: &x [1]\nb: [*x, *x]\n",
            "line 1, column 4: anchors (&) and aliases (*) are not allowed",
        ),
        (b"a: " + b"1" * 5000, "byte 3: expected at most 1000 digits in a number, got more"),
    ],
    ids=["values", "flow", "sequence", "aliases", "digits"],
)
def test_yaml(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = " + b"9" * 5000, "byte 4: expected at most 1000 digits in a number, got more"),
        (b"a = " + b"[" * 300 + b"]" * 300, None),
        (b"a = " + b"[" * 3000, "expected at most 200 levels of nesting, got more"),
        (b".".join([b"a"] * 300) + b" = 1", "expected at most 200 levels of nesting, got 299"),
        (
            b"b = 1\n" + b".".join([b"a"] * 300) + b" = 1\nc.d = 2",
            "expected at most 200 levels of nesting, got 299",
        ),
        (b"[" + b". ".join([b"a"] * 300) + b"]", "expected at most 200 levels of nesting, got 299"),
        (b"a = [\n" + b"1,\n" * 300_000 + b"]", "expected at most 500000 values, got 600002"),
    ],
    ids=["digits", "some depth", "depth", "dots", "dots in one line", "table", "values"],
)
def test_toml(tmp_path: Path, content: bytes, message: str | None) -> None:
    path = tmp_path / "hosim.toml"
    path.write_bytes(content)
    if message is None:
        assert read_toml(str(path))["a"]
        return
    with pytest.raises(InputError) as caught:
        read_toml(str(path))
    assert str(caught.value).startswith(f"{path}: {message}; HOSIM_LIMITS=")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_pauses_and_is_as_before(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with no_collection():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_rows_of_csv_end_as_any_system_ends_lines() -> None:
    """An end of a line within quotes is part of the value; the module's own limit is as before."""
    before = csv.field_size_limit()
    assert csv_rows(b'a,b\r\n"x\ry",2\rc,"d\r\n"\n\xff,', "rows.csv") == [
        ["a", "b"],
        ["x\ry", "2"],
        ["c", "d\r\n"],
        ["\ufffd", ""],
    ]
    assert csv_rows(b"", "rows.csv") == []
    with pytest.raises(InputError) as refused:
        csv_rows(b"x" * (128 * 1024 + 1), "rows.csv")
    assert str(refused.value).startswith("rows.csv: expected at most 128KiB in a field of CSV")
    assert csv.field_size_limit() == before


pieces = st.sampled_from(['"', "\\", "x", "5", "5" * 30, "é"])


@given(
    st.lists(
        st.lists(pieces, max_size=6).map("".join)
        | st.sampled_from([int("5" * n) for n in (1, 19, 20, 21, 45)]),
        max_size=8,
    )
)
def test_digits_in_a_string_of_json_are_no_number(values: list[str | int]) -> None:
    text = json.dumps(values, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOSIM_LIMITS", "integer_digits=20")
        if any(isinstance(value, int) and len(str(value)) > 20 for value in values):
            with pytest.raises(InputError, match="at most 20 digits"):
                check_json(text, "x")
        else:
            check_json(text, "x")


@pytest.mark.parametrize("digits", [999, 1000, 1001, 1500, 2001])
@pytest.mark.parametrize("at", [0, 1, 250, 500, 501, 1000])
def test_a_number_of_more_digits_than_are_allowed_is_found_wherever_it_stands(
    digits: int, at: int
) -> None:
    text = b"," * at + b"7" * digits + b",1" * 300
    if digits <= 1000:
        check_lines(text, "f")
        return
    with pytest.raises(InputError) as refused:
        check_lines(text, "f")
    assert str(refused.value).startswith(f"f: byte {at}: expected at most 1000 digits in a number")


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9])
def test_small_limits_of_digits_as_well(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSIM_LIMITS", f"integer_digits={most}")
    for at in range(3 * most):
        check_lines(b"a" * at + b"7" * most + b",", "f")
        with pytest.raises(InputError, match=f"^f: byte {at}: expected at most {most} digits"):
            check_lines(b"a" * at + b"7" * (most + 1) + b",", "f")


@pytest.mark.parametrize("first", [0, 700, 10**6])
def test_the_collector_runs_seldom_and_then_as_before(first: int) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(first, 10, 10)
        with rare_collection():
            assert gc.get_threshold() == (
                max(first, 500_000) if first else 0,
                10,
                10,
            )  # 0: it does not run at all
        assert gc.get_threshold() == (first, 10, 10)
    finally:
        gc.set_threshold(*before)
