/* keeper.c: the process that starts and watches parameter servers. See servers.h. */
#include "zero/train/servers/servers.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/keep/holder.h"
#include "zero/train/report/terminal.h"
#include "zero/train/settings/args.h"

enum { LOOK_MS = 20 };

struct keeper {
    const struct zr_train_config *config;
    struct zr_served_run *run;
    int door[2];
    struct zr_kept_holder holder;
    pid_t servers[2 * ZR_PS_SERVERS_MAX]; /* 0: it has ended */
    unsigned alive, restarts;
    bool ended[2 * ZR_PS_SERVERS_MAX]; /* its workers have left */
    bool lost[2 * ZR_PS_SERVERS_MAX];  /* it has ended before that, with `statuses` */
    int statuses[2 * ZR_PS_SERVERS_MAX];
};

/* A socket that any process has open accepts connections to a server that has died. */
static void close_listener(struct zr_served_run *run, unsigned server)
{
    if (run->listeners[server] >= 0)
        close(run->listeners[server]);
    run->listeners[server] = -1;
}

static void close_listeners(struct zr_served_run *run, unsigned except)
{
    for (unsigned s = 0; s < run->count; s++)
        if (s != except)
            close_listener(run, s);
}

/* Whether a server has the state of its tables, as the board says. */
static bool has_state(const struct keeper *keeper, unsigned number)
{
    struct zr_server_entry entry;
    return zr_file_read_at(&keeper->run->board, number * sizeof entry, &entry, sizeof entry) == ZR_OK &&
           entry.has_state;
}

static void fork_server(struct keeper *keeper, unsigned number, enum zr_server_role role)
{
    const struct zr_server_entry none = {.has_state = false};
    if (zr_file_write_at(&keeper->run->board, number * sizeof none, &none, sizeof none) != ZR_OK)
        zr_say("server %u: %s", number, zr_last_error());
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(keeper->door[0]);
        close_listeners(keeper->run, number);
        zr_holding_set_door(keeper->door[1]);
        _exit(zr_server_main(keeper->config, number, role));
    }
    keeper->servers[number] = pid > 0 ? pid : 0;
    keeper->alive += pid > 0;
    if (pid < 0)
        zr_say("cannot fork server %u (error %d): raise `ulimit -u` or the cgroup's pids.max", number, errno);
}

/* A replica in place of a killed server listens at its address and joins the other copy. */
static void fork_replica(struct keeper *keeper, unsigned number)
{
    struct zr_served_run *run = keeper->run;
    if (zr_ps_listen(&run->listeners[number], run->addresses[number], NULL) != ZR_OK) {
        zr_say("server %u has no successor: %s", number, zr_last_error());
        return;
    }
    fork_server(keeper, number, ZR_SERVER_SUCCEEDS);
    close_listeners(run, run->count);
}

/* A server has ended before its workers have left: it is replaced, up to --max-restarts, or its other copy
 * continues; else the run ends. false: the other copy neither has its state yet nor has it ended. */
static bool lose(struct keeper *keeper, unsigned number)
{
    const struct zr_train_config *config = keeper->config;
    const int status = keeper->statuses[number];
    const unsigned copy = zr_served_copy(config, number);
    const bool lives = config->replicas && keeper->servers[copy] > 0,
               spare = lives && has_state(keeper, copy),
               again = WIFSIGNALED(status) && (!config->replicas || spare) &&
                       keeper->restarts < config->max_restarts;
    if (config->replicas && keeper->ended[copy])
        return true;
    if (lives && !spare)
        return false;
    if (WIFSIGNALED(status))
        zr_say("server %u was killed by signal %d%s", number, WTERMSIG(status),
               again && spare     ? "; its other copy continues and gets a new replica"
               : again            ? "; a successor continues with its memory"
               : spare            ? "; its other copy continues"
               : config->replicas ? "; no other copy has its state, so the run ends: resume from a save"
               : config->max_restarts == 0 ? "; the run ends: --max-restarts N replaces servers"
                                           : "; the run ends");
    keeper->restarts += again;
    if (again && spare)
        fork_replica(keeper, number);
    else if (again)
        fork_server(keeper, number, ZR_SERVER_FIRST);
    else if (!spare)
        kill(getppid(), SIGQUIT);
    return true;
}

static void reap(struct keeper *keeper)
{
    const unsigned count = keeper->config->served->count;
    for (unsigned s = 0; s < count; s++) {
        int *status = &keeper->statuses[s];
        if (keeper->servers[s] == 0 || waitpid(keeper->servers[s], status, WNOHANG) <= 0)
            continue;
        keeper->servers[s] = 0;
        keeper->alive--;
        keeper->ended[s] = WIFEXITED(*status) && WEXITSTATUS(*status) == ZR_EXIT_OK;
        keeper->lost[s] = !keeper->ended[s];
        if (keeper->ended[s])
            close_listener(keeper->run, s);
    }
    for (unsigned s = 0; s < count; s++)
        keeper->lost[s] = keeper->lost[s] && !lose(keeper, s);
}

/* Signals of the run go to the launcher, which ends the workers first. */
static int keep(const struct zr_train_config *config, struct zr_served_run *run)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE};
    struct keeper keeper = {.config = config, .run = run};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, keeper.door) != 0) {
        zr_say("no file descriptor is left for servers: raise `ulimit -n`");
        return ZR_EXIT_MEMORY;
    }
    zr_kept_holder_init(&keeper.holder);
    for (unsigned s = 0; s < config->served->count; s++)
        fork_server(&keeper, s, s < config->servers ? ZR_SERVER_FIRST : ZR_SERVER_COPIES);
    if (config->replicas) /* else successors accept */
        close_listeners(run, run->count);
    while (keeper.alive > 0) {
        poll(&(struct pollfd){.fd = keeper.door[0], .events = POLLIN}, 1, LOOK_MS);
        zr_kept_holder_serve(&keeper.holder, keeper.door[0]);
        reap(&keeper);
    }
    zr_kept_holder_fini(&keeper.holder);
    return ZR_EXIT_OK;
}

zr_result zr_served_start(struct zr_served_run *out, struct zr_train_config *config)
{
    const char *folder = getenv("TMPDIR");
    char address[ZR_PS_ADDRESS_BYTES];
    *out = (struct zr_served_run){.count = config->servers * (1 + config->replicas), .posts = {.fd = -1}};
    folder = folder && folder[0] ? folder : "/tmp";
    zr_result result = zr_file_create_nameless(&out->board, folder);
    if (result == ZR_OK)
        result = zr_file_resize(&out->board, zr_served_messages_at(out));
    if (result == ZR_OK && config->max_restarts > 0)
        result = zr_file_create_nameless(&out->posts, folder);
    for (unsigned s = 0; s < out->count && result == ZR_OK; s++) {
        snprintf(address, sizeof address, "unix:%.200s/zr-server-%d-%u", folder, (int)getpid(), s);
        result = zr_ps_listen(&out->listeners[s], address, out->addresses[s]);
    }
    if (result != ZR_OK)
        return result;
    config->served = out;
    out->keeper = fork();
    if (out->keeper == 0)
        _exit(keep(config, out));
    close_listeners(out, out->count);
    return out->keeper > 0
               ? ZR_OK
               : zr_fail(ZR_ERR_HOST_MEMORY, "cannot fork the keeper of servers (error %d)", errno);
}

void zr_served_stop(struct zr_served_run *run, bool kills)
{
    int status;
    if (kills && run->keeper > 0)
        kill(run->keeper, SIGKILL); /* its servers end with it */
    while (run->keeper > 0 && waitpid(run->keeper, &status, 0) < 0 && errno == EINTR)
        ;
    for (unsigned s = 0; s < run->count && run->addresses[s][0]; s++)
        zr_path_unlink(run->addresses[s] + sizeof "unix:" - 1);
    zr_file_close(&run->board);
    zr_file_close(&run->posts);
}
