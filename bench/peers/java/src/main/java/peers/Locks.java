package peers;

/** One library: how a client asks for a lock and frees it. */
interface Locks extends AutoCloseable {
    /** A client with a connection of its own, or a share of those of the library, as its documentation has it. Called once by each client's thread. */
    Client connect(int client) throws Exception;

    @Override
    void close() throws Exception;

    /** One thread of control. */
    interface Client extends AutoCloseable {
        /** Waits for the lock, at most this long. False: it was not had in time. */
        boolean acquire(String key, long waitMs) throws Exception;

        /** Frees what the last acquire has taken. */
        void release() throws Exception;

        @Override
        default void close() throws Exception {}
    }
}
