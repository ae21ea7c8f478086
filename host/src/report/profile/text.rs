//! A profile for people: 80 columns, tables.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::ProfileReport;
use crate::profile::{LaneGaps, Phase};

/// Rows of the table of operations.
const OPS: usize = 12;

impl ProfileReport {
    /// For people. Totals are exact to the nanosecond.
    pub fn text(&self) -> String {
        let mut text = format!(
            "prompt {} tokens, {} generated, {} rounds, draft {}\n",
            self.prompt_tokens, self.tokens, self.rounds, self.mode
        );
        text += &self.speed();
        let mut sources = new(&[]);
        for source in &self.sources {
            let state = match (&source.absent, source.lost) {
                (Some(why), _) => format!("absent: {why}"),
                (None, 0) => format!("{} records", source.records),
                (None, lost) => format!("{} records, {lost} lost", source.records),
            };
            sources.add_row([source.source.to_owned(), state]);
        }
        text += &shown(sources, &[]);
        self.devices.iter().for_each(|device| text += &report(device));
        text
    }

    fn speed(&self) -> String {
        let overhead = &self.overhead;
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
        match (overhead.unprofiled_tok_s, overhead.overhead) {
            (Some(without), Some(share)) => format!(
                "decode {} tok/s profiled, {} unprofiled: profiling costs {:.1}% (medians of {} and {} runs)\n",
                rate(overhead.profiled_tok_s),
                rate(Some(without)),
                100.0 * share,
                overhead.profiled.len(),
                overhead.unprofiled.len()
            ),
            _ => format!("decode {} tok/s profiled, not compared\n", rate(overhead.profiled_tok_s)),
        }
    }
}

fn report(device: &LaneGaps) -> String {
    let mut text = format!("\ndevice {}\n", device.device);
    let mut table = new(&["", "wall ms", "busy ms", "idle ms", "idle"]);
    for phase in &device.phases {
        let name = match phase.phase {
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        };
        table.add_row(row(name, phase.wall_ns, phase.busy_ns, phase.idle_ns));
    }
    table.add_row(row("all", device.wall_ns, device.busy_ns, device.idle_ns));
    text += &shown(table, &[1, 2, 3, 4]);
    if device.unknown_ns > 0 {
        text +=
            &format!("not known for {} ms more: nothing was sampled, or records were lost\n", ms(device.unknown_ns));
    }
    if let Some(idle) = device.decode_idle_ns_per_token {
        text += &format!("idle for each decoded token: {:.3} us\n", idle / 1e3);
    }
    text += &causes(device);
    text += &stages(device);
    text += &longest(device);
    text += &lengths(device);
    text
}

fn causes(device: &LaneGaps) -> String {
    let mut table = new(&["cause of idleness", "gaps", "idle us", "of idle", "of wall", "tok/s without it"]);
    let ceiling = |cause| {
        let ceiling = device.ceilings.iter().find(|ceiling| ceiling.without == cause);
        ceiling.and_then(|ceiling| ceiling.tok_s).map_or("-".to_owned(), |rate| format!("{rate:.1}"))
    };
    for share in &device.causes {
        let cause = match share.cause {
            crate::profile::Cause::BelowThreshold => format!("below {} us", device.threshold_ns as f64 / 1e3),
            cause => cause.to_string(),
        };
        let (idle, wall) = (percent(share.idle_ns, device.idle_ns), percent(share.idle_ns, device.wall_ns));
        table.add_row([cause, share.gaps.to_string(), us(share.idle_ns), idle, wall, ceiling(Some(share.cause))]);
    }
    let gaps: usize = device.causes.iter().map(|share| share.gaps).sum();
    let (idle, wall) = (percent(device.idle_ns, device.idle_ns), percent(device.idle_ns, device.wall_ns));
    table.add_row(["all".to_owned(), gaps.to_string(), us(device.idle_ns), idle, wall, ceiling(None)]);
    let now = device.decode_tok_s.map_or(String::new(), |rate| format!("decode as recorded: {rate:.1} tok/s\n"));
    format!("\n{}{now}", shown(table, &[1, 2, 3, 4, 5]))
}

fn stages(device: &LaneGaps) -> String {
    let mut table = new(&["stage", "busy us", "idle us", "of wall", "us a token"]);
    for share in &device.stages {
        let total = share.busy_ns + share.idle_ns;
        let token = match (share.stage, device.decoded_tokens) {
            (crate::profile::stage::PREFILL, _) | (_, 0) => "-".to_owned(),
            (_, tokens) => format!("{:.3}", total as f64 / 1e3 / tokens as f64),
        };
        let wall = percent(total, device.wall_ns);
        table.add_row([share.stage.to_owned(), us(share.busy_ns), us(share.idle_ns), wall, token]);
    }
    let mut ops = new(&["stage", "operation", "calls", "busy us", "of wall"]);
    for op in device.ops.iter().take(OPS) {
        let wall = percent(op.busy_ns, device.wall_ns);
        ops.add_row([op.stage.to_owned(), op.op.clone(), op.calls.to_string(), us(op.busy_ns), wall]);
    }
    let more = device.ops.len().saturating_sub(OPS);
    let more = if more > 0 { format!("and {more} more operations, in --json\n") } else { String::new() };
    format!("\n{}\n{}{more}", shown(table, &[1, 2, 3, 4]), shown(ops, &[2, 3, 4]))
}

fn longest(device: &LaneGaps) -> String {
    if device.longest.is_empty() {
        return "\nno gaps\n".to_owned();
    }
    let mut table = new(&["longest us", "at ms", "round", "cause", "between"]);
    for gap in &device.longest {
        let side = |name: &Option<String>, none: &str| name.clone().unwrap_or_else(|| none.to_owned());
        table.add_row([
            us(gap.idle_ns),
            format!("{:.3}", gap.start_ns as f64 / 1e6),
            gap.round.map_or("-".to_owned(), |round| round.to_string()),
            gap.cause.to_string(),
            format!("{} | {}", side(&gap.before, "start"), side(&gap.after, "end")),
        ]);
    }
    format!("\n{}", shown(table, &[0, 1, 2]))
}

fn lengths(device: &LaneGaps) -> String {
    let longest = device.histogram.iter().map(|bucket| bucket.idle_ns).max().unwrap_or_default().max(1);
    let mut table = new(&["gaps of", "count", "idle us", ""]);
    for bucket in device.histogram.iter().filter(|bucket| bucket.gaps > 0) {
        let bar = "#".repeat((30 * bucket.idle_ns).div_ceil(longest) as usize);
        let from = length(bucket.from_ns);
        let range = bucket.to_ns.map_or(format!("{from} and more"), |to| format!("{from} to {}", length(to)));
        table.add_row([range, bucket.gaps.to_string(), us(bucket.idle_ns), bar]);
    }
    format!("\n{}", shown(table, &[1, 2]))
}

fn row(name: &str, wall: u64, busy: u64, idle: u64) -> [String; 5] {
    [name.to_owned(), ms(wall), ms(busy), ms(idle), percent(idle, wall)]
}

fn ms(nanoseconds: u64) -> String {
    format!("{}.{:06}", nanoseconds / 1_000_000, nanoseconds % 1_000_000)
}

fn us(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

fn length(nanoseconds: u64) -> String {
    match nanoseconds {
        ..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{} us", nanoseconds / 1_000),
        _ => format!("{} ms", nanoseconds / 1_000_000),
    }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}%", 100.0 * part as f64 / whole as f64) }
}

fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(80);
    if !header.is_empty() {
        table.set_header(header);
    }
    table
}

/// The table, columns of figures to the right.
fn shown(mut table: Table, right: &[usize]) -> String {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
