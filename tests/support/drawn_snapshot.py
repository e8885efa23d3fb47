"""drawn_snapshot.py: a PyTorch snapshot of any length, written as Python's pickler writes PyTorch's: every container and
text kept in the memo, a list of frames of its own for each event, the frames shared; and a small one of two devices."""
import itertools
import pickle
import random
import struct

SEGMENT, STACKS, FRAMES = 20 << 20, 100, 24
BASE = 0x7f0000000000


class Opcodes:
    """Pickle opcodes (protocol 4) into a file, piece by piece."""

    def __init__(self, file):
        self.file, self.out, self.kept, self.texts, self.written = file, bytearray(b"\x80\x04"), 0, {}, 0

    def flush(self):
        self.file.write(self.out)
        self.written += len(self.out)
        self.out = bytearray()

    def keep(self):
        self.out += b"\x94"
        self.kept += 1
        return self.kept - 1

    def open(self, opcode):
        """A container that the memo keeps, open for items."""
        self.out += opcode
        number = self.keep()
        self.out += b"("
        return number

    def text(self, words):
        if words in self.texts:
            self.out += self.texts[words]
            return
        data = words.encode()
        self.out += struct.pack("<BB", 0x8c, len(data)) + data
        self.texts[words] = self.get(self.keep())

    @staticmethod
    def get(number):
        return struct.pack("<BB", ord("h"), number) if number < 256 else struct.pack("<BI", ord("j"), number)

    def number(self, value):
        if 0 <= value < 256:
            self.out += struct.pack("<BB", ord("K"), value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += struct.pack("<Bi", ord("J"), value)
        else:
            size = (value.bit_length() + 8) // 8
            self.out += struct.pack("<BB", 0x8a, size) + value.to_bytes(size, "little", signed=True)

    def fields(self, *pairs):
        """A dict of texts and numbers."""
        self.open(b"}")
        for key, value in pairs:
            self.text(key)
            self.text(value) if isinstance(value, str) else self.number(value)


class Events:
    """Drawn events of blocks that come and go in the slots of some segments, at most `live` of them at a time."""

    def __init__(self, seed, live):
        self.rng, self.alive, self.free = random.Random(seed), {}, []
        per_segment = 40
        for i in range(live):
            self.free.append((BASE + i // per_segment * SEGMENT + i % per_segment * (SEGMENT // per_segment), SEGMENT // per_segment))
        self.segments = (live + per_segment - 1) // per_segment

    def __iter__(self):
        while True:
            if self.alive and (not self.free or self.rng.random() < 0.5):
                address = self.rng.choice(tuple(self.alive)) if len(self.alive) < 8 else next(iter(self.alive))
                size, room = self.alive.pop(address)
                self.free.append((address, room))
                yield "free_requested", address, size
                yield "free_completed", address, size
            else:
                at = self.rng.randrange(len(self.free))
                self.free[at], self.free[-1] = self.free[-1], self.free[at]
                address, room = self.free.pop()
                size = 4 * self.rng.randrange(1, room // 4)
                self.alive[address] = (size, room)
                yield "alloc", address, size


def write_snapshot(where, most_bytes, seed=1, live=2000):
    """Writes a snapshot of about `most_bytes`: what zr has to say of it."""
    event_bytes = 6 + 5 * FRAMES + 60
    count = max(10, most_bytes // event_bytes)
    end = Events(seed, live)
    peak = now = allocations = 0
    for index, (action, _, size) in enumerate(end):
        now += size if action == "alloc" else -size if action == "free_requested" else 0
        allocations += action == "alloc"
        peak = max(peak, now)
        if index + 1 >= count and action != "free_requested":
            count = index + 1
            break
    with open(where, "wb") as file:
        opcodes = Opcodes(file)
        opcodes.open(b"}")
        opcodes.text("segments")
        write_segments(opcodes, end)
        opcodes.text("device_traces")
        opcodes.out += b"]"
        opcodes.keep()
        opcodes.out += b"]"
        opcodes.keep()
        write_events(opcodes, Events(seed, live), count)
        opcodes.out += b"au."  # the list of one list; the two fields; the end
        opcodes.flush()
    return {"live_bytes": sum((size + 511) // 512 * 512 for size, _ in end.alive.values()), "requested_bytes": now,
            "reserved_bytes": end.segments * SEGMENT, "blocks": len(end.alive), "allocations": allocations,
            "peak_requested_bytes": peak, "events": count, "file_bytes": opcodes.written}


def write_segments(opcodes, end):
    opcodes.open(b"]")
    for number in range(end.segments):
        low = BASE + number * SEGMENT
        blocks = sorted((a, s) for a, (s, _) in end.alive.items() if low <= a < low + SEGMENT)
        opcodes.fields(("device", 0), ("address", low), ("total_size", SEGMENT), ("stream", 0), ("segment_type", "large"))
        opcodes.text("blocks")
        opcodes.out += b"]"
        opcodes.keep()
        if blocks:
            opcodes.out += b"("
        for address, size in blocks:
            opcodes.fields(("address", address), ("size", (size + 511) // 512 * 512), ("requested_size", size),
                           ("state", "active_allocated"))
            opcodes.out += b"u"
        opcodes.out += b"eu" if blocks else b"u"
    opcodes.out += b"e"


def write_events(opcodes, events, count):
    frames, stacks, rng = {}, {}, random.Random(5)
    for index, (action, address, size) in zip(range(count), events):
        if index % 1000 == 0:
            opcodes.out += b"e(" if index else b"("
        opcodes.fields(("action", action), ("addr", address), ("size", size), ("stream", 0), ("time_us", 1700000000000000 + 10 * index))
        opcodes.text("frames")
        opcodes.open(b"]")
        stack = rng.randrange(STACKS)
        if stack in stacks:
            opcodes.out += stacks[stack]
        else:
            for depth in range(FRAMES):
                name = depth if depth < FRAMES // 2 else stack * FRAMES + depth
                if name not in frames:
                    frames[name] = opcodes.kept
                    opcodes.fields(("name", f"function_{name}"), ("filename", f"/home/user/model_{name % 7}.py"), ("line", name % 5000))
                    opcodes.out += b"u"
                else:
                    opcodes.out += opcodes.get(frames[name])
            stacks[stack] = b"".join(opcodes.get(frames[d if d < FRAMES // 2 else stack * FRAMES + d]) for d in range(FRAMES))
        opcodes.out += b"eu"
        if len(opcodes.out) > 1 << 20:
            opcodes.flush()
    opcodes.out += b"e"


# ---- Two devices, pools, annotations, a failure ----------------------------------------------------------------------------

MIB = 1 << 20
CATEGORIES = ["other", "parameters", "activations", "gradients", "optimizer state", "activations"]  # of write_devices(), in order


def stack_of(*names):
    return [{"name": name, "filename": file, "line": 10 + i} for i, (name, file) in enumerate(names)]


def write_devices(where):
    """A snapshot of two devices: the second has two pools and a private one, all kinds of stacks, annotations by PyTorch's
    profiler and by the program, and refuses 20 MiB of which 24 are free in pieces."""
    main = ("main", "/home/someone/project/train.py")
    stacks = [[], stack_of(("__init__", "/home/someone/project/model.py"), main), stack_of(("c10::cuda::malloc", "??"), ("forward", "/home/someone/project/model.py"), *[("step", "/home/someone/project/deep.py")] * 197, main),
              stack_of(("backward", "/usr/lib/python3/site-packages/torch/_tensor.py"), main), stack_of(("_init_group", "/usr/lib/python3/site-packages/torch/optim/adam.py"), main),
              stack_of(("forward", "/home/someone/project/other.py"), main)]
    places = [(0x10000000, 2 * MIB), (0x20000000, 8 * MIB), (0x20000000 + 20 * MIB, 8 * MIB), (0x30000000, 4 * MIB), (0x30000000 + 4 * MIB, 4 * MIB), (0x40000000, 1 * MIB)]
    time, events = itertools.count(1000, 10), []

    def add(action, address, size, stream=0, frames=(), **more):
        events.append({"action": action, "device_free" if action == "oom" else "addr": address, "size": size, "stream": stream,
                       "time_us": next(time), "frames": list(frames), **more})
    add("segment_alloc", 0x40000000, 2 * MIB)
    for place, frames in list(zip(places, stacks))[1:]:
        add("alloc", *place, 5 if place[0] >> 28 == 3 else 0, frames)
    add("free_requested", *places[1], 0)
    add("user_defined", 0, 0, user_metadata="mine")
    add("free_completed", *places[1], 0)
    add("oom", 3 * MIB, 20 * MIB, 0, stacks[2], device_total=64 * MIB)

    def block(address, size, frames, state="active_allocated"):
        return {"address": address, "size": size, "requested_size": size if state != "inactive" else 0, "state": state, "frames": frames}

    def segment(device, address, kind, pool, stream, *blocks):
        return {"device": device, "address": address, "total_size": sum(one["size"] for one in blocks), "stream": stream, "segment_type": kind,
                "segment_pool_id": pool, "is_expandable": False, "frames": [], "blocks": list(blocks)}
    segments = [segment(1, 0x10000000, "small", (0, 0), 0, block(*places[0], [])),
                segment(1, 0x20000000, "large", (0, 0), 0, block(0x20000000, 20 * MIB, [], "inactive"), block(*places[2], stacks[2]),
                        block(0x20000000 + 28 * MIB, 4 * MIB, [], "inactive")),
                segment(1, 0x30000000, "large", (3, 7), 5, block(*places[3], stacks[3]), block(*places[4], stacks[4])),
                segment(1, 0x40000000, "small", (0, 0), 0, block(*places[5], stacks[5]), block(0x40000000 + MIB, MIB, [], "inactive")),
                segment(0, 0x50000000, "large", (0, 0), 0, block(0x50000000, 2 * MIB, []))]
    marks = [{"name": name, "stage": stage, "time_us": us, "device": device} for name, stage, us, device in
             (("forward pass", "START", 1022, 1), ("forward pass", "END", 1055, 1), ("elsewhere", "START", 1030, 0), ("after all", "START", 5000, 1))]
    with open(where, "wb") as file:
        pickle.dump({"segments": segments, "device_traces": [[], events], "allocator_settings": {}, "external_annotations": marks}, file)
    return where
