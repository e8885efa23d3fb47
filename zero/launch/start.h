/* start.h: how the ranks of this run are started: forked here, or one by one by a launcher that describes
 * them in the environment. Private to zero/; main() reads it once. */
#ifndef ZR_START_H
#define ZR_START_H

#include "zero/launch/zr_launch.h"

enum zr_start_kind {
    ZR_START_FORK = 0, /* no launcher: this process forks its ranks */
    ZR_START_MPI,      /* mpirun: OMPI_COMM_WORLD_RANK and _SIZE, or PMI_RANK and PMI_SIZE */
    ZR_START_RANK,     /* torchrun and similar launchers: RANK and WORLD_SIZE */
    ZR_START_SLURM,    /* srun: SLURM_PROCID and SLURM_NTASKS */
};

struct zr_start {
    enum zr_start_kind kind;
    unsigned rank, world;               /* of this process; ZR_START_FORK: 0 of 1 */
    unsigned local_rank, local_world;   /* on this machine; local_world 0: unknown */
    const char *rank_name, *world_name; /* names of the variables; constants */
    unsigned port;                      /* MASTER_PORT; 0: not given */
    bool far; /* MASTER_ADDR is another machine, and no variable says that all ranks are on this machine */
    bool mpi; /* the launcher supports MPI */
    unsigned nodes;       /* machines of the run; 0: unknown */
    char key[96];         /* identifies the run among all runs of the machine */
    const char *key_name; /* variable that the key comes from; NULL: none */
    bool under_zr;        /* zr started this mpirun and has checked the options */
};
/* Variable that zr sets for its own mpirun. */
#define ZR_MPIRUN_STARTED "ZR_STARTED_MPIRUN"

/* Reads the environment. ZR_ERR_INVALID, with the variable's name: a missing companion variable, not a
 * number, or a contradiction between variables of one launcher. The first launcher found counts, in the
 * order OMPI_COMM_WORLD_RANK, RANK, PMI_RANK, SLURM_PROCID: mpirun under srun is mpirun. */
zr_result zr_start_read(struct zr_start *out);

/* Checks that ranks started in this way can communicate over shared memory, MPI or TCP; the message says what
 * is missing. `world`: ranks requested on the command line, 0: none. On success *ranks is the size of the
 * run. */
enum zr_start_carrier { ZR_START_OVER_MEMORY = 0, ZR_START_OVER_MPI, ZR_START_OVER_TCP };
zr_result zr_start_check(const struct zr_start *start, enum zr_start_carrier carrier, unsigned world,
                         unsigned *ranks);

/* ZR_SECRET of the environment; NULL: none, or the program is set-user-ID. */
const char *zr_start_secret(void);

/* Runs all ranks, or the rank that this process is, like zr_local_launch(). With MPI and ZR_START_FORK it
 * runs mpirun with `argv` (NULL-terminated). Returns the exit code. */
struct zr_start_run {
    const struct zr_start *start;
    /* Runs a rank that an MPI launcher started / the ranks of a run over TCP, and returns the exit code; both
     * NULL: all ranks are on this machine. */
    int (*join_mpi)(const struct zr_launch_options *options, const struct zr_start *start);
    int (*run_tcp)(const struct zr_launch_options *options, const struct zr_start *start);
    const struct zr_launch_options *options;
    char **argv;
};
int zr_start_launch(const struct zr_start_run *run);

/* join.c: launches one rank and meets the launchers of the others on this machine. Returns the exit code. */
int zr_local_join(const struct zr_launch_options *options, const struct zr_start *start);
/* mpirun.c: runs mpirun with `argv` and watches it. Returns the exit code. */
int zr_mpirun(const struct zr_launch_options *options, char **argv);

#endif
