//! The communication with the manager: requests on standard input, answers and notifications on standard
//! output.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::record::Record;
use crate::wire::{self, Files, Refusal, Request};
use crate::{Gone, Job, ServiceError, Setup, State, TrainingService};

/// The version of the protocol.
const PROTOCOL_VERSION: u64 = 1;
/// The number of requests that the manager may have open at a time. Each has a thread.
const IN_FLIGHT: u64 = 8;
/// The longest wait of a request for output, and the interval of its checks.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);
const OUTPUT_INTERVAL: Duration = Duration::from_millis(100);
/// The longest pause after a failed poll.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The agent's flags that `trialkeeper replay` accepts, too.
const REPLAY_FLAGS: [&str; 3] = ["--manager-file", "--token-file", "--ca-file"];

/// Serves the manager until it closes standard input. `main` returns the result. `make` creates the service.
pub fn serve<S: TrainingService>(make: impl Fn(&Setup) -> Result<S, ServiceError>) -> ExitCode {
    if std::env::var_os("TRIALKEEPER_PLUGIN").is_none_or(|value| value != "1") {
        log("This is a training service of TrialKeeper. An experiment file names it: \
             trainingService: {platform: plugin, command: [...]}; then `trial-manager run FILE` starts it.");
        return ExitCode::from(2);
    }
    let out = match Out::new() {
        Ok(out) => out,
        Err(error) => {
            log(&format!("standard output cannot be used: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let server = OnceLock::new();
    // The end of the scope waits for open requests.
    let closing = thread::scope(|scope| {
        let closing = listen(scope, &server, &out, &make);
        if let Some(server) = server.get() {
            server.watch_state().stopped = true;
            server.wakeup.notify_all();
        }
        closing
    });
    if let Some(server) = server.get() {
        server.service.close();
    }
    if let Some(id) = closing {
        out.write(&wire::answer(&id, Ok(json!({}))));
    }
    ExitCode::SUCCESS
}

#[expect(clippy::print_stderr, reason = "the manager writes it to the service's log")]
fn log(text: &str) {
    eprintln!("{text}");
}

/// The connection to the manager.
#[derive(Debug)]
struct Out(Mutex<File>);

impl Out {
    /// Takes standard output. Other output of this process and of its children goes to standard error.
    fn new() -> io::Result<Arc<Self>> {
        let out = io::stdout().as_fd().try_clone_to_owned()?;
        nix::unistd::dup2_stdout(io::stderr())?;
        Ok(Arc::new(Self(Mutex::new(out.into()))))
    }

    fn write(&self, line: &str) {
        // Ignored: if the manager has ended, standard input is closed, too.
        drop(lock(&self.0).write_all(line.as_bytes()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads requests. Returns the id of the request to close, or `None` at the end of standard input.
fn listen<'scope, S: TrainingService>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope OnceLock<Server<S>>,
    out: &'scope Arc<Out>,
    make: &impl Fn(&Setup) -> Result<S, ServiceError>,
) -> Option<Value> {
    let mut is_watched = false;
    for line in io::stdin().lock().split(b'\n').map_while(Result::ok) {
        let Some(Request { id, method, params }) = Request::read(&line) else {
            let start = line.get(..80).unwrap_or(&line);
            log(&format!("not a request: {:?}", String::from_utf8_lossy(start)));
            continue;
        };
        match (method.as_str(), server.get()) {
            ("close", _) => return Some(id),
            ("initialize", _) => {
                let begun = initialize(&params, out, make);
                let hello = begun.map(|begun| server.get_or_init(|| begun).hello());
                out.write(&wire::answer(&id, hello));
            }
            (_, None) => {
                let refusal = Refusal::new(-32600, "`initialize` must be the first request");
                out.write(&wire::answer(&id, Err(refusal)));
            }
            // In order, because all other requests depend on it.
            ("open", Some(server)) => {
                server.answer(&id, &method, &params);
                if !is_watched {
                    scope.spawn(|| server.watch());
                    is_watched = true;
                }
            }
            (_, Some(server)) => {
                scope.spawn(move || server.answer(&id, &method, &params));
            }
        }
    }
    None
}

fn initialize<S: TrainingService>(
    params: &Value,
    out: &Arc<Out>,
    make: &impl Fn(&Setup) -> Result<S, ServiceError>,
) -> Result<Server<S>, Refusal> {
    let bound = |name: &str| params["protocol"][name].as_u64().unwrap_or(PROTOCOL_VERSION);
    if !(bound("min")..=bound("max")).contains(&PROTOCOL_VERSION) {
        let older = if bound("min") > PROTOCOL_VERSION { "the plugin" } else { "trial-manager" };
        let message = format!(
            "this plugin uses version {PROTOCOL_VERSION} of the protocol, and trial-manager uses versions {} to {}; update {older}",
            bound("min"),
            bound("max")
        );
        return Err(Refusal::new(-32007, message));
    }
    let state_dir = PathBuf::from(wire::text(&params["state_dir"]));
    let jobs = state_dir.join("jobs");
    DirBuilder::new().recursive(true).mode(0o700).create(&jobs)?;
    let mut records = BTreeMap::new();
    for file in fs::read_dir(&jobs)? {
        let path = file?.path();
        let attempt = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        if let Some(attempt) = attempt.filter(|_| path.extension().is_some_and(|it| it == "json")) {
            records.insert(attempt, Arc::new(Mutex::new(Record::read(&path)?)));
        }
    }
    let experiment = wire::text(&params["experiment"]["id"]);
    let gpus = params["resources"]["gpus"].as_u64();
    let setup = Setup { settings: params["settings"].clone(), state_dir, experiment, gpus };
    Ok(Server {
        service: make(&setup)?,
        out: Arc::clone(out),
        jobs,
        site: Mutex::default(),
        records: Mutex::new(records),
        watch_state: Mutex::default(),
        wakeup: Condvar::new(),
    })
}

/// The files that all jobs share.
#[derive(Debug, Default)]
struct Site {
    agent: PathBuf,
    files: Files,
}

/// The state of the polling thread.
#[derive(Debug, Default)]
struct WatchState {
    /// If set, the thread polls at once.
    poll_now: bool,
    /// If set, the thread ends.
    stopped: bool,
}

type SharedRecord = Arc<Mutex<Record>>;

struct Server<S> {
    service: S,
    out: Arc<Out>,
    /// The folder of the records.
    jobs: PathBuf,
    site: Mutex<Site>,
    records: Mutex<BTreeMap<String, SharedRecord>>,
    watch_state: Mutex<WatchState>,
    wakeup: Condvar,
}

impl<S: TrainingService> Server<S> {
    fn hello(&self) -> Value {
        json!({
            "protocol": PROTOCOL_VERSION,
            "service": {"name": self.service.name(), "version": self.service.version()},
            "capabilities": {
                "adopt": true, "check": true, "clean_up": true, "finish": true, "output": true,
                "recover": true, "room": true, "queue": self.service.queues(),
            },
            "limits": {"in_flight": IN_FLIGHT},
        })
    }

    fn watch_state(&self) -> MutexGuard<'_, WatchState> {
        lock(&self.watch_state)
    }

    fn poll_soon(&self) {
        self.watch_state().poll_now = true;
        self.wakeup.notify_all();
    }

    /// Answers a request, even if the service panics. The manager replaces a process that omits an answer.
    fn answer(&self, id: &Value, method: &str, params: &Value) {
        let result = catch_unwind(AssertUnwindSafe(|| self.result(method, params)));
        let panicked = |_| Err(Refusal::new(-32603, format!("the service panicked at {method}")));
        self.out.write(&wire::answer(id, result.unwrap_or_else(panicked)));
    }

    fn result(&self, method: &str, params: &Value) -> Result<Value, Refusal> {
        match method {
            "check" => Ok(json!({"problems": self.problems()})),
            "open" => {
                let agent = self.service.open(Path::new(&wire::text(&params["agent"])))?;
                *lock(&self.site) = Site { agent, files: wire::files(params) };
                Ok(json!({}))
            }
            "ping" => Ok(json!({})),
            "list" => {
                let records = self.all_records();
                let records = records.iter().map(|record| lock(record));
                let known = records.filter(|record| record.entry.job.is_some());
                Ok(json!({"jobs": known.map(|record| listed(&record)).collect::<Vec<_>>()}))
            }
            "room" => {
                let living = self.all_records();
                let living =
                    living.iter().filter(|record| lock(record).running_job().is_some()).count();
                Ok(self.service.room(living).map_or(json!({}), |free| json!({"free": free})))
            }
            "clean_up" => Ok(json!({"left": self.clean_up()})),
            "output" => self.output(params),
            "submit" => self.submit(&mut lock(&*self.record(params)?), params),
            "cancel" => {
                self.cancel(&mut lock(&*self.record(params)?), params, params["force"] == true)
            }
            "finish" => self.cancel(&mut lock(&*self.record(params)?), params, true),
            "adopt" => self.adopt(&mut lock(&*self.record(params)?)),
            "recover" => recover(&lock(&*self.record(params)?)),
            other => Err(Refusal::bad_request(format!("unknown request {other:?}"))),
        }
    }

    fn problems(&self) -> Vec<Value> {
        let problems = self.service.check().into_iter();
        let shown = problems.map(|problem| {
            let level = if problem.is_warning { "warning" } else { "error" };
            let crate::Problem { message, path, advice, .. } = problem;
            json!({"level": level, "message": message, "path": path, "advice": advice})
        });
        shown.collect()
    }

    fn all_records(&self) -> Vec<SharedRecord> {
        lock(&self.records).values().cloned().collect()
    }

    fn record(&self, params: &Value) -> Result<SharedRecord, Refusal> {
        let attempt = wire::attempt(params)?;
        let mut records = lock(&self.records);
        if let Some(record) = records.get(&attempt) {
            return Ok(Arc::clone(record));
        }
        let record = Record::read(&self.jobs.join(format!("{attempt}.json")))?;
        Ok(Arc::clone(records.entry(attempt).or_insert(Arc::new(Mutex::new(record)))))
    }

    fn submit(&self, record: &mut Record, params: &Value) -> Result<Value, Refusal> {
        if record.entry.gone.is_some() || record.entry.handle.is_some() {
            self.report_end(record);
            return Ok(json!({"handle": record.entry.handle, "created": false}));
        }
        if record.entry.cancelled {
            let message = "the attempt was cancelled before it was submitted";
            return Err(Refusal::new(-32006, message));
        }
        let job = {
            let site = lock(&self.site);
            wire::job(params, &site.agent, &site.files)?
        };
        let may_run = record.entry.job.is_some();
        let found = if may_run { self.service.find(&job)? } else { None };
        let created = found.is_none();
        // Written first, so that the next process searches a job without a handle before it starts it.
        record
            .write(|entry| (entry.key, entry.job) = (params["key"].clone(), Some(job.clone())))?;
        let handle = match found {
            Some(handle) => handle,
            None => self.service.start(&job).or_else(|error| {
                let is_not_started =
                    matches!(error, ServiceError::Refused(_) | ServiceError::NoRoom { .. });
                // An earlier start without an answer may have succeeded. `clean_up` then searches that job.
                if is_not_started && !may_run {
                    record.forget()?;
                }
                Err(Refusal::from(error))
            })?,
        };
        record.write(|entry| entry.handle = Some(handle))?;
        self.poll_soon();
        Ok(json!({"handle": record.entry.handle, "created": created}))
    }

    fn cancel(&self, record: &mut Record, params: &Value, force: bool) -> Result<Value, Refusal> {
        if record.entry.gone.is_some() {
            self.report_end(record);
            return Ok(json!({"known": false}));
        }
        record.write(|entry| (entry.key, entry.cancelled) = (params["key"].clone(), true))?;
        let Some((handle, job)) = record.running_job() else { return Ok(json!({"known": false})) };
        let force_at = Instant::now() + Duration::from_millis(job.grace_ms);
        self.service.stop(handle, job, force)?;
        record.force_at = Some(force_at);
        self.poll_soon();
        Ok(json!({"known": true}))
    }

    fn adopt(&self, record: &mut Record) -> Result<Value, Refusal> {
        if let (None, Some(job)) = (&record.entry.handle, &record.entry.job) {
            match self.service.find(job)? {
                Some(handle) => record.write(|entry| entry.handle = Some(handle))?,
                None => record.forget()?,
            }
        }
        if record.entry.handle.is_none() {
            return Ok(json!({"phase": "unknown"}));
        }
        Ok(listed(record))
    }

    fn output(&self, params: &Value) -> Result<Value, Refusal> {
        let record = self.record(params)?;
        let stream = params["stream"].as_str().unwrap_or("stdout");
        if !["stdout", "stderr"].contains(&stream) {
            return Err(Refusal::bad_request(format!("unknown stream {stream:?}")));
        }
        let job = lock(&record).entry.job.clone();
        let job = job.ok_or_else(|| Refusal::new(-32005, "unknown job"))?;
        let (mut from, size) = (
            params["offset"].as_u64().unwrap_or(0),
            params["max_bytes"].as_u64().unwrap_or(65_536),
        );
        let wait = Duration::from_millis(params["wait_ms"].as_u64().unwrap_or(0)).min(OUTPUT_WAIT);
        let until = Instant::now() + wait;
        loop {
            let has_ended = lock(&record).running_job().is_none();
            let (offset, bytes) = self.service.output(&job, stream, from, size)?;
            // The manager may start behind the end to read only new output. Later reads begin at the actual
            // end.
            from = offset;
            if !bytes.is_empty() || has_ended || Instant::now() >= until {
                let end = has_ended && bytes.is_empty();
                let data = BASE64_STANDARD.encode(bytes);
                return Ok(json!({"offset": offset, "data": data, "end": end}));
            }
            thread::park_timeout(OUTPUT_INTERVAL);
        }
    }

    fn clean_up(&self) -> Vec<Value> {
        let mut left = Vec::new();
        for record in self.all_records() {
            let mut record = lock(&record);
            let Some(job) = record.entry.job.clone() else { continue };
            if let Err(refusal) = self.clean_job(&mut record, &job) {
                let place = record.entry.handle.clone().unwrap_or(job.name);
                left.push(json!({"place": place, "why": refusal.message}));
            }
        }
        left
    }

    fn clean_job(&self, record: &mut Record, job: &Job) -> Result<(), Refusal> {
        let handle = match record.entry.handle.clone() {
            Some(handle) => Some(handle),
            None => self.service.find(job)?,
        };
        if let Some(handle) = handle.filter(|_| record.entry.gone.is_none()) {
            self.service.stop(&handle, job, true)?;
        }
        self.service.clean(job)?;
        Ok(record.forget()?)
    }

    /// Polls the jobs until the manager has ended.
    fn watch(&self) {
        let mut pause = self.service.poll_interval();
        loop {
            let polled = catch_unwind(AssertUnwindSafe(|| self.poll_all()));
            let panicked = |_| Err(Refusal::new(-32603, "the service panicked at poll"));
            pause = match polled.unwrap_or_else(panicked) {
                Ok(()) => self.service.poll_interval(),
                Err(Refusal { message, .. }) => {
                    let longer = (pause * 2).clamp(Duration::from_secs(1), LONGEST_PAUSE);
                    let s = longer.as_secs();
                    log(&format!("cannot poll the jobs; retrying in {s} s: {message}"));
                    longer
                }
            };
            let is_quiet =
                |watch_state: &mut WatchState| !watch_state.poll_now && !watch_state.stopped;
            let waited = self.wakeup.wait_timeout_while(self.watch_state(), pause, is_quiet);
            let (mut watch_state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if watch_state.stopped {
                return;
            }
            watch_state.poll_now = false;
        }
    }

    fn poll_all(&self) -> Result<(), Refusal> {
        let (mut jobs, mut records) = (BTreeMap::new(), BTreeMap::new());
        for shared in self.all_records() {
            let record = lock(&shared);
            if let Some((handle, job)) = record.running_job() {
                jobs.insert(handle.to_owned(), job.clone());
                records.insert(handle.to_owned(), Arc::clone(&shared));
            }
        }
        if jobs.is_empty() {
            return Ok(());
        }
        for (handle, state) in self.service.poll(&jobs)? {
            if let Some(record) = records.get(&handle) {
                self.handle_state(&mut lock(record), &handle, state)?;
            }
        }
        Ok(())
    }

    /// Handles a job's state.
    fn handle_state(&self, record: &mut Record, handle: &str, state: State) -> Result<(), Refusal> {
        let Some((_, job)) = record.running_job() else { return Ok(()) };
        let job = job.clone();
        let why = match state {
            State::Gone(gone) => return self.record_end(record, handle, &job, gone),
            State::Waiting(why) => Some(why),
            State::Running => None,
        };
        if let Some(why) = why.as_ref().filter(|_| why != record.reported_wait) {
            let params = json!({"key": record.entry.key, "why": why});
            self.out.write(&wire::notification("waits", &params));
        }
        record.reported_wait = why;
        if record.force_at.is_some_and(|at| Instant::now() > at) {
            record.force_at = None;
            self.service.stop(handle, &job, true)?;
        }
        Ok(())
    }

    fn record_end(
        &self,
        record: &mut Record,
        handle: &str,
        job: &Job,
        state: Gone,
    ) -> Result<(), Refusal> {
        let Gone { code, signal, reason, message, fault } = state;
        let was_asked = reason == "revoked" && record.entry.cancelled;
        let reason = if was_asked { "cancelled" } else { reason };
        let exit = match (code, signal) {
            (Some(code), _) => json!({"code": code}),
            (None, Some(signal)) => json!({"signal": signal}),
            (None, None) => json!({}),
        };
        let mut gone = json!({"key": record.entry.key, "reason": reason, "exit": exit});
        if let Some(message) = message {
            gone["message"] = message.into();
        }
        if let Some(fault) = fault {
            gone["class"] = fault.into();
        }
        if has_reports(&job.folder) {
            gone["spool"] = "left".into();
        }
        record.write(|entry| entry.gone = Some(gone))?;
        self.report_end(record);
        if let Err(error) = self.service.ended(handle, job) {
            log(&format!("cannot remove the data of {handle} before clean_up: {error}"));
        }
        Ok(())
    }

    fn report_end(&self, record: &Record) {
        if let Some(gone) = &record.entry.gone {
            self.out.write(&wire::notification("gone", gone));
        }
    }
}

/// Returns a job in the form of `list` and `adopt`.
fn listed(record: &Record) -> Value {
    let entry = &record.entry;
    let mut listed = json!({"key": entry.key, "handle": entry.handle, "phase": "running"});
    if let Some(gone) = &entry.gone {
        listed["phase"] = "gone".into();
        listed["gone"] = gone.clone();
    } else if record.reported_wait.is_some() || entry.handle.is_none() {
        listed["phase"] = "waiting".into();
    }
    listed
}

/// Returns `true` if an agent has left undelivered reports.
fn has_reports(folder: &Path) -> bool {
    let names = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let is_segment = |path: &Path| path.extension().is_some_and(|extension| extension == "seg");
    names(&folder.join("spool"))
        .any(|lane| names(&lane.path()).any(|file| is_segment(&file.path())))
}

/// Delivers the reports that an agent has left.
fn recover(record: &Record) -> Result<Value, Refusal> {
    let Some(job) = &record.entry.job else { return Ok(json!({"left": 0})) };
    let Some((agent, words)) = job.argv.split_first() else { return Ok(json!({"left": 0})) };
    let mut command = Command::new(agent);
    command.arg("replay").arg(&job.folder).stdin(Stdio::null());
    for pair in words.windows(2).filter(|pair| REPLAY_FLAGS.contains(&pair[0].as_str())) {
        command.args(pair);
    }
    let done = command.output()?;
    if !done.status.success() {
        let stderr = String::from_utf8_lossy(&done.stderr);
        let message = format!("trialkeeper replay: {}: {}", done.status, stderr.trim());
        return Err(Refusal::new(-32002, message));
    }
    Ok(json!({"left": 0}))
}
