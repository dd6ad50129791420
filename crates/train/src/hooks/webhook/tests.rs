//! Against real servers on this machine.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use tenterhook_hooks::{Event, HookRegistry, MockTrainer};

use super::address::Lookup;
use super::courier::CAPACITY;
use super::post::Failure;
use super::*;

/// What a server does with a request.
#[derive(Clone, Debug)]
enum Answer {
    Status(u16),
    Redirect(u16, String),
    Nonsense,
    /// Accepts and never answers.
    Hang,
    /// Answers with a body that never ends.
    Endless,
}

/// A server that gives its answers in turn, the last one again and again.
struct Server {
    port: u16,
    /// The head and the body of every request.
    requests: Arc<Mutex<Vec<(String, String)>>>,
}

impl Server {
    fn new(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, mut answers) = (requests.clone(), answers.to_vec());
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                seen.lock().unwrap().push(read_request(&stream).unwrap_or_default());
                let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
                let text = match answer {
                    Answer::Status(status) => format!("HTTP/1.1 {status} X\r\ncontent-length: 4\r\n\r\nbody"),
                    Answer::Redirect(status, to) => {
                        format!("HTTP/1.1 {status} X\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n")
                    }
                    Answer::Endless => {
                        std::thread::spawn(move || endlessly(stream));
                        continue;
                    }
                    Answer::Nonsense => "no such protocol\r\n\r\n".to_string(),
                    Answer::Hang => {
                        open.push(stream);
                        continue;
                    }
                };
                // The client may be gone by now.
                let _ = stream.write_all(text.as_bytes());
            }
        });
        Self { port, requests }
    }

    fn url(&self, rest: &str) -> String {
        format!("http://127.0.0.1:{}{rest}", self.port)
    }

    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    fn texts(&self) -> Vec<String> {
        let body = |(_, body): &(String, String)| -> Value { serde_json::from_str(body).unwrap() };
        let text = |body: Value| {
            assert_eq!(body.as_object().unwrap().len(), 1, "only `text`: {body}");
            body["text"].as_str().unwrap().to_string()
        };
        self.requests.lock().unwrap().iter().map(body).map(text).collect()
    }
}

/// Writes until nobody listens any more.
fn endlessly(mut stream: TcpStream) {
    let head = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut alive = stream.write_all(head).is_ok();
    while alive {
        alive = stream.write_all(b"4\r\nbody\r\n").is_ok();
    }
}

fn read_request(stream: &TcpStream) -> io::Result<(String, String)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((head, String::from_utf8(body).unwrap()))
}

fn options(url: &str) -> WebhookOptions {
    WebhookOptions { url: Some(SecretUrl::new(url)), allow_local: true, ..WebhookOptions::default() }
}

fn hook(options: WebhookOptions) -> Webhook {
    let mut hook = Webhook::new(options).unwrap();
    hook.post.pause = Duration::from_millis(1);
    hook
}

fn post(url: &str, timeout_ms: u64) -> Post {
    Post { timeout: Duration::from_millis(timeout_ms), ..hook(options(url)).post }
}

/// Sends one message and says what became of it.
fn deliver(post: Post) -> Counts {
    let courier = Courier::start(post).unwrap();
    courier.send("hello".to_string());
    assert_eq!(courier.drain(Duration::from_secs(30)), 0);
    courier.counts()
}

/// Has a better model at every step.
struct Better;

impl Hook for Better {
    fn kind(&self) -> &str {
        "better"
    }
    fn on_before_backward(&mut self, loss: f64, cx: &mut Cx) -> HookResult {
        let step = cx.state().unwrap().step;
        let (hook_id, metric, name) = ("mc".to_string(), "val/loss".to_string(), format!("best-{step}"));
        cx.board().put_for_run(BestModel { hook_id, metric, score: loss, step, name });
        Ok(())
    }
}

#[test]
fn what_was_asked_for_is_told() {
    let all = [Notice::TrainingEnd, Notice::BestModel, Notice::Error];
    let best = "run `mock`: new best model `best-0`: val/loss 0.5 at step 0";
    let error = "run `mock`: failed at step 1/1000, loss 0.5: no more disk";
    let end = "run `mock`: training error at step 1/1000, loss 0.5";
    let table: [(&[Notice], &[&str]); 4] = [
        (&all, &[best, error, end]),
        (&all[..2], &[best, end]), // as by default
        (&all[..1], &[end]),
        (&all[2..], &[error]),
    ];
    for (notify_on, want) in table {
        let server = Server::new(&[Answer::Status(200)]);
        let mut trainer = MockTrainer::new();
        trainer.attach(Better).unwrap();
        let options = WebhookOptions { notify_on: notify_on.to_vec(), ..options(&server.url("/T/B?c=1")) };
        trainer.attach(hook(options)).unwrap();
        trainer.fire(Event::TrainStart).unwrap();
        trainer.step(0.5).unwrap();
        trainer.validate(&[("val/loss", 0.5)]).unwrap(); // the same best model: not told again
        trainer.fire(Event::Exception("no more disk")).unwrap();
        trainer.end(RunStatus::Error).unwrap();
        assert_eq!(server.texts(), want);
        assert!(trainer.errors().is_empty(), "{:?}", trainer.errors());
        let head = server.requests.lock().unwrap()[0].0.to_lowercase();
        assert!(head.starts_with("post /t/b?c=1 "), "{head}");
        assert!(head.contains("content-type: application/json\r\n"), "{head}");
    }
}

#[test]
fn p35_failures_are_tried_again_where_that_can_help_and_three_times_at_most() {
    use Answer::{Nonsense, Status};
    let ok = Counts { sent: 1, ..Counts::default() };
    let lost = Counts { failed: 1, ..Counts::default() };
    let table = [
        (vec![Status(204)], ok, 1),
        (vec![Status(500), Status(429), Status(200)], ok, 3),
        (vec![Status(500)], lost, 3),
        (vec![Nonsense], lost, 3),
        (vec![Status(404)], lost, 1),
        (vec![Answer::Redirect(307, "https://8.8.8.8/".into())], lost, 1),
    ];
    for (answers, want, requests) in table {
        let server = Server::new(&answers);
        assert_eq!(deliver(post(&server.url("/"), 5000)), want, "{answers:?}");
        assert_eq!(server.count(), requests, "{answers:?}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    assert_eq!(deliver(post(&format!("http://127.0.0.1:{closed}/"), 5000)), lost);
    let nowhere: Lookup = Arc::new(|_, _| Err(io::Error::other("no such host")));
    assert_eq!(deliver(Post { lookup: nowhere, ..post("https://a.example/", 5000) }), lost);
}

#[test]
fn p12_a_receiver_that_hangs_is_given_up_and_delays_no_step() {
    let server = Server::new(&[Answer::Hang]);
    assert_eq!(post(&server.url("/"), 50).send("x"), Err(Failure::Again("no answer in time".to_string())));

    // With ten minutes of patience: a step that waited for an answer would be missed here.
    let mut trainer = MockTrainer::new();
    trainer.attach(Better).unwrap();
    trainer.attach(hook(WebhookOptions { timeout_s: 600.0, ..options(&server.url("/")) })).unwrap();
    trainer.fire(Event::TrainStart).unwrap();
    let messages = CAPACITY + 10;
    (0..messages).for_each(|_| trainer.step(0.5).unwrap());
    trainer.step(0.5).unwrap(); // its row tells of what became of the others
    let dropped = trainer.metric("webhook/dropped").unwrap();
    // One may be on its way.
    assert!(dropped == 9.0 || dropped == 10.0, "{dropped}");
    assert_eq!(trainer.metric("webhook/failed"), None);

    // The end of a run waits, but not for ever.
    let mut trainer = MockTrainer::new();
    trainer.attach(hook(WebhookOptions { timeout_s: 0.05, ..options(&server.url("/")) })).unwrap();
    trainer.fire(Event::TrainStart).unwrap();
    trainer.end(RunStatus::Completed).unwrap();
    assert!(trainer.errors().is_empty());
}

#[test]
fn failures_are_counted_in_the_rows() {
    let server = Server::new(&[Answer::Status(404)]);
    let mut trainer = MockTrainer::new();
    trainer.attach(Better).unwrap();
    let id = trainer.attach(hook(options(&server.url("/")))).unwrap();
    trainer.fire(Event::TrainStart).unwrap();
    trainer.step(0.5).unwrap();
    let wait = |hook: &mut Webhook| hook.courier.as_ref().unwrap().drain(Duration::from_secs(30));
    assert_eq!(trainer.hooks().with_hook(&id, wait).unwrap(), 0);
    trainer.step(0.5).unwrap();
    assert_eq!(trainer.metric("webhook/failed"), Some(1.0));
}

#[test]
fn p35_redirects_are_followed_between_local_addresses_only() {
    let end = Server::new(&[Answer::Status(200)]);
    for status in [301, 302, 307, 308] {
        let before = end.count();
        let start = Server::new(&[Answer::Redirect(status, end.url("/there"))]);
        assert_eq!(post(&start.url("/"), 5000).send("hello"), Ok(()), "{status}");
        assert_eq!(end.count(), before + 1);
        assert_eq!(end.texts()[before], "hello", "the message itself is sent on");
    }
    let refused = |result: Result<(), Failure>| match result {
        Err(Failure::Final(why)) => assert!(why.starts_with("refused redirect"), "{why}"),
        other => panic!("{other:?}"),
    };
    for to in ["https://8.8.8.8/", "http://8.8.8.8/", "https://0.0.0.0/", "ftp://127.0.0.1/", "http://"] {
        let start = Server::new(&[Answer::Redirect(307, to.to_string())]);
        match post(&start.url("/"), 5000).send("x") {
            Err(Failure::Final(_)) => {}
            other => panic!("{to}: {other:?}"),
        }
        assert_eq!(start.count(), 1);
    }
    let see_other = Server::new(&[Answer::Redirect(303, end.url("/"))]);
    refused(post(&see_other.url("/"), 5000).send("x"));
    let round = Server::new(&[Answer::Redirect(307, "/again".to_string())]);
    refused(post(&round.url("/"), 5000).send("x"));
    assert_eq!(round.count(), 4, "at most three are followed");
}

#[test]
fn p35_an_address_that_is_not_local_is_never_redirected() {
    let url = Url::parse("https://hooks.example/T").unwrap();
    for (allow_local, local) in [(false, false), (true, false), (false, true)] {
        let post = Post { allow_local, ..post("https://hooks.example/T", 1) };
        for to in ["http://10.0.0.1/", "https://169.254.169.254/", "https://other.example/", "/T2"] {
            let next = post.next(&url, local, Some(to));
            assert!(matches!(next, Err(Failure::Final(_))), "{allow_local} {local} {to}");
        }
    }
}

#[test]
fn p35_local_addresses_are_not_reached_unless_allowed() {
    let server = Server::new(&[Answer::Status(200)]);
    let port = server.port;
    // By name, so that only the lookup can tell.
    let inward: Lookup = Arc::new(move |_, _| Ok(vec![([127, 0, 0, 1], port).into()]));
    let post = Post { lookup: inward, allow_local: false, ..post("https://a.example/", 5000) };
    assert!(matches!(post.send("x"), Err(Failure::Final(why)) if why.contains("may not reach")));
    assert_eq!(server.count(), 0);

    let named = Post { url: Url::parse("http://a.example/").unwrap(), allow_local: true, ..post };
    assert_eq!(named.send("x"), Ok(()), "the connection goes to the address that was looked up");
    assert_eq!(server.count(), 1);
}

#[test]
fn p35_pauses_grow_between_tries() {
    let server = Server::new(&[Answer::Status(500)]);
    let began = std::time::Instant::now();
    let slow = Post { pause: Duration::from_millis(40), ..post(&server.url("/"), 5000) };
    assert_eq!(deliver(slow), Counts { failed: 1, ..Counts::default() });
    assert_eq!(server.count(), 3);
    // 40 ms, then twice as long: never less, whatever the machine is doing.
    assert!(began.elapsed() >= Duration::from_millis(120), "{:?}", began.elapsed());
}

#[test]
fn p35_messages_are_cut_and_answers_are_not_read() {
    let endless = Server::new(&[Answer::Endless]);
    assert_eq!(post(&endless.url("/"), 30_000).send(&"ü".repeat(1 << 20)), Ok(()));
    assert_eq!(endless.texts()[0], "ü".repeat(4000));
}

#[test]
fn p35_by_default_only_https_to_public_addresses() {
    for (url, good) in [
        ("https://hooks.example/T", true),
        ("http://hooks.example/T", false),
        ("https://127.0.0.1/T", false),
        ("https://169.254.169.254/latest", false),
        ("https://[fd00:ec2::254]/latest", false),
        ("ftp://hooks.example/T", false),
        ("file:///etc/passwd", false),
    ] {
        let options = WebhookOptions {
            url: Some(SecretUrl::new(url)),
            allow_local: false,
            ..WebhookOptions::default()
        };
        assert_eq!(Webhook::new(options).is_ok(), good, "{url}");
    }
}

#[test]
fn wrong_options_are_all_named() {
    let variable = |name: &str| (name == "HOOK").then(|| "https://hooks.example/T".to_string());
    let make =
        |options| Webhook::with_variables(options, variable).map(drop).map_err(|error| error.to_string());
    let usual = WebhookOptions::default;
    let url = || Some(SecretUrl::new("https://hooks.example/T"));
    assert_eq!(make(WebhookOptions { url: url(), ..usual() }), Ok(()));
    assert_eq!(make(WebhookOptions { url_env: Some("HOOK".into()), ..usual() }), Ok(()));
    let both = WebhookOptions { url: url(), url_env: Some("HOOK".into()), ..usual() };
    let table = [
        (both, vec!["both given"]),
        (usual(), vec!["no address"]),
        (WebhookOptions { url_env: Some("ABSENT".into()), ..usual() }, vec!["variable `ABSENT` is not set"]),
        (
            WebhookOptions { timeout_s: 0.0, notify_on: vec![], ..usual() },
            vec!["timeout_s", "notify_on", "no address"],
        ),
        (WebhookOptions { timeout_s: f64::NAN, url: url(), ..usual() }, vec!["`timeout_s` is NaN"]),
        (WebhookOptions { url: Some(SecretUrl::new("http://127.0.0.1/")), ..usual() }, vec!["allow_local"]),
    ];
    for (options, words) in table {
        let error = make(options).unwrap_err();
        words.iter().for_each(|word| assert!(error.contains(word), "{error}"));
    }
}

#[test]
fn p05_what_was_told_is_not_told_again_after_a_restart() {
    let server = Server::new(&[Answer::Status(200)]);
    let mut first = hook(options(&server.url("/secret")));
    first.best = Some((7, "best-7".to_string()));
    let saved = first.save_state().unwrap().unwrap();
    assert!(!saved.to_string().contains("secret"));
    let mut second = hook(options(&server.url("/secret")));
    second.load_state(saved).unwrap();
    assert_eq!(second.best, first.best);
    assert!(second.load_state(json!({"best": 7})).is_err());
}

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn p34_the_address_leaks_nowhere() {
    const CANARY: &str = "c4n4ry";
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let mut shown = Vec::new();
    // Where there is one subscriber, tracing asks only the thread that comes to a log line first whether anybody listens, and
    // remembers the answer: here that may be a thread of another test. With a second one it asks all of them.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    tracing::subscriber::with_default(subscriber, || {
        let redirect = |to: &str| Answer::Redirect(302, format!("{to}{CANARY}"));
        let failures = [
            Answer::Status(500),
            Answer::Status(403),
            Answer::Nonsense,
            Answer::Hang,
            redirect("https://8.8.8.8/"),
            redirect("http://0.0.0.0/"),
            redirect("nonsense://"),
        ];
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let servers: Vec<Server> =
            failures.iter().map(|answer| Server::new(std::slice::from_ref(answer))).collect();
        let ports = servers.iter().map(|server| server.port).chain([closed]);
        deliver(post(&format!("http://127.0.0.1:{closed}/{CANARY}"), 300));
        tracing::callsite::rebuild_interest_cache(); // of the lines that were new to everybody until now
        for port in ports {
            let address = format!("http://{CANARY}:{CANARY}@127.0.0.1:{port}/{CANARY}?a={CANARY}#{CANARY}");
            let options =
                WebhookOptions { url_env: Some("HOOK".to_string()), allow_local: true, ..Default::default() };
            let mut hook = Webhook::with_variables(options, |_| Some(address.clone())).unwrap();
            hook.post.pause = Duration::from_millis(1);
            hook.post.timeout = Duration::from_millis(300);
            shown.push(format!("{:?} {:?}", hook.options, hook.save_state().unwrap()));
            let mut trainer = MockTrainer::new();
            trainer.attach(hook).unwrap();
            trainer.fire(Event::TrainStart).unwrap();
            trainer.end(RunStatus::Completed).unwrap();
            shown.push(format!("{:?} {:?}", trainer.errors(), trainer.rows()));
        }
        let unknown: Lookup = Arc::new(|host, _| Err(io::Error::other(format!("{host} {CANARY}"))));
        deliver(Post { lookup: unknown, ..post(&format!("https://a.example/{CANARY}"), 300) });

        let mut registry = HookRegistry::new();
        registry
            .register_builtin::<WebhookOptions>("webhook", "", |o| Ok(Box::new(Webhook::new(o)?)))
            .unwrap();
        for spec in [
            json!({"kind": "webhook", "url": format!("http://a.example/{CANARY}")}),
            json!({"kind": "webhook", "url": format!("{CANARY}://a.example/")}),
            json!({"kind": "webhook", "url": CANARY}),
            json!({"kind": "webhook", "url_env": format!("https://a.example/{CANARY}")}),
        ] {
            shown.push(registry.build(&spec).err().unwrap().to_string());
        }
        let options = WebhookOptions {
            url: Some(SecretUrl::new(format!("https://{CANARY}@a.example/{CANARY}"))),
            url_env: Some(format!("https://a.example/{CANARY}")),
            ..WebhookOptions::default()
        };
        shown.push(format!("{options:?} {}", serde_json::to_string(&options).unwrap()));
    });
    shown.push(String::from_utf8(captured.0.lock().unwrap().clone()).unwrap());
    let log = shown.last().unwrap();
    assert!(log.contains("http://127.0.0.1/<redacted>") && log.contains("did not arrive"), "{log}");
    assert!(log.contains("https://a.example/<redacted>"), "{log}");
    shown.iter().for_each(|text| assert!(!text.contains(CANARY), "{text}"));
}
