"""sass.py: fat binaries as nvcc leaves them in a program, and NVIDIA's machine code (compute capability 8.0 to 10.0) in them: what a
kernel takes, its loops, and what an iteration issues. An instruction has 16 bytes: its opcode in bits 0 to 11, the predicate in 12
to 15 (7: none), the way of a branch in 34 to 81, of compute capability 9.0 on with eight lower bits in 16 to 23: in units of four
bytes, from the next instruction on."""
import struct

PTX, SASS = 1, 2  # kinds of entries of a fat binary
HMMA, BRA, BRA_UNIFORM, EXIT = 0x23c, 0x947, 0x547, 0x94d
LOCAL = (0x983, 0x387)  # LDL, STL
REGISTERS, NO_BYTES = 0x2f04, 8  # a note's kind, a section's type


def fat_binaries(program):
    """Of each fat binary in the file what it has: (PTX or SASS, the kind of card, bytes)."""
    data, magic, found, at = open(program, "rb").read(), struct.pack("<I", 0xBA55ED50), [], 0
    while (at := data.find(magic, at)) >= 0:
        _, version, head, size = struct.unpack_from("<IHHQ", data, at)
        at += head if version == 1 and at % 8 == 0 else 4
        if head != 16 or version != 1:
            continue
        entries, end = [], at + size
        while at < end:
            kind, _, head, size = struct.unpack_from("<HHIQ", data, at)
            entries.append((kind, struct.unpack_from("<I", data, at + 28)[0], data[at + head:at + head + size]))
            at += head + size
        found.append(entries)
    return found


def cubins(program, capability):
    """The machine code for such cards in a program."""
    return [data for entries in fat_binaries(program) for kind, card, data in entries if (kind, card) == (SASS, capability) and data[:4] == b"\x7fELF"]


def sections(cubin):
    """{name: the bytes of a section of an ELF file of 64 bits; their number where the file has none}."""
    place, = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, place + i * size) for i in range(count)]
    strings = headers[names][4]
    return {text_at(cubin, strings + h[0]): h[5] if h[1] == NO_BYTES else cubin[h[4]:h[4] + h[5]] for h in headers}


def text_at(data, at):
    return data[at:data.index(b"\0", at)].decode()


def registers_of(found):
    """{kernel: registers of a thread}, by the sections of a cubin."""
    notes, at, registers = found[".nv.info"], 0, {}
    while at < len(notes):
        kind, size = struct.unpack_from("<HH", notes, at)
        if kind == REGISTERS:
            symbol, count = struct.unpack_from("<II", notes, at + 4)
            registers[text_at(found[".strtab"], struct.unpack_from("<I", found[".symtab"], 24 * symbol)[0])] = count
        at += 4 + (size if kind & 0xff == 4 else 0)
    return registers


class Kernel:
    """The instructions of one kernel; a place is an instruction's number."""

    def __init__(self, code, capability, registers, shared_bytes):
        self.registers, self.shared_bytes = registers, shared_bytes
        words = [low | high << 64 for low, high in struct.iter_unpack("<QQ", code)]
        self.opcodes = [word & 0xfff for word in words]
        self.next = [self.ways(i, word, capability) for i, word in enumerate(words)]
        self.order, self.back = self.walk()

    def ways(self, i, word, capability):
        """Where control goes from an instruction."""
        if self.opcodes[i] not in (BRA, BRA_UNIFORM, EXIT):
            return [i + 1] if i + 1 < len(self.opcodes) else []
        to = word >> 34 & (1 << 48) - 1
        to -= (to & 1 << 47) << 1
        to = i + 1 + (to << 8 | word >> 16 & 0xff if capability >= 90 else to) // 4
        taken = [] if self.opcodes[i] == EXIT else [to]
        always = word >> 12 & 15 == 7 and (self.opcodes[i] == EXIT or self.opcodes[i] == BRA and word >> 87 & 15 == 7)
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


def kernels(cubin, capability):
    """{name: Kernel}"""
    found = sections(cubin)
    code = {name[len(".text."):]: code for name, code in found.items() if name.startswith(".text.")}
    return {name: Kernel(code[name], capability, registers, found.get(".nv.shared." + name, 0)) for name, registers in registers_of(found).items() if name in code}
