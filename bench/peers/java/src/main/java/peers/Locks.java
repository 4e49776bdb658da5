package peers;

/** One library: how a client acquires and releases a lock. */
interface Locks extends AutoCloseable {
    /** A client with its own connection or a share of the library's, as documented. Called once by each client's thread. */
    Client connect(int client) throws Exception;

    @Override
    void close() throws Exception;

    /** One thread of control. */
    interface Client extends AutoCloseable {
        /** Waits for the lock, at most this long. Returns false on a timeout. */
        boolean acquire(String key, long waitMs) throws Exception;

        /** Releases the lock of the last acquire. */
        void release() throws Exception;

        @Override
        default void close() throws Exception {}
    }
}
