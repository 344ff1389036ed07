//! Real sockets on the loopback. Conditions are waited for; the clock decides nothing but when to give up.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};
use tonic::{Code, Request, Status, Streaming, client::Grpc};
use tonic_prost::ProstCodec;
use wicketgate_admission::{
    Admission, AdmissionConfig, FairnessId,
    fleet::{
        Counters, EndpointLoad, Fleet as Pure, FleetConfig, FleetState, FlowService, Queued,
        ReplicaId,
    },
    gate::EndpointView,
};

use super::{
    Fleet, FleetError, FleetSettings, MAX_MESSAGE, Member,
    link::Channel,
    proto::{EXCHANGE, Told},
};
use crate::{clock::Clock, tls::ServerFiles};

const POOL: &str = "pool";

fn pools() -> Vec<Arc<str>> {
    vec![Arc::from(POOL), Arc::from("other")]
}

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn settings(listen: SocketAddr, peers: &[SocketAddr]) -> FleetSettings {
    FleetSettings {
        listen: Some(listen),
        peers: peers.iter().map(SocketAddr::to_string).collect(),
        interval: Duration::from_millis(10),
        stale_after: Duration::from_millis(400),
        tls: None,
    }
}

async fn start(peers: &[SocketAddr]) -> Fleet {
    Fleet::start(settings(loopback(), peers), &pools())
        .await
        .unwrap()
}

/// Waits until it is so.
async fn until(what: &str, so: impl Fn() -> bool) {
    let wait = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        timeout(Duration::from_secs(30), wait).await.is_ok(),
        "{what}"
    );
}

fn counters(replica: ReplicaId, number: u64) -> Counters {
    Counters {
        replica,
        number,
        hears: vec![ReplicaId(1), ReplicaId(u64::MAX)],
        linked: true,
        waiting: Queued {
            requests: 3,
            bytes: 1 << 40,
            tokens: 77,
        },
        running: 5,
        endpoints: vec![EndpointLoad {
            endpoint: Arc::from("10.0.0.1:8000"),
            requests: 4,
            tokens: 9000,
        }],
        lives: 12,
        flows: vec![FlowService {
            priority: -7,
            fairness: FairnessId::new("tenant é"),
            weight: 0.5,
            life: 11,
            service: -40,
        }],
    }
}

fn last_number(fleet: &Fleet, of: ReplicaId) -> Option<u64> {
    let (_, said) = fleet.latest(POOL, 0);
    said.iter()
        .find(|said| said.replica == of)
        .map(|said| said.number)
}

/// Messages of a test's own, on their way.
struct Messages<T>(mpsc::Receiver<T>);

impl<T> futures_core::Stream for Messages<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}

/// A replica played by the test.
struct Played<T> {
    to: mpsc::Sender<T>,
    answers: Streaming<Told>,
    _driver: JoinHandle<()>,
}

async fn play<T: Message + 'static>(address: SocketAddr) -> Played<T> {
    let stream = TcpStream::connect(address).await.unwrap();
    let built = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = built.unwrap();
    let driver = tokio::spawn(async { drop(connection.await) });
    let origin = format!("http://{address}").parse().unwrap();
    let mut grpc = Grpc::with_origin(Channel(sender), origin);
    grpc.ready().await.unwrap();
    let (to, from) = mpsc::channel(8);
    let codec: ProstCodec<T, Told> = ProstCodec::default();
    let path = http::uri::PathAndQuery::from_static(EXCHANGE);
    let call = grpc
        .streaming(Request::new(Messages(from)), path, codec)
        .await;
    Played {
        to,
        answers: call.unwrap().into_inner(),
        _driver: driver,
    }
}

impl<T> Played<T> {
    /// How the other side ends the stream.
    async fn end(mut self) -> Status {
        loop {
            match timeout(Duration::from_secs(30), self.answers.message())
                .await
                .unwrap()
            {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok(""),
                Err(status) => return status,
            }
        }
    }
}

#[tokio::test]
async fn counters_arrive_as_they_were_said() {
    let a = start(&[]).await;
    let b = start(&[a.address().unwrap()]).await;
    assert_eq!((a.members(), b.members()), (1, 2));
    let (mut changes, said) = (a.changes(), counters(b.me(), 1));
    b.publish(POOL, &said);
    timeout(Duration::from_secs(30), changes.changed())
        .await
        .unwrap()
        .unwrap();
    until("b's word is there", || last_number(&a, b.me()) == Some(1)).await;
    let (version, heard) = a.latest(POOL, 0);
    assert_eq!(heard, [Arc::new(said)]);
    assert_eq!(a.latest(POOL, version), (version, vec![]), "nothing new");
    assert_eq!(a.latest("other", 0).1, []);
    // The same stream carries the other way.
    a.publish(POOL, &counters(a.me(), 9));
    until("a's word is there", || last_number(&b, a.me()) == Some(9)).await;
    // A pool of which nobody knows is not sent.
    a.publish("no such pool", &counters(a.me(), 10));
    assert_eq!(a.traffic().sent, 1);
}

#[tokio::test]
async fn only_the_last_word_counts() {
    let a = start(&[]).await;
    let b = start(&[a.address().unwrap()]).await;
    until("connected", || a.traffic().open == 1).await;
    for number in 1..=2000 {
        b.publish(POOL, &counters(b.me(), number));
    }
    until("the last one is there", || {
        last_number(&a, b.me()) == Some(2000)
    })
    .await;
    assert!(b.traffic().sent <= 2000 && a.latest(POOL, 0).1.len() == 1);
    // What is older than that changes nothing, wherever it comes from.
    let played = play::<Told>(a.address().unwrap()).await;
    played
        .to
        .send(Told::new(POOL, &counters(b.me(), 1999)))
        .await
        .unwrap();
    played
        .to
        .send(Told::new(POOL, &counters(ReplicaId(3), 1)))
        .await
        .unwrap();
    until("the played one is heard", || {
        last_number(&a, ReplicaId(3)) == Some(1)
    })
    .await;
    assert_eq!(last_number(&a, b.me()), Some(2000));
}

#[tokio::test]
async fn a_peer_that_was_killed_comes_back_as_another() {
    let a = start(&[]).await;
    let address = a.address().unwrap();
    let b = start(&[address]).await;
    until("connected", || b.traffic().open == 1).await;
    let first = a.me();
    a.publish(POOL, &counters(first, 500));
    until("the first life is heard", || {
        last_number(&b, first) == Some(500)
    })
    .await;
    drop(a);
    until("the end is noticed", || {
        b.traffic().open == 0 && b.traffic().unreached > 0
    })
    .await;
    let a = Fleet::start(settings(address, &[]), &pools())
        .await
        .unwrap();
    assert_ne!(a.me(), first);
    a.publish(POOL, &counters(a.me(), 1));
    until("the second life is heard", || {
        last_number(&b, a.me()) == Some(1)
    })
    .await;
    assert_eq!(
        b.latest(POOL, 0).1.len(),
        2,
        "two replicas, as far as anybody can tell"
    );
}

#[tokio::test]
async fn our_own_address_is_noticed() {
    let port = TcpListener::bind(loopback())
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let other = start(&[]).await;
    let settings = settings(port, &[port, other.address().unwrap()]);
    let fleet = Fleet::start(settings, &pools()).await.unwrap();
    let changes = fleet.changes();
    until("two are left", || fleet.members() == 2).await;
    assert!(changes.has_changed().unwrap());
    fleet.publish(POOL, &counters(fleet.me(), 1));
    until("it is heard elsewhere", || {
        last_number(&other, fleet.me()) == Some(1)
    })
    .await;
    assert_eq!(fleet.latest(POOL, 0).1, []);
}

/// A message of a later version: more fields, some of ours with more in them.
#[derive(Clone, PartialEq, Message)]
struct Later {
    #[prost(fixed64, tag = "1")]
    replica: u64,
    #[prost(string, tag = "2")]
    pool: String,
    #[prost(uint64, tag = "3")]
    number: u64,
    #[prost(message, repeated, tag = "10")]
    endpoints: Vec<LaterEndpoint>,
    #[prost(bytes = "vec", tag = "900")]
    novelty: Vec<u8>,
    #[prost(map = "string, double", tag = "901")]
    more: std::collections::HashMap<String, f64>,
}

#[derive(Clone, PartialEq, Message)]
struct LaterEndpoint {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    requests: u32,
    #[prost(fixed32, tag = "77")]
    temperature: u32,
}

#[tokio::test]
async fn other_versions_are_understood_as_far_as_they_go() {
    let a = start(&[]).await;
    let later = play::<Later>(a.address().unwrap()).await;
    let endpoint = LaterEndpoint {
        name: "e".to_owned(),
        requests: 3,
        temperature: 40,
    };
    let said = Later {
        replica: 7,
        pool: POOL.to_owned(),
        number: 1,
        endpoints: vec![endpoint],
        novelty: vec![1, 2, 3],
        more: [("x".to_owned(), 0.5)].into(),
    };
    later.to.send(said).await.unwrap();
    until("it is heard", || last_number(&a, ReplicaId(7)) == Some(1)).await;
    let expected = Counters {
        replica: ReplicaId(7),
        number: 1,
        endpoints: vec![EndpointLoad {
            endpoint: Arc::from("e"),
            requests: 3,
            tokens: 0,
        }],
        ..Counters::default()
    };
    assert_eq!(*a.latest(POOL, 0).1[0], expected);
}

/// Where a pool's name should be there is a number.
#[derive(Clone, PartialEq, Message)]
struct Garbage {
    #[prost(uint64, tag = "2")]
    pool: u64,
}

#[tokio::test]
async fn garbage_ends_its_stream_and_no_other() {
    let a = start(&[]).await;
    let address = a.address().unwrap();
    let sound = play::<Told>(address).await;
    let garbage = play::<Garbage>(address).await;
    garbage.to.send(Garbage { pool: 9 }).await.unwrap();
    assert_eq!(garbage.end().await.code(), Code::Internal);
    let huge = play::<Told>(address).await;
    let name = "x".repeat(MAX_MESSAGE);
    huge.to
        .send(Told {
            pool: name,
            ..Told::hello(ReplicaId(5))
        })
        .await
        .unwrap();
    assert_eq!(huge.end().await.code(), Code::OutOfRange);
    // Not even HTTP: the connection ends.
    let mut raw = TcpStream::connect(address).await.unwrap();
    raw.write_all(&[0xff; 4096]).await.unwrap();
    let mut rest = Vec::new();
    let read = timeout(Duration::from_secs(30), raw.read_to_end(&mut rest)).await;
    assert!(read.is_ok(), "the connection stays open");
    // Of a pool that is not here, and then one that is.
    sound
        .to
        .send(Told::new("elsewhere", &counters(ReplicaId(4), 1)))
        .await
        .unwrap();
    sound
        .to
        .send(Told::new(POOL, &counters(ReplicaId(4), 2)))
        .await
        .unwrap();
    until("the sound one is heard", || {
        last_number(&a, ReplicaId(4)) == Some(2)
    })
    .await;
    let traffic = a.traffic();
    assert_eq!(
        (traffic.received, traffic.dropped, traffic.broken),
        (1, 1, 2)
    );
    until("closed streams are off the count", || a.traffic().open == 1).await;
}

#[tokio::test]
async fn replicas_are_bounded() {
    let a = start(&[]).await;
    let played = play::<Told>(a.address().unwrap()).await;
    for replica in 1..=65 {
        played
            .to
            .send(Told::new(POOL, &counters(ReplicaId(replica), 1)))
            .await
            .unwrap();
    }
    until("one was too many, or an old one made room", || {
        let traffic = a.traffic();
        traffic.received + traffic.dropped == 65
    })
    .await;
    assert!(a.latest(POOL, 0).1.len() <= 64);
}

#[tokio::test]
async fn a_peer_that_talks_nonsense_is_tried_again() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let b = start(&[address]).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    stream
        .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        .await
        .unwrap();
    drop(stream);
    until("it was in vain", || b.traffic().unreached > 0).await;
    drop(listener);
    let a = Fleet::start(settings(address, &[]), &pools())
        .await
        .unwrap();
    a.publish(POOL, &counters(a.me(), 1));
    until("now it is reached", || last_number(&b, a.me()) == Some(1)).await;
}

#[tokio::test]
async fn settings_that_make_no_sense() {
    let start = |settings| async move {
        Fleet::start(settings, &pools())
            .await
            .err()
            .map(|e| e.to_string())
    };
    let odd = FleetSettings {
        interval: Duration::from_secs(2),
        ..FleetSettings::default()
    };
    assert!(matches!(
        Fleet::start(odd, &[]).await,
        Err(FleetError::Interval)
    ));
    let files = ServerFiles {
        cert: "cert.pem".into(),
        key: "key.pem".into(),
        client_ca: None,
    };
    let open = FleetSettings {
        tls: Some(files.clone()),
        ..FleetSettings::default()
    };
    assert_eq!(
        start(open).await.as_deref(),
        Some("fleet.tls: needs a client CA: replicas know each other by it")
    );
    let missing = ServerFiles {
        client_ca: Some("/nowhere/ca.pem".into()),
        ..files
    };
    let missing = FleetSettings {
        tls: Some(missing),
        ..FleetSettings::default()
    };
    assert!(
        start(missing)
            .await
            .unwrap()
            .starts_with("fleet.tls: /nowhere/ca.pem: ")
    );
    let taken = TcpListener::bind(loopback())
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let _taken = TcpListener::bind(taken).await;
    let second = start(settings(taken, &[])).await;
    assert!(second.is_none_or(|error| error.starts_with("fleet.listen 127.0.0.1:")));
}

/// A directory for one test; it goes with it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("wicketgate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// A certificate for 127.0.0.1 by an authority, with its files; both sides trust `ca`.
    fn files(&self, name: &str, authority: &Authority, ca: &Authority) -> ServerFiles {
        let write = |kind: &str, pem: &str| {
            let path = self.0.join(format!("{name}-{kind}.pem"));
            std::fs::write(&path, pem).unwrap();
            path
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &authority.issuer).unwrap();
        ServerFiles {
            cert: write("cert", &cert.pem()),
            key: write("key", &key.serialize_pem()),
            client_ca: Some(write("ca", &ca.pem)),
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}

struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority {
            issuer: rcgen::Issuer::new(params, key),
            pem,
        }
    }
}

#[tokio::test]
async fn replicas_know_each_other_by_their_certificates() {
    let (directory, ours, others) = (
        Directory::new("fleet-tls"),
        Authority::new(),
        Authority::new(),
    );
    let secure = |listen, peers: &[SocketAddr], files: ServerFiles| FleetSettings {
        tls: Some(files),
        ..settings(listen, peers)
    };
    let files = directory.files("a", &ours, &ours);
    let a = Fleet::start(secure(loopback(), &[], files), &pools())
        .await
        .unwrap();
    let address = a.address().unwrap();
    let files = directory.files("b", &ours, &ours);
    let b = Fleet::start(secure(loopback(), &[address], files), &pools())
        .await
        .unwrap();
    b.publish(POOL, &counters(b.me(), 1));
    until("b is let in", || last_number(&a, b.me()) == Some(1)).await;
    // One with a certificate of another authority, and one without any.
    let files = directory.files("c", &others, &ours);
    let c = Fleet::start(secure(loopback(), &[address], files), &pools())
        .await
        .unwrap();
    let plain = start(&[address]).await;
    for (fleet, number) in [(&c, 2), (&plain, 3)] {
        fleet.publish(POOL, &counters(fleet.me(), number));
    }
    until("they are turned away", || {
        let tried = |fleet: &Fleet| fleet.traffic().unreached + fleet.traffic().broken;
        tried(&c) > 1 && tried(&plain) > 1
    })
    .await;
    assert_eq!(
        (last_number(&a, c.me()), last_number(&a, plain.me())),
        (None, None)
    );
    // New certificates are taken up without a restart.
    directory.files("a", &ours, &ours);
    a.reload_tls().unwrap();
    std::fs::write(directory.0.join("a-key.pem"), "nothing").unwrap();
    assert!(a.reload_tls().is_err());
    let files = directory.files("d", &ours, &ours);
    let d = Fleet::start(secure(loopback(), &[address], files), &pools())
        .await
        .unwrap();
    d.publish(POOL, &counters(d.me(), 4));
    until("d is let in", || last_number(&a, d.me()) == Some(4)).await;
}

/// A pool of one replica: the real queues and the real view of the others.
struct Pool {
    clock: Clock,
    inner: Mutex<(Admission, Pure)>,
    in_flight: u32,
}

impl Pool {
    fn new(fleet: &Fleet, in_flight: u32) -> Arc<Pool> {
        let mut queues = Admission::new(AdmissionConfig::default()).unwrap();
        let config = FleetConfig {
            stale_after: 400_000_000,
            ..FleetConfig::default()
        };
        let mut pure = Pure::new(config, fleet.me()).unwrap();
        pure.attach(&mut queues);
        Arc::new(Pool {
            clock: Clock::start(),
            inner: Mutex::new((queues, pure)),
            in_flight,
        })
    }

    /// Its standing, and the requests that it counts at the endpoint.
    fn seen(&self) -> (FleetState, u32) {
        let (queues, pure) = &mut *self.inner.lock();
        pure.pass(self.clock.now(), queues);
        let own = EndpointView {
            own_requests: self.in_flight,
            ..EndpointView::default()
        };
        (pure.state(), pure.view("e", own).own_requests)
    }
}

impl Member for Pool {
    fn tell(&self) -> Counters {
        let (queues, pure) = &mut *self.inner.lock();
        let load = EndpointLoad {
            endpoint: Arc::from("e"),
            requests: self.in_flight,
            tokens: 0,
        };
        pure.tell(self.clock.now(), queues, [load])
    }

    fn hear(&self, said: &Counters) {
        let (queues, pure) = &mut *self.inner.lock();
        pure.hear(self.clock.now(), said, queues);
    }

    fn members(&self, members: u32) {
        let (queues, pure) = &mut *self.inner.lock();
        pure.set_members(members, queues);
    }
}

/// A replica with its pool, carried.
struct Carried {
    pool: Arc<Pool>,
    task: JoinHandle<()>,
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Carried {
    async fn start(listen: SocketAddr, peers: &[SocketAddr], in_flight: u32) -> Carried {
        let fleet = Fleet::start(settings(listen, peers), &pools())
            .await
            .unwrap();
        let pool = Pool::new(&fleet, in_flight);
        let carried = Arc::clone(&pool);
        let task = tokio::spawn(async move { fleet.carry(POOL, &*carried).await });
        Carried { pool, task }
    }
}

#[tokio::test]
async fn three_replicas_become_one_and_fall_apart() {
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(TcpListener::bind(loopback()).await.unwrap());
    }
    let addresses: Vec<SocketAddr> = held.iter().map(|l| l.local_addr().unwrap()).collect();
    drop(held);
    // All have the same list, their own address in it.
    let mut replicas = Vec::new();
    for (at, address) in addresses.iter().enumerate() {
        replicas.push(Carried::start(*address, &addresses, 1 << at).await);
    }
    let all =
        |replicas: &[Carried], seen| replicas.iter().all(|replica| replica.pool.seen() == seen);
    until("each counts everybody's requests", || {
        all(&replicas, (FleetState::Whole, 1 + 2 + 4))
    })
    .await;
    // One is killed: the others keep to a third each, and go on counting each other.
    drop(replicas.pop());
    until("the others keep to their share", || {
        let seen: Vec<_> = replicas.iter().map(|replica| replica.pool.seen()).collect();
        seen == [(FleetState::Share, 3), (FleetState::Share, 6)]
    })
    .await;
    // It comes back as another one, with more in flight.
    replicas.push(Carried::start(addresses[2], &addresses, 8).await);
    until("they are one again", || {
        all(&replicas, (FleetState::Whole, 1 + 2 + 8))
    })
    .await;
}
