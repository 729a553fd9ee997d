//! Measures the cost of ten thousand connected, mostly idle agents for the manager. Each agent keeps its connection,
//! and sends a heartbeat and a sample every five seconds.
//!
//! `cargo bench -p trial-manager --bench swarm [AGENTS] [SECONDS]`. Client and server each need a file descriptor for
//! each agent: `ulimit -n` must allow that.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first thing that goes wrong, and prints"
)]

#[path = "ingest/server.rs"]
mod server;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use server::{EXPERIMENT_ID, Server, read_answer, trial_id};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use trial_manager::token::Secret;
use trial_manager::util::clock::{Clock as _, SystemClock};
use trial_protocol::ExperimentId;

/// The time between two heartbeats of an agent.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// The number of agents with one address.
const AGENTS_PER_NODE: u64 = 2_000;
/// A sample from an agent, of a trial with three processes and a control group.
const SAMPLE_BODY: &str = r#"{"kind":"sample","process":{"count":3,"cpu_percent":97.5,"memory_bytes":1932735283,"read_bytes":1048576,"written_bytes":524288},"cgroup":{"memory_current_bytes":1992735283,"memory_max_bytes":8589934592,"cpu_throttled_us":0}}"#;

fn main() {
    // Cargo adds the argument `--bench`.
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if arguments.first().is_some_and(|word| word == "--server") {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let trials = arguments[2].parse().unwrap();
        return runtime.block_on(server::serve(Path::new(&arguments[1]), trials));
    }
    let number =
        |place: usize, usual| arguments.get(place).map_or(usual, |text| text.parse().unwrap());
    // One thread, to leave the other cores of a small machine to the manager.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(number(0, 10_000), Duration::from_secs(number(1, 30))));
}

async fn measure(agents: u64, time: Duration) {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path(), agents);
    let secret = Secret::load_or_create(&folder.path().join("secret")).unwrap();
    let experiment = ExperimentId::new(EXPERIMENT_ID).unwrap();
    let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
    // The agents connect evenly over one interval, because real agents do not start at the same time.
    let begin = Instant::now();
    let steady = begin + 2 * HEARTBEAT_INTERVAL;
    let until = steady + time;
    let swarm: Vec<_> = (0..agents)
        .map(|number| {
            let token = secret.trial_token(&experiment, &trial_id(number), SystemClock.now_ms());
            let first = begin
                + HEARTBEAT_INTERVAL.mul_f64(
                    f64::from(u32::try_from(number).unwrap())
                        / f64::from(u32::try_from(agents).unwrap()),
                );
            tokio::spawn(run_agent(
                number,
                token,
                server.ports[0],
                first,
                until,
                Arc::clone(&counts),
            ))
        })
        .collect();
    sleep_until(steady).await;
    let (cpu, requests) = (server.processor_time(), counts[0].load(Ordering::Relaxed));
    sleep_until(until).await;
    let (cpu, requests) =
        (server.processor_time().saturating_sub(cpu), counts[0].load(Ordering::Relaxed) - requests);
    let resident = server.resident_kib() / 1024;
    for agent in swarm {
        agent.await.unwrap();
    }
    let seconds = time.as_secs_f64();
    let [_, slow, late] = &*counts;
    println!(
        "{agents} agents: {:.0} requests/s, {:.0} % of a core, {resident} MiB at most; {} answers took over 100 ms, {} \
         over a second",
        f64::from(u32::try_from(requests).unwrap()) / seconds,
        cpu.as_secs_f64() / seconds * 100.0,
        slow.load(Ordering::Relaxed),
        late.load(Ordering::Relaxed),
    );
    server.stop();
}

/// Returns the address of an agent's node. The manager limits the connections from one address.
fn node_address(agent: u64) -> IpAddr {
    let node = u8::try_from(agent / AGENTS_PER_NODE).expect("there are fewer than 250 nodes");
    Ipv4Addr::new(127, 0, node + 1, 1).into()
}

/// Runs an agent until the end of the measurement. Counts its requests, the slow answers and the very slow answers.
async fn run_agent(
    number: u64,
    token: String,
    port: u16,
    first: Instant,
    until: Instant,
    counts: Arc<[AtomicU64; 3]>,
) {
    sleep_until(first).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((node_address(number), 0).into()).unwrap();
    let mut stream = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut beats = interval_at(first, HEARTBEAT_INTERVAL);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut answer = vec![0; 4 << 10];
    let mut seq = 0_u64;
    while Instant::now() < until {
        beats.tick().await;
        let sample =
            format!(r#"{{"seq":{seq},"observed_at_ms":1700000000000,"body":{SAMPLE_BODY}}}"#);
        seq += 1;
        for (lane, reports) in [("facts", ""), ("bulk", sample.as_str())] {
            let body = format!(
                r#"{{"offer":{{"oldest":1,"newest":1}},"experiment":"{EXPERIMENT_ID}","trial":"{}","attempt":"a","lane":"{lane}","reports":[{reports}]}}"#,
                trial_id(number)
            );
            let request = format!(
                "POST /api/v1/agent/reports HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let start = Instant::now();
            stream.write_all(request.as_bytes()).await.unwrap();
            let answer = read_answer(&mut stream, &mut answer).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            counts[0].fetch_add(1, Ordering::Relaxed);
            let took = start.elapsed();
            counts[1].fetch_add(u64::from(took > Duration::from_millis(100)), Ordering::Relaxed);
            counts[2].fetch_add(u64::from(took > Duration::from_secs(1)), Ordering::Relaxed);
        }
    }
}
