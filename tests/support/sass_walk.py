"""sass_walk.py: the machine code of a cubin for sm_90, as nvdisasm prints it, and a walk of one warp through it: how often each basic block
runs, and which addresses of global memory it asks for. gpu_model.py makes times of that.

The walk evaluates only those instructions that a branch, or an address of global memory, depends on; the others are counted. What is
read from memory, and all floating-point results but those of an integer division, are taken as zero: a branch on data goes the way
that it goes on zeros. An instruction that the walk would have to evaluate and does not know is an error (Unknown)."""
import functools
import re
import struct

import sass

LANES, ALL = 32, (1 << 32) - 1  # ALL: a word of ones, and a mask of all lanes
PARAMETERS = 0x210  # where a kernel's argument lies in bank 0, for sm_90
STEPS_MAX = 20_000_000  # blocks of one walk


class Unknown(Exception):
    """The walk does not know what an instruction does."""


# ---- Reading -----------------------------------------------------------------------------------------------------------

LINE = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
LABEL = re.compile(r"^([.$][\w$.]*|\w+):")
NO_RESULT = re.compile(r"ST|REDG?\b|BAR|BRA|EXIT|BSSY|BSYNC|BREAK|WARPSYNC|ENDCOLL|NOP|CALL|RET|MEMBAR|DEPBAR|LDGDEPBAR|LDGSTS|ERRBAR|CCTL|YIELD|NANOSLEEP|SYNCS|FENCE|"
                       r"UBLKCP|ARRIVES|BMOV|BPT|KILL")
ENDS = ("BRA", "EXIT", "BSYNC", "CALL", "RET", "BRX", "JMP")


def registers_of(operand, width=1):
    """The names that an operand reads."""
    found = []
    for name, pair in re.findall(r"\b(U?R\d+|U?P\d)\b((?:\.reuse)?\.64)?", operand):
        count = 2 if pair else width
        prefix, number = re.match(r"(\D+)(\d+)", name).groups()
        found += [f"{prefix}{int(number) + i}" for i in range(1 if "P" in prefix else count)]
    return found


class Instruction:
    def __init__(self, at, guard, name, operands):
        self.at, self.name, self.operands = at, name, operands
        self.base = name.split(".")[0]
        self.guard, self.guard_not = (guard.lstrip("!"), guard[0] == "!") if guard and guard.lstrip("!") not in ("PT", "UPT") else (None, False)
        self.global_memory = self.base in ("LDG", "STG", "RED", "REDG", "ATOMG", "ATOM", "LDGSTS", "LD", "ST")
        size = re.search(r"\.(128|64|U16|S16|U8|S8|16|8)(?:\.|$)", name)
        self.bytes = {"128": 16, "64": 8, "U16": 2, "S16": 2, "16": 2, "U8": 1, "S8": 1, "8": 1}[size[1]] if size else 4
        self.results, self.sources = self.split()
        self.local_memory = self.base in ("LDL", "STL")  # what the compiler keeps outside of registers, a loop's count perhaps
        self.address = address_parts(self) if self.global_memory or self.local_memory else []
        self.reads = [each for operand in self.sources for each in registers_of(operand, 2 if self.double(operand) else 1)]
        if self.base == "STL":
            self.reads += registers_of(self.operands[-1], max(1, self.bytes // 4))
        if self.base in ("P2R", "UP2R"):
            self.reads += [f"P{i}" for i in range(7)]
        self.writes = self.written()
        self.zero = taken_as_zero(self)

    def double(self, operand):
        """A register named there is the first of a pair."""
        if self.base[0] == "D" and self.base != "DEPBAR":
            return True
        return operand is self.sources[-1] and (".WIDE" in self.name or "IMAD.HI" in self.name) or (self.base == "F2F" and self.name.endswith("F64")) or \
            (self.base == "F2I" and ".F64" in self.name) or (self.base == "I2F" and re.search(r"[US]64", self.name) is not None)

    def split(self):
        """Operands that get results, and those that are read."""
        operands = self.operands
        if NO_RESULT.match(self.name):
            return [], operands
        count = 1
        if re.match(r"U?[IFDH]SETP|HSETP2|U?PLOP3|SHFL", self.base):
            count = 2
        elif self.base in ("LOP3", "ULOP3") and re.fullmatch(r"U?P[\dT]", operands[0]):
            count = 2
        elif re.match(r"U?(IADD3|LEA|IMAD)$", self.base) or self.base in ("ATOMG", "FCHK"):
            while count < len(operands) and re.fullmatch(r"U?P[\dT]", operands[count]) and not (self.base == "FCHK"):
                count += 1
        elif self.base in ("VOTE", "VOTEU", "MATCH"):
            count = 2
        return operands[:count], operands[count:]

    def written(self):
        found = [f"P{k}" for k in range(7) if int(self.operands[-1], 0) >> k & 1] if self.base == "R2P" else []
        for operand in self.results:
            for name in registers_of(operand):
                count = 1
                if name[0] in "RU" and "P" not in name:
                    count = {16: 4, 8: 2}.get(self.bytes, 1) if self.base in ("LDG", "LDS", "LDL", "LD", "LDC", "ULDC", "ATOMG") else 1
                    if self.base == "CS2R" and self.name != "CS2R.32" or re.search(r"\.WIDE", self.name) or re.match(r"D(ADD|MUL|FMA)|(F2F|I2F)\.F64|F2I.*\.?[US]64", self.name):
                        count = 2
                    elif self.base in ("HMMA", "QMMA", "IMMA"):
                        count = 2 if re.search(r"16816\.F16$|1688\.F16$", self.name) else 4
                    elif self.base == "LDSM":
                        count = {"4": 4, "2": 2}.get(self.name.split(".")[-1], 1)
                prefix, number = re.match(r"(\D+)(\d+)", name).groups()
                found += [f"{prefix}{int(number) + i}" for i in range(count)]
        return found


class Block:
    """Instructions that run one after the other; `counts` by name, `waits`: how often a warp waits for global and for shared memory."""

    def __init__(self, instructions):
        self.instructions, self.at = instructions, instructions[0].at
        self.next, self.needed, self.counts = [], [], {}
        for each in instructions:
            self.counts[each.name] = self.counts.get(each.name, 0) + 1
        self.waits = {"global": self.waits_for(("LDG", "LD", "ATOMG"), "LDGDEPBAR"), "shared": self.waits_for(("LDS", "LDSM", "SHFL"), None)}

    def waits_for(self, loads, barrier):
        waits, under_way = 0, set()
        for each in self.instructions:
            if under_way & set(each.reads) or (each.base == "DEPBAR" and barrier) or (under_way and each is self.instructions[-1] and each.base != "EXIT"):
                waits, under_way = waits + 1, set()
            if each.base in loads:
                under_way |= set(each.writes)
            else:
                under_way -= set(each.writes)
        return waits


class Kernel:
    """`registers`: of a thread; `shared_bytes`: of a block, beside what the launch asks for."""

    def __init__(self, name, lines, registers=0, shared_bytes=0):
        self.name, self.registers, self.shared_bytes = name, registers, shared_bytes
        instructions, labels, waiting = [], {}, []
        for line in lines:
            if found := LABEL.match(line):
                waiting.append(found[1])
            elif found := LINE.match(line):
                at = int(found[1], 16)
                labels.update(dict.fromkeys(waiting, at))
                waiting.clear()
                instructions.append(Instruction(at, found[2], found[3], [each.strip().replace(".reuse", "") for each in re.split(r",(?![^\[]*\])", found[4])] if found[4].strip() else []))
        self.labels, self.end = labels, instructions[-1].at + 16
        starts = set(labels.values()) | {0} | {each.at + 16 for each in instructions if each.base in ENDS}
        parts = {}
        for each in instructions:
            if each.at in starts:
                first = each.at
            parts.setdefault(first, []).append(each)
        self.blocks = {at: Block(part) for at, part in parts.items()}
        self.connect()
        self.slice()

    def target(self, instruction):
        label = next((each.strip("`()") for each in instruction.operands if each.startswith("`")), None)
        if label is None or label not in self.labels:
            raise Unknown(f"{self.name}: {instruction.name} {instruction.operands}")
        return self.labels[label]

    def connect(self):
        returns = [block.instructions[-1].at + 16 for block in self.blocks.values() if block.instructions[-1].base == "CALL"]
        for block in self.blocks.values():
            last = block.instructions[-1]
            goes_on = last.base not in ("EXIT", "BRA", "RET", "CALL") or last.guard or (last.base == "BRA" and len(last.operands) > 1)
            if last.base == "RET":
                block.next = list(returns)
            elif last.base in ("BRA", "CALL") and not last.name.startswith("BRA.DIV"):
                block.next = [self.target(last)]
            if (goes_on or last.name.startswith("BRA.DIV")) and last.at + 16 in self.blocks:
                block.next.append(last.at + 16)

    def slice(self):
        """Which instructions of each block the walk has to evaluate: backwards, until nothing is added."""
        live = dict.fromkeys(self.blocks, frozenset())
        before = {at: [] for at in self.blocks}
        for block in self.blocks.values():
            for each in block.next:
                before[each].append(block.at)
        todo = list(self.blocks)
        while todo:
            block = self.blocks[todo.pop()]
            wanted = set().union(*(live[each] for each in block.next))
            block.needed = []
            for each in reversed(block.instructions):
                needed = each.base in ENDS or each.base in ("BSSY", "BREAK") or each.global_memory or each.base == "STL" or bool(wanted & set(each.writes))
                if not needed:
                    continue
                block.needed.append(each)
                if each.guard is None:
                    wanted -= set(each.writes)
                else:
                    wanted.add(each.guard)
                if each.base in ENDS:
                    wanted |= {name for name in each.reads}
                elif each.global_memory:
                    wanted |= {name for part in each.address if type(part) is str for name in registers_of(part, 2)}
                elif not each.zero:
                    wanted |= set(each.reads)
            block.needed.reverse()
            if wanted != live[block.at]:
                live[block.at] = frozenset(wanted)
                todo += before[block.at]


def address_parts(instruction):
    """What is added up: registers, the first of a pair each, and a number."""
    for operand in instruction.operands:
        found = re.match(r"(?:desc\[\w+\])?\[([^\]]*)\]", operand)
        if found and (operand.startswith("desc") or instruction.base != "LDGSTS"):
            parts = re.findall(r"(U?R\w+)|(-?0x[0-9a-f]+)", found[1])
            return [register or int(number, 0) for register, number in parts]
    raise Unknown(f"the address of {instruction.name} {instruction.operands}")


# ---- Evaluating --------------------------------------------------------------------------------------------------------
# A register holds a number, or a list of one per lane; a predicate is a mask of lanes.


def lifted(f):
    """f of numbers, as a function of numbers or lists."""
    def both(*values):
        for value in values:
            if type(value) is list:
                return list(map(f, *(value if type(value) is list else [value] * LANES for value in values)))
        return f(*values)
    return both


def signed(x):
    return x - (1 << 32) if x >> 31 else x


COMPARE = {"LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b, "EQ": lambda a, b: a == b,
           "NE": lambda a, b: a != b}


def mask_of(values):
    if type(values) is not list:
        return ALL if values else 0
    return sum(1 << lane for lane, value in enumerate(values) if value)


def bit_of(mask):
    """A predicate as a register's number."""
    return 1 if mask == ALL else 0 if mask == 0 else [mask >> lane & 1 for lane in range(LANES)]


@functools.cache
def comparison(name):
    """Of words; with `low`, what the lower words say, of the upper ones of a pair."""
    f = COMPARE[next(part for part in name.split(".") if part in COMPARE)]
    whole = lifted(f if ".U32" in name else lambda x, y: f(signed(x), signed(y)))
    same = lifted(lambda x, y: x == y)

    def compare(a, b, low=None):
        if low is None:
            return mask_of(whole(a, b))
        equal = mask_of(same(a, b))
        return mask_of(whole(a, b)) & ~equal | equal & low
    return compare


@functools.cache
def shift(name):
    left, high, arithmetic, wide = ".L." in name + ".", name.endswith(".HI") or ".HI." in name, ".S" in name, "64" in name

    def one(a, count, c):
        count = min(count, 64 if wide else 63)
        value = c << 32 | a
        if left:
            value <<= count
        else:
            value = (value - (1 << 64) if arithmetic and value >> 63 else value) >> count
        return value >> 32 & ALL if high else value & ALL
    return lifted(one)


def logic(a, b, c, table):
    result = 0
    for row in range(8):
        if table >> row & 1:
            result |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return result & ALL


def permute(a, selector, c):
    both, result = c << 32 | a, 0
    for i in range(4):
        pick = selector >> 4 * i & 15
        byte = both >> 8 * (pick & 7) & 255
        result |= (255 if byte >> 7 and pick & 8 else 0 if pick & 8 else byte) << 8 * i
    return result


def float_bits(x, up=False):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return bits + 1 if up and struct.unpack("<f", struct.pack("<I", bits))[0] < x else bits


def float_of(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def reciprocal(bits):
    x = float_of(bits)
    return float_bits(1 / x) if x else float_bits(float("inf"))


def truncated(bits, most):
    x = float_of(bits)
    return min(most, int(x)) if x == x and x < float("inf") else most


def taken_as_zero(instruction):
    """Data: what memory, other lanes and floating-point arithmetic say."""
    name, base = instruction.name, instruction.base
    if base in ("I2F", "F2I") or name == "MUFU.RCP" or name.startswith("HFMA2.MMA") or base == "FSEL":
        return "F64" in name and base in ("I2F", "F2I")
    return base[0] in "FDH" and base not in ("FLO",) or base in ("MUFU", "SHFL", "VOTE", "VOTEU", "LDS", "LDSM", "LDG", "LD", "ATOMG", "ATOMS", "ATOM", "F2FP", "I2FP", "MATCH",
                                                                  "REDUX", "CS2R", "CREDUX", "IMMA", "QMMA")


@functools.cache
def parsed(operand, plus):
    """(kind, name or number, sign) of a 32-bit operand."""
    sign = operand[0] if operand[0] in "-~" and not re.match(r"-(0x|\d|INF)", operand) else ""
    text = operand[len(sign):].strip("|")
    if found := re.match(r"(U?R)(\d+)", text):
        return "register", f"{found[1]}{int(found[2]) + plus}", sign
    if found := re.fullmatch(r"c\[0x(\w+)\]\[0x(\w+)\](\.64)?", text):
        return ("constant", int(found[2], 16) + 4 * plus, sign) if found[1] == "0" else ("number", 0, sign)
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text):
        return "number", int(text, 0) >> 32 * plus & ALL, sign
    if re.match(r"U?RZ|SRZ|[+-]?(INF|QNAN)|-?\d", text):
        return "number", 0, sign
    raise Unknown(f"the operand {operand}")


JOIN, LOW, HIGH = lifted(lambda low, high: high << 32 | low), lifted(lambda x: x & ALL), lifted(lambda x: x >> 32 & ALL)
TOTAL = lifted(lambda *x: sum(x))
SIGNS = {"-": lifted(lambda x: (~x & ALL) + 1), "~": lifted(lambda x: ~x & ALL)}


class Warp:
    """One warp of a launch: grid and threads as (x, y, z), the block's index and the warp's, and the argument's bytes."""

    def __init__(self, kernel, grid, threads, block, warp, argument):
        self.kernel, self.argument, self.grid, self.threads = kernel, argument, grid, threads
        ids = [warp * LANES + lane for lane in range(LANES)]
        count = threads[0] * threads[1] * threads[2]
        self.alive = sum(1 << lane for lane, thread in enumerate(ids) if thread < count)
        self.special = {"SR_TID.X": [each % threads[0] for each in ids], "SR_TID.Y": [each // threads[0] % threads[1] for each in ids],
                        "SR_TID.Z": [each // threads[0] // threads[1] for each in ids], "SR_LANEID": list(range(LANES)),
                        **{f"SR_CTAID.{axis}": value for axis, value in zip("XYZ", block)}, "SRZ": 0, "SR_CgaCtaId": 0}
        self.special = {name: value[0] if type(value) is list and len(set(value)) == 1 else value for name, value in self.special.items()}
        self.file = {}  # registers and predicates by name
        self.runs = {}  # of each block
        self.touched = {}  # by instruction: the sectors of 32 bytes that it asks for
        self.requested = 0  # bytes

    # -- operands

    def constant(self, offset, size=4):
        words = struct.pack("<6I", *self.threads, *self.grid)
        if offset < len(words):
            return int.from_bytes(words[offset:offset + size], "little")
        at = offset - PARAMETERS
        return int.from_bytes(self.argument[at:at + size], "little") if 0 <= at < len(self.argument) else 0

    def value(self, operand, plus=0):
        """Of a 32-bit operand, with its sign; plus: the register that many further on."""
        kind, what, sign = parsed(operand, plus)
        result = self.file.get(what, 0) if kind == "register" else what if kind == "number" else self.constant(what)
        return SIGNS[sign](result) if sign else result

    def predicate(self, operand):
        name = operand.lstrip("!")
        mask = ALL if name in ("PT", "UPT") else self.file.get(name, 0)
        return ~mask & ALL if operand[0] == "!" else mask

    def wide(self, operand):
        return JOIN(self.value(operand), self.value(operand, 1))

    def put(self, name, value, mask):
        if mask != self.alive and "P" in name:
            value = value & mask | self.file.get(name, 0) & ~mask
        elif mask != self.alive:
            old = self.file.get(name, 0)
            if value != old:
                old, new = (each if type(each) is list else [each] * LANES for each in (old, value))
                value = [b if mask >> lane & 1 else a for lane, (a, b) in enumerate(zip(old, new))]
        elif type(value) is list and value.count(value[0]) == LANES:
            value = value[0]
        self.file[name] = value

    def put_wide(self, operand, value, mask):
        prefix, number = re.match(r"(\D+)(\d+)", operand).groups() if operand not in ("RZ", "URZ") else (None, 0)
        if prefix:
            self.put(operand, LOW(value), mask)
            self.put(f"{prefix}{int(number) + 1}", HIGH(value), mask)

    # -- instructions

    def evaluate(self, i, mask):
        """Carries one out in the lanes of the mask."""
        if i.guard is not None:
            mask &= self.predicate(("!" if i.guard_not else "") + i.guard)
            if not mask:
                return
        if i.global_memory:
            self.access(i, mask)
        if i.local_memory:
            self.keep(i, mask)
        if not i.results or i.local_memory:
            return
        if i.zero:
            for name in i.writes:
                self.put(name, 0, mask)
            return
        method = METHODS.get(i.base[i.base[0] == "U":])
        if method is None:
            raise Unknown(f"{self.kernel.name} at {i.at:#x}: {i.name} {', '.join(i.operands)}")
        method(self, i, mask)

    def result(self, i, value, mask):
        if i.writes and i.results[0] not in ("RZ", "URZ"):
            self.put(i.results[0], value, mask)

    def keep(self, i, mask):
        """A store to local memory or a load from it, by words: [R1+0x8]."""
        at = sum(part if type(part) is int else self.value(part) for part in i.address)
        for word in range(max(1, i.bytes // 4)):
            if i.base == "STL":
                self.put(f"L{at + 4 * word}", self.value(i.operands[-1], word), mask)
            elif word < len(i.writes):
                self.put(i.writes[word], self.file.get(f"L{at + 4 * word}", 0), mask)

    def access(self, i, mask):
        address = 0
        for part in i.address:
            address = TOTAL(address, part if type(part) is int else self.wide(part))
        sectors = self.touched.setdefault(i.at, set())
        self.requested += i.bytes * mask.bit_count()
        if type(address) is int:
            sectors.add(address >> 5)
        else:
            sectors.update(each >> 5 for lane, each in enumerate(address) if mask >> lane & 1)

    def add(self, i, mask):
        """IADD3, IADD3.X, with carries in and out."""
        terms, carries = i.sources[:3], i.sources[3:]
        total = TOTAL(*(self.value(each) for each in terms), *(bit_of(self.predicate(each)) for each in carries))
        self.result(i, LOW(total), mask)
        self.carry(i, total, mask)

    def carry(self, i, total, mask):
        for k, name in enumerate(each for each in i.results[1:]):
            if name not in ("PT", "UPT"):
                self.put(name, mask_of(lifted(lambda x: x >> 32 > k)(total)), mask)

    def multiply(self, i, mask):
        sources = i.sources
        extra = bit_of(self.predicate(sources[3])) if len(sources) > 3 else 0
        if ".WIDE" in i.name or ".HI" in i.name:
            unsigned = ".U32" in i.name
            total = lifted(lambda a, b, c: (a * b if unsigned else signed(a & ALL) * signed(b & ALL)) + c)(self.value(sources[0]), self.value(sources[1]), self.wide(sources[2]))
            total = TOTAL(total, extra)
            if ".WIDE" in i.name:
                return self.put_wide(i.results[0], lifted(lambda x: x & (1 << 64) - 1)(total), mask)
            return self.result(i, HIGH(total), mask)
        total = lifted(lambda a, b, c, d: (a * b + c + d) & ALL)(*(self.value(each) for each in sources[:3]), extra)
        return self.result(i, total, mask)

    def add_shifted(self, i, mask):
        """LEA a, b[, c], count[, carry]."""
        sources = list(i.sources)
        carry = bit_of(self.predicate(sources.pop())) if re.fullmatch(r"!?U?P[\dT]", sources[-1]) else 0
        count = int(sources.pop(), 0) & 31
        a, b = self.value(sources[0]), self.value(sources[1])
        if ".HI" in i.name:
            c = self.value(sources[2]) if len(sources) > 2 else lifted(lambda x: ALL if x >> 31 else 0)(a) if ".SX32" in i.name else 0
            total = lifted(lambda a, b, c, d: ((c << 32 | a) << count >> 32 & ALL) + b + d)(a, b, c, carry)
        else:
            total = lifted(lambda a, b, d: (a << count & ALL) + b + d)(a, b, carry)
        self.result(i, LOW(total), mask)
        self.carry(i, total, mask)

    def set_predicate(self, i, mask):
        a, b, combined, *low = i.sources
        got = comparison(i.name)(self.value(a), self.value(b), self.predicate(low[0]) if ".EX" in i.name else None)
        for name, cmp in zip(i.results, (got, ~got & ALL)):
            if name not in ("PT", "UPT"):
                other = self.predicate(combined)
                self.put(name, cmp & other if ".AND" in i.name else cmp | other if ".OR" in i.name else cmp ^ other, mask)

    def logic_predicates(self, i, mask):
        """PLOP3.LUT Pd, Pe, Pa, Pb, Pc, table, table."""
        a, b, c = (self.predicate(each) for each in i.sources[:3])
        for name, table in zip(i.results, i.sources[3:]):
            if name not in ("PT", "UPT"):
                self.put(name, logic(a, b, c, int(table, 0)), mask)

    def logic_word(self, i, mask):
        table = int(next(each for each in reversed(i.sources) if each.startswith("0x")), 0)
        value = lifted(lambda a, b, c: logic(a, b, c, table))(*(self.value(each) for each in i.sources[:3]))
        if len(i.results) == 2 and i.results[0] not in ("PT", "UPT"):
            self.put(i.results[0], mask_of(value), mask)
        if i.results[-1] not in ("RZ", "URZ"):
            self.put(i.results[-1], value, mask)

    def select(self, i, mask):
        chosen = bit_of(self.predicate(i.sources[2]))
        self.result(i, lifted(lambda p, a, b: a if p else b)(chosen, self.value(i.sources[0]), self.value(i.sources[1])), mask)

    def load_constant(self, i, mask):
        found = re.match(r"c\[0x(\w+)\]\[(?:(U?R\w+)\+?)?(?:0x(\w+))?\]", i.sources[0])
        index, offset = self.value(found[2]) if found[2] else 0, int(found[3] or "0", 16)
        for k, name in enumerate(i.writes):
            size = min(i.bytes, 4)
            self.put(name, lifted(lambda x: self.constant(x + offset + 4 * k, size) if found[1] == "0" else 0)(index), mask)

    def special_register(self, i, mask):
        if i.sources[0] not in self.special:
            raise Unknown(f"{self.kernel.name}: {i.name} {i.sources}")
        self.result(i, self.special[i.sources[0]], mask)

    def predicates_to_register(self, i, mask):
        wanted = int(i.sources[-1], 0)
        value = lifted(lambda *bits: sum(bit << k for k, bit in enumerate(bits)) & wanted)(*(bit_of(self.predicate(f"P{k}")) for k in range(7)))
        self.result(i, value, mask)

    def register_to_predicates(self, i, mask):
        value = self.value(i.sources[0])
        for name in i.writes:
            self.put(name, mask_of(lifted(lambda x: x >> int(name[1]) & 1)(value)), mask)

    def minimum(self, i, mask):
        a, b, p = i.sources[-3:] if i.base != "VIADDMNMX" else (None, i.sources[2], i.sources[3])
        first = self.value(a) if a else lifted(lambda x, y: (x + y) & ALL)(self.value(i.sources[0]), self.value(i.sources[1]))
        order = (lambda x: x) if ".U32" in i.name else signed
        least = bit_of(self.predicate(p))
        self.result(i, lifted(lambda x, y, q: (min if q else max)(x, y, key=order))(first, self.value(b), least), mask)

    def half_constants(self, i, mask):
        """HFMA2.MMA R, -RZ, RZ, high, low: a constant."""
        if len(i.sources) != 4 or not all("RZ" in each for each in i.sources[:2]):
            return self.result(i, 0, mask)
        high, low = (struct.unpack("<H", struct.pack("<e", float(each)))[0] for each in i.sources[2:])
        return self.result(i, high << 16 | low, mask)

    def to_float(self, i, mask):
        value = self.wide(i.sources[0]) if "U64" in i.name else self.value(i.sources[0])
        self.result(i, lifted(lambda x: float_bits(float(x), ".RP" in i.name))(value), mask)

    def to_integer(self, i, mask):
        if "64" in i.name:
            return self.put_wide(i.results[0], lifted(lambda x: truncated(x, (1 << 64) - 1))(self.value(i.sources[0])), mask)
        return self.result(i, lifted(lambda x: truncated(x, ALL))(self.value(i.sources[0])), mask)

    def one(f, count):
        """A method for an instruction of so many words."""
        return lambda self, i, mask: self.result(i, lifted(f)(*(self.value(each) for each in i.sources[:count])), mask)

    methods = {
        "IADD3": add, "IMAD": multiply, "LEA": add_shifted, "ISETP": set_predicate, "PLOP3": logic_predicates, "LOP3": logic_word, "SEL": select, "FSEL": select,
        "LDC": load_constant, "S2R": special_register, "S2UR": special_register, "P2R": predicates_to_register, "R2P": register_to_predicates, "VIMNMX": minimum, "IMNMX": minimum,
        "VIADDMNMX": minimum, "HFMA2": half_constants, "I2F": to_float, "F2I": to_integer, "MOV": one(lambda a: a, 1), "R2UR": one(lambda a: a, 1),
        "VIADD": one(lambda a, b: (a + b) & ALL, 2), "MUFU": one(reciprocal, 1), "POPC": one(lambda a: a.bit_count(), 1), "PRMT": one(permute, 3),
        "FLO": one(lambda a: a.bit_length() - 1 & ALL, 1), "IABS": one(lambda a: abs(signed(a)), 1), "BREV": one(lambda a: int(f"{a:032b}"[::-1], 2), 1),
        "SHF": lambda self, i, mask: self.result(i, shift(i.name)(*(self.value(each) for each in i.sources[:3])), mask),
        "SGXT": one(lambda a, b: a & (1 << b) - 1, 2), "BMSK": one(lambda a, b: ((1 << b) - 1 << a) & ALL, 2)}

    # -- the walk

    def walk(self):
        """Runs the warp to its end. Lanes that go apart come together where the code says so, as on a card."""
        groups, expected, waiting, steps = [(0, self.alive)], {}, {}, 0
        everyone = self.alive
        while groups:
            pc, mask = groups.pop()
            mask &= self.alive
            block = self.kernel.blocks.get(pc)
            if not mask or block is None:
                continue
            self.runs[pc] = self.runs.get(pc, 0) + 1
            steps += 1
            if steps > STEPS_MAX:
                raise Unknown(f"{self.kernel.name} has not come to its end after {steps} blocks")
            for i in block.needed:
                if i.base == "BSSY":
                    expected[i.operands[0]] = mask
                elif i.base == "BREAK":
                    expected[i.operands[0]] = expected.get(i.operands[0], 0) & ~(mask & self.guard(i))
                elif i.base not in ENDS:
                    self.evaluate(i, mask)
            groups += self.leave(block.instructions[-1], mask, expected, waiting)
            for name in list(waiting):
                together = waiting[name][1]
                if together and not expected.get(name, 0) & self.alive & ~together:
                    groups.append((waiting.pop(name)[0], together))
        self.alive = everyone
        return self

    def guard(self, i):
        mask = self.predicate(("!" if i.guard_not else "") + i.guard) if i.guard else ALL
        for each in i.operands:
            if re.fullmatch(r"!?U?P\d", each) and i.base == "BRA":
                mask &= self.predicate(each)
        return mask

    def leave(self, last, mask, expected, waiting):
        """Where the lanes go after a block: (address, mask) of each group; those that wait for others are put into `waiting`."""
        then = last.at + 16
        if last.base not in ENDS or last.name.startswith("BRA.DIV"):
            return [(then, mask)]
        taken = mask & self.guard(last)
        if last.base == "BSYNC":
            name = last.operands[0]
            waiting[name] = then, waiting.get(name, (then, 0))[1] | taken
            return [(then, mask & ~taken)]
        if last.base == "EXIT":
            self.alive &= ~taken
            return [(then, mask & ~taken)]
        if last.base == "RET":
            where = self.value(last.operands[0])
            places = set(where) if type(where) is list else {where}
            return [(then, mask & ~taken)] + [(place, taken & mask_of(lifted(lambda x: x == place)(where))) for place in places]
        if last.base in ("BRX", "JMP"):
            raise Unknown(f"{self.kernel.name}: {last.name}")
        return [(then, mask & ~taken), (self.kernel.target(last), taken)]


METHODS = Warp.methods


# ---- Cubins ------------------------------------------------------------------------------------------------------------


def kernels_of(cubin, text):
    """{name: a function that reads the Kernel} of a cubin and what nvdisasm prints of it."""
    of, found = sass.sections(cubin), {}
    registers = sass.registers_of(of)
    for part in re.split(r"^//-+ \.text\.", text, flags=re.M)[1:]:
        name, lines = part.split(" ", 1)[0], part.splitlines()[1:]
        lines = lines[:next((i for i, line in enumerate(lines) if line.startswith("//---")), len(lines))]
        found[name] = functools.cache(functools.partial(Kernel, name, tuple(lines), registers[name], of.get(".nv.shared." + name, 0)))
    return found
