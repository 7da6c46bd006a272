/* Pipelines of hiredis, which writes all of one before it reads anything: hiredis_pipeline HOST PORT locks|everything
 * [PASSWORD]. Exits nonzero where a reply is missing or wrong. `locks` tries what works without a Redis behind
 * lockgate. Prints what each pipeline took, in seconds. The environment may say that there are no lock commands
 * (LOCKS=no), to compare with a Redis, and how many small commands there are (SMALL). */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEY "hiredis:pipeline"

#define CHECK(holds, ...) \
    do { \
        if (!(holds)) { \
            fprintf(stderr, "hiredis: line %d: ", __LINE__); \
            fprintf(stderr, __VA_ARGS__); \
            fputc('\n', stderr); \
            exit(1); \
        } \
    } while (0)

static char value[1025];
static int everything, locks;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void append(redisContext *redis, int values, int i) {
    if (!everything) {
        values ? redisAppendCommand(redis, "ECHO %s", value) : redisAppendCommand(redis, "ECHO %d", i);
    } else if (!values) {
        redisAppendCommand(redis, "INCR " KEY);
    } else if (i % 2 == 0) {
        redisAppendCommand(redis, "SET " KEY " %s", value);
    } else {
        redisAppendCommand(redis, "GET " KEY);
    }
}

static redisReply *next(redisContext *redis) {
    void *reply = NULL;
    CHECK(redisGetReply(redis, &reply) == REDIS_OK, "%s", redis->errstr);
    redisReply *read = reply;
    CHECK(read->type != REDIS_REPLY_ERROR, "%s", read->str);
    return read;
}

static void expect_text(redisContext *redis, const char *text) {
    redisReply *reply = next(redis);
    CHECK(reply->str != NULL && strcmp(reply->str, text) == 0, "%s, not %s", reply->str, text);
    freeReplyObject(reply);
}

static void expect_number(redisContext *redis, long long number) {
    redisReply *reply = next(redis);
    CHECK(reply->type == REDIS_REPLY_INTEGER && reply->integer == number, "%lld, not %lld", reply->integer, number);
    freeReplyObject(reply);
}

static void expect(redisContext *redis, int values, int i) {
    char text[16];
    snprintf(text, sizeof text, "%d", i);
    if (!everything) {
        expect_text(redis, values ? value : text);
    } else if (!values) {
        expect_number(redis, i + 1);
    } else {
        expect_text(redis, i % 2 == 0 ? "OK" : value);
    }
}

static void pipeline(redisContext *redis, int values, int count, int middle) {
    if (everything) {
        freeReplyObject(redisCommand(redis, "DEL " KEY));
    }
    double start = now();
    for (int i = 0; i < count; i++) {
        if (middle && i == count / 2) {
            if (locks) redisAppendCommand(redis, "LOCK " KEY ":k TOKEN t");
            redisAppendCommand(redis, "INFO");
            redisAppendCommand(redis, "COMMAND");
            if (locks) redisAppendCommand(redis, "UNLOCK " KEY ":k t");
        }
        append(redis, values, i);
    }
    for (int i = 0; i < count; i++) {
        if (middle && i == count / 2) {
            if (locks) expect_text(redis, "t");
            freeReplyObject(next(redis));
            freeReplyObject(next(redis));
            if (locks) expect_number(redis, 1);
        }
        expect(redis, values, i);
    }
    printf("hiredis %s%s %.3f\n", values ? "values" : "small", middle ? "+middle" : "", now() - start);
}

int main(int count, char **arguments) {
    CHECK(count > 3, "hiredis_pipeline HOST PORT locks|everything [PASSWORD]");
    everything = strcmp(arguments[3], "everything") == 0;
    locks = getenv("LOCKS") == NULL || strcmp(getenv("LOCKS"), "no") != 0;
    memset(value, 'v', sizeof value - 1);
    redisContext *redis = redisConnect(arguments[1], atoi(arguments[2]));
    CHECK(redis != NULL && redis->err == 0, "cannot connect");
    redisSetTimeout(redis, (struct timeval){.tv_sec = 60});
    if (count > 4) {
        freeReplyObject(redisCommand(redis, "AUTH %s", arguments[4]));
    }
    int small = getenv("SMALL") == NULL ? 200000 : atoi(getenv("SMALL"));
    for (int values = 1; values >= 0; values--) {
        for (int middle = 0; middle < 2; middle++) {
            pipeline(redis, values, values ? 40000 : small, middle);
        }
    }
    if (everything) {
        freeReplyObject(redisCommand(redis, "DEL " KEY));
    }
    redisFree(redis);
    return 0;
}
