"""zrt.py: reads a .zrt trace (alloc/telemetry/trace_format.h) for tests, apart from the product's reader."""
import struct

KINDS = ("extension", "alloc", "free", "map", "unmap", "mark", "refused", "begin")


class Trace:
    """`events`: (kind, address, bytes, stack) of allocs and frees, and (kind, label, 0, ()) of others. A stack is a tuple of
    (module, offset in its file) or (text of a Python frame, None), innermost first; of an alloc without one it is None. `modules`: paths."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        header_bytes, _, _, written, _, self.base = struct.unpack_from("<IIIQQQ", self.data, 4)
        self.at, end = header_bytes, header_bytes + written
        self.events, self._stacks, self._modules = [], {}, []
        self._place = self._with = 0
        self._frames = {}
        while self.at < end:
            self._event()

    @property
    def modules(self):
        return [path for _, _, _, path in self._modules]

    def _varint(self):
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _signed(self):
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _event(self):
        first = self.data[self.at]
        self.at += 1
        kind = KINDS[first & 7]
        self._varint()
        for flag in (0x08, 0x10):
            if first & flag:
                self._varint()
        self.at += bool(first & 0x20)
        if kind in ("alloc", "free"):
            self._place += self._signed() * (1 if first & 0x40 else 256)
            size = self._varint() if kind == "alloc" else 0
            if kind == "alloc" and first & 0x80:
                self._varint()
            self.events.append((kind, self.base + self._place, size, self._stacks.get(self._with) if kind == "alloc" else None))
        elif kind in ("map", "unmap"):
            self._varint(), self._varint()
            if first & 0x80:
                self._varint(), self._varint()
        elif kind == "mark":
            length = self._varint()
            self.events.append((kind, self.data[self.at:self.at + length].decode(), 0, None))
            self.at += length
        elif kind == "refused":
            self.events.append((kind, "", self._varint(), self._stacks.get(self._with)))
            if first & 0x80:
                self.at += 1
                for _ in range(9):
                    self._varint()
                for _ in range(self._varint() if first & 0x40 else 0):
                    self._varint()
        elif kind == "extension":
            self._extension()
            return
        else:
            self.events.append((kind, "", 0, None))
        self._with = 0

    def _extension(self):
        kind = self.data[self.at]
        self.at += 1
        length = self._varint()
        end = self.at + length
        if kind == 1:
            start, size, offset, build = self._varint(), self._varint(), self._varint(), self._varint()
            self._modules.append((start, size, offset, self.data[self.at + build:end].decode(errors="replace")))
        elif kind == 2:
            number, address, frames = self._varint(), 0, []
            while self.at < end:
                address = address + self._signed() & (1 << 64) - 1
                frames.append(self._resolve(address))
            self._stacks[number] = tuple(frames)
        elif kind == 3:
            self._with = self._varint()
        elif kind == 4:
            number = self._varint()
            self._frames[(1 << 63) + number] = self.data[self.at:end].decode()
        self.at = end

    def _resolve(self, address):
        if address in self._frames:
            return self._frames[address], None
        for start, size, offset, path in reversed(self._modules):
            if start <= address < start + size:
                return path, address - start + offset
        return "", address
