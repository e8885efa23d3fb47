/* query.c: see query.h. Uses wire.c. */
#include "alloc/service/client/query.h"

#include <time.h>
#include <unistd.h>

#include "alloc/service/client/wire.h"
#include "alloc/base/error.h"
#include "alloc/base/system/os.h"

#define ANSWER_NS  UINT64_C(10000000000)
#define INQUIRY_NS UINT64_C(200000000)

static zr_result ask(int connection, const struct zr_service_message *message, uint64_t patience_ns,
                     struct zr_service_message *answer)
{
    struct zr_service_packet packet = {0};
    zr_result result = zr_service_send(connection, message, -1, false);
    if (result == ZR_OK || result == ZR_ERR_PEER) /* zrd may have refused the connection with a reason */
        result = zr_service_receive(connection, &packet, patience_ns ? patience_ns : ANSWER_NS);
    if (result == ZR_OK)
        result = zr_service_packet_check(connection, &packet);
    zr_service_packet_close(&packet);
    *answer = packet.message;
    if (result == ZR_OK && answer->kind == ZR_SERVICE_REFUSED)
        result = zr_fail(answer->result == ZR_ERR_UNAVAILABLE ? ZR_ERR_UNAVAILABLE : ZR_ERR_INVALID, "%s",
                         answer->words);
    return result;
}

zr_result zr_service_ask(int connection, const struct zr_service_message *message,
                         struct zr_service_message *answer)
{
    return ask(connection, message, 0, answer);
}

/* Makes zrd ask clients for their idle bytes and, if the question says so, waits for the answers. */
static zr_result inquire(int connection, const struct zr_service_question *question)
{
    struct zr_service_message status = zr_service_message_of(ZR_SERVICE_STATUS), answer;
    uint64_t start_ns = zr_os_now_ns();
    zr_result result;
    status.serial = UINT64_MAX;
    status.flags = ZR_SERVICE_FRESH;
    while ((result = ask(connection, &status, question->patience_ns, &answer)) == ZR_OK &&
           question->fresh == ZR_SERVICE_AWAITED && answer.flags & ZR_SERVICE_INQUIRING &&
           zr_os_now_ns() - start_ns < INQUIRY_NS) {
        status.flags = 0;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return result;
}

zr_result zr_service_query(const char *key, const struct zr_service_question *question, zr_service_row *row,
                           void *state, struct zr_service_message *totals)
{
    struct zr_service_message status = zr_service_message_of(ZR_SERVICE_STATUS);
    int connection;
    zr_result result = zr_service_connect(key, &connection);
    if (result != ZR_OK)
        return result;
    if (question->fresh != ZR_SERVICE_KNOWN)
        result = inquire(connection, question);
    while (result == ZR_OK && (result = ask(connection, &status, question->patience_ns, totals)) == ZR_OK &&
           totals->kind == ZR_SERVICE_CLIENT) {
        status.serial = totals->serial;
        row(state, totals);
    }
    close(connection);
    return result;
}
