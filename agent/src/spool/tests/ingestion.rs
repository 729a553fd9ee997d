//! Spool and ingestion together, compared with a model. Reports are lost, repeated or cut off between the two. In the
//! end, the store must have each appended report once, in order.

use super::*;

/// The next step of the model.
#[derive(Debug, Clone)]
enum Step {
    /// The trial reports this many metrics, each with a line of output.
    Append(u8),
    /// A batch of at most this many bytes is sent, with the given fate.
    Deliver(Lane, usize, Fate),
    /// The process dies. The content of its disk at that moment stays.
    Crash,
    /// The process ends normally, and another one continues.
    Reopen,
}

/// The fate of a batch.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// It is stored and acknowledged.
    Acknowledged,
    /// It is stored, and the ack is lost.
    AckLost,
    /// It is stored, and arrives a second time after all other batches.
    Repeated,
    /// It never arrives.
    Lost,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lane = prop_oneof![Just(Lane::Facts), Just(Lane::Bulk)];
    let fate = prop_oneof![
        3 => Just(Fate::Acknowledged),
        2 => Just(Fate::AckLost),
        1 => Just(Fate::Repeated),
        1 => Just(Fate::Lost),
    ];
    let one = prop_oneof![
        4 => (1..9_u8).prop_map(Step::Append),
        6 => (lane, 1..3000_usize, fate).prop_map(|(lane, bytes, fate)| Step::Deliver(lane, bytes, fate)),
        1 => Just(Step::Crash),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(one, 1..50)
}

/// A minimal model of the manager's store: of reports with the same key, the first is kept.
#[derive(Default)]
struct Store {
    lanes: BTreeMap<(u8, u64), ReportBody>,
}

impl Store {
    fn ingest(&mut self, lane: Lane, batch: &[Record]) {
        for record in batch {
            self.lanes.entry((lane_index(lane), record.seq)).or_insert_with(|| body(record));
        }
    }

    /// Returns the numbers that were reported on a lane, in the order of their seqs.
    fn numbers(&self, lane: Lane) -> Vec<u64> {
        let of_lane = self.lanes.iter().filter(|((stored, _), _)| *stored == lane_index(lane));
        of_lane.map(|(_, body)| reported_number(body)).collect()
    }
}

fn lane_index(lane: Lane) -> u8 {
    match lane {
        Lane::Facts => 0,
        Lane::Bulk => 1,
    }
}

/// Returns the number in a report of the model.
fn reported_number(body: &ReportBody) -> u64 {
    match body {
        ReportBody::Metric(metric) => metric.sequence,
        ReportBody::Log(chunk) => chunk.offset_bytes,
        ReportBody::Started(_)
        | ReportBody::Ended(_)
        | ReportBody::Shed(_)
        | ReportBody::Note { .. }
        | ReportBody::Sample(_)
        | ReportBody::Unknown => panic!("the model appends no such report: {body:?}"),
    }
}

fn line(number: u32) -> ReportBody {
    let text = LogText::Text(format!("line {number}\n"));
    ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes: number.into(), text })
}

/// Returns the directory as a crash leaves it: a copy, made while the spool's thread may be writing.
fn copy_after_crash(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let own = copy.path().join("a-1");
    fs::create_dir(&own).unwrap();
    let mut files: Vec<_> =
        fs::read_dir(dir.join("a-1")).unwrap().flatten().map(|entry| entry.path()).collect();
    // Cursors are copied last. A newer cursor permits the deletion of segments, which an older one would miss.
    files.sort_by_key(|path| path.extension().is_some_and(|kind| kind == "ack"));
    for path in files {
        // Ignored: files may be deleted or renamed during the copy.
        drop(fs::copy(&path, own.join(path.file_name().unwrap())));
    }
    copy
}

/// The appended reports of one process, and how many of them the manager was offered.
#[derive(Default)]
struct ProcessRecord {
    appended: Vec<u64>,
    offered: [usize; 2],
    crashed: bool,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_store_gets_what_was_appended_in_order_and_once(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut dir = tempfile::tempdir().unwrap();
        let mut spool = open(dir.path());
        let mut now_ms = 1;
        let mut store = Store::default();
        let mut repeated = Vec::new();
        let mut lives = vec![ProcessRecord::default()];
        let mut next = 0_u32;
        let batch = |spool: &Spool, lane, max_bytes| runtime.block_on(async {
            tokio::time::timeout(TEST_TIMEOUT, spool.wait_until_readable(lane)).await.expect("readable in time");
            spool.peek(lane, max_bytes).await
        });
        for step in steps {
            match step {
                Step::Append(count) => for _ in 0..count {
                    spool.append(0, metric(next));
                    spool.append(0, line(next));
                    lives.last_mut().unwrap().appended.push(next.into());
                    next += 1;
                },
                Step::Deliver(lane, ..) if spool.pending_in(lane) == 0 => {}
                Step::Deliver(lane, max_bytes, fate) => {
                    let records = batch(&spool, lane, max_bytes);
                    let through = records.last().unwrap().seq;
                    let life = lives.last_mut().unwrap();
                    let own = records.iter().filter(|record| life.appended.contains(&reported_number(&body(record))));
                    let shown = own.map(|record| reported_number(&body(record)) - life.appended[0] + 1).max();
                    let offered = &mut life.offered[usize::from(lane_index(lane))];
                    *offered = (*offered).max(shown.map_or(0, |shown| usize::try_from(shown).unwrap()));
                    match fate {
                        Fate::Lost => {}
                        Fate::Acknowledged | Fate::AckLost | Fate::Repeated => store.ingest(lane, &records),
                    }
                    match fate {
                        Fate::Acknowledged => spool.ack(lane, through),
                        Fate::Repeated => {
                            spool.ack(lane, through);
                            repeated.push((lane, records));
                        }
                        Fate::AckLost | Fate::Lost => {}
                    }
                }
                Step::Crash | Step::Reopen => {
                    let crashed = matches!(step, Step::Crash);
                    lives.last_mut().unwrap().crashed = crashed;
                    let copy = crashed.then(|| copy_after_crash(dir.path()));
                    prop_assert!(runtime.block_on(spool.close(TEST_TIMEOUT)), "a good disk");
                    dir = copy.unwrap_or(dir);
                    now_ms += 1;
                    spool = Spool::open(Options { now_ms, ..options(Some(dir.path())) }).spool;
                    lives.push(ProcessRecord::default());
                }
            }
        }
        for lane in [Lane::Facts, Lane::Bulk] {
            while spool.pending_in(lane) > 0 {
                let records = batch(&spool, lane, 1000);
                store.ingest(lane, &records);
                spool.ack(lane, records.last().unwrap().seq);
            }
        }
        for (lane, records) in &repeated {
            store.ingest(*lane, records);
        }

        for lane in [Lane::Facts, Lane::Bulk] {
            let stored = store.numbers(lane);
            prop_assert!(stored.windows(2).all(|two| two[0] < two[1]), "in order, each once: {stored:?}");
            for life in &lives {
                let kept = stored.iter().filter(|number| life.appended.contains(number)).count();
                let all = life.appended.len();
                let offered = life.offered[usize::from(lane_index(lane))];
                prop_assert_eq!(&life.appended[..kept], stored.iter().copied()
                    .filter(|number| life.appended.contains(number)).collect::<Vec<_>>(), "from the first on");
                prop_assert!(kept == all || life.crashed && kept >= offered,
                    "{kept} of {all} are stored, {offered} had been offered");
            }
        }
    }
}
