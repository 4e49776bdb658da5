//! Encrypted connections, with certificates made for the test.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256};
use redis::{ClientTlsConfig, TlsCertificates};
use rlock_client::{Builder, Client, Error, blocking, redis};
use tempfile::TempDir;

use crate::PATIENCE;
use crate::support::{Server, free_port};

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key")
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        // Otherwise it would have the same name as the certificates that it signs.
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, key()).expect("a certificate"))
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names, and its key.
    fn certify(&self, names: &[&str]) -> (String, String) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = key();
        let certificate =
            CertificateParams::new(names).expect("names").signed_by(&key, &self.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// The authority that a client trusts, and the certificate that it presents.
    fn certificates(&self, shown_by: Option<&Authority>) -> TlsCertificates {
        let client_tls = shown_by.map(|authority| {
            let (certificate, key) = authority.certify(&["worker"]);
            ClientTlsConfig { client_cert: certificate.into_bytes(), client_key: key.into_bytes() }
        });
        TlsCertificates { client_tls, root_cert: Some(self.pem().into_bytes()) }
    }
}

/// A server with a port for encrypted connections.
struct TlsServer {
    url: String,
    _server: Server,
    _folder: TempDir,
}

impl TlsServer {
    fn start(authority: &Authority, asks_who_connects: bool) -> Self {
        let folder = TempDir::new().expect("a folder");
        let (certificate, key) = authority.certify(&["localhost", "127.0.0.1"]);
        let file = |name: &str, contents: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, contents).expect("a file");
            path.display().to_string()
        };
        let port = free_port();
        let lines = [
            format!("tls-port {port}"),
            format!("tls-cert-file {}", file("server.crt", &certificate)),
            format!("tls-key-file {}", file("server.key", &key)),
            format!("tls-ca-cert-file {}", file("ca.crt", &authority.pem())),
            format!("tls-auth-clients {}", if asks_who_connects { "yes" } else { "no" }),
        ];
        let server = Server::with(&lines.each_ref().map(String::as_str));
        Self { url: format!("rediss://127.0.0.1:{port}/"), _server: server, _folder: folder }
    }
}

/// Long enough for a grant, and short enough that a refusal does not take long.
fn builder(certificates: TlsCertificates) -> Builder {
    // The test binary links several crypto providers, so the program must choose one.
    #[cfg(feature = "tls-rustls")]
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder().certificates(certificates)
}

async fn use_a_lock(client: &Client) {
    let guard = client.lock("k").acquire().await.expect("a free lock");
    let waiting = tokio::spawn({
        let lock = client.lock("k");
        async move { lock.acquire_timeout(PATIENCE).await }
    });
    guard.renew().await.expect("it is held");
    guard.release().await.expect("it was held");
    waiting.await.expect("no panic").expect("a grant").release().await.expect("it was held");
}

#[tokio::test]
async fn locks_work_over_an_encrypted_connection() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority, false);
    let client = builder(authority.certificates(None)).connect(&server.url).await.expect("a server");
    use_a_lock(&client).await;
    let later = builder(authority.certificates(None)).connect_later(&server.url).expect("an address");
    use_a_lock(&later).await;
}

#[tokio::test]
async fn server_with_an_untrusted_certificate_is_refused() {
    let server = TlsServer::start(&Authority::new(), false);
    let refused = builder(Authority::new().certificates(None)).connect(&server.url).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    let by_system = Client::connect(&server.url).await;
    assert!(matches!(by_system, Err(Error::Unavailable { .. })), "{by_system:?}");
}

#[tokio::test]
async fn client_certificate_is_presented_on_demand() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority, true);
    let refused = builder(authority.certificates(None)).connect(&server.url).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    let certificates = authority.certificates(Some(&authority));
    let client = builder(certificates.clone()).connect(&server.url).await.expect("a server");
    use_a_lock(&client).await;
    // The same, with a server description of redis-rs.
    let described = redis::Client::build_with_tls(server.url.as_str(), certificates).expect("an address");
    let described = described.get_connection_info().clone();
    let client = Client::builder().connect_to(described).await.expect("a server");
    use_a_lock(&client).await;
}

#[test]
fn blocking_client_works_over_an_encrypted_connection() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority, false);
    let certificates = authority.certificates(None);
    let client = blocking::Client::connect_by(|_| async { builder(certificates).connect(&server.url).await });
    client.expect("a server").lock("k").acquire().expect("a free lock").release().expect("it was held");
}

#[tokio::test]
async fn invalid_certificates_are_an_error() {
    let broken = TlsCertificates { client_tls: None, root_cert: Some(b"-----BEGIN CERTIFICATE-----\nnone".to_vec()) };
    let refused = builder(broken).connect("rediss://127.0.0.1:1/").await;
    assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
}
