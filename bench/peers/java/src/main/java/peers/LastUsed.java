package peers;

import java.util.function.Function;

/** The lock object for the key that a client used last: one object per key, not per acquisition. */
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
