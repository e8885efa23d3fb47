#!/usr/bin/env python3
"""arena.py: the same as arena.c, from Python through ctypes: arena.py [path of libzr.so]"""
import ctypes.util
import os
import sys

built = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "lib", "libzr.so")
zr = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else built if os.path.exists(built) else ctypes.util.find_library("zr"))
zr.zr_last_error.restype = ctypes.c_char_p


class ArenaOptions(ctypes.Structure):  # struct zr_arena_options of alloc/zr.h: all of its fields, in its order
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("backend", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("reserve_bytes", ctypes.c_size_t), ("limit_bytes", ctypes.c_size_t), ("threads", ctypes.c_uint)]


class Request(ctypes.Structure):  # struct zr_request
    _fields_ = [("bytes", ctypes.c_size_t), ("alignment", ctypes.c_size_t), ("tag", ctypes.c_int),
                ("stream", ctypes.c_uint64)]


def check(result):
    if result:
        raise MemoryError(zr.zr_last_error().decode())


backend, arena, block = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
live = ctypes.c_uint64()
check(zr.zr_backend_host_create(ctypes.byref(backend), None))
check(zr.zr_arena_create(ctypes.byref(arena), ctypes.byref(ArenaOptions(ctypes.sizeof(ArenaOptions), backend, b"example"))))
check(zr.zr_arena_alloc(arena, ctypes.byref(Request(5 << 20, 0, 0, 0)), ctypes.byref(block)))
ctypes.memset(block, 1, 5 << 20)
check(zr.zr_ctl_get(b"arena.0.live_bytes", ctypes.byref(live)))
print(f"{live.value} bytes live")
check(zr.zr_arena_free(arena, block))
check(zr.zr_arena_destroy(arena, None))
check(zr.zr_backend_destroy(backend))
