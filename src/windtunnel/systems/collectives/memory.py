"""Where the values of a program lie on one rank.

In: a program, a rank. Out: a view for each value that is stored; buffers are made when a value is first asked for. Not
here: instructions.

    update of an input      in the input's memory; of a slice of it, in the rank's block of it
    slice                   in the memory of what it is a slice of, unless that is overwritten while the slice is needed
    value that is gathered  in the rank's block of what the all-gather makes
"""

from __future__ import annotations

from windtunnel.systems.collectives.layouts import FLAT, TensorType, block
from windtunnel.systems.collectives.plan import Buffer, View
from windtunnel.systems.collectives.program import Program, Stage

__all__ = ["Memory", "Pieces", "chunk_range", "is_contiguous"]

_PIECE_BYTES = 256 << 10
_MAX_PIECES = 8


def is_contiguous(dim: int) -> bool:
    """Whether blocks of a dimension are ranges of elements."""
    return dim in (0, FLAT)


def chunk_range(item: TensorType, dim: int, chunk: int, num_ranks: int) -> tuple[int, int]:
    """First element, and size, of a chunk of a full tensor whose chunks are ranges of elements."""
    if dim == FLAT or not item.shape:
        start, stop = block(item.num_elements, chunk, num_ranks)
        return start, stop - start
    start, stop = block(item.shape[0], chunk, num_ranks)
    row = item.num_elements // max(item.shape[0], 1)
    return start * row, (stop - start) * row


class Pieces:
    """How chunks are cut further, so that one piece is sent while the next is computed.

    Parameters
    ----------
    item : TensorType
    num_ranks : int
    dim : int
        Of the chunks: 0 or ``FLAT``.
    num_pieces : int
        Of a chunk; by default as many as have a useful size.
    """

    def __init__(self, item: TensorType, num_ranks: int, dim: int, num_pieces: int = 0) -> None:
        self.item, self.num_ranks, self.dim = item, num_ranks, dim
        useful = item.size_bytes // num_ranks // _PIECE_BYTES
        self.num_pieces = num_pieces or max(1, min(_MAX_PIECES, useful))
        # pieces of matrices are whole rows
        self.unit = item.shape[-1] if dim == 0 and len(item.shape) > 1 else 1

    def range(self, chunk: int, piece: int) -> tuple[int, int]:
        """First element in the full tensor, and size."""
        start, size = chunk_range(self.item, self.dim, chunk, self.num_ranks)
        first, last = block(size // max(self.unit, 1), piece, self.num_pieces)
        return start + first * self.unit, (last - first) * self.unit

    def all(self, rank: int, order: str) -> list[tuple[int, int]]:
        """Chunk and piece in the order in which a rank makes them.

        ``ring``: of each piece first what the rank sends first, last its own. ``natural``: by their place.
        """
        if order == "natural":
            return [(chunk, piece) for chunk in range(self.num_ranks) for piece in range(self.num_pieces)]
        chunks = [(rank - 1 - step) % self.num_ranks for step in range(self.num_ranks)]
        return [(chunk, piece) for piece in range(self.num_pieces) for chunk in chunks]


class Memory:
    """Buffers of one rank of a group, and where values lie in them.

    Parameters
    ----------
    program : Program
    group, rank : int
    """

    def __init__(self, program: Program, group: int, rank: int) -> None:
        self.program, self.group, self.rank = program, group, rank
        self.num_ranks = program.group_sizes[group]
        self.buffers: dict[str, Buffer] = {}
        self.views: dict[str, View] = {}
        self.gather_of: dict[str, str] = {}  # value -> the all-gather in whose memory it lies
        for stage in program.stages:
            if stage.op == "all_gather" and stage.name in program.live and self._lies_in_gather(stage):
                self.gather_of.setdefault(str(stage.operands[0]), stage.name)
        for name, item in program.inputs.items():
            if item.group == group:
                self.views[name] = self.buffer(name, self.local_size(item), item.dtype, "input")

    def local_size(self, item: TensorType) -> int:
        """Elements that the rank stores of a tensor."""
        size = 1
        for extent in item.local_shape(self.rank, self.num_ranks):
            size *= extent
        return size

    def buffer(self, name: str, size: int, dtype: str, role: str = "work") -> View:
        """All of a new buffer, or of one that was made before and is large enough."""
        before = self.buffers.get(name)
        self.buffers[name] = Buffer(max(size, before.size if before else 0), dtype, role)
        return View(name, 0, (size,))

    def view(self, value: str) -> View:
        """Where a value lies."""
        if value not in self.views:
            self.views[value] = self._assign(value)
        return self.views[value]

    def block_of(self, view: View, item: TensorType, dim: int) -> View:
        """The rank's block of a full tensor."""
        return view.part(*chunk_range(item, dim, self.rank, self.num_ranks))

    # --- rules ----------------------------------------------------------------------------------------------

    def _assign(self, value: str) -> View:
        program = self.program
        stage, item = program.by_name[value], program.types[value]
        if stage.op == "update":
            target = str(stage.operands[0])
            if program.types[target].layout == item.layout:
                return self.view(target)
            if is_contiguous(item.layout.dim):
                return self.block_of(self.view(target), program.types[target], item.layout.dim)
        source = str(stage.operands[0])
        if stage.op == "slice" and is_contiguous(item.layout.dim) and self._outlives(source, value):
            return self.block_of(self.view(source), program.types[source], item.layout.dim)
        if stage.op == "all_gather" and self._target_of(source) and self._first_gather(source) == value:
            return self.view(self._target_of(source))
        if value in self.gather_of:
            gather = self.gather_of[value]
            return self.block_of(self.view(gather), program.types[gather], item.layout.dim)
        return self.buffer(value, self.local_size(item), item.dtype, "value")

    def _lies_in_gather(self, gather: Stage) -> bool:
        source = str(gather.operands[0])
        stage = self.program.by_name.get(source)
        movable = stage is not None and stage.op not in ("slice", "update", "all_gather", "send", "broadcast")
        return movable and is_contiguous(self.program.types[source].layout.dim)

    def _target_of(self, value: str) -> str:
        """The replicated input that a sliced update writes a block of; "" where it is no such update."""
        stage = self.program.by_name.get(value)
        if stage is None or stage.op != "update":
            return ""
        target = str(stage.operands[0])
        is_whole = self.program.types[target].layout == self.program.types[value].layout
        return "" if is_whole else target

    def _first_gather(self, value: str) -> str:
        return next(user.name for user in self.program.users[value] if user.op == "all_gather")

    def _outlives(self, source: str, value: str) -> bool:
        """Whether what a slice is of stays as it is until the last reader of the slice is done."""
        program = self.program
        root = source
        while root in program.by_name and program.by_name[root].op == "update":
            root = str(program.by_name[root].operands[0])
        if root not in program.updates or source != root:
            # values of stages are written once, and an input that has been updated is not updated again
            return True
        update = program.updates[root]
        if value in program.outputs:
            return False
        readers = [user for user in program.users[value] if user is not update]
        return all(update.name in program.reach([user.name]) for user in readers)
