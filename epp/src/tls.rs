//! Certificates from disk, read again when they change, for servers and for the way to engines.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::RwLock;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server::TlsStream};

/// Why certificates could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be read or holds nothing of its kind.
    #[error("{path}: {what}")]
    Pem {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// Certificate and key do not fit together, or a CA cannot be used.
    #[error("{path}: {source}")]
    Unusable {
        /// The certificate's file.
        path: String,
        /// The cause.
        source: rustls::Error,
    },
    /// The client CA cannot be used.
    #[error("{path}: {what}")]
    ClientCa {
        /// The CA's file.
        path: String,
        /// What is wrong.
        what: String,
    },
}

/// Where a server's certificates lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Certificate chain, PEM.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// With it, callers must present a certificate of this CA.
    pub client_ca: Option<PathBuf>,
}

/// Accepts TLS with the certificates that lie on disk now.
#[derive(Clone)]
pub struct Acceptor {
    files: Arc<ServerFiles>,
    alpn: &'static [&'static [u8]],
    current: Arc<RwLock<Arc<ServerConfig>>>,
}

impl Acceptor {
    /// Reads the files; `alpn` are the protocols offered.
    ///
    /// # Errors
    /// When a file is missing or does not fit.
    pub fn new(files: ServerFiles, alpn: &'static [&'static [u8]]) -> Result<Acceptor, TlsError> {
        let config = server_config(&files, alpn)?;
        Ok(Acceptor {
            files: Arc::new(files),
            alpn,
            current: Arc::new(RwLock::new(Arc::new(config))),
        })
    }

    /// Reads the files again. New connections use them; on error the old ones stay.
    ///
    /// # Errors
    /// When a file is missing or certificate and key do not fit (a rotation half done).
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = server_config(&self.files, self.alpn)?;
        *self.current.write() = Arc::new(config);
        Ok(())
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let config = Arc::clone(&self.current.read());
        TlsAcceptor::from(config).accept(stream).await
    }
}

fn server_config(
    files: &ServerFiles,
    alpn: &'static [&'static [u8]],
) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder();
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(roots(path)?);
            let verifier = WebPkiClientVerifier::builder(roots).build();
            let verifier = verifier.map_err(|error| TlsError::ClientCa {
                path: path.display().to_string(),
                what: error.to_string(),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let certs = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| pem(&files.key, error))?;
    let config = builder.with_single_cert(certs, key);
    let mut config = config.map_err(|source| TlsError::Unusable {
        path: files.cert.display().to_string(),
        source,
    })?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// Talks TLS to endpoints whose certificates are of the CAs that lie on disk now.
#[derive(Clone)]
pub struct Connector {
    ca: Arc<PathBuf>,
    current: Arc<RwLock<Arc<ClientConfig>>>,
}

impl Connector {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn new(ca: PathBuf) -> Result<Connector, TlsError> {
        let config = client_config(&ca)?;
        Ok(Connector {
            ca: Arc::new(ca),
            current: Arc::new(RwLock::new(Arc::new(config))),
        })
    }

    /// Reads the file again. New connections use it; on error the old CAs stay.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = client_config(&self.ca)?;
        *self.current.write() = Arc::new(config);
        Ok(())
    }

    /// Shakes hands with the endpoint at `host:port`.
    pub(crate) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> std::io::Result<client::TlsStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        let config = Arc::clone(&self.current.read());
        TlsConnector::from(config).connect(name, stream).await
    }
}

fn client_config(ca: &Path) -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots(ca)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// A client configuration for a peer: it presents the certificate in `files`, and trusts their CA.
///
/// # Errors
/// When a file is missing or does not fit; also without a CA.
pub fn peer_config(files: &ServerFiles) -> Result<Arc<ClientConfig>, TlsError> {
    let Some(ca) = &files.client_ca else {
        return Err(TlsError::ClientCa {
            path: files.cert.display().to_string(),
            what: "a peer's certificate needs a CA to be checked by".to_owned(),
        });
    };
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| pem(&files.key, error))?;
    let config = ClientConfig::builder()
        .with_root_certificates(roots(ca)?)
        .with_client_auth_cert(certificates(&files.cert)?, key);
    let mut config = config.map_err(|source| TlsError::Unusable {
        path: files.cert.display().to_string(),
        source,
    })?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(path)? {
        roots.add(cert).map_err(|source| TlsError::Unusable {
            path: path.display().to_string(),
            source,
        })?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certs = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| pem(path, error))?;
    if certs.is_empty() {
        return Err(TlsError::Pem {
            path: path.display().to_string(),
            what: "no certificate in it".to_owned(),
        });
    }
    Ok(certs)
}

fn pem(path: &Path, error: rustls::pki_types::pem::Error) -> TlsError {
    TlsError::Pem {
        path: path.display().to_string(),
        what: error.to_string(),
    }
}
