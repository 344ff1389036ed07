//! A replica that starts takes over what its peers know.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    Token,
    fetch::{FetchError, fetch},
};
use crate::{
    net::is_loopback,
    prefix::{Hold, Prefixes, Transfer},
    tls::ServerFiles,
};

/// How often it is looked whether engines are connected.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for engines to be connected before a peer is asked: those that are can go on without a gap.
const ENGINES: Duration = Duration::from_secs(2);
/// Rounds of all peers when some of them are busy, and the pause between two.
const ROUNDS: u32 = 4;
const BUSY: Duration = Duration::from_millis(500);

/// Whom to ask, and for how long.
#[derive(Clone, Debug)]
pub struct WarmSpec {
    /// Asked in turn.
    pub peers: Vec<WarmPeer>,
    /// Longest time for all of it.
    pub timeout: Duration,
    /// What peers want to see.
    pub token: Option<Token>,
    /// Our certificate and the CA of peers', for those that speak TLS.
    pub tls: Option<ServerFiles>,
    /// Longest snapshot, in bytes.
    pub max_bytes: usize,
}

/// Another replica's management port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmPeer {
    /// `host:port`
    pub address: String,
    /// It is talked to through TLS.
    pub tls: bool,
}

/// Asks peers until one has something that is still true, at the longest for the time allowed; then events go on.
pub(crate) async fn warm(
    prefixes: Arc<Prefixes>,
    spec: WarmSpec,
    mut pools: Vec<watch::Receiver<bool>>,
    hold: Hold,
) {
    let asked = timeout(spec.timeout, async {
        for synced in &mut pools {
            // An error means that the pool is gone, and with it the process.
            let _ = synced.wait_for(|known| *known).await;
        }
        let connected = async {
            while !prefixes.all_connected() {
                sleep(LOOK).await;
            }
        };
        // An engine that is down holds up nobody.
        let _ = timeout(ENGINES.min(spec.timeout / 4), connected).await;
        ask(&prefixes, &spec).await
    });
    match asked.await {
        Ok(true) => {}
        Ok(false) => tracing::info!("no peer had anything to start from"),
        Err(_) => {
            prefixes.snapshots().count(Transfer::ImportCut);
            tracing::warn!("`kvIndex.warmFrom.timeout` is over; what was taken over stays");
        }
    }
    drop(hold);
}

async fn ask(prefixes: &Arc<Prefixes>, spec: &WarmSpec) -> bool {
    for _ in 0..ROUNDS {
        let mut busy = false;
        for peer in &spec.peers {
            match from(prefixes, spec, peer).await {
                Ok(true) => return true,
                Ok(false) => {}
                Err(FetchError::Busy) => busy = true,
                Err(error) => {
                    prefixes.snapshots().count(match error {
                        FetchError::TooLarge(_) => Transfer::ImportCut,
                        _ => Transfer::ImportUnreached,
                    });
                    tracing::info!(peer = peer.address, %error, "no snapshot of this peer");
                }
            }
        }
        if !busy {
            return false;
        }
        sleep(BUSY).await;
    }
    false
}

/// Whether a peer had something that is still true.
async fn from(
    prefixes: &Arc<Prefixes>,
    spec: &WarmSpec,
    peer: &WarmPeer,
) -> Result<bool, FetchError> {
    // Before the peer is asked: what stands now stood then.
    let standing = prefixes.standing(is_loopback(&peer.address));
    let fetched = fetch(peer, spec).await?;
    let standing = Some(standing).filter(|_| fetched.fresh);
    match prefixes.import(fetched.bytes, standing).await {
        Ok(report) => {
            let (taken, blocks) = (report.taken, report.blocks);
            let engines = report.engines.len();
            tracing::info!(
                peer = peer.address,
                taken,
                engines,
                blocks,
                "started from a peer"
            );
            Ok(taken > 0)
        }
        Err(fault) => {
            tracing::warn!(peer = peer.address, %fault, "a peer's snapshot is refused");
            Ok(false)
        }
    }
}
