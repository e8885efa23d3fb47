/* start.c: finds out how this process was started, and starts its ranks accordingly. Calls launch.c,
 * join.c and mpirun.c; the only file of zero/ that reads the environment of launchers. */
#define _GNU_SOURCE
#include "zero/launch/start.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/base/error.h"
#include "alloc/base/hash.h"
#include "zero/launch/control.h"

enum { EXIT_USAGE = 2, MAX_PORT = 65535, LONGEST_KEY = 60 };

/* ---- The environment ----------------------------------------------------------------------------------- */

/* Variables of each launcher. The first launcher found counts: mpirun under srun is mpirun. */
static const struct source {
    enum zr_start_kind kind;
    const char *rank, *world, *local_rank, *local_world, *nodes;
    const char *key; /* identifies the run; default MASTER_PORT */
} sources[] = {
    {ZR_START_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, "PMIX_NAMESPACE"},
    {ZR_START_RANK, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, "MASTER_PORT"},
    {ZR_START_MPI, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, "PMI_JOBID"},
    {ZR_START_SLURM, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "SLURM_NNODES", "SLURM_JOB_ID"},
};

/* An empty variable counts as unset. */
static const char *variable(const char *name)
{
    const char *text = name ? getenv(name) : NULL;
    return text && text[0] ? text : NULL;
}

/* Reads a whole number from min to max. *out is unchanged if the variable is unset. */
static zr_result read_number(const char *name, unsigned min, unsigned max, unsigned *out)
{
    const char *text = variable(name);
    char *end;
    if (!text)
        return ZR_OK;
    errno = 0;
    unsigned long long number = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || number < min || number > max)
        return zr_fail(
            ZR_ERR_INVALID,
            "%s=%.40s in the environment is not a whole number from %u to %u; unset it if no launcher set it",
            name, text, min, max);
    *out = (unsigned)number;
    return ZR_OK;
}

/* Whether this process is a script of sbatch, which has the variables of a first task although no tasks were
 * started. */
static bool batch_script(const struct source *source)
{
    return source->kind == ZR_START_SLURM && variable("SLURM_JOB_ID") && !variable("SLURM_STEP_ID") &&
           !variable("SLURM_STEPID");
}

static const struct source *find_source(void)
{
    for (size_t i = 0; i < sizeof(sources) / sizeof(*sources); i++)
        if ((variable(sources[i].rank) ||
             (variable(sources[i].world) && sources[i].kind != ZR_START_SLURM)) &&
            !batch_script(&sources[i]))
            return &sources[i];
    return NULL;
}

/* Whether an address belongs to this machine: a socket can be bound to a local address only. */
static bool address_is_here(const char *address)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    char name[256] = "";
    if (strcmp(address, "localhost") == 0 || strcmp(address, "ip6-localhost") == 0 ||
        (gethostname(name, sizeof(name) - 1) == 0 && strcmp(address, name) == 0))
        return true;
    bool is_four = inet_pton(AF_INET, address, &four.sin_addr) == 1;
    if (!is_four && inet_pton(AF_INET6, address, &six.sin6_addr) != 1)
        return false;
    int fd = socket(is_four ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return is_four ? ntohl(four.sin_addr.s_addr) >> 24 == 127 : IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
    bool here = is_four ? bind(fd, (struct sockaddr *)&four, sizeof(four)) == 0
                        : bind(fd, (struct sockaddr *)&six, sizeof(six)) == 0;
    close(fd);
    return here;
}

/* Job names can have any length, so a long name is hashed. */
static void make_key(struct zr_start *out, const char *name, const char *text)
{
    const char *step = variable("SLURM_STEP_ID");
    out->key_name = name;
    if (strlen(text) <= LONGEST_KEY)
        snprintf(out->key, sizeof(out->key), "%s%s%.20s", text, step ? "." : "", step ? step : "");
    else
        snprintf(out->key, sizeof(out->key), "%.40s~%016llx%s%.20s", text,
                 (unsigned long long)zr_hash_text(text), step ? "." : "", step ? step : "");
}

static zr_result read_source(const struct source *source, struct zr_start *out)
{
    const char *address = variable("MASTER_ADDR");
    const char *nodes = variable("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : source->nodes;
    out->kind = source->kind;
    out->rank_name = source->rank;
    out->world_name = source->world;
    if (!variable(source->rank) || !variable(source->world))
        return zr_fail(
            ZR_ERR_INVALID,
            "%s is set in the environment, but %s is not; a launcher sets both: set the other, or unset "
            "the first if no launcher set it",
            variable(source->rank) ? source->rank : source->world,
            variable(source->rank) ? source->world : source->rank);
    zr_result result = read_number(source->world, 1, 1000000, &out->world);
    if (result == ZR_OK)
        result = read_number(source->rank, 0, out->world - 1, &out->rank);
    if (result == ZR_OK)
        result = read_number(source->local_world, 1, out->world, &out->local_world);
    if (result == ZR_OK && source->nodes)
        result = read_number(nodes, 1, 1000000, &out->nodes);
    unsigned here = out->local_world ? out->local_world : out->world;
    out->local_rank = out->rank % here;
    if (result == ZR_OK)
        result = read_number(source->local_rank, 0, here - 1, &out->local_rank);
    const char *key = variable(source->key);
    if (result == ZR_OK && (source->kind != ZR_START_MPI || !key))
        result = read_number("MASTER_PORT", 1, MAX_PORT, &out->port);
    if (result != ZR_OK)
        return result;
    out->far = address && source->kind != ZR_START_MPI && out->local_world != out->world &&
               !address_is_here(address);
    out->mpi = source->kind == ZR_START_MPI || variable("PMIX_RANK") || variable("PMI_RANK");
    if (out->port != 0 && (source->kind == ZR_START_SLURM || !key)) {
        snprintf(out->key, sizeof(out->key), "%u", out->port);
        out->key_name = "MASTER_PORT";
    } else if (key) {
        make_key(out, source->key, key);
    }
    return ZR_OK;
}

zr_result zr_start_read(struct zr_start *out)
{
    const struct source *source = find_source();
    memset(out, 0, sizeof(*out));
    out->world = 1;
    out->under_zr = variable(ZR_MPIRUN_STARTED);
    return source ? read_source(source, out) : ZR_OK;
}

/* ---- Consistency --------------------------------------------------------------------------------------- */

static zr_result check_local(const struct zr_start *start)
{
    if (start->world == 1)
        return ZR_OK;
    if (start->world > ZR_MAX_WORLD)
        return zr_fail(ZR_ERR_INVALID, "%s=%u exceeds the maximum of %d ranks per run", start->world_name,
                       start->world, ZR_MAX_WORLD);
    if (start->far)
        return zr_fail(
            ZR_ERR_INVALID,
            "MASTER_ADDR=%.100s is another machine, and --comm local joins ranks of one machine only; "
            "use --comm mpi with mpirun, or set MASTER_ADDR=127.0.0.1",
            variable("MASTER_ADDR"));
    if (start->nodes > 1 && start->local_world != start->world)
        return zr_fail(
            ZR_ERR_INVALID,
            "the ranks are on %u machines (SLURM_NNODES), and --comm local joins ranks of one machine "
            "only; use srun --nodes=1, or --comm mpi",
            start->nodes);
    if (start->local_world != 0 && start->local_world < start->world)
        return zr_fail(
            ZR_ERR_INVALID,
            "only %u of %u ranks are on this machine, and --comm local joins ranks of one machine only; "
            "use --comm mpi",
            start->local_world, start->world);
    if (!start->key[0])
        return zr_fail(
            ZR_ERR_INVALID,
            "%s and %s are set, but MASTER_PORT is not; set it to a number from 1 to %d, the same for "
            "all ranks, so that they find each other",
            start->rank_name, start->world_name, MAX_PORT);
    return ZR_OK;
}

const char *zr_start_secret(void)
{
    const char *text = secure_getenv("ZR_SECRET");
    return text && text[0] ? text : NULL;
}

zr_result zr_start_check(const struct zr_start *start, enum zr_start_carrier carrier, unsigned world,
                         unsigned *ranks)
{
    *ranks = start->kind == ZR_START_FORK ? (world ? world : 1) : start->world;
    if (world != 0 && world != *ranks)
        return zr_fail(
            ZR_ERR_INVALID,
            "%u ranks were requested (--ranks %u), but the launcher started %u (%s in the environment); "
            "leave --ranks out, or unset %s and %s",
            world, world, start->world, start->world_name, start->rank_name, start->world_name);
    if (*ranks > ZR_MAX_WORLD)
        return zr_fail(ZR_ERR_INVALID, "%u ranks exceed the maximum of %d per run", *ranks, ZR_MAX_WORLD);
    if (start->kind == ZR_START_FORK)
        return ZR_OK;
    if (carrier == ZR_START_OVER_MPI && !start->mpi && start->world > 1)
        return zr_fail(
            ZR_ERR_INVALID,
            "--comm mpi: %s and %s are set, but no MPI launcher started this process; start it with "
            "mpirun -n %u (or srun --mpi=pmix), or use --comm local",
            start->rank_name, start->world_name, start->world);
    return carrier == ZR_START_OVER_MEMORY ? check_local(start) : ZR_OK;
}

/* ---- Start --------------------------------------------------------------------------------------------- */

int zr_start_launch(const struct zr_start_run *run)
{
    const struct zr_start *start = run->start;
    bool forks = start->kind == ZR_START_FORK;
    if (run->run_tcp)
        return run->run_tcp(run->options, start);
    if (run->join_mpi && forks && run->options->world > 1)
        return zr_mpirun(run->options, run->argv);
    if (run->join_mpi && start->mpi)
        return run->join_mpi(run->options, start);
    if (forks || start->world == 1)
        return zr_local_launch(run->options);
    return zr_local_join(run->options, start);
}
