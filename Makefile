# zr: `make demo` runs the main job, `make check` all tests; both install what is missing first. `make` installs nothing.
#
#   make deps       install what is missing    make             build everything; installs nothing
#   make demo       train a GPT on the King James Bible
#   make check      all tests, six minutes     make check-long   the wide matrices and soaks
#   make bench      the figures                make check-asan   the tests under AddressSanitizer (-ubsan, -tsan)
#   make check-mutants  defects made on purpose, each of which a test must catch
#   make install    programs, libraries, headers, pkg-config files, manual pages, completion to PREFIX or prefix (/usr/local); make uninstall
#   make fuzz       hostile files and calls for libFuzzer, hostile askers for the live socket, FUZZ_SECONDS each
#   make lint       clang-format, cppcheck, clang-tidy                make clean
#   make coverage   lines of each module that the unit tests run (COVERAGE="arena tool" these tests)
#   make demo-fragmentation  a program that dies with memory free, and what helps; needs no GPU
#   make gpu-check  the CUDA backend on a card, in seven minutes (GPU_STEPS="train vmm"); says so where there is none
#   make gpu-archive  what gpu-check runs, for a machine with a card and without this tree
#
# BUILD=folder builds elsewhere. CUDA=0|1|auto: see below. SANITIZE=address,undefined instruments a build. CI=1 makes a
# warning an error, as .ci/run does.
SHELL := /bin/bash
BUILD ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
CUDA ?= auto
SANITIZE ?=
JOBS ?= $(shell nproc)
# As many jobs as cores, unless make -j was told how many.
jobs = $(if $(findstring --jobserver,$(MAKEFLAGS)),,-j$(JOBS))
export BUILD
# What this machine has is looked up while make reads this file, and packages may bring it: a target that needs packages
# installs them and leaves the rest to a make that reads it again.
again = +$(MAKE) --no-print-directory --silent $(jobs)
# nvcc compiles the card's kernels for minutes. Targets that do not run them leave them out, unless CUDA=1 asks for them.
without_nvcc = $(if $(filter 1,$(CUDA)),,NVCC=)
# Where make would see several names, rm -rf would, too.
one_word = $(if $(filter-out 1,$(words $($(1)))),$(error $(1)='$($(1))': make needs one name without blanks here))
# Names go to the shell as they are, which makes something else of these; a quoted one ends with a quote.
not_plain := ' " ` \ $$ & | ; < > ( ) { } [ ] * ? ~ % : \#
plain = $(foreach sign,$(2),$(if $(findstring $(sign),$($(1))),$(error $(1)=$($(1)): give a path without $(sign) in it)))
$(call one_word,BUILD)
$(call plain,BUILD,$(not_plain))

# ---- flags ---------------------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wpointer-arith -Wvla $(if $(CI),-Werror)
# What an instrumented build would warn of in vain: maybe-uninitialized sees the checks' own branches; tsan tells that
# ThreadSanitizer knows no fences, and ours are about other processes' memory, which it does not see either.
SANITIZE_FLAGS := -fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-maybe-uninitialized \
	-Wno-unknown-warning-option $(if $(findstring thread,$(SANITIZE)),-Wno-tsan)
OPT ?= $(if $(SANITIZE),-O1,-O2)
CFLAGS ?=
# Products and sums are never fused behind the source's back: bits must not depend on the compiler's choices.
ALL_CFLAGS := -std=gnu11 $(OPT) -g -fPIC -fvisibility=hidden -fno-math-errno -ffp-contract=off -pthread -I. $(WARN) \
	$(if $(SANITIZE),$(SANITIZE_FLAGS)) $(CFLAGS) -MMD -MP
ALL_LDFLAGS := -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(LDFLAGS)

# ---- packages: each set is installed by the targets that need it ---------------------------------------------
packages_build := gcc libc6-dev binutils libdnnl-dev libjemalloc-dev libjansson-dev libpcre2-dev libutf8proc-dev zlib1g-dev \
	libzstd-dev libncurses-dev liburing-dev libdw-dev nettle-dev
packages_demo  := $(packages_build) bible-kjv bible-kjv-text
packages_check := $(packages_build) g++ perl python3 python3-numpy heaptrack sqlite3 valgrind strace gdb pkg-config libopenmpi-dev openmpi-bin iproute2 tmux jq rsync
# Debian's Python names its suite by its version: to be asked once it is there.
packages_long  = $(packages_check) clang chromium git openssl redis-server postgresql nodejs \
	libpython$(shell /usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')-testsuite
packages_soak  = $(packages_long) python3-torch libreoffice-writer-nogui unzip memcached nginx-light curl mariadb-server \
	haproxy ruby php-cli clang python3-numpy ffmpeg imagemagick vim-nox screen lua5.4 gawk bc tcl guile-3.0 ghostscript \
	poppler-utils graphviz gnuplot-nox octave r-base-core ocaml-nox default-jdk-headless golang-go rustc gnupg wget \
	zstd xz-utils bzip2 p7zip zip file cmake ninja-build sox pandoc xsltproc libxml2-utils socat sbcl \
	swi-prolog-nox erlang-base valac busybox openssh-client bison flex nasm
packages_bench := $(packages_build) libopenblas-pthread-dev libmimalloc-dev python3 valgrind libopenmpi-dev \
	openmpi-bin iproute2 fio
packages_fuzz  := $(packages_build) clang python3
# libFuzzer's library is a package of its own where it exists: to be asked once the lists of packages are there.
packages_libfuzzer = $(shell apt-cache --names-only search '^libclang-rt-dev$$' 2>/dev/null | cut -d' ' -f1)
packages_lint := $(packages_build) clang-format clang-tidy cppcheck git
packages_fresh := debootstrap

# packages-SET installs what dpkg does not have, as root or through sudo; else it prints the command to type. Servers among
# them are not started, where runlevels say so. needs-SET installs nothing: it names what is missing. Where there is no dpkg,
# both name the set and succeed: other systems have the same libraries under names of their own.
package_sets := build demo check long soak bench fuzz libfuzzer lint fresh
find_missing = if ! command -v dpkg-query >/dev/null; then \
		echo "zr: no dpkg here; what Debian calls $(packages_$*) must be there under whatever name" >&2; exit 0; \
	fi; \
	missing=""; for package in $(packages_$*); do \
		dpkg-query -W -f='$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
	done; \
	[ -n "$$missing" ] || exit 0
.PHONY: deps $(package_sets:%=packages-%) $(package_sets:%=needs-%)
$(package_sets:%=packages-%): packages-%:
	@$(find_missing); \
	command="apt-get install -y --no-install-recommends$$missing"; \
	if [ "$$(id -u)" = 0 ]; then become=""; \
	elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then become="sudo"; \
	else echo "zr: packages are missing; type: sudo $$command" >&2; exit 1; fi; \
	echo "zr: installing$$missing" >&2; \
	export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; \
	$$become apt-get update -qq && $$become $$command >/dev/null || \
		{ echo "zr: that failed; type: $$become apt-get update && $$become $$command" >&2; exit 1; }
$(package_sets:%=needs-%): needs-%:
	@$(find_missing); \
	echo "zr: packages are missing:$$missing; make deps installs them" >&2; exit 1
deps: packages-demo packages-check

# ---- CUDA: found or left out by itself -------------------------------------------------------------------------
# The backend needs no toolkit: it declares what it uses of the driver and loads it at run time. cuda.h only serves the
# test that compares those declarations; CUDA=1 demands it, auto does without, 0 leaves the backend out.
cuda_header := $(firstword $(wildcard $(addsuffix /include/cuda.h,$(CUDA_HOME) /usr/local/cuda /usr/lib/cuda /usr)))
ifeq ($(CUDA),0)
cuda_header :=
cuda_absent := $(addprefix alloc/backend/,backend_cuda.c cuda_device.c cuda_driver.c cuda_events.c cuda_host.c)
cuda_words := CUDA: the backend is left out (CUDA=0)
else ifeq ($(filter $(CUDA),1 auto),)
$(error CUDA=$(CUDA): say 0, 1 or auto)
else ifneq ($(cuda_header),)
cuda_absent := alloc/backend/backend_cuda_absent.c
cuda_words := CUDA: the backend is built in; its declarations are compared with $(cuda_header)
else ifeq ($(CUDA),1)
$(error CUDA=1: no cuda.h in CUDA_HOME, /usr/local/cuda, /usr/lib/cuda or /usr to compare the declarations with; \
	install the toolkit, set CUDA_HOME, or leave CUDA out: the backend is built without it)
else
cuda_absent := alloc/backend/backend_cuda_absent.c
cuda_words := CUDA: the backend is built in (it needs no toolkit; no cuda.h was found to compare its declarations with)
endif

# ---- sources: a room is a folder, a large one has sub-folders --------------------------------------------------
of = $(foreach room,$(1),$(wildcard $(room)/*.c $(room)/*/*.c))
alloc_rooms  := base backend core plan telemetry service/client pool front keep
defrag_rooms := trace pack learn replay report
alloc_src   := $(filter-out $(cuda_absent),$(call of,$(addprefix alloc/,$(alloc_rooms))))
heap_src    := $(call of,alloc/heap)
# The page of zr report stands on zlib, which the libraries do without.
page_src    := $(call of,defrag/report/page)
defrag_src  := $(filter-out $(page_src),$(call of,$(addprefix defrag/,$(defrag_rooms))))
tool_src    := $(call of,defrag/tool)
# zrd, of which all but main.c is in the tests too.
service_src := $(call of,alloc/service/server)
kernels_src := $(call of,kernels) $(wildcard kernels/cpu/*/*.c)
comm_src    := $(call of,zero/comm zero/launch) $(wildcard zero/comm/message/tcp/*.c)
# Of zero/checkpoint the library has the state's file; what reads JSON is zr-train's.
state_src   := zero/checkpoint/safetensors.c zero/checkpoint/state.c
zero_src    := $(call of,$(addprefix zero/,compress engine file_io model ps step plan table)) $(state_src)
train_src   := $(call of,zero/train zero/text) $(filter-out $(state_src),$(wildcard zero/checkpoint/*.c))
obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

# Modules: what is loaded when it is asked for. Built where its own needs are met: an MPI's compiler.
mpicc := $(shell command -v mpicc 2>/dev/null)
modules := $(if $(mpicc),$(BUILD)/bin/libzr_comm_mpi.so)

.DEFAULT_GOAL := all
include kernels/kernels.mk
ifneq ($(CUDA),0)
cuda_words += and $(if $(nvcc),a card's kernels are built in by $(nvcc),a card's kernels are left out: there is no nvcc here)
endif
include alloc/heap/heap.mk
include alloc/preload/preload.mk
include alloc/preload/cuda/cuda.mk
include alloc/rehearse/rehearse.mk

# The compiler's unwinder, for call stacks: a library has a copy of its own, which knows nothing of code that others make
# at run time, and so has no locks that a malloc could meet. Programs take the shared one.
unwind_libs := -static-libgcc
train_libs := -ljansson -lpcre2-8 -lutf8proc
zero_libs := $(kernels_libs) -Wl,--as-needed -luring -lnettle -Wl,--no-as-needed
version := $(shell awk '$$2 ~ /^ZR_VERSION_(MAJOR|MINOR|PATCH)$$/ { v = v dot $$3; dot = "." } END { print v }' alloc/zr.h)
version_words := $(subst ., ,$(version))
# What a soname ends in: before 1.0 a minor version may break the ABI. See CONTRIBUTING.md, Compatibility.
abi := $(firstword $(version_words))$(if $(filter 0.%,$(version)),.$(word 2,$(version_words)))
comma := ,
paren := (
programs := $(BUILD)/bin/zr-train $(BUILD)/bin/zr $(BUILD)/bin/zrd $(BUILD)/examples/arena $(BUILD)/examples/mlp $(BUILD)/examples/lines $(BUILD)/examples/click $(BUILD)/examples/fragment $(modules)
libraries := $(foreach name,zr zr_zero,$(BUILD)/lib/lib$(name).so $(BUILD)/lib/lib$(name).a) $(preload_library) $(cuda_preload_library) $(rehearse_libraries)
# gdb loads it with the library of that name.
gdb_script := $(BUILD)/lib/libzr.so.$(version)-gdb.py

# Manual pages and completion, made by zr: of its own tables, of other programs' --help, and of the public headers.
tool_names := $(shell sed -n 's/^    {"\([a-z]*\)", zr_tool_.*/\1/p' defrag/tool/main.c)
helped := zr-train zrd
manuals := $(addprefix $(BUILD)/share/,man1/zr.1 $(tool_names:%=man1/zr-%.1) $(helped:%=man1/%.1) man3/libzr.3 man3/libzr_zero.3 man5/ZR_CONF.5)
completions := $(addprefix $(BUILD)/share/completions/,zr $(helped))

include tests/tests.mk

.PHONY: all built
all: needs-build
	@echo "$(cuda_words)"
	@$(again) built
built: $(programs) $(libraries) $(gdb_script) $(manuals) $(completions)

# What an object depends on besides its sources. Written anew only when it changes: other flags build everything again,
# and Valgrind's header, where it has come since, what tells Valgrind of memory.
$(BUILD)/config: config_words := $(CC) $(ALL_CFLAGS)
$(BUILD)/config-valgrind: config_words := $(wildcard /usr/include/valgrind/memcheck.h)
.PHONY: always
always:
$(BUILD)/config $(BUILD)/config-valgrind: always
	@mkdir -p $(@D)
	@echo '$(config_words)' | cmp -s - $@ || echo '$(config_words)' > $@
$(call obj,$(shell grep -l '"alloc/base/poison.h"' $(alloc_src) $(heap_src))): $(BUILD)/config-valgrind

# SLP vectorization joins stores of adjacent fields, and a narrower load of one of them stalls. Functions begin on cache
# lines: otherwise the speed of the hot path changes by a tenth with the code that is linked before it.
$(BUILD)/obj/alloc/%.o: OBJ_CFLAGS := -fno-tree-slp-vectorize -falign-functions=64
$(BUILD)/obj/%.o: %.c $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  cc    $<"
	@$(CC) $(ALL_CFLAGS) $(OBJ_CFLAGS) -c $< -o $@

# ---- the libraries -----------------------------------------------------------------------------------------------
# libzr.so is alloc/ and defrag/: small, without jemalloc or oneDNN, so that anything can dlopen it. libzr_zero.so is the
# engine with its kernels and communicators; it stands on libzr.so, of which a process has one copy, and on oneDNN.
# Both show what their headers mark ZR_API, and libzr.so what alloc/base/compiler.h is about; see there.
zr_headers := alloc/zr.h alloc/keep/zr_keep.h defrag/zr_defrag.h
zr_zero_headers := zero/zr_zero.h zero/comm/zr_comm.h zero/launch/zr_launch.h zero/ps/zr_ps.h zero/table/zr_table.h kernels/zr_kernels.h
about_zr := memory for training over virtual memory maps
about_zr_zero := the ZeRO stage engine of zr with its kernels and communicators
# $(call header_page,library,headers,its pkg-config name)
define header_page
$(BUILD)/share/man3/$(1).3: defrag/tool/headers.awk $(2)
$(BUILD)/share/man3/$(1).3: private page := $(1) 3
$(BUILD)/share/man3/$(1).3: private help_text := awk -v about='$(about_$(3))' -v package=$(3) -f defrag/tool/headers.awk $(2)
endef
$(eval $(call header_page,libzr,$(zr_headers),zr))
$(eval $(call header_page,libzr_zero,$(zr_zero_headers),zr_zero))
marked = $(shell sed -n 's/^$(1) [^$(paren)]*[ *]\(zr_[a-z0-9_]*\)$(paren).*/\1/p' $(2) | LC_ALL=C sort)

$(BUILD)/lib/libzr.a: $(call obj,$(alloc_src) $(defrag_src))
$(BUILD)/lib/libzr_zero.a: $(call obj,$(zero_src) $(comm_src) $(kernels_src))
$(BUILD)/lib/libzr.a $(BUILD)/lib/libzr_zero.a:
	@mkdir -p $(@D)
	@echo "  ar    $@"
	@rm -f $@ && ar rcs $@ $^

# libNAME.so and libNAME.so.ABI are links to the file with the whole version.
$(BUILD)/lib/%.so: $(BUILD)/lib/%.so.$(version)
	@ln -sf $(<F) $@.$(abi) && ln -sf $(@F).$(abi) $@
link_library = @mkdir -p $(@D); echo "  link  $@"; $(CC) -shared -Wl,-soname,$(1).so.$(abi) -Wl,-z,defs -Wl,-z,now \
	-Wl,-Bsymbolic-functions -Wl,-rpath,'$$ORIGIN' -o $@

$(BUILD)/lib/libzr.map: $(wildcard alloc/*.h alloc/*/*.h alloc/*/*/*.h) Makefile
	@mkdir -p $(@D)
	@printf '%s\n' 'ZR_$(abi) { global: zr_*; local: *; };' 'ZR_PRIVATE_$(version) { global:' \
		'$(patsubst %,%;,$(call marked,ZR_PRIVATE_API,alloc/*.h alloc/*/*.h alloc/*/*/*.h))' '};' > $@
# It stays loaded: threads that have used it call it when they end, and fork() does.
$(BUILD)/lib/libzr.so.$(version): $(call obj,$(alloc_src) $(defrag_src)) $(BUILD)/lib/libzr.map
	$(call link_library,libzr) -Wl,-z,nodelete $(filter %.o,$^) -Wl,--version-script=$(BUILD)/lib/libzr.map $(ALL_LDFLAGS) $(unwind_libs)

$(gdb_script): alloc/core/gdb.py
	@mkdir -p $(@D)
	@cp $< $@

# What the headers declare is pulled out of the archive, and whatever that needs: the bundled model is not.
$(BUILD)/lib/libzr_zero.so.$(version): $(BUILD)/lib/libzr_zero.a $(BUILD)/lib/libzr.so $(zr_zero_headers) Makefile
	$(call link_library,libzr_zero) $(patsubst %,-Wl$(comma)-u$(comma)%,$(call marked,ZR_API,$(zr_zero_headers))) $< \
		$(BUILD)/lib/libzr.so $(ALL_LDFLAGS) $(zero_libs) -lm || \
		{ echo "zr: what zero/ and kernels/ need of alloc/ is marked ZR_PRIVATE_API: see alloc/base/compiler.h" >&2; exit 1; }

train_obj := $(call obj,$(train_src) $(zero_src) $(comm_src) $(kernels_src) $(defrag_src) $(heap_src) $(alloc_src))
$(BUILD)/bin/zr-train: $(train_obj) $(heap_library)
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -o $@ $(train_obj) $(heap_library) $(heap_ldflags) $(ALL_LDFLAGS) $(zero_libs) $(train_libs) -lm

# Plain C and MPI, nothing of zr's: transport.h is all that the two know of each other.
$(BUILD)/bin/libzr_comm_mpi.so: zero/comm/message/mpi/mpi.c zero/comm/message/transport.h $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  mpicc $@"
	@$(mpicc) -std=gnu11 $(OPT) -g -fPIC -shared -fvisibility=hidden -I. $(WARN) -o $@ $<

# Of the preloaded library it has what reads the processes' records.
tool_obj := $(call obj,$(tool_src) alloc/rehearse/cards.c alloc/preload/usage.c $(page_src) $(defrag_src) $(alloc_src))
$(BUILD)/bin/zr: $(tool_obj)
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -o $@ $^ $(ALL_LDFLAGS) -lz -lzstd -lncursesw -ldw -lelf -ldl -lm
$(manuals): $(BUILD)/bin/zr
	@mkdir -p $(@D)
	@echo "  page  $@"
	@$(or $(help_text),:) | $(BUILD)/bin/zr manual $(or $(page),$(patsubst zr-%,%,$(filter zr-%,$(basename $(@F))))) > $@.new && mv $@.new $@
$(completions): $(BUILD)/bin/zr
	@mkdir -p $(@D)
	@$(or $(help_text),:) | $(BUILD)/bin/zr completion bash $(filter $(helped),$(@F)) > $@.new && mv $@.new $@
$(foreach name,$(helped),$(eval $(BUILD)/share/man1/$(name).1 $(BUILD)/share/completions/$(name): private help_text = $(BUILD)/bin/$(name) --help) \
	$(eval $(BUILD)/share/man1/$(name).1 $(BUILD)/share/completions/$(name): $(BUILD)/bin/$(name)))
$(helped:%=$(BUILD)/share/man1/%.1): private page = $(basename $(@F)) 1
$(BUILD)/share/man5/ZR_CONF.5: private page := ZR_CONF
# Of alloc/ it has what it speaks with; the archive's other objects stay out.
$(BUILD)/bin/zrd: $(call obj,$(service_src)) $(BUILD)/lib/libzr.a
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) -o $@ $^ $(ALL_LDFLAGS)
# What the assembler puts into it.
$(BUILD)/obj/defrag/report/page/page.o: $(addprefix defrag/report/page/,page.css page.html page_data.js page_draw.js page_map.js page_flame.js page.js)

# Each example stands on the libraries' archives alone, as a user's own program would be.
trainers := $(BUILD)/examples/mlp $(BUILD)/examples/lines $(BUILD)/examples/click
$(trainers): private archives := $(BUILD)/lib/libzr_zero.a
$(trainers): private archives_libs := $(zero_libs) -lm
$(trainers): $(BUILD)/lib/libzr_zero.a
$(BUILD)/examples/lines: examples/resmlp.c
$(BUILD)/examples/click: $(wildcard examples/click_*.c) examples/click.h
$(BUILD)/examples/%: examples/%.c $(BUILD)/lib/libzr.a
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) -o $@ $(filter %.c,$^) $(archives) $(BUILD)/lib/libzr.a $(ALL_LDFLAGS) $(archives_libs)

# The click model with rows of 128 floats, for a table of 4 GB.
$(BUILD)/tests/click_wide: $(wildcard examples/click*.c) examples/click.h $(BUILD)/lib/libzr_zero.a $(BUILD)/lib/libzr.a
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) -DCLICK_WIDTH=128 -o $@ $(filter %.c %.a,$^) $(ALL_LDFLAGS) $(zero_libs) -lm

# ---- install -----------------------------------------------------------------------------------------------------
# Everything goes under DESTDIR first, as packages are made. uninstall removes the same files, and folders of zr's own.
# GNU's names on the command line (prefix=/usr, bindir=, libdir=, includedir=, docdir=, mandir=) are the same; an empty
# prefix is the root. Those of its names that would move files here and are not supported are refused.
typed = $(filter command,$(origin $(1)))
gnu_name = $(if $(call typed,$(2)),$(if $(call typed,$(1)),$(error $(1)= and $(2)=: the two are one; give one of them),$(eval $(1) = $$($(2)))))
$(foreach name,PREFIX:prefix BINDIR:bindir LIBDIR:libdir INCLUDEDIR:includedir DOCDIR:docdir MANDIR:mandir,$(call \
	gnu_name,$(firstword $(subst :, ,$(name))),$(lastword $(subst :, ,$(name)))))
$(foreach name,exec_prefix datarootdir datadir man1dir,$(if $(call typed,$(name)),$(error $(name)=$($(name)): is not \
	supported here; give prefix=, bindir=, libdir=, includedir=, docdir= or mandir=)))
PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DOCDIR ?= $(PREFIX)/share/doc/zr
MANDIR ?= $(PREFIX)/share/man
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions
UNITDIR ?= $(PREFIX)/lib/systemd/user
# Beside the library gdb asks for a permission (add-auto-load-safe-path); the system's folder has it.
GDBDIR ?= $(if $(filter /usr,$(PREFIX)),/usr/share/gdb/auto-load$(LIBDIR),$(LIBDIR))
install_folders := BINDIR LIBDIR INCLUDEDIR DOCDIR MANDIR COMPLETIONDIR UNITDIR GDBDIR
$(foreach name,$(if $(PREFIX),PREFIX) $(install_folders),$(call one_word,$(name)))
$(foreach name,PREFIX $(install_folders),$(call plain,$(name),$(not_plain)))
$(call plain,DESTDIR,')
ifneq ($(filter-out /%,$(PREFIX)),)
$(error PREFIX='$(PREFIX)': give the whole path, from / on, since pkg-config passes it on)
endif
own_include := $(INCLUDEDIR)/zr

linked = $(1).so $(1).so.$(abi)
installed_libraries := $(foreach name,libzr libzr_zero,$(name).a $(name).so.$(version)) libzr_malloc.so libzr_cuda.so
installed_bin := zr-train zr zrd
installed_doc := README.md LICENSE $(filter-out %/README.md,$(wildcard examples/*))
installed := $(addprefix $(BINDIR)/,$(installed_bin)) $(UNITDIR)/zrd.service $(UNITDIR)/zrd@.service $(GDBDIR)/$(notdir $(gdb_script)) $(addprefix $(DOCDIR)/,$(notdir $(installed_doc))) \
	$(addprefix $(LIBDIR)/,$(installed_libraries) $(call linked,libzr) $(call linked,libzr_zero) \
	$(addprefix zr-rehearse/,$(notdir $(rehearse_libraries))) $(notdir $(modules)) pkgconfig/zr.pc pkgconfig/zr_zero.pc) $(manuals:$(BUILD)/share/%=$(MANDIR)/%) \
	$(addprefix $(COMPLETIONDIR)/,$(notdir $(completions))) $(addprefix $(own_include)/,$(zr_headers) $(zr_zero_headers))

# $(call pkgconfig,name,description,what it requires,its own libraries,theirs)
pkgconfig = printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(own_include)' '' 'Name: $(1)' \
	'Description: $(2)' 'Version: $(version)' 'Requires: $(3)' 'Libs: -L$${libdir} $(4)' 'Libs.private: $(5)' \
	'Cflags: -I$${includedir}' > $(call to,$(LIBDIR))/pkgconfig/$(1).pc

# DESTDIR may hold blanks, hence the quotes and loops. install-built installs what is built, and builds nothing.
to = '$(DESTDIR)$(1)'
.PHONY: install install-built uninstall
install: all
	@$(MAKE) --no-print-directory install-built
install-built:
	for folder in $(sort $(dir $(installed))); do install -d $(call to,)"$$folder" || exit 1; done
	install -m 755 $(addprefix $(BUILD)/bin/,$(installed_bin)) $(call to,$(BINDIR))
	install -m 644 $(addprefix $(BUILD)/lib/,$(installed_libraries)) $(modules) $(call to,$(LIBDIR))
	install -m 644 $(rehearse_libraries) $(call to,$(LIBDIR))/zr-rehearse
	for name in libzr libzr_zero; do \
		ln -sf $$name.so.$(version) $(call to,$(LIBDIR))/$$name.so.$(abi) && \
		ln -sf $$name.so.$(abi) $(call to,$(LIBDIR))/$$name.so || exit 1; done
	@$(call pkgconfig,zr,$(about_zr),,-lzr,-pthread -ldl)
	@$(call pkgconfig,zr_zero,$(about_zr_zero),zr,-lzr_zero,$(kernels_libs) -luring -lnettle -lm)
	for header in $(zr_headers) $(zr_zero_headers); do \
		install -m 644 $$header $(call to,$(own_include))/$$header || exit 1; done
	install -m 644 $(installed_doc) $(call to,$(DOCDIR))
	for section in $(sort $(notdir $(patsubst %/,%,$(dir $(manuals))))); do \
		install -m 644 $(BUILD)/share/$$section/* $(call to,$(MANDIR))/$$section || exit 1; done
	install -m 644 $(gdb_script) $(call to,$(GDBDIR))
	install -m 644 $(completions) $(call to,$(COMPLETIONDIR))
	sed 's|@BINDIR@|$(BINDIR)|; s|@DOCDIR@|$(DOCDIR)|' alloc/service/server/zrd.service.in > $(call to,$(UNITDIR))/zrd.service
	sed 's|^ExecStart=.*|& --device %i|; s|^Description=.*|& (device %i)|' $(call to,$(UNITDIR))/zrd.service > $(call to,$(UNITDIR))/zrd@.service
	chmod 644 $(call to,$(UNITDIR))/zrd.service $(call to,$(UNITDIR))/zrd@.service
	@if [ -z $(call to,) ]; then echo "zr: type ldconfig, as root, so that programs find the libraries" >&2; fi
uninstall:
	for file in $(installed); do rm -f $(call to,)"$$file" || exit 1; done
	-rmdir $(foreach folder,zero/comm zero/launch zero/ps zero/table zero kernels defrag alloc/keep alloc,$(call to,$(own_include)/$(folder))) $(call to,$(own_include)) \
		$(call to,$(DOCDIR)) $(call to,$(LIBDIR)/zr-rehearse) 2>/dev/null

# ---- the main job ----------------------------------------------------------------------------------------------
bible := $(BUILD)/demo/bible.txt
$(bible):
	@mkdir -p $(@D)
	@bible -f gen1:1-rev22:21 > $@.new && mv $@.new $@

demo_flags := --data $(bible) --ranks 2 --stage 1 --layers 4 --hidden 192 --heads 6 --seq 64 --batch 4 \
	--steps 900 --lr 2.5e-3 --warmup 40 --eval-every 225 --sample 400 --prompt "In the beginning "
.PHONY: demo built-demo
demo: packages-demo
	@$(again) $(without_nvcc) built-demo
	@$(BUILD)/bin/zr-train $(demo_flags)
built-demo: $(programs) $(bible)

# A program that dies of fragmentation, and does not under zr run: on the emulated driver, so that it needs no GPU.
$(BUILD)/examples/fragment: examples/fragment.c $(BUILD)/config
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(ALL_CFLAGS) -o $@ $< $(ALL_LDFLAGS)
fragment_driver := LD_LIBRARY_PATH=$(abspath $(BUILD))/tests/emulator ZR_EMULATOR_MEMORY=1153433600
.PHONY: demo-fragmentation built-fragmentation
demo-fragmentation: packages-build
	@$(again) built-fragmentation
	@echo "== $(BUILD)/examples/fragment: its own caching allocator, on a device of 1,100 MiB"
	@! $(fragment_driver) $(BUILD)/examples/fragment
	@echo "== zr run --cuda -- $(BUILD)/examples/fragment --direct: the same blocks, from zr's arena"
	@$(fragment_driver) $(BUILD)/bin/zr run --cuda --trace $(BUILD)/fragment.zrt -- $(BUILD)/examples/fragment --direct
	@echo "== zr map --at peak $(BUILD)/fragment.zrt: where they lie when most is live"
	@$(BUILD)/bin/zr map --at peak --rows 6 $(BUILD)/fragment.zrt
built-fragmentation: $(BUILD)/bin/zr $(libraries) $(BUILD)/examples/fragment $(BUILD)/tests/emulator/libcuda.so.1

# ---- order -----------------------------------------------------------------------------------------------------
sources := $(shell git ls-files '*.c' '*.cu' '*.h' 2>/dev/null)
.PHONY: format lint lint-built clean
format:
	clang-format -i $(sources)
# clang-tidy's checks, and those left out with reasons, are in .clang-tidy; .ci/run has it check changed files.
lint: packages-lint
	@$(again) lint-built
lint-built:
	clang-format --dry-run -Werror $(sources)
	cppcheck --quiet --std=c11 --enable=warning,performance,portability --error-exitcode=1 --inline-suppr \
		--suppress=missingIncludeSystem --suppress=invalidPointerCast -I. $(filter-out tests/%,$(filter %.c,$(sources)))
	tests/tidy
	tests/modes

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj $(BUILD)/device -name '*.d' 2>/dev/null) $(wildcard $(BUILD)/tests/*.d)
