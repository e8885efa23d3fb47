"""torch_allocator.py: a small model of PyTorch's caching allocator that writes its snapshots: the rules of
c10/cuda/CUDACachingAllocator.cpp for rounding, pools, best fit, splitting, merging, streams, private pools and release before
a failure, without expandable segments."""
import bisect
import pickle

MIB = 1 << 20
SMALL, BASE = MIB, 0x7f0000000000


class OutOfMemory(Exception):
    pass


class Block:
    def __init__(self, segment, address, size):
        self.segment, self.address, self.size = segment, address, size
        self.requested, self.state, self.frames, self.streams, self.since = 0, "inactive", [], set(), 0


class Segment:
    def __init__(self, address, size, stream, small, pool, frames):
        self.address, self.size, self.stream, self.small, self.pool, self.frames = address, size, stream, small, pool, frames
        self.blocks = [Block(self, address, size)]


def up(size, unit):
    return (size + unit - 1) // unit * unit


class Torch:
    """One device of `capacity` bytes, of which `outside` are not this process's."""

    def __init__(self, capacity, outside=0, max_split=None, divisions=0, device=0, collect=0.0):
        self.capacity, self.outside, self.max_split, self.divisions, self.device = capacity, outside, max_split, divisions, device
        self.segments, self.trace, self.waiting, self.frames, self.time, self.next = [], [], [], {}, 1700000000000000, BASE
        self.pool, self.kept_pools, self.calls, self.peak = (0, 0), set(), 0, 0
        self.collect, self.searches, self.metadata = collect, 0, ""

    # ---- Events

    def stack(self, where):
        """A list of its own for each call, of frames that all lists share: `where` is "file:line function, file:line function",
        the innermost first."""
        frames = ["??:0 c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc", "??:0 at::detail::empty_cuda"]
        frames += where.split(", ")
        for words in frames:
            place, name = words.split(" ", 1)
            file, line = place.rsplit(":", 1)
            self.frames.setdefault(words, {"name": name, "filename": file, "line": int(line)})
        return [self.frames[words] for words in frames]

    def note(self, action, address, size, stream, frames, pool, **more):
        self.time += 10
        place = {"device_free": address} if action == "oom" else {"addr": address}
        self.trace.append({"action": action, **place, "size": size, "stream": stream, "time_us": self.time, "frames": frames,
                           "pool_id": pool, "user_metadata": self.metadata, "compile_context": "N/A", **more})

    def mark(self, label):
        self.trace.append({"action": "user_defined", "addr": 0, "size": 0, "stream": 0, "time_us": self.time, "user_metadata": label})

    # ---- Figures

    @property
    def reserved(self):
        return sum(segment.size for segment in self.segments)

    @property
    def device_free(self):
        return self.capacity - self.outside - self.reserved

    def live(self):
        return [block for segment in self.segments for block in segment.blocks if block.state != "inactive"]

    # ---- Requests

    def rounded(self, size):
        if self.divisions > 1 and size > 512 * self.divisions:
            power = 1 << (size.bit_length() - 1)
            return size if size == power else up(size, max(512, power // self.divisions))
        return max(512, up(size, 512))

    def find(self, size, stream):
        small, best = size <= SMALL, None
        self.searches += not small
        for segment in self.segments:
            if (segment.stream, segment.small, segment.pool) != (stream, small, self.pool):
                continue
            for block in segment.blocks:
                if block.state == "inactive" and block.size >= size and (best is None or (block.size, block.address) < best[0]):
                    best = (block.size, block.address), block
        if best and self.max_split and not small:
            found = best[1].size
            if (size < self.max_split <= found) or (size >= self.max_split and found >= size + 20 * MIB):
                return None
        return best and best[1]

    def map(self, size, stream, frames):
        small = size <= SMALL
        bytes = 2 * MIB if small else 20 * MIB if size < 10 * MIB else up(size, 2 * MIB)
        if bytes > self.device_free:
            return None
        segment = Segment(self.next, bytes, stream, small, self.pool, frames)
        self.next += up(bytes, 2 * MIB) + 2 * MIB
        bisect.insort(self.segments, segment, key=lambda one: one.address)
        self.calls += 1
        self.peak = max(self.peak, self.reserved)
        self.note("segment_alloc", segment.address, bytes, stream, frames, self.pool)
        return segment.blocks[0]

    def whole(self):
        return [segment for segment in self.segments
                if len(segment.blocks) == 1 and segment.blocks[0].state == "inactive" and segment.pool not in self.kept_pools]

    def release(self, segments, where):
        for segment in segments:
            self.segments.remove(segment)
            self.calls += 1
            self.note("segment_free", segment.address, segment.size, segment.stream, self.stack(where), segment.pool)

    def empty_cache(self, where="train.py:90 main"):
        self.release(self.whole(), where)

    def collect_garbage(self, where):
        """Returns large segments that have been free for as long as the average, while more than the threshold is reserved."""
        found = self.collect > 0
        while found and self.reserved > int(self.collect * self.capacity):
            ages = {segment: self.searches - segment.blocks[0].since for segment in self.whole() if not segment.small}
            found = [segment for segment, age in ages.items() if age * len(ages) >= sum(ages.values())]
            self.release(found, where)

    def alloc(self, size, where, stream=0):
        bytes, frames = self.rounded(size), self.stack(where)
        block = self.find(bytes, stream)
        if not block:
            self.collect_garbage(where)
            block = self.map(bytes, stream, frames)
        if not block:
            self.synchronize()
            self.empty_cache(where)
            block = self.map(bytes, stream, frames)
        if not block:
            self.note("oom", self.device_free, bytes, stream, frames, self.pool)
            raise OutOfMemory
        left = block.size - bytes
        if left >= 512 if block.segment.small else left > MIB and (not self.max_split or bytes < self.max_split):
            rest = Block(block.segment, block.address + bytes, left)
            block.segment.blocks.insert(block.segment.blocks.index(block) + 1, rest)
            rest.since = self.searches
            block.size = bytes
        block.requested, block.state, block.frames, block.streams = size, "active_allocated", frames, set()
        self.note("alloc", block.address, size, stream, frames, block.segment.pool)
        return block

    def free(self, block, where="train.py:95 step"):
        self.note("free_requested", block.address, block.requested, block.segment.stream, self.stack(where), block.segment.pool)
        if block.streams:
            block.state = "active_awaiting_free"
            self.waiting.append(block)
        else:
            self.complete(block)

    def complete(self, block):
        self.note("free_completed", block.address, block.requested, block.segment.stream, [], block.segment.pool)
        blocks, at = block.segment.blocks, block.segment.blocks.index(block)
        block.state, block.requested, block.frames, block.since = "inactive", 0, [], self.searches
        for first in (at, at - 1):
            if 0 <= first < len(blocks) - 1 and blocks[first].state == blocks[first + 1].state == "inactive":
                blocks[first].size += blocks.pop(first + 1).size
                blocks[first].since = self.searches

    def record_stream(self, block, stream):
        block.streams.add(stream)

    def synchronize(self, passes=False):
        """The streams' work of the freed blocks is over, if it passes."""
        if passes:
            for block in self.waiting:
                self.complete(block)
            self.waiting = []

    def temporary(self, size, where, stream=0):
        self.free(self.alloc(size, where, stream))

    # ---- The snapshot

    def listed(self):
        return [{"device": self.device, "address": s.address, "total_size": s.size, "stream": s.stream, "frames": s.frames,
                 "segment_type": "small" if s.small else "large", "segment_pool_id": s.pool, "is_expandable": False,
                 "allocated_size": sum(b.size for b in s.blocks if b.state == "active_allocated"),
                 "active_size": sum(b.size for b in s.blocks if b.state != "inactive"),
                 "requested_size": sum(b.requested for b in s.blocks if b.state != "inactive"),
                 "blocks": [{"address": b.address, "size": b.size, "requested_size": b.requested, "state": b.state, "frames": b.frames}
                            for b in s.blocks]} for s in self.segments]

    def settings(self):
        return {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": self.max_split or -1, "garbage_collection_threshold": self.collect,
                "expandable_segments": False, "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False, "roundup_power2_divisions": {str(1 << power): self.divisions for power in range(16)},
                "graph_capture_record_stream_reuse": False}


def write(where, *devices):
    """A snapshot of the devices; the segments come first, as PyTorch writes them."""
    data = {"segments": [segment for one in devices for segment in one.listed()], "device_traces": [one.trace for one in devices],
            "allocator_settings": devices[0].settings(), "external_annotations": []}
    with open(where, "wb") as file:
        pickle.dump(data, file, protocol=4)
    return where
