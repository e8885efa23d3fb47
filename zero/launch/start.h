/* start.h: how the ranks of this run come to be: forked here, or one by one by a launcher that says so in the
 * environment. Private to zero/; read once, by the program's main(). */
#ifndef ZR_START_H
#define ZR_START_H

#include "zero/launch/zr_launch.h"

enum zr_start_kind {
    ZR_START_FORK = 0, /* nobody else has: this process forks its ranks */
    ZR_START_MPI,      /* mpirun: OMPI_COMM_WORLD_RANK and _SIZE, or PMI_RANK and PMI_SIZE */
    ZR_START_RANK,     /* torchrun and its like: RANK and WORLD_SIZE */
    ZR_START_SLURM,    /* srun: SLURM_PROCID and SLURM_NTASKS */
};

struct zr_start {
    enum zr_start_kind kind;
    unsigned rank, world;               /* of this process; 0 of 1 with ZR_START_FORK */
    unsigned local_rank, local_world;   /* on this machine; local_world is 0 where nobody has said */
    const char *rank_name, *world_name; /* the variables that were read; constants */
    unsigned port;                      /* MASTER_PORT; 0: not given */
    bool far;             /* MASTER_ADDR is not this machine, and nobody says that all ranks are here */
    bool mpi;             /* a launcher that MPI can ask */
    unsigned nodes;       /* machines that the ranks are on; 0: nobody has said */
    char key[96];         /* what the ranks of this run, and no others, have in common */
    const char *key_name; /* the variable that it is of; NULL: there is none */
    bool under_zr;        /* a process of zr has started mpirun, and knows what it was asked for */
};
/* What it is told by. */
#define ZR_MPIRUN_STARTED "ZR_STARTED_MPIRUN"

/* Reads the environment. ZR_ERR_INVALID, with words that name the variable: one that is missing beside
 * another, is no number, or contradicts another of the same launcher. Of several launchers the first counts
 * alone, in the order OMPI_COMM_WORLD_RANK, RANK, PMI_RANK, SLURM_PROCID: mpirun under srun is mpirun. */
zr_result zr_start_read(struct zr_start *out);

/* Whether ranks started like this can talk by MPI, or else through shared memory; words say what is missing.
 * `world` is what the command line asks for, 0: nothing. On success *ranks is the number of ranks of the run.
 */
zr_result zr_start_check(const struct zr_start *start, bool mpi, unsigned world, unsigned *ranks);

/* Runs the ranks, or the one that this process is, as zr_local_launch() does. With MPI and ZR_START_FORK the
 * process starts an mpirun of `argv` (NULL-ended). The exit code. */
struct zr_start_run {
    const struct zr_start *start;
    /* What a rank that an MPI launcher has started does, its exit code; NULL: ranks of this machine alone. */
    int (*join_mpi)(const struct zr_launch_options *options, const struct zr_start *start);
    const struct zr_launch_options *options;
    char **argv;
};
int zr_start_launch(const struct zr_start_run *run);

/* join.c: the launcher of one rank, that meets those of the others on this machine. The exit code. */
int zr_local_join(const struct zr_launch_options *options, const struct zr_start *start);
/* mpirun.c: starts an mpirun of `argv`, and watches over it. The exit code. */
int zr_mpirun(const struct zr_launch_options *options, char **argv);

#endif
