/* lockgate from hiredis: main HOST PORT locks|everything [PASSWORD]. Exits nonzero where something is
 * not as promised. `locks` tries what works without a Redis behind lockgate, `everything` ordinary
 * commands, too.
 *
 * The blocking API, and the asynchronous one with the smallest event loop there is, poll(2). */
#include <hiredis/async.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *host, *password;
static int port, database;

#define CHECK(holds, ...) \
    do { \
        if (!(holds)) { \
            fprintf(stderr, "hiredis: line %d: ", __LINE__); \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr); \
            exit(1); \
        } \
    } while (0)

/* Whether a command gets this string, status or error; this number; nil. The reply is freed. */
static void expect_text(redisContext *redis, const char *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = redisvCommand(redis, format, arguments);
    va_end(arguments);
    CHECK(reply != NULL, "%s: %s", format, redis->errstr);
    CHECK(reply->str != NULL && strcmp(reply->str, text) == 0, "%s: \"%s\", not %s (type %d, %lld)",
          format, text, reply->str == NULL ? "(nothing)" : reply->str, reply->type, reply->integer);
    freeReplyObject(reply);
}

static void expect_number(redisContext *redis, long long number, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = redisvCommand(redis, format, arguments);
    va_end(arguments);
    CHECK(reply != NULL, "%s: %s", format, redis->errstr);
    CHECK(reply->type == REDIS_REPLY_INTEGER && reply->integer == number, "%s: %lld, not %lld %s",
          format, number, reply->integer, reply->str == NULL ? "" : reply->str);
    freeReplyObject(reply);
}

static void expect_nil(redisContext *redis, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    redisReply *reply = redisvCommand(redis, format, arguments);
    va_end(arguments);
    CHECK(reply != NULL && reply->type == REDIS_REPLY_NIL, "%s: not nil", format);
    freeReplyObject(reply);
}

static redisContext *connect_to_gate(void) {
    redisContext *redis = redisConnect(host, port);
    CHECK(redis != NULL && redis->err == 0, "cannot connect: %s", redis == NULL ? "" : redis->errstr);
    redisSetTimeout(redis, (struct timeval){.tv_sec = 20});
    if (password != NULL) {
        expect_text(redis, "OK", "AUTH %s", password);
    }
    expect_text(redis, "OK", "SELECT %d", database);
    return redis;
}

/* Returns when so many wait for the lock. */
static void until_waiting(redisContext *redis, const char *key, long long waiters) {
    for (int tries = 0; tries < 1000; tries++) {
        redisReply *info = redisCommand(redis, "LOCKINFO %s", key);
        CHECK(info != NULL && info->type == REDIS_REPLY_ARRAY, "LOCKINFO is no array");
        long long found = -1;
        for (size_t i = 0; i + 1 < info->elements; i += 2) {
            if (strcmp(info->element[i]->str, "waiters") == 0) {
                found = info->element[i + 1]->integer;
            }
        }
        freeReplyObject(info);
        if (found == waiters) {
            return;
        }
        usleep(10 * 1000);
    }
    CHECK(0, "%lld should wait for %s", waiters, key);
}

static void lock_commands(redisContext *redis) {
    redisReply *token = redisCommand(redis, "LOCK c:k");
    CHECK(token != NULL && token->type == REDIS_REPLY_STRING && token->len == 36, "a UUID was expected");
    expect_nil(redis, "TRYLOCK c:k");
    expect_nil(redis, "LOCK c:k WAIT %d", 50);
    expect_number(redis, 0, "UNLOCK c:k other");
    expect_number(redis, 1, "UNLOCK c:k %b", token->str, token->len);
    expect_number(redis, 0, "UNLOCK c:k %b", token->str, token->len);
    freeReplyObject(token);
    redisReply *fenced = redisCommand(redis, "LOCK c:k TOKEN t FENCE");
    CHECK(fenced != NULL && fenced->elements == 2 && fenced->element[1]->type == REDIS_REPLY_INTEGER, "FENCE");
    freeReplyObject(fenced);
    expect_number(redis, 1, "UNLOCK c:k t");
    expect_text(redis, "ERR wrong number of arguments for 'lock' command", "LOCK");
    expect_text(redis, "ERR syntax error", "LOCK c:k SOON");
}

/* hiredis gives up on its socket; to ask again on a new one is its user's business. */
static void retry_keeps_its_place(redisContext *redis) {
    redisContext *impatient = connect_to_gate(), *behind = connect_to_gate();
    expect_text(redis, "holder", "LOCK c:retry TOKEN holder");
    redisSetTimeout(impatient, (struct timeval){.tv_usec = 200 * 1000});
    redisAppendCommand(impatient, "LOCK c:retry TOKEN retry");
    int written = 0;
    while (!written) {
        CHECK(redisBufferWrite(impatient, &written) == REDIS_OK, "%s", impatient->errstr);
    }
    until_waiting(redis, "c:retry", 1);
    redisAppendCommand(behind, "LOCK c:retry TOKEN behind");
    for (written = 0; !written;) {
        CHECK(redisBufferWrite(behind, &written) == REDIS_OK, "%s", behind->errstr);
    }
    until_waiting(redis, "c:retry", 2);
    void *reply = NULL;
    CHECK(redisGetReply(impatient, &reply) == REDIS_ERR && impatient->err == REDIS_ERR_IO, "no timeout");
    redisFree(impatient);
    until_waiting(redis, "c:retry", 1);

    redisContext *anew = connect_to_gate();
    redisAppendCommand(anew, "LOCK c:retry TOKEN retry");
    for (written = 0; !written;) {
        CHECK(redisBufferWrite(anew, &written) == REDIS_OK, "%s", anew->errstr);
    }
    until_waiting(redis, "c:retry", 2);
    expect_number(redis, 1, "UNLOCK c:retry holder");
    CHECK(redisGetReply(anew, &reply) == REDIS_OK, "%s", anew->errstr);
    CHECK(strcmp(((redisReply *)reply)->str, "retry") == 0, "not granted to the one that retries");
    freeReplyObject(reply);
    until_waiting(redis, "c:retry", 1);
    expect_number(redis, 1, "UNLOCK c:retry retry");
    CHECK(redisGetReply(behind, &reply) == REDIS_OK, "%s", behind->errstr);
    CHECK(strcmp(((redisReply *)reply)->str, "behind") == 0, "not granted to the one behind it");
    freeReplyObject(reply);
    expect_number(redis, 1, "UNLOCK c:retry behind");
    redisFree(anew);
    redisFree(behind);
}

/* Replies to commands sent together, in order. */
static void pipeline(redisContext *redis) {
    redisAppendCommand(redis, "SET c:n 1");
    redisAppendCommand(redis, "LOCK c:k TOKEN piped");
    redisAppendCommand(redis, "INCR c:n");
    redisAppendCommand(redis, "UNLOCK c:k piped");
    const char *texts[] = {"OK", "piped", NULL, NULL};
    const long long numbers[] = {0, 0, 2, 1};
    for (int i = 0; i < 4; i++) {
        redisReply *reply;
        CHECK(redisGetReply(redis, (void **)&reply) == REDIS_OK, "%s", redis->errstr);
        CHECK(texts[i] == NULL || strcmp(reply->str, texts[i]) == 0, "pipeline, reply %d", i);
        CHECK(reply->integer == numbers[i], "pipeline, reply %d: %lld", i, reply->integer);
        freeReplyObject(reply);
    }
}

static void ordinary_commands(redisContext *redis, redisContext *other) {
    static char value[140000];
    for (size_t i = 0; i < sizeof value; i++) {
        value[i] = "\r\n$-1\r\n\0"[i % 8];
    }
    expect_text(redis, "OK", "SET c:data %b", value, sizeof value);
    redisReply *reply = redisCommand(redis, "GET c:data");
    CHECK(reply != NULL && reply->len == sizeof value && memcmp(reply->str, value, sizeof value) == 0, "a long value");
    freeReplyObject(reply);
    expect_nil(redis, "GET c:none");
    expect_text(redis, "WRONGTYPE Operation against a key holding the wrong kind of value", "LPUSH c:data x");
    expect_number(redis, 1, "DEL c:data");
    pipeline(redis);

    expect_text(redis, "OK", "MULTI");
    expect_text(redis, "QUEUED", "INCR c:n");
    reply = redisCommand(redis, "EXEC");
    CHECK(reply != NULL && reply->elements == 1 && reply->element[0]->integer == 3, "EXEC");
    freeReplyObject(reply);
    expect_text(redis, "OK", "WATCH c:n");
    expect_text(other, "OK", "SET c:n other");
    expect_text(redis, "OK", "MULTI");
    expect_text(redis, "QUEUED", "SET c:n never");
    expect_nil(redis, "EXEC");
    expect_text(redis, "other", "GET c:n");
    expect_number(redis, 1, "DEL c:n");

    redisAppendCommand(redis, "BLPOP c:list 10");
    int written = 0;
    while (!written) {
        CHECK(redisBufferWrite(redis, &written) == REDIS_OK, "%s", redis->errstr);
    }
    expect_number(other, 1, "RPUSH c:list x");
    CHECK(redisGetReply(redis, (void **)&reply) == REDIS_OK && reply->elements == 2, "BLPOP");
    freeReplyObject(reply);

    redisContext *listener = connect_to_gate();
    redisAppendCommand(listener, "SUBSCRIBE c:a c:b");
    for (int i = 1; i <= 2; i++) {
        CHECK(redisGetReply(listener, (void **)&reply) == REDIS_OK, "%s", listener->errstr);
        CHECK(reply->elements == 3 && reply->element[2]->integer == i, "SUBSCRIBE");
        freeReplyObject(reply);
    }
    expect_number(other, 1, "PUBLISH c:b hello");
    CHECK(redisGetReply(listener, (void **)&reply) == REDIS_OK && strcmp(reply->element[2]->str, "hello") == 0, "message");
    freeReplyObject(reply);
    redisFree(listener);
}

#if HIREDIS_MAJOR >= 1
static void no_reply(void *told, void *reply) {
    redisReply *push = reply;
    *(int *)told += strcmp(push->element[0]->str, "lock-lost") == 0;
    freeReplyObject(reply);
}

/* RESP3: the push that a lock bound to the connection is lost comes, and disturbs nothing. */
static void session_lost(redisContext *other) {
    int told = 0;
    redisContext *redis = connect_to_gate();
    freeReplyObject(redisCommand(redis, "HELLO 3"));
    redis->privdata = &told;
    redisSetPushCallback(redis, no_reply);
    expect_text(redis, "t", "LOCK c:session TOKEN t SESSION");
    expect_number(other, 1, "DEL c:session");
    for (int i = 0; i < 1000 && !told; i++) {
        expect_text(redis, "a", "ECHO a");
    }
    CHECK(told, "no push");
    expect_number(redis, 0, "UNLOCK c:session t");
    redisFree(redis);
}
#else
/* RESP2 only: who loses a lock bound to the connection is told by its end. */
static void session_lost(redisContext *other) {
    redisContext *redis = connect_to_gate();
    expect_text(redis, "t", "LOCK c:session TOKEN t SESSION");
    expect_number(other, 1, "DEL c:session");
    void *reply = NULL;
    CHECK(redisGetReply(redis, &reply) == REDIS_ERR && redis->err == REDIS_ERR_EOF, "not closed");
    redisFree(redis);
}
#endif

/* An event loop of one connection. */
struct loop {
    struct pollfd socket;
    int done;
};

static void add_read(void *loop) { ((struct loop *)loop)->socket.events |= POLLIN; }
static void del_read(void *loop) { ((struct loop *)loop)->socket.events &= ~POLLIN; }
static void add_write(void *loop) { ((struct loop *)loop)->socket.events |= POLLOUT; }
static void del_write(void *loop) { ((struct loop *)loop)->socket.events &= ~POLLOUT; }
static void clean_up(void *loop) { ((struct loop *)loop)->done = 1; }

static void run(redisAsyncContext *redis, struct loop *loop) {
    while (!loop->done) {
        CHECK(poll(&loop->socket, 1, 10000) == 1, "nothing happens");
        if (loop->socket.revents & POLLOUT) {
            redisAsyncHandleWrite(redis);
        }
        if (!loop->done && loop->socket.revents & (POLLIN | POLLHUP | POLLERR)) {
            redisAsyncHandleRead(redis);
        }
    }
}

/* Callbacks note the replies in their order, in a word each. */
static char replies[256];

static void note(redisAsyncContext *redis, void *reply_, void *what) {
    (void)redis;
    redisReply *reply = reply_;
    CHECK(reply != NULL, "%s: no reply", (char *)what);
    snprintf(replies + strlen(replies), sizeof replies - strlen(replies), "%s=%.8s%.0lld ", (char *)what,
             reply->str == NULL ? "" : reply->str, reply->integer);
}

static void note_then_unlock(redisAsyncContext *redis, void *reply, void *what) {
    note(redis, reply, what);
    /* Overtakes the LOCK that waits on this connection. */
    redisAsyncCommand(redis, note, "unlock1", "UNLOCK c:shared one");
}

static void note_then_leave(redisAsyncContext *redis, void *reply, void *what) {
    note(redis, reply, what);
    redisAsyncCommand(redis, note, "unlock2", "UNLOCK c:shared two");
    redisAsyncDisconnect(redis);
}

/* Two users of one connection: one holds the lock, one waits for it. */
static void shared_connection(void) {
    redisAsyncContext *redis = redisAsyncConnect(host, port);
    CHECK(redis != NULL && redis->err == 0, "cannot connect");
    struct loop loop = {.socket = {.fd = redis->c.fd}};
    redis->ev.data = &loop;
    redis->ev.addRead = add_read;
    redis->ev.delRead = del_read;
    redis->ev.addWrite = add_write;
    redis->ev.delWrite = del_write;
    redis->ev.cleanup = clean_up;
    replies[0] = '\0';
    if (password != NULL) {
        redisAsyncCommand(redis, note, "auth", "AUTH %s", password);
    }
    redisAsyncCommand(redis, note_then_unlock, "lock1", "LOCK c:shared TOKEN one");
    redisAsyncCommand(redis, note_then_leave, "lock2", "LOCK c:shared TOKEN two");
    run(redis, &loop);
    const char *seen = replies + (password == NULL ? 0 : strlen("auth=OK "));
    CHECK(strcmp(seen, "lock1=one lock2=two unlock1=1 unlock2=1 ") == 0, "replies: %s", replies);
}

int main(int count, char **arguments) {
    CHECK(count >= 4, "HOST PORT locks|everything [PASSWORD]");
    host = arguments[1];
    port = atoi(arguments[2]);
    password = count > 4 ? arguments[4] : NULL;
    for (database = 0; database <= 3; database += 3) {
        redisContext *redis = connect_to_gate(), *other = connect_to_gate();
        lock_commands(redis);
        retry_keeps_its_place(redis);
        shared_connection();
        if (strcmp(arguments[3], "everything") == 0) {
            ordinary_commands(redis, other);
            session_lost(other);
        }
        redisFree(redis);
        redisFree(other);
    }
    printf("hiredis %d.%d.%d: right\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    return 0;
}
