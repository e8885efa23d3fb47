#!/usr/bin/env python3
"""The model of a card's time, tests/support/gpu_model.py, before it is used: llm.c's published speed by its own kernels, and the walk of
machine code beside what a reader of the code counts. What needs nvdisasm is long/long_model.t."""
import collections
import itertools
import struct
import sys

sys.path.insert(0, "tests/support")
import gpu_model
from sass_walk import Kernel, Unknown, Warp
from zrtest import done, note, ok, same

QUARTER = 0.25

tokens, rows = gpu_model.llmc_tokens()
ok(abs(tokens / gpu_model.LLMC["tokens"] - 1) <= QUARTER, f"llm.c, GPT-2 1558M: {tokens:,.0f} tokens/s on each card, published {gpu_model.LLMC['tokens']:,}")
note(", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in rows.most_common()))
for n, rate in gpu_model.PRODUCTS:
    got = 2 * n ** 3 / gpu_model.product_seconds(n, n, n) / 1e12
    ok(abs(got / rate - 1) <= 0.1, f"a product of {n} x {n} x {n}: {got:.0f} TFLOP/s, published {rate}")

expected = gpu_model.merged({"GPT-2 1.5B: zr": 5000, "GPT-2 1.5B: a kernel": 7})
same(expected["speed"]["GPT-2 1.5B: zr"]["value"], 5000, "what gpu_shot expects is the model's figure")
ok("llm.c" in expected["speed"]["GPT-2 1.5B: zr"]["source"] and expected["vmm"], "beside the published ones")

# A step at its true shape is listed within seconds: nothing of it is carried out.
model = dict(gpu_model.bench_gpu.MODELS["GPT-2 1.5B"], layers=3)
lines, parameters = gpu_model.launches(model)
names = collections.Counter(line[1] if line[0] == "kernel" else line[0] for line in lines)
same([count for name, count in names.items() if name.startswith("attention_forward")], [3], f"a step of {parameters:,} parameters, as the emulated driver writes it down")
same(sum(struct.unpack_from("<3I", bytes.fromhex(line[9])) == (6400, 8192, 1600) for line in lines if line[1] == "lt_multiply"), 2 * 3,
     "with the shapes of its products: what widens a layer, and the gradient of what narrows it")
products = [gpu_model.product_of(bytes.fromhex(line[9])) for line in lines if line[1] == "lt_multiply"]
same((sum(aux != 0 for _, _, _, aux, *_ in products), sum((m, n, beta) == (1600, 8192, 1) for m, n, _, _, beta, _ in products)), (2 * 3, 2 * 3),
     "GELU and its slope are in products, and so are both residuals")
same([name for name in names if name.startswith(("gelu", "add_", "residual"))], [], "and in no kernel beside them")
# In eight bits the four matrices of a block have three products each, and those of the head none.
model = dict(gpu_model.bench_gpu.MODELS["GPT-2 1.5B"], layers=1)
products = [gpu_model.product_of(bytes.fromhex(line[9])) for line in gpu_model.launches(model, "fp8")[0] if line[1] == "lt_multiply"]
same(sum(fp8 for *_, fp8 in products), 4 * 3, f"--precision fp8: products in eight bits, of {len(products)}")
times = [gpu_model.product_seconds(8192, 6400, 1600, 1, fp8) for fp8 in (False, True)]
ok(0.5 < times[1] / times[0] < 0.75, f"one takes {times[1] / times[0]:.2f} of its time in two bytes")

# A sum over rows of floats, a column per thread: 64-bit addresses with carries, a loop, one branch that parts the warp, and a division.
#   for (row = warp; row < rows; row += 8) if (column < columns) sum += x[row * columns + column]; y[column / 5] = sum;
LINES = """
 S2R R0, SR_TID.X ;
 ULDC.64 UR4, c[0x0][0x208] ;
 SHF.R.U32.HI R1, RZ, 0x5, R0 ;
 LOP3.LUT R2, R0, 0x1f, RZ, 0xc0, !PT ;
 ISETP.GE.U32.AND P0, PT, R1, c[0x0][0x220], PT ;
 @P0 BRA `(.L_end) ;
.L_loop:
 BSSY B0, `(.L_join) ;
 ISETP.GE.U32.AND P1, PT, R2, c[0x0][0x224], PT ;
 @P1 BRA `(.L_join) ;
 IMAD R3, R1, c[0x0][0x224], R2 ;
 LEA R4, P2, R3, c[0x0][0x210], 0x2 ;
 LEA.HI.X R5, R3, c[0x0][0x214], RZ, 0x2, P2 ;
 LDG.E R6, desc[UR4][R4.64] ;
 FADD.FTZ R7, R7, R6 ;
.L_join:
 BSYNC B0 ;
 IADD3 R1, R1, 0x8, RZ ;
 ISETP.LT.U32.AND P0, PT, R1, c[0x0][0x220], PT ;
 ISETP.LT.U32.AND.EX P0, PT, RZ, RZ, PT, P0 ;
 P2R R20, PR, RZ, 0x1 ;
 PLOP3.LUT P0, PT, PT, PT, PT, 0x8, 0x0 ;
 R2P PR, R20, 0x1 ;
 @P0 BRA `(.L_loop) ;
.L_end:
 MOV R9, 0x5 ;
 I2F.U32.RP R8, R9 ;
 MUFU.RCP R8, R8 ;
 VIADD R8, R8, 0xffffffe ;
 F2I.FTZ.U32.TRUNC.NTZ R11, R8 ;
 IMAD.MOV.U32 R10, RZ, RZ, RZ ;
 IMAD.MOV R12, RZ, RZ, -R11 ;
 IMAD R12, R12, 0x5, RZ ;
 IMAD.HI.U32 R11, R11, R12, R10 ;
 IMAD.HI.U32 R11, R11, R2, RZ ;
 IMAD.MOV R12, RZ, RZ, -R11 ;
 IMAD R12, R12, 0x5, R2 ;
 ISETP.GE.U32.AND P0, PT, R12, 0x5, PT ;
 @P0 IADD3 R12, R12, -0x5, RZ ;
 @P0 VIADD R11, R11, 0x1 ;
 ISETP.GE.U32.AND P0, PT, R12, 0x5, PT ;
 @P0 VIADD R11, R11, 0x1 ;
 LEA R4, P2, R11, c[0x0][0x218], 0x2 ;
 LEA.HI.X R5, R11, c[0x0][0x21c], RZ, 0x2, P2 ;
 STG.E desc[UR4][R4.64], R7 ;
 EXIT ;
"""
places = itertools.count(0, 16)
CODE = [f"/*{next(places):04x}*/ {line}" if line[:1] == " " else line for line in LINES.splitlines()]
X, Y, ROWS, COLUMNS = 0xfffffff0, 0x500000000, 35, 20  # the first sum of an address carries into its upper word


def walked(rows, warp):
    argument = struct.pack("<2Q2I", X, Y, rows, COLUMNS)
    return Warp(Kernel("sums", CODE), (1, 1, 1), (256, 1, 1), (0, 0, 0), warp, argument).walk()


for rows, warp in ((ROWS, 0), (ROWS, 3), (ROWS, 7), (3, 5)):
    walk, kernel = walked(rows, warp), Kernel("sums", CODE)
    own = list(range(warp, rows, 8))
    counts = collections.Counter()
    for at, runs in walk.runs.items():
        for name, count in kernel.blocks[at].counts.items():
            counts[name] += runs * count
    same([counts["LDG.E"], counts["FADD.FTZ"], counts["EXIT"]], [len(own), len(own), 1], f"warp {warp} of {rows} rows: trips of the loop")
    sectors = {(X + 4 * (row * COLUMNS + column)) // 32 for row in own for column in range(COLUMNS)}
    same(walk.touched.get(0xc0, set()), sectors, "the addresses it reads")
    same(walk.touched[0x290], {(Y + 4 * (column // 5)) // 32 for column in range(32)}, "and those it writes, behind a division")
    same(walk.requested, 4 * (len(own) * COLUMNS + 32), "bytes of the lanes that ask")
same(kernel.blocks[0x90].waits, {"global": 1, "shared": 0}, "a sum waits for what it loads")
try:
    Warp(Kernel("odd", [" /*0000*/ ODD.OP R4, R2 ;", " /*0010*/ STG.E desc[UR4][R4.64], R7 ;", " /*0020*/ EXIT ;"]), (1, 1, 1), (32, 1, 1), (0, 0, 0), 0, b"").walk()
    ok(False, "an instruction that it does not know, and that an address depends on, is an error")
except Unknown as error:
    ok("ODD.OP" in str(error), f"an instruction that it does not know, and that an address depends on, is an error: {error}")
done()
