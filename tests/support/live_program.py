"""A program with an arena whose blocks are known: 10 of 4 MiB as param, 5 as grad, 10 as activation of which every other
is freed again, 16 of 512 KiB as workspace of which every other is, 3 of 1 MiB as param. It prints its blocks as JSON, then
runs lines."""
import ctypes
import json
import os
import sys

MIB = 1 << 20
PARAM, GRAD, ACTIVATION, WORKSPACE = 0, 1, 6, 8


class ArenaOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("backend", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("reserve_bytes", ctypes.c_size_t), ("limit_bytes", ctypes.c_size_t), ("threads", ctypes.c_uint)]


class Request(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("alignment", ctypes.c_size_t), ("tag", ctypes.c_int),
                ("stream", ctypes.c_uint64)]


zr = ctypes.CDLL(sys.argv[1])


def arena(name):
    out = ctypes.c_void_p()
    options = ArenaOptions(ctypes.sizeof(ArenaOptions), backend, name)
    assert zr.zr_arena_create(ctypes.byref(out), ctypes.byref(options)) == 0
    return out


def take(where, size, tag):
    out = ctypes.c_void_p()
    assert zr.zr_arena_alloc(where, ctypes.byref(Request(size, 0, tag, 0)), ctypes.byref(out)) == 0
    return [out.value, size, tag]


def give(where, block):
    assert zr.zr_arena_free(where, ctypes.c_void_p(block[0])) == 0


backend = ctypes.c_void_p()
assert zr.zr_backend_host_create(ctypes.byref(backend), None) == 0
large, small = arena(b"large"), arena(b"small")
blocks = [take(large, 4 * MIB, PARAM) for _ in range(10)] + [take(large, 4 * MIB, GRAD) for _ in range(5)]
blocks += [take(large, 4 * MIB, ACTIVATION) for _ in range(10)] + [take(large, MIB // 2, WORKSPACE) for _ in range(16)]
kept, freed = blocks[:15] + blocks[15::2], blocks[16::2]
kept += [take(large, MIB, PARAM) for _ in range(3)]
for one in freed:
    give(large, one)
take(small, MIB, GRAD)
print(json.dumps({"kept": kept, "freed": freed}), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
