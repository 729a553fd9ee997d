//! Compares the agent with `tini`, `cat`, `tee` and NNI's keeper. Each row checks one documented property.
//!
//! It measures the static program that `cargo static` builds, or the one in `TRIAL_MANAGER_AGENT`. Its own
//! manager accepts every report at once. NNI's keeper is measured if `/opt/nni-venv` exists.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use trialkeeper_tests::wait_for;

use super::loads::{LINE_BYTES, now_ms};
use super::measure::{
    file_size_text, find_program, measure_peak_and_end, processor_ms, read_two_numbers,
    run_time_ms, sequential_request_rate,
};
use super::sink::AckServer;
use super::{median_and_p95, print_line};

/// The Python interpreter with NNI's keeper.
const NNI_PYTHON: &str = "/opt/nni-venv/bin/python";
/// The time limit of a run. Runs of NNI's keeper may take many seconds, or never end.
const RUN_TIMEOUT: Duration = Duration::from_mins(3);
/// The numbers of lines that each wrapper delivers in one run. NNI's keeper gets fewer.
const AGENT_LINES: u32 = 2_000_000;
const NNI_LINES: u32 = 2_000;
const LEGACY_LINES: u32 = 100_000;

/// A function that prints the rows of one subject.
type PrintRows = fn(&Bench);

/// Measures everything or the named rows, and prints the table.
pub(super) fn print_table(wanted: &[&str]) {
    let bench = Bench::new();
    let heads = ["what", "floor", "NNI 3.0's keeper", "TrialKeeper", "target", "met"];
    bench.print_columns(&heads.map(str::to_owned));
    let row_groups: [(&str, PrintRows); 11] = [
        ("size", Bench::print_size),
        ("wrapping", Bench::print_wrapping_time),
        ("one-metric", Bench::print_metric_overhead),
        ("memory", Bench::print_peak_memory),
        ("idle", Bench::print_idle_processor_time),
        ("passing", Bench::print_copy_rate),
        ("slowing", Bench::print_write_waits),
        ("delivering", Bench::print_delivery_rate),
        ("delivering-to-nni", Bench::print_legacy_delivery_rate),
        ("latency", Bench::print_metric_latency),
        ("overtaking", Bench::print_latency_behind_lines),
    ];
    for (name, print_rows) in row_groups {
        if wanted.is_empty() || wanted.contains(&name) {
            print_rows(&bench);
        }
    }
}

/// The program that wraps the trial.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrapper {
    None,
    TiniStatic,
    NniKeeper,
    /// TrialKeeper's agent without a manager.
    AgentWithoutManager,
    /// The agent with a manager, without and with log collection.
    AgentWithManager,
    AgentWithLogs,
    /// The agent as a replacement of NNI's keeper.
    AgentAsNniKeeper,
}

struct Bench {
    agent: PathBuf,
    benchmark: PathBuf,
    folder: TempDir,
    nni: bool,
}

impl Bench {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let usual = root.join("target/x86_64-unknown-linux-musl/dist/trialkeeper");
        let agent = std::env::var_os("TRIAL_MANAGER_AGENT").map_or(usual, PathBuf::from);
        assert!(agent.exists(), "{} does not exist: build it with `cargo static`", agent.display());
        let nni = Path::new(NNI_PYTHON).exists();
        if !nni {
            print_line(&format!("NNI's keeper is not measured: {NNI_PYTHON} does not exist"));
        }
        let benchmark = std::env::current_exe().expect("a running program has a path");
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        Self { agent, benchmark, folder, nni }
    }

    fn print_columns(&self, columns: &[String; 6]) {
        let [what, floor, nni, ours, target, met] = columns;
        let _: &Self = self;
        print_line(&format!("{what:<46} {floor:>22} {nni:>18} {ours:>20} {target:>18}  {met}"));
    }

    fn print_row(
        &self,
        what: &str,
        floor: String,
        nni: Option<String>,
        ours: String,
        target: (&str, bool),
    ) {
        let met = if target.1 { "yes" } else { "NO" };
        let nni = nni.unwrap_or_else(|| "-".to_owned());
        self.print_columns(&[
            what.to_owned(),
            floor,
            nni,
            ours,
            target.0.to_owned(),
            met.to_owned(),
        ]);
    }

    /// Returns a command that runs `words` below `wrapper`, in a directory of its own.
    fn command(
        &self,
        wrapper: Wrapper,
        sink: Option<&AckServer>,
        words: &[&str],
    ) -> (Command, TempDir) {
        let dir = tempfile::tempdir_in(self.folder.path()).expect("the folder is writable");
        let place = dir.path().display().to_string();
        let url = sink.map(AckServer::url).unwrap_or_default();
        let port = sink.map(|sink| sink.port.to_string()).unwrap_or_default();
        let shell: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let shell = format!("exec {}", shell.join(" "));
        let legacy = [
            "--trial_command",
            &shell,
            "--nnimanager_ip",
            "127.0.0.1",
            "--nnimanager_port",
            &port,
            "--nni_manager_version",
            "3.0",
            "--log_collection",
            "http",
            "--job_id_file",
            "job_id",
        ];
        let named = ["run", "--manager", &url, "--experiment", "bench", "--trial", "abcde"];
        let logging = ["--log-collection", "http", "--log-rate", "1073741824"];
        let (program, before): (&Path, Vec<&str>) = match wrapper {
            Wrapper::None => (Path::new(words[0]), vec![]),
            Wrapper::TiniStatic => (Path::new("tini-static"), vec!["--"]),
            Wrapper::AgentWithoutManager => (&self.agent, vec!["run", "--"]),
            Wrapper::AgentWithManager => (&self.agent, [&named[..], &["--"]].concat()),
            Wrapper::AgentWithLogs => (&self.agent, [&named[..], &logging, &["--"]].concat()),
            Wrapper::AgentAsNniKeeper => (&self.agent, legacy.to_vec()),
            Wrapper::NniKeeper => {
                let module = ["-m", "nni.tools.trial_tool.trial_keeper"];
                (Path::new(NNI_PYTHON), [&module[..], &legacy].concat())
            }
        };
        let words = match wrapper {
            Wrapper::None => &words[1..],
            Wrapper::NniKeeper | Wrapper::AgentAsNniKeeper => &[],
            Wrapper::TiniStatic
            | Wrapper::AgentWithoutManager
            | Wrapper::AgentWithManager
            | Wrapper::AgentWithLogs => words,
        };
        let mut command = Command::new(program);
        command.args(before).args(words).current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if matches!(
            wrapper,
            Wrapper::AgentWithManager | Wrapper::AgentWithLogs | Wrapper::AgentAsNniKeeper
        ) {
            // Undelivered reports would stay in the spool, which these benchmarks do not measure.
            command.env("TRIALKEEPER_FLUSH", "60s");
        }
        if matches!(wrapper, Wrapper::NniKeeper | Wrapper::AgentAsNniKeeper) {
            let ids = [("NNI_EXP_ID", "bench"), ("NNI_TRIAL_JOB_ID", "abcde")];
            command.envs(ids).env("NNI_PLATFORM", "frameworkcontroller");
            command.env("NNI_SYS_DIR", &place).env("NNI_OUTPUT_DIR", &place);
            command.env("NNI_TRIAL_SEQ_ID", "0").env("MULTI_PHASE", "false");
        }
        (command, dir)
    }

    /// Returns a command that runs this program with `words` below `wrapper`.
    fn load_command(
        &self,
        wrapper: Wrapper,
        sink: Option<&AckServer>,
        words: &[&str],
    ) -> (Command, TempDir) {
        let benchmark = self.benchmark.display().to_string();
        self.command(wrapper, sink, &[&[benchmark.as_str()], words].concat())
    }

    /// Returns the wall time of one run, in milliseconds.
    fn wall_time_ms(&self, wrapper: Wrapper, words: &[&str]) -> f64 {
        let (mut command, _dir) = self.command(wrapper, None, words);
        let began = Instant::now();
        let status = command.status().expect("the program can be started");
        let took = began.elapsed().as_secs_f64() * 1e3;
        assert!(status.success(), "{command:?}: {status}");
        took
    }

    fn print_size(&self) {
        let bytes = fs::metadata(&self.agent).expect("the constructor checked the file").len();
        let target = ("at most 3,500,000", bytes <= 3_500_000);
        let tini =
            find_program("tini-static").map_or_else(String::new, |path| file_size_text(&path));
        self.print_row("static program, bytes", tini, None, bytes.to_string(), target);
    }

    fn print_wrapping_time(&self) {
        let sink = AckServer::start();
        let wrappers = [Wrapper::None, Wrapper::TiniStatic, Wrapper::AgentWithoutManager];
        let mut times = [(); 3].map(|()| Vec::new());
        for _ in 0..200 {
            for (wrapper, times) in wrappers.iter().zip(&mut times) {
                times.push(self.wall_time_ms(*wrapper, &["true"]));
            }
        }
        let figures = times.each_mut().map(|times| median_and_p95(times).0);
        let best = times.each_ref().map(|times| times[times.len() / 10]);
        let nni = self.nni.then(|| {
            let (mut command, _dir) = self.command(Wrapper::NniKeeper, Some(&sink), &["true"]);
            run_time_ms(&mut command)
        });
        self.print_row(
            "wrapping `true`, no manager, median, ms",
            format!("{:.2} (bare {:.2})", figures[1], figures[0]),
            nni.map(|time| format!("{time:.0}")),
            format!("{:.2}", figures[2]),
            ("as tini-static", figures[2] <= figures[1]),
        );
        self.print_row(
            "the same, tenth percentile",
            format!("{:.2} (bare {:.2})", best[1], best[0]),
            None,
            format!("{:.2}", best[2]),
            ("as tini-static", best[2] <= best[1]),
        );
    }

    /// Returns the median wall times of a run in milliseconds: in total, before the trial's first
    /// instruction, and after its last.
    fn median_overheads(&self, wrapper: Wrapper, sink: &AckServer, runs: usize) -> [f64; 3] {
        let mut times = [(); 3].map(|()| Vec::new());
        for _ in 0..runs {
            let stamps = self.folder.path().join("stamps");
            let stamps_name = stamps.display().to_string();
            let (mut command, _dir) =
                self.load_command(wrapper, Some(sink), &["one-metric", &stamps_name]);
            let began = now_ms();
            command.status().expect("the program can be started");
            let ended = now_ms();
            let (first, last) = read_two_numbers(&stamps);
            for (times, time) in times.iter_mut().zip([ended - began, first - began, ended - last])
            {
                times.push(time);
            }
        }
        times.each_mut().map(|times| median_and_p95(times).0)
    }

    fn print_metric_overhead(&self) {
        let sink = AckServer::start();
        // The wrappers alternate, so that a busy minute does not affect only one of them.
        let rounds: Vec<[[f64; 3]; 3]> = (0..10)
            .map(|_| {
                [Wrapper::None, Wrapper::TiniStatic, Wrapper::AgentWithManager]
                    .map(|wrapper| self.median_overheads(wrapper, &sink, 10))
            })
            .collect();
        let median = |wrapper: usize, part: usize| {
            let mut all: Vec<f64> = rounds.iter().map(|round| round[wrapper][part]).collect();
            median_and_p95(&mut all).0
        };
        let nni = self.nni.then(|| self.median_overheads(Wrapper::NniKeeper, &sink, 1));
        let targets = [
            ("one metric, all acknowledged: added, ms", "at most 8", 8.0),
            ("of it before the trial's first instruction", "at most 1.5", 1.5),
            ("of it after the trial's last", "at most 5", 5.0),
        ];
        for (part, (what, text, most)) in targets.into_iter().enumerate() {
            let added = |wrapper| median(wrapper, part) - median(0, part);
            let ours = added(2);
            self.print_row(
                what,
                format!("{:.2}", added(1)),
                nni.map(|nni| format!("{:.0}", nni[part] - median(0, part))),
                format!("{ours:.2}"),
                (text, ours <= most),
            );
        }
    }

    fn print_peak_memory(&self) {
        let gate = |name: &str| self.folder.path().join(name).display().to_string();
        let idle = |wrapper| {
            let (sink, gate) = (AckServer::start(), gate("idle"));
            let (mut command, _dir) = self.load_command(wrapper, Some(&sink), &["gate", &gate]);
            let child = command.spawn().expect("the program can be started");
            std::thread::park_timeout(Duration::from_secs(7));
            measure_peak_and_end(child, &gate)
        };
        let (tini, ours) = (idle(Wrapper::TiniStatic), idle(Wrapper::AgentWithManager));
        let nni = self.nni.then(|| idle(Wrapper::NniKeeper));
        self.print_row(
            "peak resident memory, idle trial, MB",
            format!("{tini:.1}"),
            nni.map(|nni| format!("{nni:.0}")),
            format!("{ours:.1}"),
            ("at most 4", ours <= 4.0),
        );
        for (what, wrapper) in [
            ("the same, a million lines passed on", Wrapper::AgentWithManager),
            ("the same, a million lines delivered too", Wrapper::AgentWithLogs),
        ] {
            let (sink, gate) = (AckServer::start(), gate("million"));
            let words = ["lines-then-gate", "1000000", &gate];
            let (mut command, dir) = self.load_command(wrapper, Some(&sink), &words);
            let child = command.spawn().expect("the program can be started");
            let runs = dir.path().join("trialkeeper-runs");
            wait_for("a million lines", RUN_TIMEOUT, || {
                let delivered =
                    wrapper == Wrapper::AgentWithManager || sink.received().lines == 1_000_000;
                let run = fs::read_dir(&runs).ok()?.next()?.ok()?.path();
                let bytes = fs::metadata(run.join("stdout")).ok()?.len();
                (delivered && bytes == 1_000_000 * LINE_BYTES).then_some(())
            });
            let peak = measure_peak_and_end(child, &gate);
            self.print_row(
                what,
                String::new(),
                None,
                format!("{peak:.1}"),
                ("at most 4", peak <= 4.0),
            );
        }
    }

    fn print_idle_processor_time(&self) {
        let gate = self.folder.path().join("cpu").display().to_string();
        let seconds = 20.0;
        let used = |wrapper| {
            let sink = AckServer::start();
            let (mut command, _dir) = self.load_command(wrapper, Some(&sink), &["gate", &gate]);
            let child = command.spawn().expect("the program can be started");
            // The start of the agent is not measured.
            std::thread::park_timeout(Duration::from_secs(3));
            let before = processor_ms(child.id());
            std::thread::park_timeout(Duration::from_secs_f64(seconds));
            let used = processor_ms(child.id()) - before;
            measure_peak_and_end(child, &gate);
            used / 1e3 * 60.0 / seconds
        };
        let (tini, ours) = (used(Wrapper::TiniStatic), used(Wrapper::AgentWithManager));
        let nni = self.nni.then(|| used(Wrapper::NniKeeper));
        self.print_row(
            "processor time idle, samples every 5 s, s/minute",
            format!("{tini:.3}"),
            nni.map(|nni| format!("{nni:.3}")),
            format!("{ours:.3}"),
            ("at most 0.06", ours <= 0.06),
        );
    }

    fn print_copy_rate(&self) {
        let count = 3_000_000_u32;
        let lines = count.to_string();
        let direct = |copy: &str| {
            let (mut load, dir) = self.load_command(Wrapper::None, None, &["lines", &lines]);
            let mut load =
                load.stdout(Stdio::piped()).spawn().expect("the benchmark can be started");
            let mut copier = Command::new(copy);
            if copy == "tee" {
                copier.arg(dir.path().join("copy"));
            }
            let began = Instant::now();
            copier.stdin(load.stdout.take().expect("the stream is piped")).stdout(Stdio::null());
            copier.status().expect("the copier can be started");
            load.wait().expect("the process is a child of this process");
            f64::from(count) / began.elapsed().as_secs_f64()
        };
        let ours = || {
            let (mut command, _dir) =
                self.load_command(Wrapper::AgentWithoutManager, None, &["lines", &lines]);
            f64::from(count) / run_time_ms(&mut command) * 1e3
        };
        let best = |rate: &dyn Fn() -> f64| (0..4).map(|_| rate()).fold(0.0, f64::max);
        let (cat, tee) = (best(&|| direct("cat")), best(&|| direct("tee")));
        let ours = best(&ours);
        self.print_row(
            "stdout passed on and scanned, lines/s",
            format!("tee {:.1} M, cat {:.1} M", tee / 1e6, cat / 1e6),
            None,
            format!("{:.1} M", ours / 1e6),
            ("half of tee", ours >= tee / 2.0),
        );
    }

    fn print_write_waits(&self) {
        let stamps = self.folder.path().join("paced");
        let name = stamps.display().to_string();
        let waited = |wrapper, sink: Option<&AckServer>| {
            let (mut command, _dir) = self.load_command(wrapper, sink, &["paced-lines", &name]);
            let piped = wrapper == Wrapper::None;
            let mut cat = None;
            if piped {
                let mut child = Command::new("cat");
                child.stdin(Stdio::piped()).stdout(Stdio::null());
                let mut child = child.spawn().expect("cat can be started");
                command.stdout(child.stdin.take().expect("the stream is piped"));
                cat = Some(child);
            }
            command.status().expect("the program can be started");
            drop(command);
            if let Some(mut cat) = cat {
                cat.wait().expect("the process is a child of this process");
            }
            let (waited, took) = read_two_numbers(&stamps);
            100.0 * waited / took
        };
        let sink = AckServer::start();
        let (cat, ours) =
            (waited(Wrapper::None, None), waited(Wrapper::AgentWithLogs, Some(&sink)));
        let slower = ours - cat;
        self.print_row(
            "10,000 lines/s: time in writes, percent",
            format!("cat {cat:.2}"),
            None,
            format!("{ours:.2}"),
            ("2 more", slower < 2.0),
        );
    }

    /// Returns the lines per second, from the start to the last acknowledgement.
    fn delivery_rate(&self, wrapper: Wrapper, count: u32) -> f64 {
        let sink = AckServer::start();
        let (mut command, _dir) =
            self.load_command(wrapper, Some(&sink), &["lines", &count.to_string()]);
        let began = now_ms();
        command.status().expect("the program can be started");
        let received = sink.received();
        assert_eq!(
            (received.lines, received.gaps),
            (u64::from(count), 0),
            "lines are lost or unordered"
        );
        f64::from(count) / (received.last_line_ms - began) * 1e3
    }

    fn print_delivery_rate(&self) {
        let rate = (0..3)
            .map(|_| self.delivery_rate(Wrapper::AgentWithLogs, AGENT_LINES))
            .fold(0.0, f64::max);
        let nni = self.nni.then(|| self.delivery_rate(Wrapper::NniKeeper, NNI_LINES));
        self.print_row(
            "lines delivered, none lost, in order, lines/s",
            String::new(),
            nni.map(|nni| format!("{nni:.0}")),
            format!("{rate:.0}"),
            ("at least 500,000", rate >= 500_000.0),
        );
    }

    fn print_legacy_delivery_rate(&self) {
        let rate = (0..3)
            .map(|_| self.delivery_rate(Wrapper::AgentAsNniKeeper, LEGACY_LINES))
            .fold(0.0, f64::max);
        self.print_row(
            "the same, one post a line, as NNI's keeper",
            format!("lock-step {:.0}", sequential_request_rate(LEGACY_LINES)),
            None,
            format!("{rate:.0}"),
            ("at least 20,000", rate >= 20_000.0),
        );
    }

    fn metric_latencies(&self, wrapper: Wrapper) -> [f64; 2] {
        let sink = AckServer::start();
        let (mut command, _dir) =
            self.load_command(wrapper, Some(&sink), &["paced-metrics", "500"]);
        command.status().expect("the program can be started");
        let mut times = std::mem::take(&mut sink.received().latencies);
        assert_eq!(times.len(), 500, "a metric is lost or duplicated");
        times.sort_by(f64::total_cmp);
        [times[250], times[495]]
    }

    fn print_metric_latency(&self) {
        let ours = self.metric_latencies(Wrapper::AgentWithManager);
        let nni = self.nni.then(|| self.metric_latencies(Wrapper::NniKeeper));
        let targets = [("p50", "at most 1", 1.0), ("p99", "at most 5", 5.0)];
        for (index, (name, text, most)) in targets.into_iter().enumerate() {
            self.print_row(
                &format!("metric at 100/s, printed to acknowledged, {name}, ms"),
                String::new(),
                nni.map(|nni| format!("{:.1}", nni[index])),
                format!("{:.2}", ours[index]),
                (text, ours[index] <= most),
            );
        }
    }

    fn print_latency_behind_lines(&self) {
        let behind = |wrapper, lines: u32| {
            let sink = AckServer::start();
            let (mut command, _dir) =
                self.load_command(wrapper, Some(&sink), &["behind", &lines.to_string()]);
            command.status().expect("the program can be started");
            let received = sink.received();
            received.latencies.first().copied().expect("the metric arrives")
        };
        let mut times: Vec<f64> = (0..9).map(|_| behind(Wrapper::AgentWithLogs, 10_000)).collect();
        let ours = median_and_p95(&mut times).0;
        let nni = self.nni.then(|| behind(Wrapper::NniKeeper, NNI_LINES));
        self.print_row(
            "a metric behind 10,000 lines of log, ms",
            String::new(),
            nni.map(|nni| format!("{nni:.0} ({NNI_LINES} lines)")),
            format!("{ours:.2}"),
            ("at most 10", ours <= 10.0),
        );
    }
}
