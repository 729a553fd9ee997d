//! A spool that is too small, compared with a model. No fact is missing, and all other missing reports are counted.

use super::*;

/// The next step of the model.
#[derive(Debug, Clone)]
enum Step {
    Metric,
    /// A piece of output with this many bytes.
    Log(usize),
    Sample,
    /// The oldest reports of a lane, at most this many bytes, are acknowledged.
    Deliver(Lane, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        2 => Just(Step::Metric),
        4 => (1..900_usize).prop_map(Step::Log),
        3 => Just(Step::Sample),
        1 => (1..3000_usize).prop_map(|bytes| Step::Deliver(Lane::Facts, bytes)),
        2 => (1..3000_usize).prop_map(|bytes| Step::Deliver(Lane::Bulk, bytes)),
    ];
    prop::collection::vec(one, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn missing_reports_are_never_facts_and_are_counted(steps in steps(), on_disk: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let limit_bytes = 4_000;
        let place = on_disk.then_some(dir.path());
        let spool = Spool::open(Options { limit_bytes, ..options(place) }).spool;
        let (mut metrics, mut logged, mut samples) = (0, 0, 0);
        let mut delivered: BTreeMap<bool, Vec<ReportBody>> = BTreeMap::new();
        let mut deliver = |lane, bytes| runtime.block_on(async {
            tokio::time::timeout(TEST_TIMEOUT, spool.wait_until_readable(lane)).await.expect("readable in time");
            let batch = spool.peek(lane, bytes).await;
            if let Some(last) = batch.last() {
                spool.ack(lane, last.seq);
            }
            delivered.entry(lane == Lane::Facts).or_default().extend(batch.iter().map(body));
        });
        for step in steps {
            match step {
                Step::Metric => {
                    spool.append(0, metric(metrics));
                    metrics += 1;
                }
                Step::Log(bytes) => {
                    let text = LogText::Text("x".repeat(bytes));
                    let chunk = LogChunk { stream: Stream::Stdout, offset_bytes: logged, text };
                    spool.append(0, ReportBody::Log(chunk));
                    logged += u64::try_from(bytes).unwrap();
                }
                Step::Sample => {
                    spool.append(0, ReportBody::Sample(Box::default()));
                    samples += 1;
                }
                Step::Deliver(lane, _) if spool.pending_in(lane) == 0 => {}
                Step::Deliver(lane, bytes) => deliver(lane, bytes),
            }
            let kept = spool.shared.lock().bulk.kept_bytes();
            prop_assert!(kept <= limit_bytes, "{kept} bytes of bulk are kept");
        }
        spool.append(0, ReportBody::Ended(Box::new(verdict())));
        for lane in [Lane::Facts, Lane::Bulk] {
            while spool.pending_in(lane) > 0 {
                deliver(lane, 2000);
            }
        }

        let mut reported = Shed::default();
        let mut numbers = Vec::new();
        for fact in delivered.remove(&true).unwrap_or_default() {
            if let ReportBody::Metric(metric) = fact {
                numbers.push(metric.sequence);
            } else if let ReportBody::Shed(shed) = fact {
                reported = shed;
            }
        }
        prop_assert_eq!(numbers, (0..u64::from(metrics)).collect::<Vec<_>>(), "facts are never shed");
        let (mut log_bytes, mut sampled, mut end) = (0, 0, 0);
        for report in delivered.remove(&false).unwrap_or_default() {
            if let ReportBody::Log(LogChunk { offset_bytes, text: LogText::Text(text), .. }) = report {
                prop_assert!(offset_bytes >= end, "in order");
                let bytes = u64::try_from(text.len()).unwrap();
                end = offset_bytes + bytes;
                log_bytes += bytes;
            } else {
                prop_assert!(matches!(report, ReportBody::Sample(_)), "{report:?}");
                sampled += 1;
            }
        }
        let missing = Shed { log_bytes: logged - log_bytes, samples: samples - sampled };
        prop_assert_eq!(reported, missing, "the last count, before the verdict, is exact");
    }
}

#[test]
fn records_deleted_from_the_disk_are_written_again_before_they_leave_the_memory() {
    let spool = Spool::open(options(None)).spool;
    for _ in 0..3 {
        spool.append(0, log(WINDOW_BYTES));
    }
    let mut state = spool.shared.lock();
    let bulk = &mut state.bulk;
    bulk.memory.iter_mut().take(2).for_each(|entry| entry.written = true);
    bulk.written_count = 3;
    bulk.spill();
    let spilled = bulk.spilled_bytes;
    assert_eq!((bulk.memory.len(), bulk.spilled), (1, 2));
    bulk.memory[0].written = true;
    state.shed_spilled_bulk();
    assert_eq!(state.shed.log_bytes, spilled, "all dropped bytes are counted");
    state.bulk.spill();
    assert_eq!(
        (state.bulk.memory.len(), state.bulk.written_count),
        (1, 0),
        "no other record is dropped"
    );
}
