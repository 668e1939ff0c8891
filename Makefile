# hstu.c: plain GNU Make.
#
#   make                     the program ./hstu and libhstu.a (VARIANT=release)
#   make tests               the unit tests, build/VARIANT/tests/unit, and the checkers of reference values and file formats
#   make unit TEST_FILES=... the unit tests alone, of some files: "test_thread test_log" (and all that begin so)
#   make examples            the programs of examples/, linked with libhstu.a
#   make learn               the programs of docs/learn.md: build/VARIANT/learn/01_device_query, ...
#   make VARIANT=debug|asan|tsan|fuzz ...   other builds, each under build/VARIANT
#   make CUDA=0              build without the CUDA parts even if nvcc is there
#   make MINIMAL=1           build without any optional library (MINIMAL=cuda: but CUDA, where nvcc is there)
#   make ARCH=               portable machine code instead of this machine's own
#   make test-of FILE=PATH   builds and runs the tests of one source file
#   make format              formats every source file (clang-format 14)
#   make lint                clang-tidy and gcc -fanalyzer, on files that have changed since
#   make check               format, include order, lint, generated docs, registers of kernels
#   make install PREFIX=...  program, libraries, header, pkg-config file, configs, man pages, completion for shells
#   make uninstall PREFIX=... removes them again
#   make deb                 Debian packages in build/deb
#   make dist                one program file for every Linux with glibc 2.28, x86-64 and arm64, in build/dist
#   make wheel               its Python wheel, manylinux_2_28, in build/dist; WHEEL_ARCH=aarch64 for the other architecture
#   make wheel-cuda          the wheel with CUDA, which takes NVIDIA's libraries from Python's package index
#   make image               an OCI image with it, in build/image
#
# What is optional (libarchive, libcurl, libmicrohttpd, SQLite, snappy, zstd, zlib, CUDA) is probed by tools/probe.sh at each call; objects are
# rebuilt when the answer changes.

# All cores, unless -jN says otherwise.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif

comma := ,
VARIANT ?= release
PREFIX ?= /usr/local
# Of the shared library; another number whenever programs must be built again.
ABI := 0
SHARED ?= ../shared
B := build/$(VARIANT)

ifeq ($(origin CC),default)
CC := $(if $(filter fuzz,$(VARIANT)),clang,$(if $(shell command -v gcc),gcc,cc))
endif

MACHINE := $(shell uname -m)
ARCH ?= native
ARCH_FLAG := $(if $(ARCH),$(if $(filter aarch64 arm64,$(MACHINE)),-mcpu=$(ARCH),-march=$(ARCH)))

WARN := -Wall -Wextra -Wno-unused-parameter -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
# Loops that take time are in src/cpu and src/data/synth, and some elsewhere are marked for SIMD, which -O1 vectorises;
# otherwise -O3 takes longer to compile and gains nothing, and so does -O2 where files parse, print, or call what works.
# Tests are compiled without any: half the build was theirs.
OPT_release := -O2
OPT_debug := -O0
HOT_CFLAGS := $(if $(filter release,$(VARIANT)),-O3)
CALL_CFLAGS := $(if $(filter release,$(VARIANT)),-O1)
COLD_CFLAGS := $(if $(filter release,$(VARIANT)),-Og)
TEST_CFLAGS := $(if $(filter release asan tsan,$(VARIANT)),-O0)
# Line numbers for a profiler or a sanitizer; a debugger gets all.
DEBUG_INFO := $(if $(filter debug,$(VARIANT)),-g,-g1)
OPT_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT_tsan := -O1 -fsanitize=thread -fno-omit-frame-pointer
# The fuzzer's instrumentation keeps loops from being vectorised, and clang would warn.
OPT_fuzz := -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -Wno-pass-failed
OPT := $(OPT_$(VARIANT))
ifeq ($(OPT),)
$(error VARIANT=$(VARIANT) is unknown; use release, debug, asan, tsan or fuzz)
endif

# CUDA only where there is nvcc, and not in sanitizer builds, which do not support it.
NVCC ?= $(shell command -v nvcc 2>/dev/null)
CUDA ?= $(if $(and $(NVCC),$(filter release debug,$(VARIANT))),1,0)

PROBE := $(shell CC='$(CC)' CUDA='$(CUDA)' NVCC='$(NVCC)' NVCC_CCBIN='$(NVCC_CCBIN)' MINIMAL='$(MINIMAL)' \
	PROBE_FLAGS='$(CFLAGS) $(LDFLAGS)' sh tools/probe.sh)
# nvcc 12.4 does not read NVCC_CCBIN itself.
ifneq ($(and $(NVCC),$(NVCC_CCBIN)),)
override NVCC += -ccbin $(NVCC_CCBIN)
endif
ifeq ($(filter clean,$(MAKECMDGOALS)),)
ifneq ($(filter HSTU_NO_COMPILER,$(PROBE)),)
$(error $(CC) cannot compile a program; install one with 'sudo apt-get install gcc libc6-dev', or set CC)
endif
endif
FEATURES := $(filter -DHSTU_%,$(PROBE))
LIBS := $(filter -l% -L% -Wl%,$(PROBE)) -lpthread -lm
PROBE_CFLAGS := $(filter -I%,$(PROBE))

CFLAGS_ALL := -std=c11 -D_GNU_SOURCE $(OPT) $(ARCH_FLAG) $(DEBUG_INFO) -fPIC -fvisibility=hidden -ffp-contract=off -fopenmp-simd \
	-fno-math-errno \
	$(WARN) $(FEATURES) $(PROBE_CFLAGS) -Iinclude -Isrc -MMD -MP $(CFLAGS)
LINK := $(CC) $(OPT) $(DEBUG_INFO) $(LDFLAGS)

# Machine code for A100 and Hopper, and PTX for later cards.  Most kernels are the same on both, so they
# are compiled to PTX once and assembled twice.  A file that tests __CUDA_ARCH__ is compiled for sm_80 and
# sm_90 separately; src/cuda/attn/sm90, X_sm90.cu of src/cuda/gemm and src/cuda/ops and units X_sm90, which use Hopper's own instructions, for sm_90a alone.
# CUDA_SM=90 builds for one card, and without the attention's tile sizes that are tuned for other cards; CUDA_SM=80 without
# the kernels for Hopper.
CUDA_SM ?= 80 90
ifneq ($(if $(CUDA_SM),$(filter-out 80 90,$(CUDA_SM)),none),)
$(error CUDA_SM="$(CUDA_SM)" is not supported; use 80, 90 or "80 90" (the default), separated by a space)
endif
space := $() $()
NVCC_CODE := $(subst $(space),$(comma),$(CUDA_SM:%=sm_%))
NVCC_ARCH := -gencode arch=compute_80,code=[$(NVCC_CODE),compute_80]
NVCC_BOTH := $(foreach sm,$(CUDA_SM),-gencode arch=compute_$(sm),code=[sm_$(sm),compute_$(sm)])
HOPPER_ALONE := $(if $(filter-out 90,$(CUDA_SM)),,-DHSTU_HOPPER_ALONE)
NVCC_90A := -gencode arch=compute_90a,code=sm_90a
ASKS_ARCH := $(shell grep -rl __CUDA_ARCH__ src/cuda --include='*.cu' 2>/dev/null)
# -O is of host code alone, which launches kernels: optimised, a launch is not faster than the noise, and compiling
# takes longer.
NVCCFLAGS := -O0 -std=c++17 -Xcompiler -fPIC,-Wall,-Wextra,-fvisibility=hidden \
	-Xptxas -v $(FEATURES) -Iinclude -Isrc -MMD -MP

CLI_SRC := $(sort $(shell find src/cli -name '*.c'))
# The MPI plugin is a library of its own, made by the mpicc that is there.
MPI_SRC := src/dist/mpi_plugin.c
MPICC ?= $(if $(MINIMAL),,$(shell command -v mpicc 2>/dev/null))
# What CUDA loads into other people's programs, for `hstu profile -- PROGRAM`.
INJECT_SRC := src/profile/inject.c
LIB_SRC := $(filter-out $(CLI_SRC) $(MPI_SRC) $(INJECT_SRC),$(sort $(shell find src -name '*.c')))
FOR_HOPPER := src/cuda/attn/sm90/%.cu %_sm90.cu
CU_SRC := $(if $(filter -DHSTU_HAS_CUDA,$(FEATURES)),$(filter-out $(if $(filter 90,$(CUDA_SM)),src/cuda/core/no_hopper.cu,$(FOR_HOPPER)),\
	$(sort $(shell find src/cuda -name '*.cu'))))
# Files are compiled in units, each as one file: of every nvcc call two seconds are the headers.  What takes long comes
# first.  Large units only where there are few cores, the largest where there are two: with many, the longest call decides.
# CU_UNITS= compiles each file by itself, which is shorter for who changes one of them.
CU_UNIT_sm80 := $(patsubst %,src/cuda/attn/sm80/attn_sm80_%.cu,fwd bwd bwd_dq)
CU_UNIT_f32 := $(wildcard src/cuda/attn/f32/*.cu)
CU_UNIT_sm80_softmax := $(wildcard src/cuda/attn/sm80/softmax_*.cu)
CU_UNIT_fwd_sm90 := $(patsubst %,src/cuda/attn/sm90/attn_%.cu,sm90 sm90_fwd sm90_paged sm90_small)
CU_UNIT_bwd_sm90 := $(patsubst %,src/cuda/attn/sm90/attn_sm90_%.cu,bwd bwd_single_tile)
CU_UNIT_dq_sm90 := $(patsubst %,src/cuda/attn/sm90/attn_sm90_%.cu,bwd_dq bwd_dq_bias bwd_d256)
CU_UNIT_softmax_sm90 := $(wildcard src/cuda/attn/sm90/softmax_*.cu)
CU_UNIT_ops_sm90 := $(wildcard src/cuda/gemm/*_sm90.cu src/cuda/ops/*_sm90.cu)
CU_UNIT_rest_sm90 := $(CU_UNIT_softmax_sm90) $(CU_UNIT_ops_sm90)
CU_UNIT_attn := $(CU_UNIT_sm80) $(CU_UNIT_sm80_softmax) $(CU_UNIT_f32)
CU_UNIT_fwd_dq_sm90 := $(CU_UNIT_fwd_sm90) $(CU_UNIT_dq_sm90)
CU_UNIT_bwd_rest_sm90 := $(CU_UNIT_bwd_sm90) $(CU_UNIT_rest_sm90)
CU_UNIT_core := $(filter-out $(ASKS_ARCH) $(if $(filter 90,$(CUDA_SM)),src/cuda/core/no_hopper.cu),$(wildcard src/cuda/core/*.cu src/cuda/attn/common/*.cu))
CU_UNIT_ops := $(patsubst %,src/cuda/ops/%.cu,content exchange glu kv l2 logits_loss rank rows sampled_softmax update) \
	$(patsubst %,src/cuda/gemm/%.cu,linear matmul)
CU_UNIT_both := $(ASKS_ARCH)
CU_UNIT_table := $(wildcard src/cuda/table/*.cu)
CU_UNIT_topk := src/cuda/ops/topk.cu
CU_UNIT_any := $(CU_UNIT_ops) $(CU_UNIT_table) $(CU_UNIT_topk) $(CU_UNIT_core)
ifeq ($(origin CU_UNITS),undefined)
CORES := $(shell nproc 2>/dev/null)
CU_UNITS := $(if $(filter 1 2,$(CORES)),attn any fwd_dq_sm90 bwd_rest_sm90 both,\
	$(if $(filter 3 4,$(CORES)),sm80 any fwd_sm90 bwd_sm90 f32 dq_sm90 sm80_softmax rest_sm90 both,\
	both ops table topk core ops_sm90))
endif
ifeq ($(filter 90,$(CUDA_SM)),)
override CU_UNITS := $(filter-out %_sm90,$(CU_UNITS))
endif
ifeq ($(CU_SRC),)
override CU_UNITS :=
endif
CU_SRC := $(filter-out $(foreach unit,$(CU_UNITS),$(CU_UNIT_$(unit))),$(CU_SRC))
# Units are written anew only where their list has changed: a file that is added must not wait for `make clean`.  And
# here, not by a rule, which make would run first for all and come back to the longest calls last.
hash := \#
unit_text = printf '$(hash)include "%s"\n' $(CU_UNIT_$1:src/%=%)
unit_write = $(shell mkdir -p $B/src/cuda; $(unit_text) | cmp -s - $B/src/cuda/unit_$1.cu || $(unit_text) >$B/src/cuda/unit_$1.cu)
ifeq ($(filter clean,$(MAKECMDGOALS)),)
$(foreach unit,$(CU_UNITS),$(call unit_write,$(unit)))
endif
TEST_ALL := $(sort $(shell find tests -name 'test_*.c'))
TEST_SRC := $(filter-out tests/test_%,$(wildcard tests/*.c)) \
	$(if $(TEST_FILES),$(foreach file,$(TEST_ALL),$(if $(filter $(TEST_FILES:%=%%),$(notdir $(file))),$(file))),$(TEST_ALL))
GOLDEN_SRC := $(wildcard tests/golden/*.c)
FLIP_OBJ := $B/flip/flip.o
FUZZ_SRC := $(wildcard tests/fuzz/*.c)
BENCH_SRC := $(wildcard bench/*.c)
EXAMPLE_SRC := $(filter-out $(if $(CU_SRC),,examples/attention.c),$(wildcard examples/*.c))

# What takes long comes first, so that all cores have work to the end.
LIB_OBJ := $(CU_UNITS:%=$B/src/cuda/unit_%.cu.o) $(CU_SRC:%.cu=$B/%.cu.o) $(LIB_SRC:%.c=$B/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$B/%.o)
TEST_OBJ := $(TEST_SRC:%.c=$B/%.o)
GOLDEN_OBJ := $(GOLDEN_SRC:tests/golden/%.c=$B/golden/%.o) \
	$(patsubst %,$B/tests/%.o,device mirror mirror_linear mirror_mol mirror_ops precision)

.PHONY: print-libs all hstu unit tests test-of format lint syntax examples learn fuzz bench check docs site clean install uninstall deb dist wheel wheel-cuda image gpu-test gpu-sanitize
all: $(if $(filter release,$(VARIANT)),hstu libhstu.a) $B/hstu $B/tests/golden $(if $(MPICC),$B/hstu-mpi.so) $B/hstu-inject.so

hstu: $B/hstu
	@ln -sf $B/hstu hstu

# The library for other programs: one object in which every symbol but hstu_* is local.  One symbol of the C++
# runtime stays global, because libstdc++.a refers to it.
libhstu.a: $B/libhstu.o
	@rm -f $@ && ar rcs $@ $<
$B/libhstu.o: $(LIB_OBJ)
	ld -r -o $@ $^
	objcopy --localize-hidden $@
	objcopy --globalize-symbol=DW.ref.__gxx_personality_v0 $@

# The same as a shared library; what is not hstu_* is hidden.
$B/libhstu.so: $(LIB_OBJ) src/api/libhstu.map
	$(LINK) -shared -Wl,-soname,libhstu.so.$(ABI) -Wl,--version-script=src/api/libhstu.map -o $@ $(LIB_OBJ) $(LIBS)

$B/hstu: $(LIB_OBJ) $(CLI_OBJ)
	$(LINK) -o $@ $^ $(LIBS)

# An mpicc that cannot compile (its compiler is missing, say) costs the plugin, not the program.
$B/hstu-mpi.so: $(MPI_SRC) src/dist/mpi_plugin.h
	@mkdir -p $(@D)
	$(MPICC) -std=c11 -D_GNU_SOURCE -O2 -fPIC -shared $(WARN) -Isrc $(MPI_SRC) -o $@ || \
		{ rm -f $@; echo 'note: $(MPICC) does not work here: no ranks of mpirun'; }

# It has what recording needs and nothing else, and no symbol but InitializeInjection* is seen outside; with sanitizers
# compiled by itself, because it is loaded into programs without them.
INJECT_ALL := $(INJECT_SRC) $(patsubst %,src/%.c,profile/cupti profile/cupti_counters profile/nvtx profile/record_write \
	base/env base/file base/hash base/log base/machine base/map base/mem base/status base/text base/thread)
INJECT_CFLAGS := $(if $(filter asan tsan fuzz,$(VARIANT)),-std=c11 -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=hidden $(WARN) \
	$(FEATURES) $(PROBE_CFLAGS) -Iinclude -Isrc $(CFLAGS))
$B/hstu-inject.so: $(if $(INJECT_CFLAGS),$(INJECT_ALL) $(wildcard src/profile/*.h src/base/*.h) $B/flags,$(INJECT_ALL:%.c=$B/%.o))
	@mkdir -p $(@D)
	$(CC) $(INJECT_CFLAGS) -shared $(filter %.c %.o,$^) $(LDFLAGS) -Wl,-z,nodelete -lpthread -ldl -o $@

# A test of all files runs the checker of reference values.
unit: $B/hstu $B/hstu-inject.so $(if $(MPICC),$B/hstu-mpi.so) $B/tests/unit $(if $(TEST_FILES),,$B/tests/golden)
tests: unit $B/tests/golden $B/tests/flip
# Another TEST_FILES links it again.
$B/tests/unit.list: FORCE
	@mkdir -p $(@D)
	@echo '$(TEST_OBJ)' | cmp -s - $@ || echo '$(TEST_OBJ)' >$@
$B/tests/unit: $B/tests/unit.list $(TEST_OBJ) $(filter-out %/main.o,$(CLI_OBJ)) $(LIB_OBJ)
	@mkdir -p $(@D)
	$(LINK) -o $@ $(filter %.o,$^) $(LIBS)

# The checker of golden vectors: golden [--device NAME] [--dtype TYPE] DIR...  Its objects are in
# $B/golden, because $B/tests/golden is the program itself.
$B/tests/golden: $(GOLDEN_OBJ) $(LIB_OBJ)
	@mkdir -p $(@D)
	$(LINK) -o $@ $^ $(LIBS)
$B/golden/%.o: tests/golden/%.c $B/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(TEST_CFLAGS) -c $< -o $@

# Flips every byte of every file format.
$B/tests/flip: $(FLIP_OBJ) $(LIB_OBJ)
	@mkdir -p $(@D)
	$(LINK) -o $@ $^ $(LIBS)
$B/flip/%.o: tests/flip/%.c $B/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(TEST_CFLAGS) -c $< -o $@

# Built as other programs would be: with the public header and the library only.  examples/attention.c needs
# CUDA.
examples: $(EXAMPLE_SRC:examples/%.c=$B/examples/%)
$B/examples/%: examples/%.c libhstu.a
	@mkdir -p $(@D)
	$(CC) -std=c11 -O2 $(WARN) -Iinclude $(PROBE_CFLAGS) $(CFLAGS) $< libhstu.a $(LDFLAGS) $(LIBS) -o $@

# The course: a program a file, which needs CUDA alone.
LEARN_SRC := $(wildcard examples/learn/*.cu)
learn: $(LEARN_SRC:examples/learn/%.cu=$B/learn/%) $B/learn/09_torch.so
	$(if $(NVCC),,$(error make learn needs nvcc, which comes with the CUDA toolkit))
$B/learn/%: examples/learn/%.cu examples/learn/learn.h examples/learn/mma.cuh
	@mkdir -p $(@D)
	$(NVCC) -O3 -std=c++17 -Xcompiler -Wall,-Wextra,-Wno-unused-function $(NVCC_ARCH) -diag-suppress 177 $< -o $@
$B/learn/09_torch.so: examples/learn/09_torch.cu examples/learn/learn.h
	@mkdir -p $(@D)
	$(NVCC) -shared -O3 -std=c++17 -Xcompiler -fPIC,-Wall,-Wextra,-Wno-unused-function $(NVCC_ARCH) -diag-suppress 177 $< -o $@

# What no parser reaches stays out; exactly, where NEEDED=DIR is another build without CUDA to find that out from.
NEEDED_OBJ := $(if $(NEEDED),$(shell sh tools/needed.sh '$(NEEDED)' $(FUZZ_SRC) $(wildcard tests/fuzz/*.h)))
FUZZ_OBJ := $(if $(NEEDED_OBJ),$(NEEDED_OBJ:%=$B/%.o),$(filter-out $B/src/api/%,$(LIB_OBJ)))
fuzz: $(FUZZ_SRC:tests/fuzz/%.c=$B/fuzz/%)
# From an archive each target takes what it calls alone: the fuzzer walks the counters of all that is linked after
# every run, which halved its speed.
$B/libfuzz.a: $(FUZZ_OBJ) $B/libfuzz.list
	@rm -f $@ && ar rcs $@ $(FUZZ_OBJ)
# Because of .SECONDARY below, an object that is new in the list would not be reason enough.
$B/libfuzz.list: FORCE
	@mkdir -p $B
	@echo '$(FUZZ_OBJ)' | cmp -s - $@ || echo '$(FUZZ_OBJ)' >$@
$B/fuzz/%: $B/tests/fuzz/%.o $B/libfuzz.a
	@mkdir -p $(@D)
	$(LINK) -fsanitize=fuzzer -o $@ $^ $(LIBS)

bench: $(BENCH_SRC:bench/%.c=$B/bench/%) hstu
$B/bench/%: $B/bench/%.o $(filter-out %/main.o,$(CLI_OBJ)) $(LIB_OBJ)
	@mkdir -p $(@D)
	$(LINK) -o $@ $^ $(LIBS) -ldl

ALL_FLAGS = $(CC) $(CFLAGS_ALL) $(HOT_CFLAGS) $(CALL_CFLAGS) $(COLD_CFLAGS) $(TEST_CFLAGS) $(LIBS) $(NVCC) $(CUDA) $(NVCC_ARCH) $(NVCCFLAGS) $(HOPPER_ALONE)

# The flags are a prerequisite: another compiler or another set of libraries rebuilds everything.
# FORCE must be phony: with .SECONDARY below, make does not rebuild because of a file that only does not exist.
$B/flags: FORCE
	@mkdir -p $B
	@echo '$(ALL_FLAGS)' | cmp -s - $@ || echo '$(ALL_FLAGS)' > $@
.PHONY: FORCE

# What a folder adds to the flags of all.
$B/src/cpu/%.o $B/src/data/synth/%.o: OWN_CFLAGS = $(HOT_CFLAGS) $(KERNEL_CFLAGS)
$(foreach d,encode model nn,$B/src/$d/%.o): OWN_CFLAGS = $(CALL_CFLAGS)
$B/src/model/bounds.o: OWN_CFLAGS = $(HOT_CFLAGS)
$(foreach d,api cli config dist profile train tune,$B/src/$d/%.o): OWN_CFLAGS = $(COLD_CFLAGS)
$B/tests/%.o: OWN_CFLAGS = $(TEST_CFLAGS) -Itests
# Their own sums take longer than what they test.
SUMMING := attn_sample mirror mirror_linear mirror_mol mirror_ops precision softmax_sample ops/test_attn embed/test_embed ops/test_linear cpu/test_product \
	ops/test_rank
ifneq ($(filter release asan tsan,$(VARIANT)),)
$(SUMMING:%=$B/tests/%.o): OWN_CFLAGS = -O1 -Itests
endif
# The register tiles and the naive attention are arithmetic alone: the checks for undefined behaviour there find nothing
# that those of addresses do not, and made the tests of attention and products take twice as long.
ifeq ($(VARIANT),asan)
$B/src/cpu/tile.o $B/src/cpu/attn_naive.o $B/src/cpu/product_%.o: KERNEL_CFLAGS := -fno-sanitize=undefined
endif
# Kernels read no input: fuzz targets take them as they are.  Instrumented, the register tiles of the products
# alone would take clang minutes.
ifeq ($(VARIANT),fuzz)
$B/src/cpu/%.o: KERNEL_CFLAGS := -fno-sanitize=all
endif
ifneq ($(filter -DHSTU_HAS_SVE,$(PROBE)),)
$B/src/cpu/product_sve.o: KERNEL_CFLAGS += -march=armv8.2-a+sve -msve-vector-bits=256
# Instead of the machine's own: gcc warns of a conflict where -mcpu=native says that it has no SVE.
$B/src/cpu/product_sve.o: DROPPED_CFLAGS := $(ARCH_FLAG)
endif
# REUSE=DIR: of another build that differs in its optional libraries alone, objects that have nothing to do with them.
$B/%.o: %.c $B/flags
	@mkdir -p $(@D)
	$(if $(REUSE),@sh tools/reuse.sh '$(REUSE)' '$B' $* || )$(CC) $(filter-out $(DROPPED_CFLAGS),$(CFLAGS_ALL)) $(OWN_CFLAGS) -c $< -o $@
# Files that are in the program (TEXT_FILE).
$B/src/serve/http/server_page.o: src/serve/http/server_page.html
$B/src/serve/http/server_openapi.o: src/serve/http/server_openapi.json
$B/src/cli/model/own_config.o: $(wildcard configs/own/*.gin)
$B/src/cli/machine/profile.o: src/cli/machine/timeline.js
$B/src/train/report/report.o: src/train/report/page.css
$B/src/tune/emit.o: $(wildcard src/tune/dialect_*.inc)
$B/src/cuda/attn/sm80/%.cu.o $B/src/cuda/unit_sm80.cu.o $B/src/cuda/unit_attn.cu.o: OWN_NVCCFLAGS = $(HOPPER_ALONE)
# ptxas's report on each kernel goes to a file beside the object, for tools/spills.sh; other messages are shown.
define compile_cu
@mkdir -p $(@D)
$(NVCC) $(NVCCFLAGS) $(OWN_NVCCFLAGS) $(if $(filter src/cuda/attn/sm90/% src/cuda/gemm/%_sm90.cu src/cuda/ops/%_sm90.cu $B/src/cuda/unit_%_sm90.cu,$<),$(NVCC_90A),$(if $(filter $< $(CU_UNIT_$*),$(ASKS_ARCH)),$(NVCC_BOTH),$(NVCC_ARCH))) \
	-c $< -o $@ 2>$(@:.o=.ptxas); done=$$?; \
	grep -vE '^ptxas info|bytes stack frame' $(@:.o=.ptxas) >&2; exit $$done
endef
$B/%.cu.o: %.cu $B/flags
	$(compile_cu)
$B/src/cuda/unit_%.cu.o: $B/src/cuda/unit_%.cu $B/flags
	$(compile_cu)
$(CU_UNITS:%=$B/src/cuda/unit_%.cu): ;

.SECONDARY:

# What a compiler says of every C file, without machine code; with BUT=fuzz, of those that `make fuzz` does not compile.
SYNTAX_SRC := $(LIB_SRC) $(CLI_SRC) $(INJECT_SRC) $(TEST_SRC) $(GOLDEN_SRC) $(wildcard bench/*.c) $(FLIP_OBJ:$B/flip/%.o=tests/flip/%.c)
SYNTAX_SRC := $(filter-out $(if $(filter fuzz,$(BUT)),$(FUZZ_OBJ:$B/%.o=%.c)),$(SYNTAX_SRC))
syntax:
	@printf '%s\n' $(SYNTAX_SRC) | xargs -P $$(nproc) -n 25 $(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -Itests -fsyntax-only

# The test that is named after a source file, or else those that include its header.
STEM := $(basename $(notdir $(FILE)))
OF_STEM = $(basename $(notdir $(or $(filter %/test_$(STEM).c,$(TEST_ALL)),\
	$(shell grep -lrs --include='test_*.c' '"$(patsubst src/%,%,$(basename $(FILE))).h"' tests))))
test-of:
	$(if $(OF_STEM),,$(error make test-of FILE=src/...: no test is named after '$(FILE)' or includes its header))
	@$(MAKE) --no-print-directory unit TEST_FILES='$(OF_STEM)' >/dev/null
	$B/tests/unit $(addsuffix .c:,$(OF_STEM))

FORMATTED = $(shell find src include tests bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
format:
	@printf '%s\n' $(FORMATTED) | xargs -P $$(nproc) -n 100 clang-format -i

# What the analyzers of .clang-tidy and gcc find is an error; a file is looked at again when it, not a header, has changed.
LINT_SRC := $(filter-out $(MPI_SRC),$(LIB_SRC) $(CLI_SRC) $(INJECT_SRC))
LINT_FLAGS = -std=c11 -D_GNU_SOURCE -fopenmp-simd $(FEATURES) $(PROBE_CFLAGS) -Iinclude -Isrc
# Without what gcc 12 gets wrong in code that is right: 200 reports, all looked at once.
ANALYZER := -fanalyzer -O1 -Werror -Wno-analyzer-malloc-leak -Wno-analyzer-null-argument -Wno-analyzer-null-dereference \
	-Wno-analyzer-shift-count-overflow -Wno-analyzer-use-of-uninitialized-value
lint: $(LINT_SRC:%.c=$B/lint/%.ok)
$B/lint/%.ok: %.c .clang-tidy
	@mkdir -p $(@D)
	@clang-tidy -quiet $< -- $(LINT_FLAGS) 2>/dev/null
	@gcc $(LINT_FLAGS) $(ANALYZER) -c $< -o /dev/null
	@touch $@

# What a program that uses libhstu.a links with.
print-libs:
	@echo $(LIBS)

check: hstu
	tools/check.sh

docs: hstu
	./hstu train --help-config=markdown > docs/config.md

# The documents as a site in build/site/VERSION; a dead link fails.  Versions that are there already stay, and pages offer all of
# them; build/site/index.html leads to the newest.  The packages are kept in build/site-python.
SITE_PACKAGES := mkdocs==1.6.1 mkdocs-material==9.8.1 mkdocs-same-dir==0.1.5 mkdocstrings-python==2.0.11
build/site-python/bin/mkdocs:
	python3 -m venv build/site-python
	build/site-python/bin/pip install -q --timeout 15 --retries 1 $(SITE_PACKAGES)

site: build/site-python/bin/mkdocs
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $< build -q --strict -d 'build/site/$(VERSION)'
	ls 'build/site/$(VERSION)'/assets/stylesheets/main.*.css >/dev/null
	cd build/site && ls -d [0-9]*.[0-9]*/ | tr -d / | sort -rV >versions && \
		sed '1s/.*/[{"version": "&", "title": "&", "aliases": ["latest"]}/; 2,$$s/.*/,{"version": "&", "title": "&", "aliases": []}/; $$s/$$/]/' \
		versions >versions.json && sed '1!d; s|.*|<!doctype html><meta http-equiv="refresh" content="0; url=&/">|' versions >index.html

# Every op, model and golden vector on a GPU, in every precision with a fixed order of sums; --fast repeats the
# two precisions that have other kernels without one.
GPU ?= cuda
GOLDEN_DIR ?= $(wildcard $(SHARED)/golden) tests/golden
gpu-test: tests
	$B/tests/unit --device $(GPU)
	$B/tests/unit --device $(GPU) --fast
	$B/tests/unit --device $(GPU) --fast --dtype bfloat16
	$B/tests/golden --device $(GPU) $(GOLDEN_DIR)
	set -e; for type in tf32 bfloat16 float16; do echo "== $$type"; \
		$B/tests/unit --device $(GPU) --dtype $$type; \
		$B/tests/golden --device $(GPU) --dtype $$type $(GOLDEN_DIR); done

# Takes minutes on a GPU, most of them in racecheck.
gpu-sanitize: tests
	tools/sanitize.sh $B/tests/unit

VERSION = $(shell sed -n 's/^\#define HSTU_VERSION "\(.*\)"/\1/p' include/hstu.h)
install: all $B/libhstu.so
	tools/install.sh install '$B' '$(DESTDIR)$(PREFIX)' '$(PREFIX)' '$(VERSION)' '$(ABI)' '$(LIBS)'

uninstall:
	tools/install.sh uninstall '$B' '$(DESTDIR)$(PREFIX)'

# Needs dpkg-dev and debhelper; lintian looks at the result.
deb:
	tools/deb.sh '$(VERSION)'

# Needs apt-get and Python's package index; tests/dist.sh tries the result.
dist:
	+tools/dist.sh '$(VERSION)'

# Of a copy, because the build leaves files beside its source.
WHEEL_ARCH ?= $(MACHINE)
WHEEL_PYTHON := build/python/bin/python
WHEEL_TAG := manylinux_2_28_$(WHEEL_ARCH)
wheel:
	[ -x $(WHEEL_PYTHON) ] || python3 -m venv build/python
	$(WHEEL_PYTHON) -c 'import auditwheel, build' 2>/dev/null || \
		$(WHEEL_PYTHON) -m pip install -q --disable-pip-version-check --timeout 15 --retries 1 build auditwheel || \
		{ echo "make wheel: Python's packages build and auditwheel cannot be had here; install them:" \
			"$(WHEEL_PYTHON) -m pip install build auditwheel" >&2; exit 1; }
	+WITH_LIBRARY=1 WITH_CUDA='$(WHEEL_CUDA)' tools/dist.sh '$(VERSION)' $(WHEEL_ARCH)
	rm -rf build/dist/wheel && cp -r python build/dist/wheel
	HSTU_ROOT='$(CURDIR)' HSTU_LIBRARY='$(CURDIR)/build/dist/$(WHEEL_ARCH)$(if $(WHEEL_CUDA),-cuda)/libhstu.so' HSTU_PLATFORM=$(WHEEL_TAG) \
		HSTU_CUDA='$(WHEEL_CUDA)' SOURCE_DATE_EPOCH=315532800 $(WHEEL_PYTHON) -m build -q --wheel --outdir build/dist build/dist/wheel
	$(WHEEL_PYTHON) -m auditwheel show 'build/dist/hstu-$(VERSION)$(WHEEL_CUDA:%=+cu%)-py3-none-$(WHEEL_TAG).whl'

wheel-cuda:
	$(if $(NVCC),,$(error make wheel-cuda needs nvcc, which comes with the CUDA toolkit))
	$(MAKE) wheel WHEEL_CUDA="$$($(NVCC) --version | sed -n 's/.*release \([0-9]*\).*/\1/p')"

image:
	+tools/dist.sh '$(VERSION)' $(MACHINE)
	tools/image.sh '$(VERSION)' $(MACHINE)

clean:
	rm -rf build hstu libhstu.a

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(GOLDEN_OBJ:.o=.d) $(FLIP_OBJ:.o=.d) \
	$(FUZZ_SRC:%.c=$B/%.d) $(BENCH_SRC:%.c=$B/%.d)
