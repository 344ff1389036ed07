//! A certificate authority for one test.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, PEM.
    pub certificate: String,
}

/// A certificate and its key, PEM.
pub struct Pair {
    /// Certificate.
    pub certificate: String,
    /// Private key.
    pub key: String,
}

impl Authority {
    /// A new authority.
    pub fn new(name: &str) -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    /// A certificate for these names.
    pub fn issue(&self, names: &[&str]) -> Pair {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair {
            certificate,
            key: key.serialize_pem(),
        }
    }
}
