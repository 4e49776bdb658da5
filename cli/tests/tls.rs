//! Encrypted connections, with a private certificate authority.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::commands::{rlock, text};
use crate::support::{Server, free_port};

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

#[test]
fn private_authority_is_trusted_if_ssl_cert_file_names_it() {
    let folder = TempDir::new().expect("a folder");
    let file = |name: &str, contents: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, contents).expect("a file");
        path.display().to_string()
    };
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, key()).expect("a certificate");
    let own = key();
    let names = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    let certificate = names.signed_by(&own, &authority).expect("a certificate");
    let (port, trusted) = (free_port(), file("ca.crt", &authority.pem()));
    let lines = [
        format!("tls-port {port}"),
        format!("tls-cert-file {}", file("server.crt", &certificate.pem())),
        format!("tls-key-file {}", file("server.key", &own.serialize_pem())),
        format!("tls-ca-cert-file {trusted}"),
        "tls-auth-clients no".to_owned(),
    ];
    let server = Server::with(&lines.each_ref().map(String::as_str));
    for line in ["run k --wait 0 -- true", "run k --semaphore 2 --wait 0 -- true", "ls", "wait k --wait 0"] {
        let line = line.replace(" k ", if line.contains("semaphore") { " pool " } else { " k " });
        let run = |environment: Option<&String>| {
            let mut tool = rlock(&server, &line);
            tool.env("RLOCK_URL", format!("rediss://127.0.0.1:{port}/")).env_remove("SSL_CERT_FILE");
            tool.envs(environment.map(|file| ("SSL_CERT_FILE", file))).output().expect("the tool runs")
        };
        let output = run(Some(&trusted));
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{line}");
        let output = run(None);
        assert_eq!(output.status.code(), Some(121), "{line}");
        assert!(text(&output.stderr).contains("name the file of its certificate in SSL_CERT_FILE"), "{output:?}");
    }
}
