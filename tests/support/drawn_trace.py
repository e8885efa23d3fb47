"""drawn_trace.py: a .zrt (alloc/telemetry/trace_format.h) of drawn allocations and frees, and what a page of it must hold,
counted here."""
import random
import struct

ALLOC, FREE, MAP, UNMAP, MARK, REFUSED = range(1, 7)
BASE, GRANULE, TAGS = 1 << 44, 2 << 20, 11


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7f | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def zigzag(number):
    return varint(number * 2 if number >= 0 else -number * 2 - 1)


class Trace:
    """After `count` events: blocks [from, to, place, bytes, requested, tag, stream], in order of allocation; to: None."""

    def __init__(self, count, seed, live=2000, granules=400):
        rng, self.body, self.blocks, self.place, self.moment = random.Random(seed), bytearray(), [], 0, 0
        self.refused, self.marks, self.granules = [], [], granules
        self.repeats = 1
        free, alive, top = {}, [], 0
        self.event(MAP, 0, zigzag(0) + varint(granules))
        self.mapped_bytes = len(self.body)
        while self.moment < count:
            if self.moment % 1000 == 500:
                self.marks.append((self.moment + 1, f"step {len(self.marks)}"))
                self.event(MARK, 0, varint(len(self.marks[-1][1])) + self.marks[-1][1].encode())
            elif self.moment % 5000 == 4999:
                self.refused.append((self.moment, 1 << 30, 6))
                self.event(REFUSED, 6, varint(1 << 30))
            elif alive and (len(alive) > live or rng.random() < 0.45):
                at = rng.randrange(len(alive)) if rng.random() < 0.3 else max(0, len(alive) - 1 - int(rng.expovariate(0.02)))
                index, alive[at] = alive[at], alive[-1]
                alive.pop()
                self.free(index)
                block = self.blocks[index]
                free.setdefault(block[3], []).append(block[2])
            else:
                size, tag, stream = rng.choice([1, 2, 3, 5, 8, 13, 40, 100]) * rng.choice([256, 4096, 16384]), rng.randrange(TAGS), rng.randrange(3)
                place = free[size].pop(rng.randrange(len(free[size]))) if free.get(size) else top
                top += size * (place == top)
                asked = size - rng.randrange(256)
                self.event(ALLOC, tag, zigzag(place - self.place) + varint(asked) + varint(size), stream)
                self.place = place
                alive.append(len(self.blocks))
                self.blocks.append([self.moment, None, place, size, asked, tag, stream])
        assert top <= granules * GRANULE, top

    def event(self, kind, tag, rest, stream=0):
        flags = 0x30 | (0x40 if kind in (ALLOC, FREE) else 0) | (0x80 if kind == ALLOC else 0)
        self.body += bytes([kind | flags]) + varint(1000) + varint(stream) + bytes([tag]) + rest
        self.moment += 1

    def free(self, index):
        block = self.blocks[index]
        self.event(FREE, block[5], zigzag(block[2] - self.place), block[6])
        self.place, block[1] = block[2], self.moment

    def repeat(self, times):
        """Frees all, then has all of its events that often: `blocks` are those of the first time, later ones come `period`
        moments and `len(blocks)` blocks after."""
        for index in self.live_at(self.moment):
            self.free(index)
        self.event(ALLOC, 0, zigzag(-self.place) + varint(256) + varint(256))  # places are told from the last one
        self.place = 0
        self.blocks.append([self.moment, None, 0, 256, 256, 0, 0])
        self.free(len(self.blocks) - 1)
        self.period, self.repeats = self.moment - 1, times
        self.body += bytes(self.body[self.mapped_bytes:]) * (times - 1)

    def write(self, where, cut=0):
        header = struct.pack("<4sIIIQQQQQQII32s24x", b"ZRT1", 128, 1, 1, len(self.body), GRANULE, BASE, 1 << 40, 0, 0, 1, 0, b"test")
        with open(where, "wb") as file:
            file.write(header + bytes(self.body[:len(self.body) - cut]))
        return where

    def live_at(self, moment):
        """[index, ..] of what is live at a moment."""
        return [i for i, block in enumerate(self.blocks) if block[0] <= moment and (block[1] is None or moment < block[1])]
