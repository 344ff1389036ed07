//! The other end is an implementation that is not ours.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is its job"
)]

use std::net::SocketAddr;

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use wicketgate_zmtp::{Error, Limits, Message, Reader, Received, Role, Writer, handshake, tune};
use zeromq::{
    DealerSocket, PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage,
};

type Peer = (Reader<OwnedReadHalf>, Writer<OwnedWriteHalf>);

async fn greet(stream: TcpStream, role: Role) -> Result<Peer, Error> {
    tune(&stream).unwrap();
    let (read, write) = stream.into_split();
    handshake(read, write, role, Limits::default()).await
}

async fn dial(address: &str, role: Role) -> Result<Peer, Error> {
    let address = address.strip_prefix("tcp://").unwrap();
    greet(TcpStream::connect(address).await.unwrap(), role).await
}

fn foreign(parts: &[&[u8]]) -> ZmqMessage {
    let parts: Vec<Bytes> = parts
        .iter()
        .map(|part| Bytes::copy_from_slice(part))
        .collect();
    ZmqMessage::try_from(parts).unwrap()
}

fn message(received: Option<Received>) -> Message {
    match received.unwrap() {
        Received::Message(message) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn our_subscriber_hears_their_publisher() {
    let mut publisher = PubSocket::new();
    let address = publisher
        .bind("tcp://127.0.0.1:0")
        .await
        .unwrap()
        .to_string();
    let (mut reader, mut writer) = dial(&address, Role::Sub).await.unwrap();
    writer.subscribe(b"kv@").await.unwrap();
    let long = vec![7u8; 100_000];
    // A subscription is on its way for a while, and nobody says when it has come.
    let heard = loop {
        publisher.send(foreign(&[b"other", b"x"])).await.unwrap();
        publisher
            .send(foreign(&[b"kv@a", &[0; 8], &long]))
            .await
            .unwrap();
        tokio::select! {
            received = reader.recv() => break message(received.unwrap()),
            () = tokio::time::sleep(std::time::Duration::from_millis(5)) => {}
        }
    };
    assert_eq!(heard.as_slice(), [&b"kv@a"[..], &[0; 8], &long]);
    drop(publisher);
    while let Ok(Some(_)) = reader.recv().await {}
}

#[tokio::test]
async fn our_dealer_is_answered_by_their_router() {
    let mut router = RouterSocket::new();
    let address = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let (mut reader, mut writer) = dial(&address, Role::Dealer).await.unwrap();
    writer.send(&[&b""[..], b"from 7"]).await.unwrap();
    let asked = router.recv().await.unwrap().into_vec();
    assert_eq!(asked[1..], [&b""[..], b"from 7"]);
    for answer in [&b"one"[..], b"two", b""] {
        router
            .send(foreign(&[&asked[0], b"", answer]))
            .await
            .unwrap();
    }
    for answer in [&b"one"[..], b"two", b""] {
        let received = message(reader.recv().await.unwrap());
        assert_eq!(received.as_slice(), [b"", answer]);
    }
}

async fn port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn their_subscriber_hears_our_publisher() {
    let (listener, address) = port().await;
    let ours = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = greet(stream, Role::Pub).await.unwrap();
        let wanted = reader.recv().await.unwrap();
        assert_eq!(wanted, Some(Received::Subscribe(Bytes::from_static(b"kv"))));
        writer.send(&[&b"kv"[..], b"hello"]).await.unwrap();
        assert!(matches!(reader.recv().await, Ok(None) | Err(Error::Io(_))));
    });
    let mut subscriber = SubSocket::new();
    subscriber
        .connect(&format!("tcp://{address}"))
        .await
        .unwrap();
    subscriber.subscribe("kv").await.unwrap();
    let heard = subscriber.recv().await.unwrap().into_vec();
    assert_eq!(heard, [&b"kv"[..], b"hello"]);
    drop(subscriber);
    ours.await.unwrap();
}

#[tokio::test]
async fn their_dealer_is_answered_by_our_router() {
    let (listener, address) = port().await;
    let ours = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = greet(stream, Role::Router).await.unwrap();
        let asked = message(reader.recv().await.unwrap());
        writer.send(&asked).await.unwrap();
        // Held open until the other end has read it.
        let _ = reader.recv().await;
    });
    let mut dealer = DealerSocket::new();
    dealer.connect(&format!("tcp://{address}")).await.unwrap();
    dealer.send(foreign(&[b"", b"42"])).await.unwrap();
    let answer = dealer.recv().await.unwrap().into_vec();
    assert_eq!(answer, [&b""[..], b"42"]);
    drop(dealer);
    ours.await.unwrap();
}

#[tokio::test]
async fn strangers_are_refused_with_a_reason() {
    let mut router = RouterSocket::new();
    let address = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let refused = dial(&address, Role::Sub).await.unwrap_err();
    assert!(matches!(refused, Error::Roles { ours: "SUB", ref theirs } if theirs == "ROUTER"));

    let (listener, address) = port().await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        stream
    });
    let stream = TcpStream::connect(address).await.unwrap();
    assert!(matches!(
        greet(stream, Role::Sub).await,
        Err(Error::NotZmtp)
    ));
    drop(server.await.unwrap());
}

/// Nine bytes that announce 64 TiB must cost nothing.
#[tokio::test]
async fn an_announced_length_is_not_believed() {
    let (listener, address) = port().await;
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (read, write) = stream.into_split();
        let (reader, writer) = handshake(read, write, Role::Pub, Limits::default())
            .await
            .unwrap();
        (reader, writer)
    });
    let mut raw = TcpStream::connect(address).await.unwrap();
    let mut greeting = [0u8; 64];
    greeting[..10].copy_from_slice(b"\xff\0\0\0\0\0\0\0\0\x7f");
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    raw.write_all(&greeting).await.unwrap();
    raw.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB")
        .await
        .unwrap();
    let (mut reader, mut writer) = server.await.unwrap();
    raw.write_all(b"\x04\x08\x04PING\0\x05x").await.unwrap();
    assert_eq!(
        reader.recv().await.unwrap(),
        Some(Received::Ping(Bytes::from_static(b"x")))
    );
    writer.pong(b"x").await.unwrap();
    let mut seen = vec![0; 64 + 2 + 25 + 2 + 6];
    raw.read_exact(&mut seen).await.unwrap();
    assert_eq!(seen[64 + 2 + 25..], *b"\x04\x06\x04PONGx");
    raw.write_all(&[2, 0, 0, 64, 0, 0, 0, 0, 0]).await.unwrap();
    assert!(matches!(reader.recv().await, Err(Error::TooLong(_))));
}
