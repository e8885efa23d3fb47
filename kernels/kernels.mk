# How the kernels are compiled: the loops once per instruction set, by the file's name; all the rest portable.
# libgomp comes with oneDNN; we only tell it, thread by thread, to start no threads of its own.
kernels_libs := -ldnnl -lgomp

kernels_obj := $(BUILD)/obj/kernels/cpu
$(kernels_obj)/loops_plain.o: OBJ_CFLAGS := -O3
$(kernels_obj)/loops_avx2.o: OBJ_CFLAGS := -O3 -mavx2 -mfma
$(kernels_obj)/loops_avx512.o: OBJ_CFLAGS := -O3 -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl \
	-mprefer-vector-width=512
