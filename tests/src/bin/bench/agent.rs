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
use super::measure::{lock_step, peak_then_end, processor_ms, size_of, timed, two_numbers, which};
use super::sink::Sink;
use super::{median, print_line};

/// The Python interpreter with NNI's keeper.
const NNI: &str = "/opt/nni-venv/bin/python";
/// The time limit of a run. Runs of NNI's keeper may take many seconds, or never end.
const BOUND: Duration = Duration::from_mins(3);
/// The numbers of lines that each keeper delivers in one run. NNI's keeper gets fewer.
const MANY: u32 = 2_000_000;
const FEW: u32 = 2_000;
const LEGACY_MANY: u32 = 100_000;

/// A function that prints the rows of one subject.
type Measure = fn(&Bench);

/// Measures everything or the named rows, and prints the table.
pub(super) fn table(wanted: &[&str]) {
    let bench = Bench::new();
    let heads = ["what", "floor", "NNI 3.0's keeper", "TrialKeeper", "target", "met"];
    bench.line(&heads.map(str::to_owned));
    let measures: [(&str, Measure); 11] = [
        ("size", Bench::size),
        ("wrapping", Bench::wrapping),
        ("one-metric", Bench::one_metric),
        ("memory", Bench::memory),
        ("idle", Bench::idle),
        ("passing", Bench::passing),
        ("slowing", Bench::slowing),
        ("delivering", Bench::delivering),
        ("delivering-to-nni", Bench::delivering_to_nni),
        ("latency", Bench::latency),
        ("overtaking", Bench::metric_after_lines),
    ];
    for (name, measure) in measures {
        if wanted.is_empty() || wanted.contains(&name) {
            measure(&bench);
        }
    }
}

/// The program that wraps the trial.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeper {
    Bare,
    TiniStatic,
    Nni,
    /// TrialKeeper's agent without a manager.
    Alone,
    /// The agent with a manager, without and with log collection.
    Managed,
    Logging,
    /// The agent as a replacement of NNI's keeper.
    Legacy,
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
        let nni = Path::new(NNI).exists();
        if !nni {
            print_line(&format!("NNI's keeper is not measured: {NNI} does not exist"));
        }
        let benchmark = std::env::current_exe().expect("a running program has a path");
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        Self { agent, benchmark, folder, nni }
    }

    fn line(&self, columns: &[String; 6]) {
        let [what, floor, nni, ours, target, met] = columns;
        let _: &Self = self;
        print_line(&format!("{what:<46} {floor:>22} {nni:>18} {ours:>20} {target:>18}  {met}"));
    }

    fn row(
        &self,
        what: &str,
        floor: String,
        nni: Option<String>,
        ours: String,
        target: (&str, bool),
    ) {
        let met = if target.1 { "yes" } else { "NO" };
        let nni = nni.unwrap_or_else(|| "-".to_owned());
        self.line(&[what.to_owned(), floor, nni, ours, target.0.to_owned(), met.to_owned()]);
    }

    /// Returns a command that runs `words` below `keeper`, in a directory of its own.
    fn command(&self, keeper: Keeper, sink: Option<&Sink>, words: &[&str]) -> (Command, TempDir) {
        let dir = tempfile::tempdir_in(self.folder.path()).expect("the folder is writable");
        let place = dir.path().display().to_string();
        let url = sink.map(Sink::url).unwrap_or_default();
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
        let (program, before): (&Path, Vec<&str>) = match keeper {
            Keeper::Bare => (Path::new(words[0]), vec![]),
            Keeper::TiniStatic => (Path::new("tini-static"), vec!["--"]),
            Keeper::Alone => (&self.agent, vec!["run", "--"]),
            Keeper::Managed => (&self.agent, [&named[..], &["--"]].concat()),
            Keeper::Logging => (&self.agent, [&named[..], &logging, &["--"]].concat()),
            Keeper::Legacy => (&self.agent, legacy.to_vec()),
            Keeper::Nni => {
                let module = ["-m", "nni.tools.trial_tool.trial_keeper"];
                (Path::new(NNI), [&module[..], &legacy].concat())
            }
        };
        let words = match keeper {
            Keeper::Bare => &words[1..],
            Keeper::Nni | Keeper::Legacy => &[],
            Keeper::TiniStatic | Keeper::Alone | Keeper::Managed | Keeper::Logging => words,
        };
        let mut command = Command::new(program);
        command.args(before).args(words).current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if matches!(keeper, Keeper::Managed | Keeper::Logging | Keeper::Legacy) {
            // Undelivered reports would stay in the spool, which these benchmarks do not measure.
            command.env("TRIALKEEPER_FLUSH", "60s");
        }
        if matches!(keeper, Keeper::Nni | Keeper::Legacy) {
            let ids = [("NNI_EXP_ID", "bench"), ("NNI_TRIAL_JOB_ID", "abcde")];
            command.envs(ids).env("NNI_PLATFORM", "frameworkcontroller");
            command.env("NNI_SYS_DIR", &place).env("NNI_OUTPUT_DIR", &place);
            command.env("NNI_TRIAL_SEQ_ID", "0").env("MULTI_PHASE", "false");
        }
        (command, dir)
    }

    /// Returns a command that runs this program with `words` below `keeper`.
    fn load(&self, keeper: Keeper, sink: Option<&Sink>, words: &[&str]) -> (Command, TempDir) {
        let benchmark = self.benchmark.display().to_string();
        self.command(keeper, sink, &[&[benchmark.as_str()], words].concat())
    }

    /// Returns the wall time of one run, in milliseconds.
    fn time(&self, keeper: Keeper, words: &[&str]) -> f64 {
        let (mut command, _dir) = self.command(keeper, None, words);
        let began = Instant::now();
        let status = command.status().expect("the program can be started");
        let took = began.elapsed().as_secs_f64() * 1e3;
        assert!(status.success(), "{command:?}: {status}");
        took
    }

    fn size(&self) {
        let bytes = fs::metadata(&self.agent).expect("the constructor checked the file").len();
        let target = ("at most 3,500,000", bytes <= 3_500_000);
        let tini = which("tini-static").map_or_else(String::new, |path| size_of(&path));
        self.row("static program, bytes", tini, None, bytes.to_string(), target);
    }

    fn wrapping(&self) {
        let sink = Sink::start();
        let keepers = [Keeper::Bare, Keeper::TiniStatic, Keeper::Alone];
        let mut times = [(); 3].map(|()| Vec::new());
        for _ in 0..200 {
            for (keeper, times) in keepers.iter().zip(&mut times) {
                times.push(self.time(*keeper, &["true"]));
            }
        }
        let figures = times.each_mut().map(|times| median(times).0);
        let best = times.each_ref().map(|times| times[times.len() / 10]);
        let nni = self.nni.then(|| {
            let (mut command, _dir) = self.command(Keeper::Nni, Some(&sink), &["true"]);
            timed(&mut command)
        });
        self.row(
            "wrapping `true`, no manager, median, ms",
            format!("{:.2} (bare {:.2})", figures[1], figures[0]),
            nni.map(|time| format!("{time:.0}")),
            format!("{:.2}", figures[2]),
            ("as tini-static", figures[2] <= figures[1]),
        );
        self.row(
            "the same, tenth percentile",
            format!("{:.2} (bare {:.2})", best[1], best[0]),
            None,
            format!("{:.2}", best[2]),
            ("as tini-static", best[2] <= best[1]),
        );
    }

    /// Returns the median wall times of a run in milliseconds: in total, before the trial's first
    /// instruction, and after its last.
    fn overhead(&self, keeper: Keeper, sink: &Sink, runs: usize) -> [f64; 3] {
        let mut times = [(); 3].map(|()| Vec::new());
        for _ in 0..runs {
            let stamps = self.folder.path().join("stamps");
            let stamps_name = stamps.display().to_string();
            let (mut command, _dir) = self.load(keeper, Some(sink), &["one-metric", &stamps_name]);
            let began = now_ms();
            command.status().expect("the program can be started");
            let ended = now_ms();
            let (first, last) = two_numbers(&stamps);
            for (times, time) in times.iter_mut().zip([ended - began, first - began, ended - last])
            {
                times.push(time);
            }
        }
        times.each_mut().map(|times| median(times).0)
    }

    fn one_metric(&self) {
        let sink = Sink::start();
        // The keepers alternate, so that a busy minute does not affect only one of them.
        let rounds: Vec<[[f64; 3]; 3]> = (0..10)
            .map(|_| {
                [Keeper::Bare, Keeper::TiniStatic, Keeper::Managed]
                    .map(|keeper| self.overhead(keeper, &sink, 10))
            })
            .collect();
        let middle = |keeper: usize, part: usize| {
            let mut all: Vec<f64> = rounds.iter().map(|round| round[keeper][part]).collect();
            median(&mut all).0
        };
        let nni = self.nni.then(|| self.overhead(Keeper::Nni, &sink, 1));
        let targets = [
            ("one metric, all acknowledged: added, ms", "at most 8", 8.0),
            ("of it before the trial's first instruction", "at most 1.5", 1.5),
            ("of it after the trial's last", "at most 5", 5.0),
        ];
        for (part, (what, text, most)) in targets.into_iter().enumerate() {
            let added = |keeper| middle(keeper, part) - middle(0, part);
            let ours = added(2);
            self.row(
                what,
                format!("{:.2}", added(1)),
                nni.map(|nni| format!("{:.0}", nni[part] - middle(0, part))),
                format!("{ours:.2}"),
                (text, ours <= most),
            );
        }
    }

    fn memory(&self) {
        let gate = |name: &str| self.folder.path().join(name).display().to_string();
        let idle = |keeper| {
            let (sink, gate) = (Sink::start(), gate("idle"));
            let (mut command, _dir) = self.load(keeper, Some(&sink), &["gate", &gate]);
            let child = command.spawn().expect("the program can be started");
            std::thread::park_timeout(Duration::from_secs(7));
            peak_then_end(child, &gate)
        };
        let (tini, ours) = (idle(Keeper::TiniStatic), idle(Keeper::Managed));
        let nni = self.nni.then(|| idle(Keeper::Nni));
        self.row(
            "peak resident memory, idle trial, MB",
            format!("{tini:.1}"),
            nni.map(|nni| format!("{nni:.0}")),
            format!("{ours:.1}"),
            ("at most 4", ours <= 4.0),
        );
        for (what, keeper) in [
            ("the same, a million lines passed on", Keeper::Managed),
            ("the same, a million lines delivered too", Keeper::Logging),
        ] {
            let (sink, gate) = (Sink::start(), gate("million"));
            let words = ["lines-then-gate", "1000000", &gate];
            let (mut command, dir) = self.load(keeper, Some(&sink), &words);
            let child = command.spawn().expect("the program can be started");
            let runs = dir.path().join("trialkeeper-runs");
            wait_for("a million lines", BOUND, || {
                let delivered = keeper == Keeper::Managed || sink.taken().lines == 1_000_000;
                let run = fs::read_dir(&runs).ok()?.next()?.ok()?.path();
                let bytes = fs::metadata(run.join("stdout")).ok()?.len();
                (delivered && bytes == 1_000_000 * LINE_BYTES).then_some(())
            });
            let peak = peak_then_end(child, &gate);
            self.row(what, String::new(), None, format!("{peak:.1}"), ("at most 4", peak <= 4.0));
        }
    }

    fn idle(&self) {
        let gate = self.folder.path().join("cpu").display().to_string();
        let seconds = 20.0;
        let used = |keeper| {
            let sink = Sink::start();
            let (mut command, _dir) = self.load(keeper, Some(&sink), &["gate", &gate]);
            let child = command.spawn().expect("the program can be started");
            // The start of the agent is not measured.
            std::thread::park_timeout(Duration::from_secs(3));
            let before = processor_ms(child.id());
            std::thread::park_timeout(Duration::from_secs_f64(seconds));
            let used = processor_ms(child.id()) - before;
            peak_then_end(child, &gate);
            used / 1e3 * 60.0 / seconds
        };
        let (tini, ours) = (used(Keeper::TiniStatic), used(Keeper::Managed));
        let nni = self.nni.then(|| used(Keeper::Nni));
        self.row(
            "processor time idle, samples every 5 s, s/minute",
            format!("{tini:.3}"),
            nni.map(|nni| format!("{nni:.3}")),
            format!("{ours:.3}"),
            ("at most 0.06", ours <= 0.06),
        );
    }

    fn passing(&self) {
        let count = 3_000_000_u32;
        let lines = count.to_string();
        let direct = |copy: &str| {
            let (mut load, dir) = self.load(Keeper::Bare, None, &["lines", &lines]);
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
            let (mut command, _dir) = self.load(Keeper::Alone, None, &["lines", &lines]);
            f64::from(count) / timed(&mut command) * 1e3
        };
        let best = |rate: &dyn Fn() -> f64| (0..4).map(|_| rate()).fold(0.0, f64::max);
        let (cat, tee) = (best(&|| direct("cat")), best(&|| direct("tee")));
        let ours = best(&ours);
        self.row(
            "stdout passed on and scanned, lines/s",
            format!("tee {:.1} M, cat {:.1} M", tee / 1e6, cat / 1e6),
            None,
            format!("{:.1} M", ours / 1e6),
            ("half of tee", ours >= tee / 2.0),
        );
    }

    fn slowing(&self) {
        let stamps = self.folder.path().join("paced");
        let name = stamps.display().to_string();
        let waited = |keeper, sink: Option<&Sink>| {
            let (mut command, _dir) = self.load(keeper, sink, &["paced-lines", &name]);
            let piped = keeper == Keeper::Bare;
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
            let (waited, took) = two_numbers(&stamps);
            100.0 * waited / took
        };
        let sink = Sink::start();
        let (cat, ours) = (waited(Keeper::Bare, None), waited(Keeper::Logging, Some(&sink)));
        let slower = ours - cat;
        self.row(
            "10,000 lines/s: time in writes, percent",
            format!("cat {cat:.2}"),
            None,
            format!("{ours:.2}"),
            ("2 more", slower < 2.0),
        );
    }

    /// Returns the lines per second, from the start to the last acknowledgement.
    fn delivered(&self, keeper: Keeper, count: u32) -> f64 {
        let sink = Sink::start();
        let (mut command, _dir) = self.load(keeper, Some(&sink), &["lines", &count.to_string()]);
        let began = now_ms();
        command.status().expect("the program can be started");
        let taken = sink.taken();
        assert_eq!((taken.lines, taken.gaps), (u64::from(count), 0), "lines are lost or unordered");
        f64::from(count) / (taken.last_line_ms - began) * 1e3
    }

    fn delivering(&self) {
        let rate = (0..3).map(|_| self.delivered(Keeper::Logging, MANY)).fold(0.0, f64::max);
        let nni = self.nni.then(|| self.delivered(Keeper::Nni, FEW));
        self.row(
            "lines delivered, none lost, in order, lines/s",
            String::new(),
            nni.map(|nni| format!("{nni:.0}")),
            format!("{rate:.0}"),
            ("at least 500,000", rate >= 500_000.0),
        );
    }

    fn delivering_to_nni(&self) {
        let rate = (0..3).map(|_| self.delivered(Keeper::Legacy, LEGACY_MANY)).fold(0.0, f64::max);
        self.row(
            "the same, one post a line, as NNI's keeper",
            format!("lock-step {:.0}", lock_step(LEGACY_MANY)),
            None,
            format!("{rate:.0}"),
            ("at least 20,000", rate >= 20_000.0),
        );
    }

    fn latencies(&self, keeper: Keeper) -> [f64; 2] {
        let sink = Sink::start();
        let (mut command, _dir) = self.load(keeper, Some(&sink), &["paced-metrics", "500"]);
        command.status().expect("the program can be started");
        let mut times = std::mem::take(&mut sink.taken().latencies);
        assert_eq!(times.len(), 500, "a metric is lost or duplicated");
        times.sort_by(f64::total_cmp);
        [times[250], times[495]]
    }

    fn latency(&self) {
        let ours = self.latencies(Keeper::Managed);
        let nni = self.nni.then(|| self.latencies(Keeper::Nni));
        let targets = [("p50", "at most 1", 1.0), ("p99", "at most 5", 5.0)];
        for (index, (name, text, most)) in targets.into_iter().enumerate() {
            self.row(
                &format!("metric at 100/s, printed to acknowledged, {name}, ms"),
                String::new(),
                nni.map(|nni| format!("{:.1}", nni[index])),
                format!("{:.2}", ours[index]),
                (text, ours[index] <= most),
            );
        }
    }

    fn metric_after_lines(&self) {
        let behind = |keeper, lines: u32| {
            let sink = Sink::start();
            let (mut command, _dir) =
                self.load(keeper, Some(&sink), &["behind", &lines.to_string()]);
            command.status().expect("the program can be started");
            let taken = sink.taken();
            taken.latencies.first().copied().expect("the metric arrives")
        };
        let mut times: Vec<f64> = (0..9).map(|_| behind(Keeper::Logging, 10_000)).collect();
        let ours = median(&mut times).0;
        let nni = self.nni.then(|| behind(Keeper::Nni, FEW));
        self.row(
            "a metric behind 10,000 lines of log, ms",
            String::new(),
            nni.map(|nni| format!("{nni:.0} ({FEW} lines)")),
            format!("{ours:.2}"),
            ("at most 10", ours <= 10.0),
        );
    }
}
