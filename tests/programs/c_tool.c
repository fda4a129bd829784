/* A tool in C, which start_tool starts next to a job of tool_target. It reads and changes rank 0 by
 * libscoretools, and lists the threads of rank 0 by glibc's libthread_db. Then it leaves
 * breakpoints and other things set, waits for SIGTERM, and removes them. A failure ends the tool
 * with one line. */
#define _GNU_SOURCE
#include <errno.h>
#include <gnu/libc-version.h>
#include <poll.h>
#include <proc_service.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reg.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/user.h>
#include <thread_db.h>
#include <unistd.h>

#include <score_toolctl.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) fail(__LINE__, #condition);                                              \
    } while (0)
#define MAX_THREADS 8
#define LARGE 200000

static score_toolctl *connection;
static struct ps_prochandle *process;
/* Ids of the threads of rank 0, as the messages of tool control contain them. */
static uint32_t threads[MAX_THREADS];
static size_t thread_count;
/* The thread that counts. */
static lwpid_t counting;

static void fail(int line, const char *condition)
{
    printf("failed in line %d: %s: %s.\n", line, condition, score_toolctl_error(connection));
    fflush(stdout);
    exit(1);
}

static int says(const char *part)
{
    return strstr(score_toolctl_error(connection), part) != NULL;
}

static psaddr_t address_of(const char *name)
{
    psaddr_t address = NULL;

    CHECK(ps_pglobal_lookup(process, NULL, name, &address) == PS_OK && address);
    return address;
}

static long read_long(const char *name)
{
    long value;

    CHECK(ps_pdread(process, address_of(name), &value, sizeof value) == PS_OK);
    return value;
}

/* Waits until a variable changes. On a busy machine its thread may not run for seconds. */
static int changes(const char *name)
{
    long before = read_long(name);
    int i;

    for (i = 0; i < 10000; i++) {
        if (read_long(name) != before) return 1;
        usleep(2000);
    }
    return 0;
}

static int stays(const char *name)
{
    long before = read_long(name);

    usleep(40000);
    return read_long(name) == before;
}

static uint32_t command(int is_update, uint16_t kind, const void *data, size_t len,
                        struct score_toolctl_command *result)
{
    struct score_toolctl_command one = {kind, 0, 99, data, len, NULL, 0};

    if (is_update) {
        CHECK(score_toolctl_update(connection, 0, &one, 1) == 0);
    } else {
        CHECK(score_toolctl_query(connection, 0, &one, 1) == 0);
    }
    if (result) *result = one;
    return one.return_code;
}

static void list_threads(void)
{
    uint32_t none = 0;
    struct score_toolctl_command result;
    const struct score_tools_thread_list_head *head;
    size_t i;

    CHECK(command(0, SCORE_TOOLS_CMD_GET_THREAD_LIST, &none, sizeof none, &result) == 0);
    head = result.answer;
    thread_count = head->count;
    CHECK(thread_count >= 2 && thread_count <= MAX_THREADS);
    for (i = 0; i < thread_count; i++) {
        struct score_tools_thread_entry entry;
        memcpy(&entry, (const char *)head + SCORE_TOOLS_THREAD_LIST_HEAD_TAIL + i * sizeof entry,
               sizeof entry);
        threads[i] = entry.tid;
    }
}

static int is_listed(uint32_t thread)
{
    size_t i;

    for (i = 0; i < thread_count; i++)
        if (threads[i] == thread) return 1;
    return 0;
}

/* Checks a thread that td_ta_thr_iter has found. */
static int on_thread(const td_thrhandle_t *handle, void *count)
{
    td_thrinfo_t info;
    td_thrhandle_t again;
    prgregset_t registers, same;
    uint32_t thread;
    psaddr_t base;

    CHECK(td_thr_get_info(handle, &info) == TD_OK);
    thread = score_toolctl_thread(process, info.ti_lid);
    CHECK(is_listed(thread));
    if ((pid_t)thread != ps_getpid(process)) counting = (lwpid_t)thread;
    /* libthread_db uses the id that it has read in the process, and a tool uses the id of the
     * host. */
    CHECK(td_thr_getgregs(handle, registers) == TD_OK);
    CHECK(ps_lgetregs(process, (lwpid_t)thread, same) == PS_OK);
    CHECK(registers[FS_BASE] == same[FS_BASE] && registers[RSP] != 0);
    CHECK((psaddr_t)registers[FS_BASE] == handle->th_unique);
    CHECK(ps_get_thread_area(process, (lwpid_t)thread, FS, &base) == PS_OK);
    CHECK(base == handle->th_unique);
    CHECK(td_ta_map_lwp2thr(handle->th_ta_p, (lwpid_t)thread, &again) == TD_OK);
    CHECK(again.th_unique == handle->th_unique);
    ++*(size_t *)count;
    return 0;
}

static size_t count_by_thread_db(void)
{
    td_thragent_t *agent;
    size_t count = 0;

    CHECK(td_ta_new(process, &agent) == TD_OK);
    CHECK(td_ta_thr_iter(agent, on_thread, &count, TD_THR_ANY_STATE, TD_THR_LOWEST_PRIORITY,
                         TD_SIGNO_MASK, TD_THR_ANY_USER_FLAGS) == TD_OK);
    td_ta_delete(agent);
    return count;
}

/* None of these operations needs Control authority. */
static void read_without_control(void)
{
    prgregset_t registers;
    prfpregset_t float_registers;
    psaddr_t address, other;
    char byte = 0;

    list_threads();
    CHECK(count_by_thread_db() == thread_count && counting != 0);
    CHECK(changes("counter"));
    CHECK(ps_ptread(process, address_of("tick"), &byte, 1) == PS_OK && byte != 0);
    CHECK(ps_lgetfpregs(process, counting, &float_registers) == PS_OK);
    CHECK(float_registers.mxcsr != 0);
    /* A lookup without the name of an object searches all objects, and a lookup with a name also
     * searches the others. */
    CHECK(ps_pglobal_lookup(process, "libc.so.6", "malloc", &address) == PS_OK);
    CHECK(ps_pglobal_lookup(process, NULL, "malloc", &other) == PS_OK && address == other);
    CHECK(ps_pglobal_lookup(process, "libc.so.6", "counter", &address) == PS_OK);
    CHECK(address == address_of("counter"));

    CHECK(ps_pdread(process, (psaddr_t)8, &byte, 1) == PS_BADADDR && says("rank 0, GetMemory"));
    CHECK(ps_pdread(process, address_of("counter"), NULL, 1) == PS_ERR && says("NULL"));
    CHECK(ps_lgetregs(process, 1, registers) == PS_BADLID && says("thread 1"));
    CHECK(ps_pglobal_lookup(process, NULL, "no_such_symbol", &address) == PS_NOSYM);
    CHECK(says("no loaded object defines no_such_symbol"));
    CHECK(ps_get_thread_area(process, counting, 77, &address) == PS_ERR);
    CHECK(ps_pdread(NULL, address, &byte, 1) == PS_BADPID);
    CHECK(ps_pdread(score_toolctl_process(connection, 7), address, &byte, 1) == PS_BADPID);
    CHECK(ps_pdwrite(process, address_of("watched"), &byte, 1) == PS_ERR && says("authority"));
    CHECK(ps_pstop(process) == PS_ERR && says("authority"));
}

static void stop_and_change(void)
{
    prgregset_t registers, changed;
    prfpregset_t floats, changed_floats;
    long value = 4711;

    CHECK(ps_pdwrite(process, address_of("stop") , &value, 0) == PS_OK);
    CHECK(ps_pstop(process) == PS_OK && stays("counter"));
    /* The process is stopped already, so the second call changes nothing. */
    CHECK(ps_pstop(process) == PS_OK);
    CHECK(ps_pdwrite(process, address_of("watched"), &value, sizeof value) == PS_OK);
    CHECK(read_long("watched") == 4711);
    CHECK(ps_ptwrite(process, (psaddr_t)8, &value, sizeof value) == PS_BADADDR);

    CHECK(ps_lgetregs(process, counting, registers) == PS_OK);
    memcpy(changed, registers, sizeof changed);
    changed[R15] = 0x1234567890;
    CHECK(ps_lsetregs(process, counting, changed) == PS_OK);
    memset(changed, 0, sizeof changed);
    CHECK(ps_lgetregs(process, counting, changed) == PS_OK && changed[R15] == 0x1234567890);
    CHECK(changed[RIP] == registers[RIP] && changed[FS_BASE] == registers[FS_BASE]);
    CHECK(ps_lsetregs(process, counting, registers) == PS_OK);

    CHECK(ps_lgetfpregs(process, counting, &floats) == PS_OK);
    changed_floats = floats;
    changed_floats.xmm_space[13] = 77;
    CHECK(ps_lsetfpregs(process, counting, &changed_floats) == PS_OK);
    CHECK(ps_lgetfpregs(process, counting, &changed_floats) == PS_OK);
    CHECK(changed_floats.xmm_space[13] == 77 && changed_floats.mxcsr == floats.mxcsr);
    CHECK(ps_lsetfpregs(process, counting, &floats) == PS_OK);
    CHECK(ps_lsetregs(process, 1, registers) == PS_BADLID);

    CHECK(ps_pcontinue(process) == PS_OK && changes("counter"));
    CHECK(ps_pcontinue(process) == PS_ERR);
    CHECK(ps_lstop(process, counting) == PS_OK && stays("counter"));
    CHECK(ps_lcontinue(process, counting) == PS_OK && changes("counter"));
    CHECK(ps_lstop(process, 1) == PS_BADLID);
}

/* Changes the version of glibc in the memory of rank 0 for a moment. */
static void other_glibc(void)
{
    psaddr_t address;
    td_thragent_t *agent;
    const char *text;
    char version[5];

    if (ps_pglobal_lookup(process, NULL, "__nptl_version", &address) != PS_OK)
        address = address_of("nptl_version");
    CHECK(ps_pdread(process, address, version, sizeof version) == PS_OK);
    CHECK(ps_pdwrite(process, address, "9.99", sizeof version) == PS_OK);
    CHECK(td_ta_new(process, &agent) == TD_VERSION);
    text = score_toolctl_thread_db_error(process, TD_VERSION);
    CHECK(strstr(text, "glibc 9.99") && strstr(text, gnu_get_libc_version()));
    CHECK(ps_pdwrite(process, address, version, sizeof version) == PS_OK);
    CHECK(count_by_thread_db() == thread_count);
}

static psaddr_t allocate(uint64_t size)
{
    struct score_tools_allocation_size request = {0, 0, size};
    struct score_toolctl_command result;

    CHECK(command(1, SCORE_TOOLS_CMD_ALLOCATE_MEMORY, &request, sizeof request, &result) == 0);
    CHECK(result.answer_len >= sizeof(struct score_tools_allocated_memory));
    return (psaddr_t)((const struct score_tools_allocated_memory *)result.answer)->address;
}

/* Allocates and uses more memory than a message can hold. */
static psaddr_t large_memory(void)
{
    static unsigned char out[LARGE], in[LARGE];
    struct score_tools_memory_copy copy = {0, 0, 8, SCORE_TOOLS_MAX_SHARED, 0};
    psaddr_t memory = allocate(LARGE);
    const void *view = out;
    size_t i;

    for (i = 0; i < LARGE; i++) out[i] = (unsigned char)(i * 7 + i / 251);
    CHECK(ps_pdwrite(process, memory, out, LARGE) == PS_OK);
    CHECK(ps_pdread(process, memory, in, LARGE) == PS_OK && memcmp(in, out, LARGE) == 0);
    CHECK(ps_pdread(process, (psaddr_t)8, in, LARGE) == PS_BADADDR && says("CopyMemory"));
    CHECK(score_toolctl_view(connection, 0, (uint64_t)memory, LARGE, &view) == 0);
    CHECK(memcmp(view, out, LARGE) == 0);
    CHECK(score_toolctl_view(connection, 0, 8, LARGE, &view) == -EIO && !view);
    CHECK(says("CopyMemory"));
    CHECK(score_toolctl_view(connection, 0, 8, SCORE_TOOLCTL_MAX_VIEW + 1, &view) == -EINVAL);
    CHECK(score_toolctl_view(connection, 0, 8, 1, NULL) == -EINVAL);
    CHECK(score_toolctl_view(connection, 7, 8, 1, &view) > 0);
    /* The library shares less memory than a tool may share. */
    CHECK(command(0, SCORE_TOOLS_CMD_COPY_MEMORY, &copy, sizeof copy, NULL) ==
          SCORE_TOOLS_CC_LENGTH_ERROR);
    return memory;
}

static void on_alarm(int signal)
{
    (void)signal;
}

static void wait_for_notices(void)
{
    struct itimerval soon = {{0, 0}, {0, 20000}};
    struct sigaction action;
    const void *notice;
    size_t len;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(score_toolctl_notice(connection, 0, &notice, &len) == -ETIMEDOUT && !notice);
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    CHECK(score_toolctl_notice(connection, -1, &notice, &len) == -EINTR);
}

/* Sets a breakpoint, waits for its notice, and removes it. */
static void breakpoint(void)
{
    struct score_tools_new_breakpoint point = {0, 0, (uint64_t)address_of("tick"),
                                               SCORE_TOOLS_BREAKPOINT_KIND_NORMAL};
    const struct score_tools_signal_notice *signal;
    const void *notice;
    size_t len;

    CHECK(command(1, SCORE_TOOLS_CMD_SET_BREAKPOINT, &point, sizeof point, NULL) == 0);
    CHECK(score_toolctl_notice(connection, 20000, &notice, &len) == 0);
    signal = notice;
    CHECK(len == sizeof *signal && signal->header.kind == SCORE_TOOLS_MSG_NOTIFY);
    CHECK(signal->reason == SCORE_TOOLS_SIGNAL_REASON_BREAKPOINT);
    CHECK(signal->instruction == point.address && signal->thread == (uint32_t)counting);
    CHECK(signal->header.job == strtoull(getenv("BG_JOBID"), NULL, 10));
    /* The tool has authority, so it cannot detach. */
    CHECK(score_toolctl_detach(connection, SCORE_TOOLCTL_ALL_RANKS)
          == SCORE_TOOLS_RC_TOOL_CONTROL_RELEASE_REQUIRED);
    CHECK(score_toolctl_clean_up(connection, 0) == 0 && changes("counter"));
    CHECK(score_toolctl_release(connection, 0) == SCORE_TOOLS_RC_TOOL_CONTROL_REQUIRED);
}

static void ask_for_control(void)
{
    struct score_tools_control settings;
    struct score_tools_control_ack holder;

    memset(&settings, 0, sizeof settings);
    settings.notify_set = 1u << (SIGTRAP - 1) | 1u << (SIGUSR1 - 1);
    CHECK(score_toolctl_control(connection, 0, &settings, &holder) == 0);
    CHECK(holder.controller == score_toolctl_tool(connection));
    CHECK(memcmp(holder.tag, "c tool\0\0", 8) == 0 && holder.priority == 50);
}

/* Stops the process while breakpoints are hit. A breakpoint may be hit before all threads have
 * stopped. */
static void stop_amid_notices(void)
{
    struct score_tools_new_breakpoint point = {0, 0, (uint64_t)address_of("tick"),
                                               SCORE_TOOLS_BREAKPOINT_KIND_NORMAL};
    long before;
    int round;

    for (round = 0; round < 40; round++) {
        ask_for_control();
        CHECK(command(1, SCORE_TOOLS_CMD_SET_BREAKPOINT, &point, sizeof point, NULL) == 0);
        CHECK(ps_pstop(process) == PS_OK);
        before = read_long("counter");
        usleep(1000);
        CHECK(read_long("counter") == before);
        if (round % 2) CHECK(ps_pcontinue(process) == PS_OK);
        CHECK(score_toolctl_clean_up(connection, 0) == 0);
    }
    CHECK(changes("counter"));
}

/* Sets the things that the tool removes before it detaches. */
static void leave_things_behind(void)
{
    struct score_tools_new_breakpoint point = {0, 0, (uint64_t)address_of("tick"),
                                               SCORE_TOOLS_BREAKPOINT_KIND_NORMAL};
    struct score_tools_trap_handler handler = {0, 0, (uint64_t)address_of("on_trap")};
    struct score_tools_signal_number user_signal = {0, 0, SIGUSR1};
    struct score_tools_new_watchpoint watch = {(uint32_t)counting, 0,
                                               (uint64_t)address_of("watched"), 8,
                                               SCORE_TOOLS_WATCH_TYPE_WRITE};
    struct pollfd readable = {score_toolctl_fd(connection), POLLIN, 0};
    uint32_t held = (uint32_t)counting, code;

    /* The tool never fetches the notice of this signal. */
    CHECK(command(1, SCORE_TOOLS_CMD_SEND_SIGNAL_TO_PROCESS, &user_signal, sizeof user_signal,
                  NULL) == 0);
    CHECK(poll(&readable, 1, 20000) == 1);
    CHECK(command(1, SCORE_TOOLS_CMD_SET_BREAKPOINT, &point, sizeof point, NULL) == 0);
    CHECK(command(1, SCORE_TOOLS_CMD_INSTALL_TRAP_HANDLER, &handler, sizeof handler, NULL) == 0);
    CHECK(command(1, SCORE_TOOLS_CMD_HOLD_THREAD, &held, sizeof held, NULL) == 0);
    code = command(1, SCORE_TOOLS_CMD_SET_WATCHPOINT, &watch, sizeof watch, NULL);
    /* A virtual machine may have no debug registers. */
    CHECK(code == 0 || code == SCORE_TOOLS_CC_HARDWARE_UNAVAILABLE);
}

int main(void)
{
    struct pollfd waiting = {-1, POLLIN, 0};
    char text[256];
    sigset_t set;
    uint32_t ranks[4];
    size_t number = 4;
    psaddr_t memory;

    setvbuf(stdout, NULL, _IOLBF, 0);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    waiting.fd = signalfd(-1, &set, 0);
    CHECK(!score_toolctl_connect("/no/such/socket", 1, 0, text, sizeof text));
    CHECK(strstr(text, "/no/such/socket"));
    connection = score_toolctl_open(text, sizeof text);
    if (!connection) {
        puts(text);
        return 1;
    }
    process = score_toolctl_process(connection, 0);
    CHECK(ps_getpid(process) == -1);
    CHECK(score_toolctl_attach(connection, 0, 200, "c tool", NULL, NULL)
          == SCORE_TOOLS_RC_TOOL_PRIORITY_ERROR);
    CHECK(score_toolctl_attach(connection, SCORE_TOOLCTL_ALL_RANKS, 50, "c tool", ranks, &number)
          == 0);
    CHECK(number == 1 && ranks[0] == 0);
    CHECK(score_toolctl_tool(connection) == strtoul(getenv("BG_TOOLID"), NULL, 10));

    read_without_control();
    ask_for_control();
    stop_and_change();
    other_glibc();
    wait_for_notices();
    breakpoint();
    stop_amid_notices();
    ask_for_control();
    memory = large_memory();
    leave_things_behind();
    printf("memory 0x%lx thread %u.\n", (unsigned long)memory, (unsigned)counting);
    CHECK(poll(&waiting, 1, -1) == 1);
    CHECK(score_toolctl_leave(connection) == 0);
    score_toolctl_close(connection);
    puts("left");
    return 0;
}
