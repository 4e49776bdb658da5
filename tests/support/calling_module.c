/* A module that calls other commands, as any module may: CALLER.CALL command [argument ...]. With
 * the same arguments, CALLER.USER calls with the rights of the calling user, CALLER.WAIT makes
 * calls that may block, where the server supports that, and CALLER.BOTH does both. If a call
 * blocks, the server returns a promise. The module aborts it at once and returns an error.
 *
 * CALLER.EXPIRED, CALLER.NEW and CALLER.DELETED make one call, inside the event in which the next
 * key expires, is created, or is deleted (Redis 7.0 has no event for deletions). CALLER.ANSWER
 * returns the reply to that call, a number or an error. CALLER.TIMER starts a timer of one hour
 * that does nothing. CALLER.SELECT selects a database of one digit, in which the client stays.
 *
 * The module needs no server header, because its load function receives a function that finds all
 * others. */

#include <stddef.h>

typedef struct Context Context;
typedef struct String String;

static void *(*call)(Context *, const char *command, const char *format, ...);
static const char *(*start_of)(const String *, size_t *length);
static int (*reply_with)(Context *, void *reply);
static int (*reply_with_error)(Context *, const char *message);
static int (*reply_with_ok)(Context *, const char *message);
static void (*free_reply)(void *reply);

static int (*type_of)(void *reply);
static long long (*number_of)(void *reply);
static const char *(*text_of)(void *reply, size_t *length);
static int (*reply_with_number)(Context *, long long number);
/* Redis 7.0 has no promises. */
static int (*abort_promise)(void *reply, void **data);
enum { NUMBER = 2, PROMISE = 12 };

static void (*keep)(Context *, String *);
static void (*let_go)(Context *, String *);

enum { MOST = 16, EXPIRED = 1 << 8, NEW = 1 << 14, DELETED = 0 };
static String *kept[MOST];
static int kept_count, kept_for;
/* A reply must not outlive the context of its call, so it is copied. */
static int answer_type;
static long long answer_number;
static char answer_error[256];

static void copy_answer(void *reply) {
    answer_type = reply ? type_of(reply) : -1;
    answer_number = answer_type == NUMBER ? number_of(reply) : 0;
    size_t length = 0;
    const char *text = reply ? text_of(reply, &length) : NULL;
    if (!text || length >= sizeof(answer_error)) length = 0;
    for (size_t i = 0; i < length; i++) answer_error[i] = text[i];
    answer_error[length] = 0;
    if (reply) free_reply(reply);
}

static void call_kept(Context *ctx, int event) {
    if (event != kept_for) return;
    int count = kept_count;
    /* The call may cause such events, too. */
    kept_count = 0;
    if (count) {
        /* !: the server propagates the changes of the call. */
        copy_answer(call(ctx, start_of(kept[0], NULL), "!Ev", kept + 1, (size_t)(count - 1)));
    }
    for (int i = 0; i < count; i++) let_go(ctx, kept[i]);
}

static int on_key_event(Context *ctx, int type, const char *event, String *key) {
    (void)event, (void)key;
    call_kept(ctx, type);
    return 0;
}

typedef struct Event { unsigned long long id, version; } Event;
enum { KEY_EVENT = 17 };

static void on_server_event(Context *ctx, Event event, unsigned long long subevent, void *data) {
    (void)event, (void)data;
    if (subevent == DELETED) call_kept(ctx, DELETED);
}

static int on_event_command(Context *ctx, String **argv, int argc) {
    if (argc < 2 || argc - 1 > MOST || kept_count) return reply_with_error(ctx, "ERR no command, too long, or one is kept");
    for (int i = 1; i < argc; i++) {
        keep(ctx, argv[i]);
        kept[kept_count++] = argv[i];
    }
    answer_type = -1;
    answer_error[0] = 0;
    char letter = start_of(argv[0], NULL)[7];
    kept_for = letter == 'E' ? EXPIRED : letter == 'N' ? NEW : DELETED;
    return reply_with_ok(ctx, "OK");
}

static int on_answer_command(Context *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    if (answer_type == NUMBER) return reply_with_number(ctx, answer_number);
    return reply_with_error(ctx, *answer_error ? answer_error : "ERR nothing was called");
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
    /* E: return errors as replies. v: the arguments are a vector. K: the call may block.
     * C: use the rights of the user. */
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
        find("RedisModule_SelectDb", &select_database) || find("RedisModule_CallReplyType", &type_of) ||
        find("RedisModule_CallReplyInteger", &number_of) || find("RedisModule_CallReplyStringPtr", &text_of) ||
        find("RedisModule_ReplyWithLongLong", &reply_with_number))
        return 1;
    int (*subscribe_to_server)(Context *, Event, void (*)(Context *, Event, unsigned long long, void *));
    if (find("RedisModule_SubscribeToServerEvent", &subscribe_to_server)) return 1;
    find("RedisModule_CallReplyPromiseAbort", &abort_promise);
    set_name(ctx, "caller", 1, 1);
    subscribe_to_server(ctx, (Event){KEY_EVENT, 1}, on_server_event);
    return create_command(ctx, "caller.call", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.wait", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.user", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.both", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.timer", on_timer_command, "", 0, 0, 0) ||
           create_command(ctx, "caller.select", on_select_command, "", 0, 0, 0) ||
           create_command(ctx, "caller.expired", on_event_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.new", on_event_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.deleted", on_event_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.answer", on_answer_command, "", 0, 0, 0) ||
           subscribe(ctx, EXPIRED | NEW, on_key_event);
}
