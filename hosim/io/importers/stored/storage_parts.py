"""The parts of a storage that ops use, and the tensors that it becomes (docs/contract.md,
Conventions).

An importer lists each op's uses of a storage that exists from the start. A :class:`Use` has the
bytes that a view shows or, if indices choose among them, the number of bytes that they choose.
:func:`cut` finds the parts that the same ops use in the same way; these become tensors.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import prod

from hosim.base.groups import grouped
from hosim.data.graph_parts import NEW, PAST, READ, REST, part_name
from hosim.graph import GraphBuilder
from hosim.notes import ASSUMED, MISSING


def _most(uses: int) -> int:
    """Return the most blocks between the edges of views, and the most parts that ops name, that
    :func:`cut` makes of this many uses.
    """
    return 4096 + 16 * uses


_WHOLE = "the graph has all of it"
OVERLAP = f"a view of it has elements that overlap; {_WHOLE}"
NO_BLOCKS = f"the views of it are no blocks of one grid; {_WHOLE}"
MANY = f"ops use too many different parts of it; {_WHOLE}"
MASKED = f"a mask chooses its elements; {_WHOLE}"
ALL = f"indices may choose more of it than no other op uses or chooses; {_WHOLE}"
GROUPED = (
    "each row may choose another group; no more of them than there are rows are read, and "
    "these are known before the step"
)
COPIED = (
    "a functional program copies all of it back; export it without run_decompositions() to "
    "write the part alone"
)


@dataclass(frozen=True, slots=True)
class ViewedBytes:
    """The bytes that a view shows: from ``offset`` on, runs of (size, stride) in bytes. The longest
    stride comes first, and runs do not overlap.
    """

    offset: int
    runs: tuple[tuple[int, int], ...]

    @property
    def bytes(self) -> int:
        """The number of bytes."""
        return prod(size for size, _ in self.runs)


def whole(size: int) -> ViewedBytes:
    """All bytes of a storage."""
    return ViewedBytes(0, ((size, 1),))


def region(
    offset: int, sizes: Sequence[int], strides: Sequence[int], itemsize: int
) -> ViewedBytes | None:
    """Return the bytes of a view in elements of ``itemsize``; ``None`` if its elements overlap. The
    view must have elements.

    >>> region(
    ...     8, (4, 2, 3), (12, 3, 1), 2
    ... )  # two rows of three in each of four blocks: as many runs of six elements
    ViewedBytes(offset=16, runs=((4, 24), (12, 1)))
    """
    runs = [(itemsize, 1)]  # from the innermost outwards
    reach = itemsize
    for stride, size in sorted(
        (s * itemsize, n) for n, s in zip(sizes, strides, strict=True) if n > 1 and s
    ):
        if stride < reach:
            return None
        inner, step = runs[-1]
        if inner * step == stride:
            runs[-1] = inner * size, step
        else:
            runs.append((size, stride))
        reach += (size - 1) * stride
    return ViewedBytes(offset * itemsize, tuple(reversed(runs)))


@dataclass(frozen=True, slots=True)
class Use:
    """An op's use of a storage.

    ``region``: the bytes that it may touch. ``count``: the number of these that it touches, if
    indices choose them, else ``None``. Uses with the same ``which`` and count touch the same bytes.
    ``writes``: it changes them; ``fresh``: without reading them. ``why``: the reason that the
    region is larger than the touched part, if that part is not known; with a count, the assumption
    that was made.
    """

    storage: int
    region: ViewedBytes
    count: int | None = None
    which: Hashable = None
    writes: bool = False
    fresh: bool = False
    why: str = ""

    @property
    def key(self) -> Hashable:
        """The key of the elements that indices choose; None without indices."""
        return None if self.count is None else (self.which, self.count, self.region)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a storage; its name does not include that of the whole."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Roles:
    """The parts of a storage that an op reads, overwrites without reading, and changes."""

    reads: tuple[str, ...] = ()
    overwrites: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """A storage's parts, and for each op by its name the roles of these; without parts the storage
    is one tensor.

    ``why``: the reasons that all of it is used where a part would do. ``assumed``: the assumptions
    on the parts, one line each.
    """

    parts: tuple[Part, ...] = ()
    roles: Mapping[str, Roles] = field(default_factory=dict)
    why: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def add_parts(builder: GraphBuilder, name: str, cut: Cut, kind: str) -> None:
    """Add the tensors of a storage that is in parts."""
    for part in cut.parts:
        builder.tensor(part_name(name, part.name), part.size_bytes, kind, of=name)


def used_by(
    op: str,
    inputs: Iterable[int],
    outputs: Iterable[int],
    mutates: Iterable[int],
    names: Mapping[int, str],
    cuts: Mapping[int, Cut],
) -> tuple[list[str], list[str], list[str]]:
    """Return the tensors that an op reads, overwrites and changes, by their storages; for a storage
    in parts, those that it uses.
    """
    reads: list[str] = []
    made = [names[s] for s in outputs]
    changed: list[str] = []
    for whole_ones, storages in ((reads, inputs), (changed, mutates)):
        for s in storages:
            if s not in cuts:
                whole_ones.append(names[s])
                continue
            roles = cuts[s].roles.get(op, Roles())
            for into, parts in (
                (reads, roles.reads),
                (made, roles.overwrites),
                (changed, roles.changes),
            ):
                into += [part_name(names[s], part) for part in parts]
    return reads, made, changed


def cut_all(
    held: Mapping[int, tuple[str, int, Sequence[int]]], uses: Iterable[tuple[str, Use]]
) -> tuple[dict[int, Cut], dict[str, list[str]]]:
    """Return the storages that are in parts, of those with these names, sizes and shapes; and lines
    for ``meta`` on unknown and assumed parts.
    """
    listed = grouped((use.storage, (op, use)) for op, use in uses)
    cuts = {s: cut(size, shape, listed[s]) for s, (_, size, shape) in held.items() if s in listed}
    lines: dict[str, dict[str, list[str]]] = {MISSING: {}, ASSUMED: {}}
    for s, found in cuts.items():
        for key, reasons in ((MISSING, found.why), (ASSUMED, found.assumed)):
            for reason in reasons:
                lines[key].setdefault(reason, []).append(held[s][0])
    said = {
        key: [f"{_listed(names)}: {reason}" for reason, names in found.items()]
        for key, found in lines.items()
        if found
    }
    return {s: found for s, found in cuts.items() if found.parts}, said


def _listed(names: Sequence[str]) -> str:
    return (
        f"which part of {names[0]} is used"
        if len(names) == 1
        else f"which parts of {names[0]} and {len(names) - 1} more are used"
    )


def cut(size: int, shape: Sequence[int], uses: Sequence[tuple[str, Use]]) -> Cut:
    """Return the parts of a storage of ``size`` bytes that ops use; ``uses`` are pairs of an op's
    name and a use.

    ``shape`` is that of the tensor in it; its rows name parts if several are used alike.
    """
    why = tuple(dict.fromkeys(use.why for _, use in uses if use.why and use.count is None))
    if all(use.count is None and use.region.bytes == size for _, use in uses):
        return Cut(why=why)
    atoms = _atoms(size, list(dict.fromkeys(use.region for _, use in uses)))
    if isinstance(atoms, str):
        return Cut(why=(*why, atoms))
    keys = len({use.key for _, use in uses} - {None})
    of_region = Counter(use.region for _, use in uses)
    named = sum(of_region[one] for atom in atoms for one in atom.regions)
    if named + keys * (len(uses) + len(atoms)) > _most(len(uses)):
        return Cut(why=(*why, MANY))
    carved = _carved(uses, atoms)
    if any(use.count is not None and use.key not in carved for _, use in uses):
        why = (*why, ALL)
        uses = [
            (
                op,
                use
                if use.count is None or use.key in carved
                else replace(use, count=None, fresh=False),
            )
            for op, use in uses
        ]
    by_region = grouped((use.region, (op, use)) for op, use in uses)
    pieces = _alike(
        piece for atom in atoms for piece in _pieces(atom, by_region, carved, atoms, size)
    )
    if len(pieces) < 2:
        return Cut(why=why)
    names = _names(pieces, size // shape[0] if shape and shape[0] and not size % shape[0] else 0)
    roles: dict[str, dict[str, set[str]]] = {}
    for piece, name in zip(pieces, names, strict=True):
        for op, role in piece.users:
            roles.setdefault(op, {}).setdefault(name, set()).add(role)
    assumed = tuple(dict.fromkeys(use.why for _, use in uses if use.why and use.count is not None))
    parts = tuple(Part(name, piece.size) for piece, name in zip(pieces, names, strict=True))
    return Cut(parts, {op: _roles(found) for op, found in roles.items()}, why, assumed)


@dataclass(frozen=True, slots=True)
class _Atom:
    """The bytes that are in the same regions: their number, and where they begin if they are one
    run (else -1).
    """

    regions: frozenset[ViewedBytes]
    size: int
    begin: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes that become a tensor. ``users``: pairs of an op and its role, ``read``, ``fresh`` or
    ``change``.

    ``apart``: the roles of ops that use only a part of the storage; ``chosen``: indices choose the
    bytes.
    """

    size: int
    begin: int
    users: frozenset[tuple[str, str]]
    apart: frozenset[str]
    chosen: bool = False


def _atoms(size: int, regions: Sequence[ViewedBytes]) -> list[_Atom] | str:
    """Return the bytes of a storage by the regions that have them, in the order of their positions;
    or the reason that they cannot be separated.
    """
    strides = sorted({1, *(stride for one in regions for _, stride in one.runs)}, reverse=True)
    if any(wide % narrow for wide, narrow in pairwise(strides)):
        return NO_BLOCKS
    beyond = (
        -size % strides[0]
    )  # the grid's last row may end beyond the storage, where only the whole region reaches
    radices = [wide // narrow for wide, narrow in pairwise((size + beyond, *strides))]
    boxes: dict[ViewedBytes, list[tuple[int, int]]] = {}
    for one in regions:
        box = (
            [(0, radix) for radix in radices] if one.bytes == size else _box(one, strides, radices)
        )
        if box is None:
            return NO_BLOCKS
        boxes[one] = box
    edges = [
        sorted({0, radix, *(bound for box in boxes.values() for bound in box[d])})
        for d, radix in enumerate(radices)
    ]
    if prod(len(edge) - 1 for edge in edges) > _most(len(regions)):
        return MANY
    spans = [
        sum(bisect_left(edge, box[d][1]) - bisect_left(edge, box[d][0]) for box in boxes.values())
        for d, edge in enumerate(edges)
    ]
    if max(spans) > _most(len(regions)):
        return MANY
    # for each cell along each stride, the regions that reach it
    having: list[list[set[ViewedBytes]]] = [[set() for _ in edge[1:]] for edge in edges]
    for one, box in boxes.items():
        for along, edge, (low, high) in zip(having, edges, box, strict=True):
            for there in along[bisect_left(edge, low) : bisect_left(edge, high)]:
                there.add(one)
    found: dict[frozenset[ViewedBytes], list[tuple[int, int, int]]] = {}
    for cell in product(
        *(
            zip(pairwise(edge), along, strict=True)
            for edge, along in zip(edges, having, strict=True)
        )
    ):
        begin = sum(low * stride for ((low, _), _), stride in zip(cell, strides, strict=True))
        last = sum(
            (high - 1) * stride for ((_, high), _), stride in zip(cell, strides, strict=True)
        )
        reached = frozenset(set.intersection(*(regions_there for _, regions_there in cell)))
        found.setdefault(reached, []).append(
            (begin, last + 1, prod(high - low for (low, high), _ in cell))
        )
    everywhere = frozenset(one for one in regions if one.bytes == size)
    sizes = {
        there: sum(n for *_, n in cells) - (beyond if there == everywhere else 0)
        for there, cells in found.items()
    }
    return [
        _Atom(there, sizes[there], _begin(cells)) for there, cells in found.items() if sizes[there]
    ]


def _begin(cells: Sequence[tuple[int, int, int]]) -> int:
    one_run = all(end - begin == n for begin, end, n in cells) and all(
        end == begin for (_, end, _), (begin, *_) in pairwise(cells)
    )
    return cells[0][0] if one_run else -1


def _box(
    one: ViewedBytes, strides: Sequence[int], radices: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Return the bounds of a region along each stride; ``None`` if it is no block of this grid."""
    bounds = []
    rest = one.offset
    for stride in strides:
        bounds.append((rest // stride, rest // stride + 1))
        rest %= stride
    for size, stride in one.runs:
        at = strides.index(stride)
        while at and bounds[at][0] == 0 and size > radices[at] and not size % radices[at]:
            bounds[at] = 0, radices[at]
            size //= radices[at]
            at -= 1
        low = bounds[at][0]
        if low + size > radices[at]:
            return None
        bounds[at] = low, low + size
    return bounds


def _carved(uses: Sequence[tuple[str, Use]], atoms: Sequence[_Atom]) -> dict[Hashable, _Atom]:
    """Return the atoms from which the choices of indices are cut, by key; none for choices without
    room.

    The atom is the largest of those that are in no more views than all others from which indices
    may choose: the chosen bytes are placed beside the viewed ones.
    """
    shown = {use.region for _, use in uses if use.count is None}
    room = {atom: atom.size for atom in sorted(atoms, key=lambda atom: -atom.size)}
    found: dict[Hashable, _Atom] = {}
    for _, use in uses:
        if use.count is None or use.key in found:
            continue
        places = [atom for atom in room if use.region in atom.regions]
        least = frozenset.intersection(*[atom.regions & shown for atom in places])
        atom = next(
            (atom for atom in places if atom.regions & shown == least and room[atom] >= use.count),
            None,
        )
        if atom is not None:
            found[use.key] = atom
            room[atom] -= use.count
    return found


def _pieces(
    atom: _Atom,
    by_region: Mapping[ViewedBytes, Sequence[tuple[str, Use]]],
    carved: Mapping[Hashable, _Atom],
    atoms: Sequence[_Atom],
    size: int,
) -> list[_Piece]:
    """Split an atom into the bytes that each index chooses, and the rest.

    Indices may choose bytes that other ops write, and other ops may use bytes that were written at
    an index. So an op with indices reads all that others write in its region, and an op that uses
    bytes which such a region reaches reads what was written there.
    """
    here = [pair for one in atom.regions for pair in by_region[one]]
    plain = {(op, _role(use)) for op, use in here if use.count is None}
    pieces = []
    for key in [key for key, its in carved.items() if its is atom]:
        own = [(op, use) for op, use in here if use.key == key]
        users = {*plain, *[(op, _role(use)) for op, use in own]}
        region_of_key = own[0][1].region
        if any(use.writes for _, use in own):
            reached = {
                one for other in atoms if region_of_key in other.regions for one in other.regions
            }
            others = (pair for one in reached for pair in by_region[one])
            users |= {
                (op, "read")
                for op, use in others
                if use.key != key and (use.count is not None or use.region not in atom.regions)
            }
        count = own[0][1].count or 0
        pieces.append(
            _Piece(
                count, -1, frozenset(users), frozenset(_role(use) for _, use in own), chosen=True
            )
        )
    users = set(plain)
    if any(use.writes for _, use in here if use.count is None):
        users |= {(op, "read") for op, use in here if use.count is not None}
    apart = frozenset(
        _role(use) for _, use in here if use.count is None and use.region.bytes < size
    )
    rest = atom.size - sum(piece.size for piece in pieces)
    return [
        *pieces,
        *([_Piece(rest, -1 if pieces else atom.begin, frozenset(users), apart)] if rest else []),
    ]


def _role(use: Use) -> str:
    return "fresh" if use.fresh else "change" if use.writes else "read"


def _alike(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Join the pieces that the same ops use in the same way."""
    found: dict[Hashable, _Piece] = {}
    for n, piece in enumerate(pieces):
        key = (piece.users, n if piece.chosen else None)
        before = found.get(key)
        if before is not None:
            touching = before.begin >= 0 and before.begin + before.size == piece.begin
            apart = before.apart | piece.apart
            piece = replace(
                piece,
                size=before.size + piece.size,
                begin=before.begin if touching else -1,
                apart=apart,
            )
        found[key] = piece
    return list(found.values())


def _names(pieces: Sequence[_Piece], row: int) -> list[str]:
    """Return a word for each piece. Pieces with the same word are named by their rows, such as
    ``7`` or ``0:4``, if all are rows, or else numbered.
    """
    grows = any(piece.apart - {"read"} for piece in pieces)
    words = []
    for piece in pieces:
        if piece.apart - {"read"}:
            words.append(NEW)
        elif piece.users and (grows or piece.apart):
            words.append(PAST if grows else READ)
        else:
            words.append(REST)
    names = []
    same = grouped((word, piece) for piece, word in zip(pieces, words, strict=True))
    in_rows = {
        word: row
        and all(one.begin >= 0 and not one.begin % row and not one.size % row for one in of)
        for word, of in same.items()
    }
    seen = Counter[str]()
    for piece, word in zip(pieces, words, strict=True):
        if len(same[word]) == 1:
            names.append(word)
        elif in_rows[word]:
            first, count = piece.begin // row, piece.size // row
            names.append(str(first) if count == 1 else f"{first}:{first + count}")
        else:
            names.append(f"{word}.{seen[word]}")
        seen[word] += 1
    return names


def _roles(found: Mapping[str, set[str]]) -> Roles:
    reads = tuple(name for name, roles in found.items() if roles == {"read"})
    fresh = tuple(name for name, roles in found.items() if roles == {"fresh"})
    return Roles(reads, fresh, tuple(name for name in found if name not in (*reads, *fresh)))
