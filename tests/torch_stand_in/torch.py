"""torch.py: as much of PyTorch as tests/gpu_pytorch.py asks for, where there is none: its two allocators, written from
what its documentation says of them and apart from defrag/, on a card of numbers.

A segment is a list of pieces. RULE breaks one rule on purpose: see BREAKABLE. RULE comes from TORCH_STAND_IN_RULE."""
import os
import sys
from types import SimpleNamespace

__version__ = "stand-in"
KIB, MIB = 1 << 10, 1 << 20
RULE = os.environ.get("TORCH_STAND_IN_RULE", "")
TOTAL = 80 << 30
ADDRESSES_END = 1 << 46

# Rule: what is done instead.
BREAKABLE = {
    "rounding": "to 256 bytes, not 512",
    "small sizes": "below 1 MiB, not up to it",
    "small segments": "of 4 MiB, not 2",
    "large segments": "of 16 MiB, not 20",
    "largest packed": "up to 10 MiB, not below it",
    "multiples": "of 4 MiB, not 2",
    "large rest": "of 1 MiB is split off, not only more",
    "large rest stays": "with its block, whatever it is",
    "small rest": "of 512 bytes stays with its block",
    "streams": "take what any has freed",
    "free's stream": "gets the memory, not the allocation's",
    "pools": "are one",
    "fit": "is the largest",
    "joining": "with the piece before alone",
    "joining behind": "with the piece behind alone",
    "giving back": "of nothing when memory is short",
    "giving back in use": "of segments of which a piece is free",
    "giving back small": "of large segments alone",
    "handles": "of 10 MiB in the large pool",
    "growing": "behind what is free at the end",
    "fit by growth": "does not count the addresses behind",
    "unmapping": "of handles in part free",
    "gaps": "are mapped last",
}


class OutOfMemoryError(RuntimeError):
    pass


class Piece:
    def __init__(self, segment, address, size, state):
        self.segment, self.address, self.size, self.state = segment, address, size, state


class Segment:
    """pieces: in order of address; each is "used", "free" or, in one that expands, "unmapped"."""

    def __init__(self, address, size, stream, small, state):
        self.address, self.stream, self.small = address, stream, small
        self.pieces = [Piece(self, address, size, state)]

    def split(self, piece, size):
        """Cuts the piece, whose first `size` bytes stay; returns it."""
        if size < piece.size:
            rest = Piece(self, piece.address + size, piece.size - size, piece.state)
            self.pieces.insert(self.pieces.index(piece) + 1, rest)
            piece.size = size
        return piece

    def join(self, piece):
        """With neighbours in the same state; returns what it is now a part of."""
        at = self.pieces.index(piece)
        behind = self.pieces[at + 1:at + 2]
        if behind and behind[0].state == piece.state and RULE != "joining":
            piece.size += behind[0].size
            del self.pieces[at + 1]
        before = self.pieces[at - 1] if at > 0 else None
        if before and before.state == piece.state and RULE != "joining behind":
            before.size += piece.size
            del self.pieces[at]
            piece = before
        return piece


def up(size, unit):
    return -(-size // unit) * unit


class Allocator:
    """What both have in common; sizes are rounded already."""

    def __init__(self):
        self.segments, self.used, self.limit = [], {}, TOTAL
        self.reserved = self.reserved_peak = self.allocated = self.allocated_peak = 0
        self.requested = self.requested_peak = 0
        self.next_address = ADDRESSES_END // 2

    def take_addresses(self, size):
        """Rising; or falling, which must not matter to what is compared."""
        if RULE == "falling addresses":
            self.next_address -= up(size, MIB)
            return self.next_address
        self.next_address += up(size, MIB)
        return self.next_address - up(size, MIB)

    def reserve(self, size):
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def is_small(self, size):
        return size < MIB if RULE == "small sizes" else size <= MIB

    def suits(self, segment, small, stream):
        return (segment.small == small or RULE == "pools") and (segment.stream == stream or RULE == "streams")

    def free_pieces(self, small, stream):
        return [piece for segment in self.segments if self.suits(segment, small, stream)
                for piece in segment.pieces if piece.state == "free"]

    def malloc(self, requested, stream):
        size = max(512, up(requested, 256 if RULE == "rounding" else 512))
        small = self.is_small(size)
        piece = self.find(size, small, stream) or self.grow(size, small, stream)
        if piece is None:
            self.give_back()
            piece = self.grow(size, small, stream)
        if piece is None:
            raise OutOfMemoryError("CUDA out of memory.")
        if self.splits(piece, piece.size - size):
            piece.segment.split(piece, size)
        piece.state = "used"
        self.used[piece.address] = piece, requested
        self.allocated += piece.size
        self.requested += requested
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        self.requested_peak = max(self.requested_peak, self.requested)
        return piece.address

    def free(self, address, stream):
        piece, requested = self.used.pop(address)
        self.allocated -= piece.size
        self.requested -= requested
        piece.state = "free"
        piece = piece.segment.join(piece)
        if RULE == "free's stream":
            piece.segment.stream = stream


class Caching(Allocator):
    def find(self, size, small, stream):
        fitting = [piece for piece in self.free_pieces(small, stream) if piece.size >= size]
        choose = max if RULE == "fit" else min
        return choose(fitting, key=lambda piece: (piece.size, piece.address), default=None)

    def splits(self, piece, rest):
        if piece.segment.small:
            return rest > 512 if RULE == "small rest" else rest >= 512
        if RULE == "large rest stays":
            return False
        return rest >= MIB if RULE == "large rest" else rest > MIB

    def grow(self, size, small, stream):
        if small:
            bytes_ = 4 * MIB if RULE == "small segments" else 2 * MIB
        elif size < 10 * MIB or size == 10 * MIB and RULE == "largest packed":
            bytes_ = 16 * MIB if RULE == "large segments" else 20 * MIB
        else:
            bytes_ = up(size, 4 * MIB if RULE == "multiples" else 2 * MIB)
        if self.reserved + bytes_ > self.limit:
            return None
        self.reserve(bytes_)
        segment = Segment(self.take_addresses(bytes_), bytes_, stream, small, "free")
        self.segments.append(segment)
        return segment.pieces[0]

    def give_back(self):
        """All segments that are one free piece."""
        for segment in list(self.segments):
            first = segment.pieces[0]
            whole = len(segment.pieces) == 1 and first.state == "free" and \
                not (segment.small and RULE == "giving back small")
            if whole and RULE != "giving back":
                self.segments.remove(segment)
                self.reserved -= first.size
            elif RULE == "giving back in use" and not whole:
                self.reserved -= sum(piece.size for piece in segment.pieces if piece.state == "free")
                segment.pieces = [piece for piece in segment.pieces if piece.state != "free"]


class Expandable(Allocator):
    """One segment for each stream and pool, with addresses for more than the card's memory."""

    SIZE = up(TOTAL * 9 // 8, 20 * MIB)

    @staticmethod
    def handle(small):
        if small:
            return 4 * MIB if RULE == "small segments" else 2 * MIB
        return 10 * MIB if RULE == "handles" else 20 * MIB

    def splits(self, piece, rest):
        return rest > 512 if RULE == "small rest" else rest >= 512

    def find(self, size, small, stream):
        """The smallest piece that fits, or a larger one that cannot grow as far."""
        def reach(piece):
            pieces = piece.segment.pieces
            behind = pieces[pieces.index(piece) + 1:][:1]
            more = behind[0].size if behind and behind[0].state == "unmapped" and RULE != "fit by growth" else 0
            return piece.size + more
        fitting = sorted((piece for piece in self.free_pieces(small, stream) if piece.size >= size),
                         key=lambda piece: (piece.size, piece.address), reverse=RULE == "fit")
        for piece, after in zip(fitting, fitting[1:] + [None]):
            if after is None or reach(after) >= reach(piece):
                return piece
        return None

    def place(self, size, small, stream):
        """The first of the free pieces to grow at, and those that have to be mapped, which have room together."""
        handle = self.handle(small)
        for segment in self.segments:
            if not self.suits(segment, small, stream):
                continue
            order = [i for i, piece in enumerate(segment.pieces) if piece.state == "unmapped"]
            for at in reversed(order) if RULE == "gaps" else order:
                if at > 0 and segment.pieces[at - 1].state == "free" and RULE != "growing":
                    at -= 1
                end, room = at, 0
                while end < len(segment.pieces) and segment.pieces[end].state != "used" and room < size:
                    room += segment.pieces[end].size
                    end += 1
                if room >= size:
                    return segment, at, end
        segment = Segment(up(self.take_addresses(self.SIZE + handle), handle), self.SIZE, stream, small, "unmapped")
        self.segments.append(segment)
        return segment, 0, 1

    def grow(self, size, small, stream):
        handle = self.handle(small)
        if self.reserved + (2 * MIB if small else 20 * MIB if size < 10 * MIB else up(size, 2 * MIB)) > self.limit:
            return None  # what set_per_process_memory_fraction() goes by
        segment, at, end = self.place(size, small, stream)
        wanted = size
        for piece in segment.pieces[at:end]:
            if piece.state == "unmapped":
                segment.split(piece, min(piece.size, up(wanted, handle)))
                self.reserve(piece.size)
                piece.state = "free"
            wanted -= min(wanted, piece.size)
        return self.join_all(segment, segment.pieces[at])

    @staticmethod
    def join_all(segment, piece):
        """With all free pieces that follow one another around it."""
        size = None
        while size != piece.size:
            size = piece.size
            piece = segment.join(piece)
        return piece

    def give_back(self):
        """Whole handles under free pieces; segments of which none is mapped."""
        for segment in list(self.segments):
            if RULE == "giving back" or segment.small and RULE == "giving back small":
                continue
            for piece in [piece for piece in segment.pieces if piece.state == "free"]:
                self.unmap(segment, piece)
            if all(piece.state == "unmapped" for piece in segment.pieces):
                self.segments.remove(segment)

    def unmap(self, segment, piece):
        handle = self.handle(segment.small)
        first = up(piece.address - segment.address, handle) + segment.address
        last = (piece.address + piece.size - segment.address) // handle * handle + segment.address
        if RULE == "unmapping":
            first, last = piece.address, piece.address + piece.size
        if first >= last:
            return
        if first > piece.address:
            segment.split(piece, first - piece.address)
            piece = segment.pieces[segment.pieces.index(piece) + 1]
        segment.split(piece, last - first)
        self.reserved -= piece.size
        piece.state = "unmapped"
        segment.join(piece)


# ---- What scripts call ---------------------------------------------------------------------------------------------


class Stream:
    count = 0

    def __init__(self):
        Stream.count += 1
        self.cuda_stream = Stream.count << 8


class Current:
    """with stream(one): one is the current stream."""
    stream = 0

    def __init__(self, stream):
        self.own = Current.stream if stream is None else stream.cuda_stream

    def __enter__(self):
        self.before, Current.stream = Current.stream, self.own

    def __exit__(self, *_):
        Current.stream = self.before


def start(policy):
    """The card as it is at first, and the module's functions on it."""
    allocator = Expandable() if policy == "expandable" else Caching()

    def set_fraction(fraction):
        allocator.limit = int(fraction * TOTAL)

    def reset_peaks():
        allocator.reserved_peak, allocator.allocated_peak = allocator.reserved, allocator.allocated
        allocator.requested_peak = allocator.requested

    return SimpleNamespace(
        OutOfMemoryError=OutOfMemoryError,
        is_available=lambda: RULE != "no card",
        get_device_name=lambda device: "numbers",
        get_device_properties=lambda device: SimpleNamespace(total_memory=TOTAL),
        set_per_process_memory_fraction=set_fraction,
        default_stream=lambda: SimpleNamespace(cuda_stream=0),
        Stream=Stream,
        stream=Current,
        caching_allocator_alloc=lambda size, device, stream: allocator.malloc(size, stream),
        caching_allocator_delete=lambda address: allocator.free(address, Current.stream),
        empty_cache=lambda: allocator.give_back(),
        reset_peak_memory_stats=reset_peaks,
        max_memory_reserved=lambda: allocator.reserved_peak,
        max_memory_allocated=lambda: allocator.allocated_peak,
        memory_reserved=lambda: allocator.reserved,
        memory_stats=lambda: {"requested_bytes.all.peak": allocator.requested_peak})


if RULE == "no torch":
    raise ImportError("as if there were none")
cuda = start("expandable" if "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") else "caching")
