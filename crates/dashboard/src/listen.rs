//! Connections: how many there are, and when one is given up.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// More connections than these wait until one is closed.
const MOST: usize = 512;
/// What the system may keep for a reader that does not read.
const SEND_BUFFER: u32 = 256 << 10;

/// Listens. There must be a runtime. A connection on which no byte went either way for so long is closed; streams of events send a
/// comment more often than that.
pub(crate) fn listen(address: SocketAddr, patience: Duration) -> io::Result<Limited> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // On Windows this would share the port with others.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(address)?;
    Ok(Limited { listener: socket.listen(1024)?, free: Arc::new(Semaphore::new(MOST)), patience })
}

/// A listener that has at most [`MOST`] connections at a time.
pub(crate) struct Limited {
    listener: TcpListener,
    free: Arc<Semaphore>,
    patience: Duration,
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // It is never closed.
            let Ok(permit) = Arc::clone(&self.free).acquire_owned().await else { continue };
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    // Without it small events wait for an answer to the one before.
                    let _ = stream.set_nodelay(true);
                    return (Connection::new(stream, permit, self.patience), address);
                }
                // Too many open files, say: others may close some.
                Err(error) => {
                    tracing::debug!("a connection was not accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Whether an answer is being made for a connection: then it is not the client that is slow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy(Arc<AtomicBool>);

impl Busy {
    pub(crate) fn set(&self, busy: bool) {
        self.0.store(busy, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Limited>> for Busy {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
        stream.io().busy.clone()
    }
}

/// A connection that ends when nothing happens on it: a client that does not read is not waited for.
pub(crate) struct Connection {
    stream: TcpStream,
    busy: Busy,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, permit: OwnedSemaphorePermit, patience: Duration) -> Self {
        Self {
            stream,
            busy: Busy::default(),
            patience,
            deadline: Box::pin(tokio::time::sleep(patience)),
            _permit: permit,
        }
    }

    /// Passes on what came of reading or writing; what waits for too long has failed.
    fn watched<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_pending() {
            while self.deadline.as_mut().poll(cx).is_ready() {
                if !self.busy.0.load(Ordering::Relaxed) {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                self.wait_on();
            }
            return Poll::Pending;
        }
        self.wait_on();
        poll
    }

    /// From now on.
    fn wait_on(&mut self) {
        let deadline = Instant::now() + self.patience;
        self.deadline.as_mut().reset(deadline);
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.watched(cx, poll)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watched(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.watched(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
