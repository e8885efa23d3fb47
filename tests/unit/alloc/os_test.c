/* os_test.c: the port to the system, alloc/base/system/os.h: clock, threads on arena stacks, shared waits,
 * and what machines of many kinds grant, made up out of files. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/fault.h"
#include "alloc/base/system/file.h"
#include "alloc/base/system/os.h"
#include "alloc/base/system/process.h"
#include "tests/support/blocks.h"
#include "tests/support/child.h"
#include "tests/support/folder.h"
#include "tests/support/tap.h"

/* ---- Clock --------------------------------------------------------------------------------------------- */

static uint64_t fixed_clock(void)
{
    return 42;
}

static void test_clock(void)
{
    uint64_t first = zr_os_now_ns();
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    uint64_t second = zr_os_now_ns();
    tap_ok(second >= first + 2000000, "the clock counts nanoseconds");
    zr_os_clock_set(fixed_clock);
    tap_is(zr_os_now_ns(), 42, "a test's own clock takes its place");
    zr_os_clock_set(NULL);
    tap_ok(zr_os_now_ns() >= second, "and the real one comes back");
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

#if defined(__SANITIZE_THREAD__) /* which keeps 0.9 MB of its own on every stack */
#define SMALL_STACK_BYTES ((size_t)2 << 20)
#else
#define SMALL_STACK_BYTES ((size_t)128 << 10)
#endif

struct report {
    const void *local; /* an address on the thread's stack */
    bool deaf;         /* to what is meant for the process, and to nothing of its own */
};

static void *look_around(void *argument)
{
    struct report *report = argument;
    int local;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    report->local = &local;
    report->deaf = sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGINT) == 1 &&
                   sigismember(&blocked, SIGUSR1) == 1 && sigismember(&blocked, SIGSEGV) == 0 &&
                   sigismember(&blocked, SIGBUS) == 0;
    return NULL;
}

static void *write_argument(void *argument)
{
    *(volatile char *)argument = 1;
    return NULL;
}

/* Does to its stack's low end what a frame that runs over it does. */
static void *run_over(void *argument)
{
    const struct zr_thread *self = argument; /* its stack was set before it started */
    *(volatile char *)self->stack = 1;
    return NULL;
}

static unsigned assertions;

static void count_assertion(const char *condition, const char *file, int line)
{
    (void)condition, (void)file, (void)line;
    assertions++;
}

/* Fills most of its stack, twice, to see that all of it is there. */
static void *use_max(void *argument)
{
    volatile char local[160 << 10];
    for (size_t i = 0; i < sizeof local; i += 512)
        local[i] = (char)i;
    *(char *)argument = local[512];
    return NULL;
}

static void test_threads(void)
{
    struct zr_thread threads[20], none = {0};
    struct report report = {0}, reports[20];
    size_t before = stats().live_bytes;
    char flag = 1;
    bool started = true;

    tap_result(zr_thread_start(&threads[0], arena, 0, look_around, &report), ZR_OK, "start a thread");
    struct zr_block_info stack = {0};
    zr_arena_find(arena, threads[0].stack, &stack);
    tap_ok(stats().live_bytes >= before + (256 << 10), "its stack is a block of the arena");
    zr_thread_join(&threads[0]);
    const char *low = stack.address;
    tap_ok(low && (const char *)report.local > low && (const char *)report.local < low + stack.bytes,
           "it ran on that stack");
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    tap_ok(report.deaf && sigismember(&blocked, SIGTERM) == 0,
           "with the process's signals blocked, and its own not; who starts it hears them all");
    tap_is(stats().live_bytes, before, "and the stack went back");
    zr_thread_join(&threads[0]);
    zr_thread_join(&none);

    tap_result(zr_thread_start(&threads[0], arena, 0, use_max, &flag), ZR_OK, "a thread with a large frame");
    zr_thread_join(&threads[0]);
    tap_is(flag, 0, "has room for it");
    for (unsigned i = 0; i < 20; i++)
        started &= zr_thread_start(&threads[i], arena, SMALL_STACK_BYTES, look_around, &reports[i]) == ZR_OK;
    for (unsigned i = 0; i < 20; i++)
        zr_thread_join(&threads[i]);
    tap_ok(started && stats().live_bytes == before, "twenty at a time, all given back");
}

static void test_thread_failures(void)
{
    struct zr_thread thread;
    char flag = 0;
    size_t before = stats().live_bytes;

    tap_ok(zr_thread_start(&thread, arena, 512, write_argument, &flag) == ZR_ERR_INVALID &&
               zr_thread_start(&thread, NULL, 0, write_argument, &flag) == ZR_ERR_INVALID &&
               zr_thread_start(&thread, arena, 0, NULL, &flag) == ZR_ERR_INVALID,
           "too small a stack, no arena, nothing to run");
    tap_ok(zr_thread_start(&thread, arena, (size_t)1 << 60, write_argument, &flag) != ZR_OK,
           "a stack beyond the arena");
    zr_fault_set(ZR_FAULT_THREAD, 1);
    tap_result(zr_thread_start(&thread, arena, 0, write_argument, &flag), ZR_ERR_HOST_MEMORY,
               "no more threads");
    zr_fault_set(ZR_FAULT_THREAD, 0);
    tap_ok(strstr(zr_last_error(), "ulimit -u") != NULL && thread.stack == NULL, "with a way out in words");
    tap_ok(flag == 0 && stats().live_bytes == before, "nothing ran and nothing is kept");

    zr_assert_handler_set(count_assertion);
    tap_result(zr_thread_start(&thread, arena, 0, run_over, &thread), ZR_OK, "a thread");
    zr_thread_join(&thread);
    zr_assert_handler_set(NULL);
    tap_is(assertions, 1, "a stack that was run over is found at the join");
    tap_is(stats().live_bytes, before, "and freed all the same");
}

/* ---- Shared words -------------------------------------------------------------------------------------- */

static void count_up(_Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    zr_word_wake_all(word);
}

/* False: a wake was lost. */
static bool await_other(_Atomic uint32_t *word, uint32_t value)
{
    while (atomic_load(word) == value)
        if (!zr_word_wait(word, value, 120000000000))
            return false;
    return true;
}

static void test_words(void)
{
    _Atomic uint32_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    atomic_store(&word[0], 7);
    tap_ok(zr_word_wait(&word[0], 6, UINT64_MAX), "a word that is another already");
    tap_ok(!zr_word_wait(&word[0], 7, 0), "no wait at all");
    uint64_t start = zr_os_now_ns();
    tap_ok(!zr_word_wait(&word[0], 7, 20000000), "a wait that nobody ends");
    tap_ok(zr_os_now_ns() - start >= 19000000, "lasts its time");

    /* A child counts its word up after ours, a thousand times: each wait is ended by the other process. */
    atomic_store(&word[0], 0);
    pid_t child = fork();
    if (child == 0) {
        for (uint32_t i = 0; i < 1000; i++) {
            if (!await_other(&word[0], i))
                _exit(1);
            count_up(&word[1]);
        }
        _exit(0);
    }
    bool woken = true;
    start = zr_os_now_ns();
    for (uint32_t i = 0; i < 1000 && woken; i++) {
        count_up(&word[0]);
        woken = await_other(&word[1], i);
    }
    uint64_t took_ns = zr_os_now_ns() - start;
    int status = 1;
    waitpid(child, &status, 0);
    tap_ok(status == 0 && atomic_load(&word[1]) == 1000, "two processes wake each other a thousand times");
    tap_ok(woken, "by a wake and not by a time-out: %llu us each", (unsigned long long)(took_ns / 1000000));
    munmap((void *)word, 4096);
}

/* ---- The machine --------------------------------------------------------------------------------------- */

static char scratch[64] = "/tmp/zr-os-test-XXXXXX";

/* Makes a file of the made-up machine, with the folders above it. */
static void put(const char *path, const char *text)
{
    char whole[512], folder[512];
    struct zr_file file;
    snprintf(whole, sizeof whole, "%s/%s", scratch, path);
    snprintf(folder, sizeof folder, "%s", whole);
    *strrchr(folder, '/') = '\0';
    zr_path_make_folder(folder, true);
    if (zr_file_create(&file, whole, ZR_CREATE_REPLACE) == ZR_OK) {
        zr_file_write(&file, text, strlen(text));
        zr_file_close(&file);
    }
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place)
{
    (void)status, (void)kind, (void)place;
    return remove(path);
}

static void remove_tree(const char *path)
{
    nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static struct zr_machine look(unsigned cores)
{
    struct zr_machine machine = {.cores_count = cores};
    zr_os_machine_under(scratch, &machine);
    return machine;
}

static void test_groups_v2(void)
{
    remove_tree(scratch);
    struct zr_machine machine = look(16);
    tap_ok(machine.cgroup_limit_bytes == 0 && machine.cores_count == 16 && machine.memory_bytes == 0,
           "a machine without any file states no limit");

    put("proc/self/cgroup", "0::/a/b/c\n");
    put("proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    put("sys/fs/cgroup/a/b/c/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/memory.max", "5000000\n");
    put("sys/fs/cgroup/a/b/memory.current", "1234\n");
    put("sys/fs/cgroup/a/memory.max", "9000000\n");
    put("sys/fs/cgroup/a/memory.current", "777\n");
    put("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    machine = look(16);
    tap_is(machine.cgroup_limit_bytes, 5000000, "the smallest limit up the tree");
    tap_is(machine.cgroup_used_bytes, 1234, "with the use of the same group");
    tap_is(machine.cores_count, 3, "a share of two and a half cores counts as three");
    tap_is(look(2).cores_count, 2, "a share above the cores there are changes nothing");
    put("sys/fs/cgroup/a/b/memory.stat", "anon 5\ninactive_file 1000\nactive_file 30\nfile 9000\n");
    tap_is(look(16).cgroup_used_bytes, 204, "but for pages of files, which the kernel drops");
    put("sys/fs/cgroup/a/b/memory.stat",
        "inactive_file 1000\ntotal_inactive_file 1100\ntotal_active_file 200\n");
    tap_is(look(16).cgroup_used_bytes, 0, "those of groups below, too, and never below nothing");
    put("sys/fs/cgroup/a/b/c/cpu.max", "1000 100000\n");
    tap_is(look(16).cores_count, 1, "a hundredth of a core is one");
    put("sys/fs/cgroup/a/b/c/memory.max", "0\n");
    tap_is(look(16).cgroup_limit_bytes, 1, "a limit of nothing is not taken for none");

    /* In a container without its own view of the groups, the mount begins at the container's group. */
    remove_tree(scratch);
    put("proc/self/cgroup", "0::/system.slice/container-1\n");
    put("proc/self/mountinfo",
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 23 0:26 /system.slice/container-1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    put("sys/fs/cgroup/memory.max", "7000000\n");
    tap_is(look(4).cgroup_limit_bytes, 7000000, "a mount that begins at the container's own group");
}

static void test_groups_v1(void)
{
    remove_tree(scratch);
    put("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job/inner\n1:name=systemd:/\n0::/\n");
    put("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
                               "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                               "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                               "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("sys/fs/cgroup/memory/job/inner/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3000000\n");
    put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2000000\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    struct zr_machine machine = look(64);
    tap_is(machine.cgroup_limit_bytes, 3000000,
           "version 1: its largest number is no limit, the group above has one");
    tap_is(machine.cgroup_used_bytes, 2000000, "and what is used of it");
    tap_is(machine.cores_count, 4, "version 1: a share of cores, -1 for none");
}

static void test_memory_files(void)
{
    char flags[9000];
    remove_tree(scratch);
    put("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\n"
                        "CommitLimit:     900 kB\nCommitted_AS:    500 kB");
    memset(flags, 'f', sizeof flags);
    memcpy(flags, "flags : ", 8);
    strcpy(flags + sizeof flags - 60, "\nmodel name\t: Example Processor 3000\nprocessor : 1\n");
    put("proc/cpuinfo", flags);
    struct zr_machine machine = look(1);
    tap_ok(machine.memory_bytes == 1024000 && machine.memory_available_bytes == 614400, "memory, in bytes");
    tap_ok(machine.commit_left_bytes == 0 && !machine.overcommit_strict, "overcommit is not strict");
    tap_ok(strcmp(machine.cpu_name, "Example Processor 3000") == 0,
           "the processor, after a line of 9,000 bytes");
    put("proc/sys/vm/overcommit_memory", "2\n");
    machine = look(1);
    tap_ok(machine.overcommit_strict && machine.commit_left_bytes == 400 * 1024,
           "strict overcommit leaves the rest, the last line lacking its end");
    put("proc/meminfo", "CommitLimit: 900 kB\nCommitted_AS: 901 kB\n");
    tap_is(look(1).commit_left_bytes, 1, "nothing left is not taken for no limit");
    put("proc/meminfo", "\n:::\nMemTotal:\nMemAvailable: many kB\nCommitLimit");
    put("proc/self/cgroup", "::\n0:\n\n4:memory\n0::\n");
    put("proc/self/mountinfo", " - \n1 2 3 - cgroup2\n1 2 3 4 5 - cgroup2 x\n");
    tap_is(look(1).memory_bytes, 0, "nonsense in the files is no limit either");
}

static int see_address_limit(void)
{
    struct zr_machine machine;
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = 900000000;
    setrlimit(RLIMIT_AS, &limit);
    zr_os_machine(&machine);
    return machine.address_limit_bytes == 900000000 ? 0 : 1;
}

static void test_this_machine(void)
{
    struct zr_machine machine;
    zr_os_machine(&machine);
    tap_ok(machine.cores_count >= 1 && machine.cores_count <= (unsigned)sysconf(_SC_NPROCESSORS_CONF),
           "this machine: %u cores of '%s'", machine.cores_count, machine.cpu_name);
    tap_is(machine.page_bytes, sysconf(_SC_PAGESIZE), "its pages");
    tap_ok(machine.memory_bytes >= machine.memory_available_bytes && machine.memory_available_bytes > 0,
           "its memory: %llu MB, %llu MB available", (unsigned long long)(machine.memory_bytes / 1000000),
           (unsigned long long)(machine.memory_available_bytes / 1000000));
    tap_note("group limit %llu MB, strict overcommit %d",
             (unsigned long long)(machine.cgroup_limit_bytes / 1000000), machine.overcommit_strict);
    tap_is(in_child(see_address_limit), 0, "ulimit -v is seen");
}

static void test_resident(void)
{
    const size_t bytes = (size_t)24 << 20;
    struct zr_resident before, after;
    tap_result(zr_os_resident(&before), ZR_OK, "resident memory");
    char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(own, 1, bytes);
    memset(shared, 1, bytes / 2);
    zr_os_resident(&after);
    /* The kernel counts per processor and may be some pages late. */
    const size_t slack = (size_t)1 << 20;
    tap_ok(after.anonymous_bytes + slack >= before.anonymous_bytes + bytes, "counts anonymous pages");
    tap_ok(after.shared_bytes + slack >= before.shared_bytes + bytes / 2 &&
               after.shared_bytes <= before.shared_bytes + bytes / 2 + slack,
           "counts shared pages apart");
    tap_ok(before.file_bytes > 0 && after.peak_bytes + slack >= after.anonymous_bytes + after.shared_bytes,
           "file pages and the peak");
    munmap(own, bytes);
    munmap(shared, bytes);
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

/* /proc/PID/stat has a program's name between parentheses, whatever is in it. */
static void test_process_name(void)
{
    char name[16];
    struct zr_process self, named;
    zr_process_self(&self);
    prctl(PR_GET_NAME, name);
    prctl(PR_SET_NAME, "a) b (c) S 1");
    zr_process_self(&named);
    tap_ok(self.started > 0 && named.started == self.started && zr_process_lives(&self) &&
               zr_process_parent(self.pid) == getppid() && zr_process_state(self.pid) == 'R',
           "a process whose name has parentheses is known for what it is");
    prctl(PR_SET_NAME, name);
}

static void *burn(void *ticks)
{
    struct timespec used = {0};
    pthread_setname_np(pthread_self(), "burns (zr)");
    while (used.tv_sec == 0 && used.tv_nsec < 100000000)
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    *(uint64_t *)ticks = zr_process_thread_ticks((int32_t)getpid(), "burns (zr)");
    return NULL;
}

static void test_processes(void)
{
    pthread_t thread;
    int32_t pid = (int32_t)getpid();
    uint64_t ticks = 0;
    int status;
    tap_is(pthread_create(&thread, NULL, burn, &ticks), 0, "a thread that uses the processor for 100 ms");
    pthread_join(thread, NULL);
    tap_ok(ticks >= 5 && zr_process_thread_ticks(pid, "burns") == 0,
           "is seen to, by its whole name: %llu ticks", (unsigned long long)ticks);
    tap_is(zr_process_state(pid), 'R', "a process that runs");
    pid_t child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(child, &status, WUNTRACED);
    tap_is(zr_process_state((int32_t)child), 'T', "one that is stopped");
    struct zr_process self, one = {.pid = (int32_t)child, .started = zr_process_started((int32_t)child)};
    zr_process_self(&self);
    one.machine = self.machine;
    tap_ok(zr_process_lives(&one), "lives");
    one.started++;
    tap_ok(!zr_process_lives(&one), "another that had its number does not");
    one.started--;
    kill(child, SIGKILL);
    waitid(P_PID, (id_t)child, &(siginfo_t){0}, WEXITED | WNOWAIT);
    tap_ok(zr_process_state((int32_t)child) == 'Z' && !zr_process_lives(&one),
           "nor one whose parent has not asked yet how it ended");
    one.machine++;
    tap_ok(zr_process_lives(&one), "of another machine nobody knows");
    waitpid(child, &status, 0);
    tap_is(zr_process_state((int32_t)child), 0, "and one that is gone");
}

/* ---- Folders ------------------------------------------------------------------------------------------- */

/* Where this user's processes leave what others are to find: nobody else may enter it. */
static void test_folders(void)
{
    static const struct {
        const char *words;
        mode_t mode; /* 0: none is there */
        bool link, good;
    } rows[] = {{"a folder of this user's own", 0700, false, true},
                {"one that others may list", 0704, false, false},
                {"or enter", 0701, false, false},
                {"or write to", 0702, false, false},
                {"one that a group may list", 0740, false, false},
                {"or enter", 0710, false, false},
                {"or write to", 0720, false, false},
                {"a link to one", 0700, true, false},
                {"none", 0, false, false}};
    char path[ZR_FOLDER_BYTES], zr[128], target[128], base[300];
    struct stat status;
    mode_t before = umask(0);
    remove_tree(scratch);
    mkdir(scratch, 0700);
    snprintf(zr, sizeof zr, "%s/zr", scratch);
    snprintf(target, sizeof target, "%s/target", scratch);
    snprintf(base, sizeof base, "%s//", scratch);
    zr_folders_set(base, base);
    tap_ok(strcmp(zr_folder_temporary(), scratch) == 0 && strcmp(zr_folder_scope(), scratch) == 0,
           "folders have no slash at their end");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].mode)
            mkdir(rows[i].link ? target : zr, rows[i].mode);
        if (rows[i].link)
            tap_ok(symlink(target, zr) == 0, "a link");
        for (unsigned make = 0; make < 2; make++) {
            bool good = rows[i].good || (make && !rows[i].mode);
            tap_result(zr_folder_runtime(path, make), good ? ZR_OK : ZR_ERR_IO, "%s is %s", rows[i].words,
                       good ? "one" : "none");
            tap_ok(strcmp(path, zr) == 0 &&
                       (!good || (stat(zr, &status) == 0 && (status.st_mode & 0777) == 0700)),
                   "by its name");
        }
        remove(zr);
        rmdir(target);
    }
    /* The longest names that fit: see folders.c. */
    for (size_t length = 238; length <= 241; length++) {
        memset(base, 'x', length);
        base[0] = '/';
        base[length] = '\0';
        zr_folders_set(base, NULL);
        tap_ok((strcmp(zr_folder_temporary(), base) == 0) == (length < 240), "a name of %zu bytes", length);
    }
    zr_folders_set("relative", "relative");
    tap_ok(strcmp(zr_folder_temporary(), "/tmp") == 0 && !*zr_folder_scope(), "a relative one is none");
    umask(before);
    zr_folders_set(getenv("TMPDIR"), getenv("XDG_RUNTIME_DIR"));
}

/* ---- Libraries ----------------------------------------------------------------------------------------- */

static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    return access(path, F_OK) != 0;
}

/* The C library by another name, in wheels below the scratch folder. */
static void test_libraries(void)
{
    static const struct {
        const char *at, *name, *programs, *words; /* programs: PATH below the scratch folder */
    } places[] = {
        {"a/lib/python3.11/site-packages/nvidia/cublas/lib/", "libzr_one.so.1", "a/bin", "cuBLAS of CUDA 12"},
        {"a/lib/python3.13/dist-packages/nvidia/cu13/lib/", "libzr_two.so.1", "a/bin", "all of CUDA 13"},
        {"b/nvidia/nccl/lib/", "libzr_three.so.1", NULL, "NCCL beside a PyTorch in this process"},
    };
    const char *const symbols[] = {"getpid", NULL};
    char programs[128], torch[160];
    void *function = NULL;
    Dl_info libc;
    snprintf(programs, sizeof programs, "%s/a/bin/python3", scratch);
    make_folders(programs);
    bool stands = dladdr(dlsym(RTLD_DEFAULT, "getpid"), &libc) && libc.dli_fname;
    for (size_t i = 0; i < sizeof places / sizeof *places && stands; i++) {
        const char *const names[] = {"libzr_nowhere.so.1", places[i].name, NULL};
        char path[256];
        snprintf(path, sizeof path, "%s/%s%s", scratch, places[i].at, places[i].name);
        stands = make_folders(path) && symlink(libc.dli_fname, path) == 0;
        zr_folders_set_programs("/nonexistent/bin");
        bool early = zr_module_find(names, symbols, &function) == ZR_OK;
        snprintf(programs, sizeof programs, "/nonexistent:%s/%s", scratch, places[i].programs);
        zr_folders_set_programs(places[i].programs ? programs : NULL);
        if (!places[i].programs) {
            snprintf(torch, sizeof torch, "%s/b/torch/lib/libzr_torch.so", scratch);
            snprintf(path, sizeof path, "%.*s/libresolv.so.2",
                     (int)(strrchr(libc.dli_fname, '/') - libc.dli_fname), libc.dli_fname);
            stands = make_folders(torch) && symlink(path, torch) == 0 && dlopen(torch, RTLD_NOW);
        }
        bool found = zr_module_find(names, symbols, &function) == ZR_OK;
        tap_ok(stands && !early && found && function, "%s is found in its wheel", places[i].words);
    }
    const char *const names[] = {libc.dli_fname, NULL}, *const optional[] = {"getpid", "?zr_none", NULL};
    const char *const missing[] = {"getpid", "zr_none", NULL};
    void *functions[2] = {NULL, &libc};
    tap_ok(zr_module_find(names, optional, functions) == ZR_OK && functions[0] && !functions[1],
           "a function that a library may lack");
    tap_ok(zr_module_find(names, missing, functions) == ZR_ERR_UNAVAILABLE &&
               strstr(zr_last_error(), "lacks zr_none"),
           "and one that it may not: %s", zr_last_error());
    zr_folders_set_programs(NULL);
}

int main(void)
{
    if (!mkdtemp(scratch)) {
        tap_ok(false, "a scratch folder in /tmp");
        return tap_done();
    }
    int before = open_descriptors();
    test_words();
    test_process_name();
    test_clock();
    tap_result(zr_backend_host_create(&backend, NULL), ZR_OK, "host backend");
    tap_result(
        zr_arena_create(&arena, &(struct zr_arena_options){.backend = backend, .limit_bytes = 128 << 20}),
        ZR_OK, "arena for stacks");
    if (arena) {
        size_t leaked = 1;
        test_threads();
        test_thread_failures();
        tap_result(zr_arena_destroy(arena, &leaked), ZR_OK, "arena destroyed");
        tap_is(leaked, 0, "with no stack left in it");
    }
    zr_backend_destroy(backend);
    test_groups_v2();
    test_groups_v1();
    test_memory_files();
    test_this_machine();
    test_resident();
    test_processes();
    test_folders();
    tap_is(open_descriptors(), before, "every descriptor was closed");
    test_libraries();
    remove_tree(scratch);
    return tap_done();
}
