//! A TCP relay between an engine's events and whoever listens to them, which a test cuts and restores.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::sleep,
};

/// Pause before an end that refuses is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// How the relay meets one of its ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The other side listens there.
    Dial(SocketAddr),
    /// The other side connects to this address.
    Listen(SocketAddr),
}

/// A relay of one connection at a time. Its drop ends it.
pub(crate) struct Relay {
    open: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    pub(crate) fn start(engine: End, ours: End) -> Relay {
        let (open, mut seen) = watch::channel(true);
        let task = tokio::spawn(async move {
            while seen.wait_for(|open| *open).await.is_ok() {
                let mut cut = seen.clone();
                tokio::select! {
                    () = pass(engine, ours) => {}
                    _ = cut.wait_for(|open| !open) => {}
                }
            }
        });
        Relay { open, task }
    }

    /// Ends the connection; both ends are refused from now on.
    pub(crate) fn cut(&self) {
        self.open.send_replace(false);
    }

    /// Lets connections through again.
    pub(crate) fn restore(&self) {
        self.open.send_replace(true);
    }
}

/// One connection, from its beginning to its end.
async fn pass(engine: End, ours: End) {
    let (mut engine, mut ours) = tokio::join!(meet(engine), meet(ours));
    // How it ended does not matter: there will be another one.
    let _ = copy_bidirectional(&mut engine, &mut ours).await;
}

async fn meet(end: End) -> TcpStream {
    loop {
        let met = match end {
            End::Dial(at) => TcpStream::connect(at).await,
            End::Listen(at) => match listen(at) {
                Ok(port) => port.accept().await.map(|(stream, _)| stream),
                Err(error) => Err(error),
            },
        };
        match met {
            Ok(stream) => {
                stream.set_nodelay(true).unwrap();
                return stream;
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// A port for one connection: while it stands, and while it is cut, further ones are refused.
fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(1)
}
