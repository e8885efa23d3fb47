"""Machine code of NVIDIA cards (compute capability 8.0 to 10.0) as nvcc leaves it in a cubin: the loops of a kernel, and what an
iteration issues. An instruction has 16 bytes: its opcode in bits 0 to 11, the predicate in 12 to 15 (7: none), the way of a branch
in 34 to 81, of compute capability 9.0 on with eight lower bits in 16 to 23: in units of four bytes, from the next instruction on."""
import struct

HMMA, LDSM, BRA, EXIT = 0x23c, 0x83b, 0x947, 0x94d
LOCAL = (0x983, 0x387)  # LDL, STL


def sections(path):
    """{name: bytes} of an ELF file of 64 bits."""
    data = open(path, "rb").read()
    place, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQ", data, place + i * size) for i in range(count)]
    strings = headers[names][4]
    return {data[strings + h[0]:data.index(b"\0", strings + h[0])].decode(): data[h[4]:h[4] + h[5]] for h in headers if h[1] != 8}


class Kernel:
    """The instructions of one kernel; a place is an instruction's number."""

    def __init__(self, code, capability):
        words = [low | high << 64 for low, high in struct.iter_unpack("<QQ", code)]
        self.opcodes = [word & 0xfff for word in words]
        self.next = [self.ways(i, word, capability) for i, word in enumerate(words)]
        self.order, self.back = self.walk()

    def ways(self, i, word, capability):
        """Where control goes from an instruction."""
        if self.opcodes[i] not in (BRA, EXIT):
            return [i + 1] if i + 1 < len(self.opcodes) else []
        to = word >> 34 & (1 << 48) - 1
        to -= (to & 1 << 47) << 1
        to = i + 1 + (to << 8 | word >> 16 & 0xff if capability >= 90 else to) // 4
        taken = [] if self.opcodes[i] == EXIT else [to]
        always = word >> 12 & 15 == 7 and (self.opcodes[i] == EXIT or word >> 87 & 15 == 7)
        return taken if always else [i + 1] + taken

    def walk(self):
        """Places that come before others first, and the steps back: (from, to)."""
        order, back, state, stack = [], [], {0: 1}, [(0, iter(self.next[0]))]
        while stack:
            at, rest = stack[-1]
            to = next(rest, None)
            if to is None:
                state[at] = 2
                order.append(at)
                stack.pop()
            elif to not in state:
                state[to] = 1
                stack.append((to, iter(self.next[to])))
            elif state[to] == 1:
                back.append((at, to))
        return order[::-1], back

    def loops(self):
        """{first place: all places} of the loops."""
        before = {}
        for at in self.order:
            for to in self.next[at]:
                before.setdefault(to, []).append(at)
        found = {}
        for last, first in self.back:
            body, rest = found.setdefault(first, {first}), [last]
            while rest:
                at = rest.pop()
                if at not in body:
                    body.add(at)
                    rest += before[at]
        return found

    def innermost(self):
        loops = self.loops()
        return {first: body for first, body in loops.items() if not any(other in body for other in loops if other != first)}

    def longest(self, first, body, opcode=HMMA):
        """Of the ways through an iteration those that issue most of one opcode, and of them the shortest: (that many, instructions).
        Loops inside go round once."""
        best = {}
        for at in reversed(self.order):
            if at in body:
                onward = [best[to] for to in self.next[at] if to in body and (at, to) not in self.back and to in best]
                ends = (at, first) in self.back
                if onward or ends:
                    most, length = max(onward + [(0, 0)] * ends, key=lambda way: (way[0], -way[1]))
                    best[at] = (most + (self.opcodes[at] == opcode), length + 1)
        return best[first]

    def count(self, *opcodes):
        return sum(self.opcodes[at] in opcodes for at in self.order)


def kernels(path, capability):
    """{name: Kernel} of a cubin."""
    return {name[len(".text."):]: Kernel(code, capability) for name, code in sections(path).items() if name.startswith(".text.")}
