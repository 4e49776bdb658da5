/* A module that calls other commands, as any module may: CALLER.CALL command [argument ...]. With
 * the same arguments, CALLER.USER calls in the name of the user who asks, and CALLER.WAIT makes
 * calls that may block, where the server lets a module do that; CALLER.BOTH does both. If the call
 * blocks, the server returns a promise: the module aborts it at once, and says so.
 * CALLER.EXPIRED calls nothing yet, but once in the very moment in which a key expires next. CALLER.TIMER starts a timer of an hour that does
 * nothing. CALLER.SELECT selects a database of one digit, in which the client stays.
 *
 * The header of the server is not needed: a module is given the function that finds all others. */

#include <stddef.h>

typedef struct Context Context;
typedef struct String String;

static void *(*call)(Context *, const char *command, const char *format, ...);
static const char *(*start_of)(const String *, size_t *length);
static int (*reply_with)(Context *, void *reply);
static int (*reply_with_error)(Context *, const char *message);
static int (*reply_with_ok)(Context *, const char *message);
static void (*free_reply)(void *reply);

/* Redis 7.0 does not have the second. */
static int (*type_of)(void *reply);
static int (*abort_promise)(void *reply, void **data);
enum { PROMISE = 12 };

static void (*keep)(Context *, String *);
static void (*let_go)(Context *, String *);

enum { MOST = 16, EXPIRED = 1 << 8 };
static String *kept[MOST];
static int kept_count;

static int on_expired(Context *ctx, int type, const char *event, String *key) {
    (void)type, (void)event, (void)key;
    int count = kept_count;
    /* What is called may let keys expire, too. */
    kept_count = 0;
    if (count) {
        /* !: what it changes is written down and passed on. */
        void *reply = call(ctx, start_of(kept[0], NULL), "!Ev", kept + 1, (size_t)(count - 1));
        if (reply) free_reply(reply);
    }
    for (int i = 0; i < count; i++) let_go(ctx, kept[i]);
    return 0;
}

static int on_expired_command(Context *ctx, String **argv, int argc) {
    if (argc < 2 || argc - 1 > MOST || kept_count) return reply_with_error(ctx, "ERR no command, too long, or one is kept");
    for (int i = 1; i < argc; i++) {
        keep(ctx, argv[i]);
        kept[kept_count++] = argv[i];
    }
    return reply_with_ok(ctx, "OK");
}

static unsigned long long (*start_timer)(Context *, long long ms, void (*)(Context *, void *), void *);

static void on_timer(Context *ctx, void *data) { (void)ctx, (void)data; }

static int on_timer_command(Context *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    start_timer(ctx, 3600 * 1000, on_timer, NULL);
    return reply_with_ok(ctx, "OK");
}

static int (*select_database)(Context *, int number);

static int on_select_command(Context *ctx, String **argv, int argc) {
    if (argc != 2 || select_database(ctx, *start_of(argv[1], NULL) - '0')) return reply_with_error(ctx, "ERR no such database");
    return reply_with_ok(ctx, "OK");
}

static int on_command(Context *ctx, String **argv, int argc) {
    if (argc < 2) return reply_with_error(ctx, "ERR no command");
    const char *own_name = start_of(argv[0], NULL);
    /* E: errors are replies. v: the arguments are a vector. K: the call may be blocked. C: with the rights of the user. */
    const char *how = own_name[7] == 'W' ? "EvK" : own_name[7] == 'U' ? "EvC" : own_name[7] == 'B' ? "EvKC" : "Ev";
    void *reply = call(ctx, start_of(argv[1], NULL), how, argv + 2, (size_t)(argc - 2));
    if (!reply) return reply_with_error(ctx, "ERR not called");
    if (abort_promise && type_of(reply) == PROMISE) {
        abort_promise(reply, NULL);
        free_reply(reply);
        return reply_with_error(ctx, "ERR blocked, and aborted");
    }
    reply_with(ctx, reply);
    free_reply(reply);
    return 0;
}

int RedisModule_OnLoad(Context *ctx) {
    int (*find)(const char *name, void *place) = *(int (**)(const char *, void *))ctx;
    void (*set_name)(Context *, const char *name, int version, int api);
    int (*create_command)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
    int (*subscribe)(Context *, int types, int (*)(Context *, int, const char *, String *));
    if (find("RedisModule_SetModuleAttribs", &set_name) || find("RedisModule_CreateCommand", &create_command) ||
        find("RedisModule_Call", &call) || find("RedisModule_StringPtrLen", &start_of) ||
        find("RedisModule_ReplyWithCallReply", &reply_with) || find("RedisModule_ReplyWithError", &reply_with_error) ||
        find("RedisModule_FreeCallReply", &free_reply) || find("RedisModule_ReplyWithSimpleString", &reply_with_ok) ||
        find("RedisModule_RetainString", &keep) || find("RedisModule_FreeString", &let_go) ||
        find("RedisModule_SubscribeToKeyspaceEvents", &subscribe) || find("RedisModule_CreateTimer", &start_timer) ||
        find("RedisModule_SelectDb", &select_database))
        return 1;
    find("RedisModule_CallReplyType", &type_of);
    find("RedisModule_CallReplyPromiseAbort", &abort_promise);
    set_name(ctx, "caller", 1, 1);
    return create_command(ctx, "caller.call", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.wait", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.user", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.both", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.timer", on_timer_command, "", 0, 0, 0) ||
           create_command(ctx, "caller.select", on_select_command, "", 0, 0, 0) ||
           create_command(ctx, "caller.expired", on_expired_command, "write", 0, 0, 0) || subscribe(ctx, EXPIRED, on_expired);
}
