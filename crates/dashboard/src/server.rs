//! The server: a thread of its own, which training always goes before.

use std::io;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use thread_priority::ThreadPriority;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::options::USUAL_PORT;
use crate::{Options, StartError, api, captures, listen};

/// Threads for what waits for the disk.
const DISK_THREADS: usize = 2;

/// A dashboard that is being served, until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    token: Option<String>,
    is_open: bool,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve. What is wrong with the options, or a port that is taken, is told before anything runs.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let token = options.checked_token()?;
        if let Some(dir) = &options.captures {
            captures::check_dir(dir)?;
        }
        let runtime = runtime().map_err(StartError::NoThread)?;
        let (listener, address) = {
            let _inside = runtime.enter();
            bind(&options)?
        };
        let is_open = options.is_open();
        let app = api::router(options, address, token.clone());
        let app = app.into_make_service_with_connect_info::<listen::Busy>();
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            lower_priority();
            runtime.block_on(async {
                tokio::select! {
                    ended = async { axum::serve(listener, app).await } => {
                        ended.unwrap_or_else(|error| tracing::warn!("the dashboard has ended: {error}"));
                    }
                    _ = stopped => {}
                }
            });
            // Whoever is still connected is not waited for.
            runtime.shutdown_timeout(Duration::from_secs(1));
        };
        let thread = std::thread::Builder::new().name("dashboard".to_string()).spawn(serve);
        let thread = Some(thread.map_err(StartError::NoThread)?);
        Ok(Self { address, token, is_open, stop: Some(stop), thread })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What to open in a browser, with the token where one is needed to see anything.
    pub fn url(&self) -> String {
        match &self.token {
            Some(token) if self.is_open => format!("http://{}/?token={token}", self.address),
            _ => format!("http://{}/", self.address),
        }
    }

    /// The token that was given or made.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Stops, and returns when all connections are closed.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the dashboard ended in a panic");
        }
    }
}

/// One thread for connections, few for the disk, all behind everything else that the machine has to do.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(DISK_THREADS)
        .thread_keep_alive(Duration::from_secs(60))
        .thread_name("dashboard-disk")
        .on_thread_start(lower_priority)
        .build()
}

/// Only what nobody else wants of the processors is for this thread. The lowest ordinary priority would not be enough: a training step waits
/// for the slowest of its threads, and one that gives way now and then is that.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    let lowered = {
        use thread_priority::unix::{
            NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy,
            thread_native_id,
        };
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle)
    };
    #[cfg(not(target_os = "linux"))]
    let lowered = thread_priority::set_current_thread_priority(ThreadPriority::Min);
    if let Err(error) = lowered {
        tracing::debug!("the dashboard's priority cannot be lowered: {error:?}");
    }
}

fn bind(options: &Options) -> Result<(listen::Limited, SocketAddr), StartError> {
    let at = |port: u16| {
        let address = SocketAddr::new(options.address, port);
        let failed = |source| StartError::Bind { address, source };
        let listener = listen::listen(address, options.patience).map_err(failed)?;
        let bound = axum::serve::Listener::local_addr(&listener).map_err(failed)?;
        Ok((listener, bound))
    };
    match options.port {
        Some(port) => at(port),
        None => at(USUAL_PORT).or_else(|_| at(0)),
    }
}
