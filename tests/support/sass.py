"""Machine code of NVIDIA cards (compute capability 8.0 to 10.0) as nvcc leaves it in a cubin: the loops of a kernel, and what an
iteration issues. An instruction has 16 bytes: its opcode in bits 0 to 11, the predicate in 12 to 15 (7: none), the way of a branch
in 34 to 81, of compute capability 9.0 on behind eight lower bits in 16 to 23; of four bytes each, from the next instruction on."""
import struct

HMMA, LDSM, BRA, EXIT = 0x23c, 0x83b, 0x947, 0x94d
LOCAL = {0x983: "LDL", 0x387: "STL"}


def sections(path):
    """{name: bytes} of an ELF file of 64 bits."""
    data = open(path, "rb").read()
    place, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, place + i * size) for i in range(count)]
    strings = headers[names][4]
    return {data[strings + h[0]:data.index(b"\0", strings + h[0])].decode(): data[h[4]:h[4] + h[5]] for h in headers if h[1] != 8}


class Kernel:
    """The instructions of one kernel; a place is an instruction's number."""

    def __init__(self, code, capability):
        words = [low | high << 64 for low, high in struct.iter_unpack("<QQ", code)]
        self.opcodes = [word & 0xfff for word in words]
        self.branches = {}  # place: (where to, whether always)
        for i, word in enumerate(words):
            if self.opcodes[i] == BRA:
                way = word >> 34 & (1 << 48) - 1
                way -= (way & 1 << 47) << 1
                if capability >= 90:
                    way = way << 8 | word >> 16 & 0xff
                self.branches[i] = (i + 1 + way * 4 // 16, word >> 12 & 15 == 7 and word >> 87 & 15 == 7)

    def loops(self):
        """(first, last) of the innermost loops, by the branches back."""
        back = sorted((to, i) for i, (to, _) in self.branches.items() if to <= i - 1)
        return [(to, i) for to, i in back if not any(to <= a and b <= i and (a, b) != (to, i) for a, b in back)]

    def longest(self, loop, opcode=HMMA):
        """Of the ways through an iteration those that issue most of one opcode, and of them the shortest: (that many, instructions)."""
        first, last = loop
        best = {last: (self.opcodes[last] == opcode, 1)}
        for i in range(last - 1, first - 1, -1):
            to, always = self.branches.get(i, (i + 1, False))
            ways = {to} if always else {to, i + 1}
            known = [best[way] for way in ways if way in best and way > i]
            if known and self.opcodes[i] != EXIT:
                most, length = max(known, key=lambda way: (way[0], -way[1]))
                best[i] = (most + (self.opcodes[i] == opcode), length + 1)
        return best.get(first, (0, 0))

    def count(self, opcode, loop=None):
        first, last = loop or (0, len(self.opcodes) - 1)
        return self.opcodes[first:last + 1].count(opcode)


def kernels(path, capability):
    """{name: Kernel} of a cubin."""
    return {name[len(".text."):]: Kernel(code, capability) for name, code in sections(path).items() if name.startswith(".text.")}
