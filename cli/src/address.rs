//! The address in `--url`: of one server, of the master that Sentinel names, or of a cluster.

use redis::IntoConnectionInfo;
use rlock_client::{Client, Error};

use crate::exit::{FAILED, Failure};

/// The port of a sentinel whose address has none.
const SENTINEL_PORT: &str = "26379";

/// What `--url` accepts, for errors.
const ACCEPTED: &str = "host[:port], redis://[user:password@]host[:port][/db], redis+unix:///path, \
    redis+sentinel://host[:port][,host…]/NAME[/db] or redis+cluster://host[:port][,host…], with rediss for TLS";

#[derive(Debug, PartialEq)]
pub(crate) enum Address {
    /// One server.
    Server(String),
    /// The master that Sentinel names.
    Sentinel {
        /// URLs of sentinels.
        sentinels: Vec<String>,
        /// The name of the master.
        master: String,
        /// A URL with the user, password and database of the master. Its host is a placeholder.
        settings: String,
    },
    /// URLs of some nodes of a cluster.
    Cluster(Vec<String>),
}

impl Address {
    /// Parses `redis+sentinel://[user:password@]host[:port][,…]/master[/db]`,
    /// `redis+cluster://[user:password@]host[:port][,…]`, either with `rediss+` for TLS, or the
    /// address of one server. An address without a scheme means `redis://`.
    ///
    /// Errors do not repeat the address, because it may contain a password.
    pub(crate) fn parse(url: &str) -> Result<Self, Failure> {
        if url.is_empty() {
            return Err(unexpected("the address is empty"));
        }
        let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
        let Some((protocol, group)) = scheme.split_once('+').filter(|(_, group)| *group != "unix") else {
            return Ok(Self::Server(checked(format!("{scheme}://{rest}"))?));
        };
        // The password may contain an @; hosts and names do not.
        let (account, places) = match rest.rsplit_once('@') {
            Some((account, places)) => (format!("{account}@"), places),
            None => (String::new(), rest),
        };
        let (hosts, path) = places.split_once('/').unwrap_or((places, ""));
        let hosts: Vec<_> = hosts.split(',').filter(|host| !host.is_empty()).collect();
        if hosts.is_empty() {
            return Err(unexpected("the host is missing"));
        }
        match group {
            "cluster" if path.is_empty() => {
                let nodes = hosts.iter().map(|host| checked(format!("{protocol}://{account}{host}")));
                nodes.collect::<Result<_, _>>().map(Self::Cluster)
            }
            "cluster" => Err(unexpected("a cluster has no path: it has one database")),
            "sentinel" => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(unexpected("the name of the master is missing"));
                }
                let sentinels = hosts.iter().map(|host| checked(format!("{protocol}://{}", with_port(host))));
                let sentinels = sentinels.collect::<Result<_, _>>()?;
                let settings = checked(format!("{protocol}://{account}any/{database}"))?;
                Ok(Self::Sentinel { sentinels, master: master.to_owned(), settings })
            }
            _ => Err(unexpected(&format!("unknown scheme '{scheme}'"))),
        }
    }

    /// Connects the client that waits and renews.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        match self {
            Self::Server(url) => Client::connect(url).await,
            Self::Sentinel { sentinels, master, settings } => {
                let sentinels: Vec<_> = sentinels.iter().map(String::as_str).collect();
                Client::builder().connect_sentinel(&sentinels, master, settings).await
            }
            Self::Cluster(nodes) => {
                let nodes: Vec<_> = nodes.iter().map(String::as_str).collect();
                Client::builder().connect_cluster(&nodes).await
            }
        }
    }
}

/// Checks the URL of one server.
fn checked(url: String) -> Result<String, Failure> {
    match url.as_str().into_connection_info() {
        Ok(_) => Ok(url),
        Err(error) => {
            let scheme = url.split("://").next().unwrap_or_default();
            let is_known =
                ["redis", "rediss", "valkey", "valkeys", "redis+unix", "valkey+unix", "unix"].contains(&scheme);
            // redis-rs appends the kind of the error.
            let reason = error.to_string().split(" - ").next().unwrap_or_default().to_lowercase();
            Err(match is_known {
                true => unexpected(&format!("invalid address: {reason}")),
                false => unexpected(&format!("unknown scheme '{scheme}'")),
            })
        }
    }
}

fn with_port(host: &str) -> String {
    // The colons of an IPv6 address are in brackets.
    let has_port = host.rfind(':') > host.rfind(']');
    if has_port { host.to_owned() } else { format!("{host}:{SENTINEL_PORT}") }
}

fn unexpected(text: &str) -> Failure {
    Failure::new(FAILED, format!("--url: {text}; expected {ACCEPTED}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_of_a_server_of_sentinel_or_of_a_cluster() {
        let parse = |url| Address::parse(url).map_err(|failure| failure.message);
        for url in ["redis://host", "rediss://user:p+w@host:1/2", "redis+unix:///run/redis.sock", "valkey://host"] {
            assert_eq!(parse(url), Ok(Address::Server(url.to_owned())));
        }
        for url in ["127.0.0.1:6379", "localhost", "user:p+w@host:1/2", "[::1]:6379"] {
            assert_eq!(parse(url), Ok(Address::Server(format!("redis://{url}"))));
        }
        let nodes = ["rediss://me:a@b@one:7000", "rediss://me:a@b@two"].map(str::to_owned);
        assert_eq!(parse("rediss+cluster://me:a@b@one:7000,two"), Ok(Address::Cluster(nodes.to_vec())));
        let sentinel = Address::Sentinel {
            sentinels: ["redis://one:26379", "redis://[::1]:26379", "redis://[::1]:5"].map(str::to_owned).to_vec(),
            master: "fleet".to_owned(),
            settings: "redis://:secret@any/3".to_owned(),
        };
        assert_eq!(parse("redis+sentinel://:secret@one,[::1],[::1]:5/fleet/3"), Ok(sentinel));
    }

    #[test]
    fn invalid_address_is_refused_with_the_accepted_forms() {
        for (url, reason) in [
            ("", "the address is empty"),
            ("http://host", "unknown scheme 'http'"),
            ("redis+other://host", "unknown scheme 'redis+other'"),
            ("redis://host:secret", "invalid address: redis url did not parse"),
            ("host:6379/secret", "invalid address: invalid database number"),
            ("redis+sentinel://host/NAME/secret", "invalid address: invalid database number"),
            ("redis+cluster://host:secret", "invalid address: redis url did not parse"),
            ("redis+cluster://", "the host is missing"),
            ("redis+cluster://host/1", "a cluster has no path: it has one database"),
            ("redis+sentinel://host", "the name of the master is missing"),
        ] {
            let message = Address::parse(url).expect_err("an error").message;
            let prefix = format!("--url: {reason}; expected host[:port], redis://");
            assert!(message.starts_with(&prefix), "{url}: {message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
