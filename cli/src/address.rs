//! Where the locks are, as `--url` says it: on one server, on the master that Sentinel names, or in a cluster.

use rlock_client::{Client, Error};

use crate::exit::{FAILED, Failure};

/// The port of a sentinel that is named without one.
const SENTINEL_PORT: &str = "26379";

#[derive(Debug, PartialEq)]
pub(crate) enum Address {
    /// One server.
    Server(String),
    /// The master of this name.
    Sentinel {
        /// Each has the address of a sentinel.
        sentinels: Vec<String>,
        master: String,
        /// Has the user, password and database of the master, and no address of one.
        settings: String,
    },
    /// A cluster, with some of its nodes.
    Cluster(Vec<String>),
}

impl Address {
    /// Reads `redis+sentinel://[user:password@]host[:port][,…]/master[/db]`, `redis+cluster://[user:password@]host[:port][,…]`, either with
    /// `rediss+` for TLS, or the address of one server.
    pub(crate) fn parse(url: &str) -> Result<Self, Failure> {
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        let Some((protocol, group)) = scheme.split_once('+').filter(|(_, group)| *group != "unix") else {
            return Ok(Self::Server(url.to_owned()));
        };
        // Neither a host nor a name has an @, but a password may.
        let (account, places) = match rest.rsplit_once('@') {
            Some((account, places)) => (format!("{account}@"), places),
            None => (String::new(), rest),
        };
        let (hosts, path) = places.split_once('/').unwrap_or((places, ""));
        let hosts: Vec<_> = hosts.split(',').filter(|host| !host.is_empty()).collect();
        if hosts.is_empty() {
            return Err(wrong("no host is named"));
        }
        match group {
            "cluster" if path.is_empty() => {
                Ok(Self::Cluster(hosts.iter().map(|host| format!("{protocol}://{account}{host}")).collect()))
            }
            "cluster" => Err(wrong("a cluster has no databases")),
            "sentinel" => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(wrong("the name of the master is missing: redis+sentinel://host/NAME"));
                }
                let sentinels = hosts.iter().map(|host| format!("{protocol}://{}", with_port(host))).collect();
                let settings = format!("{protocol}://{account}any/{database}");
                Ok(Self::Sentinel { sentinels, master: master.to_owned(), settings })
            }
            _ => Err(wrong("it begins with redis://, rediss://, redis+unix://, redis+sentinel:// or redis+cluster://")),
        }
    }

    /// Connects a client that waits and renews.
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

fn with_port(host: &str) -> String {
    // The colons of an IPv6 address are in brackets.
    let has_port = host.rfind(':') > host.rfind(']');
    if has_port { host.to_owned() } else { format!("{host}:{SENTINEL_PORT}") }
}

fn wrong(text: &str) -> Failure {
    Failure::new(FAILED, format!("--url: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_sentinels_and_clusters_are_told_apart() {
        let parse = |url| Address::parse(url).map_err(|failure| failure.message);
        for url in ["redis://host", "rediss://user:p+w@host:1/2", "redis+unix:///run/redis.sock", "host"] {
            assert_eq!(parse(url), Ok(Address::Server(url.to_owned())));
        }
        let nodes = ["rediss://me:a@b@one:7000", "rediss://me:a@b@two"].map(str::to_owned);
        assert_eq!(parse("rediss+cluster://me:a@b@one:7000,two"), Ok(Address::Cluster(nodes.to_vec())));
        let sentinel = Address::Sentinel {
            sentinels: ["redis://one:26379", "redis://[::1]:26379", "redis://[::1]:5"].map(str::to_owned).to_vec(),
            master: "fleet".to_owned(),
            settings: "redis://:secret@any/3".to_owned(),
        };
        assert_eq!(parse("redis+sentinel://:secret@one,[::1],[::1]:5/fleet/3"), Ok(sentinel));
        for url in ["redis+cluster://", "redis+cluster://host/1", "redis+sentinel://host", "redis+other://host"] {
            assert!(parse(url).is_err_and(|text| text.starts_with("--url: ")), "{url}");
        }
    }
}
