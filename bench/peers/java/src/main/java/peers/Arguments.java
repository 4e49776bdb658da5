package peers;

import java.util.HashMap;
import java.util.Map;

/** The driver's arguments, see README.md of the folder above. */
record Arguments(
        String peer,
        String host,
        int port,
        String lock,
        String variant,
        int clients,
        int first,
        int locks,
        String key,
        double seconds,
        long sectionMicros,
        long leaseMs,
        int permits,
        boolean hold,
        String out) {

    static Arguments parse(String[] words) {
        Map<String, String> values = new HashMap<>();
        for (int i = 0; i + 1 < words.length; i += 2) {
            values.put(words[i], words[i + 1]);
        }
        String server = need(values, "--server");
        int colon = server.lastIndexOf(':');
        return new Arguments(
                need(values, "--peer"),
                server.substring(0, colon),
                Integer.parseInt(server.substring(colon + 1)),
                need(values, "--lock"),
                need(values, "--variant"),
                Integer.parseInt(need(values, "--clients")),
                Integer.parseInt(need(values, "--first")),
                Integer.parseInt(need(values, "--locks")),
                need(values, "--key"),
                Double.parseDouble(need(values, "--seconds")),
                Long.parseLong(need(values, "--section-us")),
                Long.parseLong(need(values, "--lease-ms")),
                Integer.parseInt(need(values, "--permits")),
                need(values, "--hold").equals("yes"),
                need(values, "--out"));
    }

    private static String need(Map<String, String> values, String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing argument " + name);
        }
        return value;
    }

    IllegalArgumentException noSuchLock() {
        return new IllegalArgumentException(peer + " has no lock of the kind " + lock);
    }
}
