/* tcp.h: a transport (transport.h) over TCP connections between hosts. Private to zero/comm/.
 *
 * A lost rank is an error of its own messages: those of other pairs continue. Every call may come from any
 * thread; a thread of the transport's own keeps the connections alive between calls. The transport belongs to
 * the process that opened it: not for use after fork(). */
#ifndef ZR_TCP_H
#define ZR_TCP_H

#include "alloc/zr.h"
#include "zero/comm/message/transport.h"
#include "zero/launch/control.h"

enum { ZR_TCP_SECRET_BYTES = 32 };
#define ZR_TCP_HEARTBEAT_NS UINT64_C(1000000000)
#define ZR_TCP_JOIN_NS      UINT64_C(60000000000)
enum { ZR_TCP_LOST_BEATS = 5, ZR_TCP_STREAMS = 2 };

struct zr_tcp_options {
    unsigned rank, world;
    unsigned streams;         /* connections per peer for large messages; 0: ZR_TCP_STREAMS */
    uint64_t heartbeat_ns;    /* a peer that is silent for ZR_TCP_LOST_BEATS times this is lost; 0: 1 s */
    uint64_t join_timeout_ns; /* time for all ranks to connect; 0: 60 s */
    const char *rendezvous;   /* HOST:PORT at which rank 0 accepts; [HOST]:PORT for IPv6 */
    int listener; /* rank 0: socket that accepts at `rendezvous`, owned from now on; -1: none yet */
    /* Of a run whose lost ranks are replaced: has the run's number and generation, which outlive this
     * process. zr_tcp_open() then fails if not all ranks connect within ZR_TCP_LOST_BEATS heartbeats after
     * the last one has arrived, or if `restarting` is set: the caller repeats it. NULL: a lost rank ends the
     * run. */
    struct zr_local_world *local;
    bool *missing; /* [world], set on rank 0 after a failure, for each rank without all connections; NULL: not
                      needed */
    unsigned char secret[ZR_TCP_SECRET_BYTES];
};

/* Connects to all other ranks and fills *out. Collective. ZR_ERR_INVALID: options out of range, or rank 0
 * refuses this rank. ZR_ERR_UNAVAILABLE: a rank did not arrive in time, the secrets differ, or the system
 * refuses sockets. ZR_ERR_PEER: a rank was lost meanwhile. */
zr_result zr_tcp_open(struct zr_transport *out, const struct zr_tcp_options *options);
/* Ends an open transport without waiting for other ranks, which count this rank as lost. `fails`: this rank
 * ends the run; else it meets the others again. */
void zr_tcp_abort(struct zr_transport *transport, bool fails);

/* The first lost rank in the order of ranks, and its loss in words of ZR_TRANSPORT_WHY_BYTES. A rank that has
 * said that it fails comes first, then one that has ended its transport because it has lost a rank. */
enum zr_tcp_loss { ZR_TCP_ALL_THERE = 0, ZR_TCP_RANK_LOST, ZR_TCP_RANK_RETURNS, ZR_TCP_RANK_FAILED };
enum zr_tcp_loss zr_tcp_find_loss(struct zr_transport *transport, char *words);
/* Ends an open transport together with all other ranks, as its close() does. Ranks that leave too are not
 * lost; `words` is unchanged if there are no others. */
enum zr_tcp_loss zr_tcp_part(struct zr_transport *transport, char *words);

/* A listening socket at HOST:PORT (a port of 0: any), and its address as text of ZR_TCP_ADDRESS_BYTES. */
enum { ZR_TCP_ADDRESS_BYTES = 300 };
zr_result zr_tcp_listen(int *out, const char *rendezvous, char *address);

/* ZR_ERR_INVALID: not HOST:PORT, or HOST is neither an address nor a name that getent(1) finds. Call it
 * before the fork: ranks then have the addresses. */
zr_result zr_tcp_rendezvous_find(const char *rendezvous);

/* Makes a secret of the system's random numbers / of text / of a file that only its owner can read. */
zr_result zr_tcp_secret_make(unsigned char *secret);
zr_result zr_tcp_secret_from_text(unsigned char *secret, const char *text, size_t bytes);
zr_result zr_tcp_secret_from_file(unsigned char *secret, const char *path);

#endif
