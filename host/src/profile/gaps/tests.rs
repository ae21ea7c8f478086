use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::profile::lane::Track;

const OPTIONS: Options = Options { threshold_ns: 10, longest: 3 };

fn at(start: u64, end: u64) -> Interval {
    Interval::new(start, end)
}

fn host(stage: &'static str, start: u64, end: u64) -> HostSpan {
    HostSpan { stage, interval: at(start, end) }
}

fn ran(name: &'static str, stage: &'static str, stream: u32, start: u64, end: u64) -> Span {
    Span { name: name.into(), stage, stream, interval: at(start, end) }
}

fn recording(host: Vec<HostSpan>, spans: Vec<Span>, covered: &[Interval]) -> Recording {
    let covered = Cover::of(covered.iter().copied());
    let lane = Lane { device: "cpu".to_owned(), spans, covered, ..Lane::default() };
    Recording { host: vec![Track { thread: "main".to_owned(), spans: host }], lanes: vec![lane], sources: vec![] }
}

fn only(mut lanes: Vec<LaneGaps>) -> LaneGaps {
    assert_eq!(lanes.len(), 1);
    lanes.remove(0)
}

/// Every way of splitting the time gives the time.
fn check_sums(report: &LaneGaps) -> Result<(), TestCaseError> {
    prop_assert_eq!(report.busy_ns + report.idle_ns, report.wall_ns);
    prop_assert_eq!(report.wall_ns + report.unknown_ns, report.window_ns);
    let sum = |f: &dyn Fn(&PhaseShare) -> u64| report.phases.iter().map(f).sum::<u64>();
    prop_assert_eq!(sum(&|p| p.wall_ns), report.wall_ns);
    prop_assert_eq!(sum(&|p| p.busy_ns), report.busy_ns);
    prop_assert_eq!(sum(&|p| p.idle_ns), report.idle_ns);
    prop_assert_eq!(report.causes.iter().map(|c| c.idle_ns).sum::<u64>(), report.idle_ns);
    prop_assert_eq!(report.causes.iter().map(|c| c.gaps).sum::<usize>(), report.gaps.len());
    prop_assert_eq!(report.causes.iter().map(|c| c.decode_idle_ns).sum::<u64>(), report.phases[1].idle_ns);
    prop_assert_eq!(report.stages.iter().map(|s| s.busy_ns).sum::<u64>(), report.busy_ns);
    prop_assert_eq!(report.stages.iter().map(|s| s.idle_ns).sum::<u64>(), report.idle_ns);
    prop_assert_eq!(report.ops.iter().map(|op| op.busy_ns).sum::<u64>(), report.busy_ns);
    prop_assert_eq!(report.histogram.iter().map(|b| b.idle_ns).sum::<u64>(), report.idle_ns);
    prop_assert_eq!(report.histogram.iter().map(|b| b.gaps).sum::<usize>(), report.gaps.len());
    Ok(())
}

#[test]
fn a_square_wave_of_one_half_is_half_busy_and_its_ceiling_twice_the_speed() {
    let spans = (0..100).map(|i| ran("linear", "verify", 0, 1000 * i, 1000 * i + 500)).collect();
    let stages = vec![host("request", 0, 100_000), host("prefill", 0, 0), host("round", 0, 100_000)];
    let report = only(analyse(&recording(stages, spans, &[at(0, 100_000)]), 11, &[10], OPTIONS));
    assert_eq!((report.wall_ns, report.busy_ns, report.idle_ns), (100_000, 50_000, 50_000));
    let (now, without) = (report.decode_tok_s.unwrap(), report.ceilings[0].tok_s.unwrap());
    assert!((now - 10.0 / 100e-6).abs() < 1.0 && (without / now - 2.0).abs() < 1e-9, "{now} {without}");
    assert_eq!(report.decode_idle_ns_per_token, Some(5000.0));
    assert_eq!(
        report.rounds,
        [RoundShare { start_ns: 0, wall_ns: 100_000, busy_ns: 50_000, idle_ns: 50_000, accepted: Some(10) }]
    );
}

#[test]
fn streams_beside_each_other_are_busy_once() {
    let spans = vec![
        ran("a", "verify", 0, 10, 60),
        ran("b", "verify", 1, 40, 80),
        ran("nested", "walk", 2, 45, 50),
        ran("nothing", "walk", 2, 90, 90),
    ];
    let report = only(analyse(&recording(vec![host("request", 0, 100)], spans, &[at(0, 100)]), 0, &[], OPTIONS));
    assert_eq!((report.busy_ns, report.idle_ns), (70, 30));
    check_sums(&report).unwrap();
    let busy = |op: &str| report.ops.iter().find(|share| share.op == op).map(|share| (share.calls, share.busy_ns));
    assert_eq!((busy("a"), busy("b"), busy("nested")), (Some((1, 30)), Some((1, 35)), Some((1, 5))));
    assert_eq!(busy("nothing"), Some((1, 0)));
}

#[test]
fn a_gap_has_its_stage_its_round_and_its_neighbours() {
    let stages = vec![
        host("request", 100, 1100),
        host("prefill", 100, 300),
        host("round", 300, 700),
        host("print", 400, 600),
        host("round", 700, 1100),
    ];
    let spans = vec![
        ran("embed", "prefill", 0, 100, 300),
        ran("walk", "walk", 0, 300, 395),
        ran("embed", "verify", 0, 605, 1000),
        ran("commit", "commit", 0, 1005, 1100),
    ];
    let report = only(analyse(&recording(stages, spans, &[at(0, 2000)]), 3, &[1, 1], OPTIONS));
    check_sums(&report).unwrap();
    let [print, threshold] = &report.gaps[..] else { panic!("{:?}", report.gaps) };
    assert_eq!((print.start_ns, print.idle_ns, print.round), (295, 210, Some(1)));
    assert_eq!(print.cause, Cause::HostStage("print"));
    assert_eq!((print.before.as_deref(), print.after.as_deref()), (Some("walk"), Some("verify: embed")));
    assert_eq!((threshold.idle_ns, threshold.cause, threshold.round), (5, Cause::BelowThreshold, Some(2)));
    let stage = |name: &str| report.stages.iter().find(|share| share.stage == name).map(|s| (s.busy_ns, s.idle_ns));
    assert_eq!(stage("print"), Some((0, 200)));
    assert_eq!(stage("round"), Some((0, 15)));
    assert_eq!(stage("prefill"), Some((200, 0)));
    // Two tokens in 800 ns, of which 215 idle, of which 210 printing.
    let rate = |without| report.ceilings.iter().find(|c| c.without == without).and_then(|c| c.tok_s).unwrap();
    assert!((rate(None) - 2.0 / 585e-9).abs() < 1.0);
    assert!((rate(Some(Cause::HostStage("print"))) - 2.0 / 590e-9).abs() < 1.0);
}

#[test]
fn what_was_not_sampled_is_neither_busy_nor_idle() {
    let mut recording = recording(vec![host("request", 0, 100)], vec![ran("a", "verify", 0, 10, 20)], &[at(5, 50)]);
    recording.lanes[0].lost = Cover::of([at(40, 70)]);
    let report = only(analyse(&recording, 0, &[], OPTIONS));
    assert_eq!((report.wall_ns, report.busy_ns, report.idle_ns, report.unknown_ns), (35, 10, 25, 65));
    assert_eq!(report.gaps.iter().map(|gap| gap.idle_ns).collect::<Vec<_>>(), [5, 20]);
    check_sums(&report).unwrap();
}

#[test]
fn a_recording_of_nothing_gives_a_report_of_nothing() {
    let empty = only(analyse(&recording(vec![], vec![], &[]), 0, &[], OPTIONS));
    assert_eq!((empty.window_ns, empty.wall_ns, empty.gaps.len()), (0, 0, 0));
    assert_eq!((empty.decode_tok_s, empty.ceilings[0].tok_s), (None, None));
    let unsampled = only(analyse(&recording(vec![host("request", 3, 9)], vec![], &[]), 5, &[], OPTIONS));
    assert_eq!((unsampled.window_ns, unsampled.wall_ns, unsampled.unknown_ns), (6, 0, 6));
    let idle = only(analyse(&recording(vec![host("request", 3, 9)], vec![], &[at(0, 9)]), 5, &[], OPTIONS));
    assert_eq!((idle.idle_ns, idle.gaps.len(), idle.ceilings[0].tok_s), (6, 1, None));
    assert_eq!((idle.gaps[0].before.clone(), idle.gaps[0].after.clone()), (None, None));
}

#[test]
fn the_longest_gaps_come_first_and_equals_in_order() {
    let spans = [0, 30, 80, 130, 160].map(|start| ran("a", "verify", 0, start, start + 10)).to_vec();
    let report = only(analyse(&recording(vec![host("request", 0, 170)], spans, &[at(0, 170)]), 0, &[], OPTIONS));
    let longest: Vec<_> = report.longest.iter().map(|gap| (gap.start_ns, gap.idle_ns)).collect();
    assert_eq!(longest, [(40, 40), (90, 40), (10, 20)]);
}

fn span() -> impl Strategy<Value = (u64, u64)> {
    (0..200_u64, 0..40_u64).prop_map(|(start, length)| (start, start + length))
}

proptest! {
    #[test]
    fn all_splits_add_up_whatever_was_recorded(
        work in vec(span(), 0..20),
        stages in vec((span(), 0..3_usize), 0..8),
        covered in vec(span(), 0..4),
        request in span(),
        prefill in 0..40_u64,
    ) {
        let names = ["round", "print", "poll"];
        let mut host: Vec<_> = stages.iter().map(|((a, b), name)| self::host(names[*name], *a, *b)).collect();
        host.push(self::host("request", request.0, request.1));
        host.push(self::host("prefill", request.0, request.0 + prefill));
        let spans = work.iter().map(|(a, b)| ran("op", "verify", 0, *a, *b)).collect();
        let covered: Vec<_> = covered.iter().map(|(a, b)| at(*a, *b)).collect();
        let report = only(analyse(&recording(host, spans, &covered), 4, &[], OPTIONS));
        check_sums(&report)?;
        // Brute force: a nanosecond is busy if it is known and something ran.
        let known = |t: u64| at(request.0, request.1).contains(t) && covered.iter().any(|c| c.contains(t));
        let ran = |t: u64| work.iter().any(|(a, b)| at(*a, *b).contains(t));
        let busy = (0..300).filter(|t| known(*t) && ran(*t)).count() as u64;
        let idle = (0..300).filter(|t| known(*t) && !ran(*t)).count() as u64;
        prop_assert_eq!((report.busy_ns, report.idle_ns), (busy, idle));
    }
}
