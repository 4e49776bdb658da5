package peers;

import java.util.function.Function;

/** What a client made for the key that it used last: a lock is made once for a key, not for each acquisition. */
final class LastUsed<T> {
    private final Function<String, T> make;
    private String key;
    private T made;

    LastUsed(Function<String, T> make) {
        this.make = make;
    }

    T of(String key) {
        if (!key.equals(this.key)) {
            made = make.apply(key);
            this.key = key;
        }
        return made;
    }
}
