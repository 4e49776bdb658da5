/* A module that calls other commands, as any module may: CALLER.CALL command [argument ...]. With the same arguments, CALLER.WAIT
 * makes calls that may be blocked, where the server lets a module have that, and CALLER.USER calls in the name of the user who asks.
 *
 * The header of the server is not needed: a module is given the function that finds all others. */

#include <stddef.h>

typedef struct Context Context;
typedef struct String String;

static void *(*call)(Context *, const char *command, const char *format, ...);
static const char *(*start_of)(const String *, size_t *length);
static int (*reply_with)(Context *, void *reply);
static int (*reply_with_error)(Context *, const char *message);
static void (*free_reply)(void *reply);

static int on_command(Context *ctx, String **argv, int argc) {
    if (argc < 2) return reply_with_error(ctx, "ERR no command");
    const char *own_name = start_of(argv[0], NULL);
    /* E: errors are replies. v: the arguments are a vector. K: the call may be blocked. C: with the rights of the user. */
    const char *how = own_name[7] == 'W' ? "EvK" : own_name[7] == 'U' ? "EvC" : "Ev";
    void *reply = call(ctx, start_of(argv[1], NULL), how, argv + 2, (size_t)(argc - 2));
    if (!reply) return reply_with_error(ctx, "ERR not called");
    reply_with(ctx, reply);
    free_reply(reply);
    return 0;
}

int RedisModule_OnLoad(Context *ctx) {
    int (*find)(const char *name, void *place) = *(int (**)(const char *, void *))ctx;
    void (*set_name)(Context *, const char *name, int version, int api);
    int (*create_command)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
    if (find("RedisModule_SetModuleAttribs", &set_name) || find("RedisModule_CreateCommand", &create_command) ||
        find("RedisModule_Call", &call) || find("RedisModule_StringPtrLen", &start_of) ||
        find("RedisModule_ReplyWithCallReply", &reply_with) || find("RedisModule_ReplyWithError", &reply_with_error) ||
        find("RedisModule_FreeCallReply", &free_reply))
        return 1;
    set_name(ctx, "caller", 1, 1);
    return create_command(ctx, "caller.call", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.wait", on_command, "write", 0, 0, 0) ||
           create_command(ctx, "caller.user", on_command, "write", 0, 0, 0);
}
