# How the kernels are compiled: the loops and the panels once per instruction set, by the file's name; all the
# rest portable. Vectors and two-byte numbers share memory in the loops, hence -fno-strict-aliasing.
# libgomp comes with oneDNN; we only tell it, thread by thread, to start no threads of its own.
kernels_libs := -ldnnl -lgomp

kernels_avx2 := -mavx2 -mfma -mf16c
kernels_avx512 := $(kernels_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
kernels_flags = $(patsubst %,$(BUILD)/obj/kernels/cpu/%,$(1)): OBJ_CFLAGS := -O3 -fno-strict-aliasing $(2)
$(eval $(call kernels_flags,loops/loops_plain_%.o products/panels_plain.o,))
$(eval $(call kernels_flags,loops/loops_avx2_%.o products/panels_avx2.o,$(kernels_avx2)))
$(eval $(call kernels_flags,loops/loops_avx512_%.o products/panels_avx512.o,$(kernels_avx512)))
$(eval $(call kernels_flags,products/panels_avx512_bf16.o,$(kernels_avx512) -mavx512bf16))
$(eval $(call kernels_flags,products/panels_amx.o,$(kernels_avx512) -mavx512bf16 -mamx-tile -mamx-bf16))
