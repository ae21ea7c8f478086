//! `doctor`: what this machine offers and what is missing, with what to do about it. It measures nothing.

use std::fs;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::Outcome;
use super::output::ReportOutput;
use super::validate::DoctorArgs;
use crate::backend::cuda::ptx::{self, Choice, Ptx};
use crate::backend::cuda::{Device, DeviceInfo, DriverState, LIBRARY, counters_permitted};
use crate::error::Result;
use crate::report::{Build, Bytes, CpuEnvironment, schema};

/// Instruction sets that matter here, as Linux names them.
const FEATURES: [&str; 15] = [
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "bf16",
    "i8mm",
];
/// The kernel's number of CAP_SYS_ADMIN.
const CAP_SYS_ADMIN: u32 = 21;

/// The JSON object.
#[derive(Serialize)]
struct DoctorReport {
    schema: &'static str,
    cpu: CpuReport,
    memory: MemoryReport,
    driver: DriverReport,
    kernels: Vec<PtxReport>,
    devices: Vec<DeviceReport>,
    counters: Counters,
    advice: Vec<String>,
    env: Build,
}

#[derive(Serialize)]
struct CpuReport {
    #[serde(flatten)]
    cpu: CpuEnvironment,
    features: Vec<&'static str>,
}

#[derive(Serialize)]
struct MemoryReport {
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    /// Of the control group, where there is one.
    limit_bytes: Option<u64>,
}

#[derive(Serialize)]
struct DriverReport {
    state: &'static str,
    /// What is wrong, where it is not ready.
    reason: Option<String>,
    version: Option<String>,
    cuda: Option<String>,
}

#[derive(Serialize)]
struct PtxReport {
    target: String,
    ptx: Option<String>,
    kernels: usize,
    hash: &'static str,
    compiler: &'static str,
    committed: bool,
}

#[derive(Serialize)]
struct DeviceReport {
    index: u32,
    name: String,
    capability: String,
    memory_bytes: u64,
    multiprocessors: u32,
    l2_bytes: u64,
    clock_mhz: u32,
    /// The PTX it gets.
    ptx: Option<String>,
    /// Why that one.
    why: String,
    /// Whether the driver takes it; what it says if not.
    error: Option<String>,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
enum Counters {
    /// Anybody may read them.
    Permitted,
    /// This process may, by its privileges.
    PermittedAsAdmin,
    /// Only administrators may, and this process is none.
    AdminOnly,
    /// There is no driver, or it does not say.
    Unknown,
}

/// Runs the command.
///
/// # Errors
/// A file that cannot be written, a closed standard output; nothing it finds is an error.
pub fn run(args: &DoctorArgs) -> Result<Outcome> {
    let output = ReportOutput::open(&args.report)?;
    let report = examine();
    output.write(&report, || text(&report))?;
    Ok(Outcome::Done)
}

fn examine() -> DoctorReport {
    let state = DriverState::detect();
    let (driver, devices) = match state {
        DriverState::Absent { reason } => (DriverReport::new("absent", Some(reason), None), Vec::new()),
        DriverState::Failing { reason, driver } => (DriverReport::new("failing", Some(reason), driver), Vec::new()),
        DriverState::Ready { devices, driver, cuda } => {
            let report = DriverReport { cuda: Some(cuda.to_string()), ..DriverReport::new("ready", None, driver) };
            (report, devices.into_iter().map(DeviceReport::new).collect())
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let counters = Counters::new(counters_permitted(), is_admin(&status));
    DoctorReport {
        schema: schema::DOCTOR,
        cpu: CpuReport { cpu: CpuEnvironment::new(threads), features: features() },
        memory: MemoryReport::read(),
        advice: advice(&driver, &devices, counters),
        driver,
        kernels: ptx::EMBEDDED.iter().map(PtxReport::new).collect(),
        devices,
        counters,
        env: Build::of_this_process(),
    }
}

impl DriverReport {
    fn new(state: &'static str, reason: Option<String>, version: Option<String>) -> Self {
        Self { state, reason, version, cuda: None }
    }
}

impl PtxReport {
    fn new(ptx: &Ptx) -> Self {
        Self {
            target: ptx.target(),
            ptx: ptx.version().map(|version| version.to_string()),
            kernels: ptx.entries().len(),
            hash: ptx.hash,
            compiler: ptx.compiler,
            committed: ptx.committed,
        }
    }
}

impl DeviceReport {
    fn new(info: DeviceInfo) -> Self {
        let chosen = ptx::choose(info.capability);
        let why = match chosen {
            Some((_, Choice::Exact)) => "compiled for this architecture".to_owned(),
            Some((_, Choice::Forward)) => "the newest that is not newer than this GPU".to_owned(),
            None => format!("this GPU is older than {}", ptx::targets()),
        };
        let report = Self {
            index: info.index,
            name: info.name.clone(),
            capability: info.capability.to_string(),
            memory_bytes: info.memory_bytes,
            multiprocessors: info.multiprocessors,
            l2_bytes: info.l2_bytes,
            clock_mhz: info.clock_khz / 1000,
            ptx: chosen.map(|(ptx, _)| ptx.target()),
            why,
            error: None,
        };
        let error = Device::open_described(info).err().map(|error| error.to_string());
        Self { error, ..report }
    }
}

impl MemoryReport {
    fn read() -> Self {
        let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").unwrap_or_default();
        Self {
            total_bytes: meminfo(&info, "MemTotal"),
            available_bytes: meminfo(&info, "MemAvailable"),
            limit_bytes: limit.trim().parse().ok(),
        }
    }
}

impl Counters {
    fn new(permitted: Option<bool>, admin: bool) -> Self {
        match permitted {
            Some(true) => Self::Permitted,
            Some(false) if admin => Self::PermittedAsAdmin,
            Some(false) => Self::AdminOnly,
            None => Self::Unknown,
        }
    }
}

/// A line of /proc/meminfo, in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Whether a process with this /proc/self/status has the privileges of an administrator.
fn is_admin(status: &str) -> bool {
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    bits >> CAP_SYS_ADMIN & 1 == 1
}

fn features() -> Vec<&'static str> {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("flags") || line.starts_with("Features")).unwrap_or_default();
    let present: Vec<&str> = line.split_whitespace().collect();
    FEATURES.into_iter().filter(|feature| present.contains(feature)).collect()
}

fn advice(driver: &DriverReport, devices: &[DeviceReport], counters: Counters) -> Vec<String> {
    let mut advice = Vec::new();
    match driver.state {
        "absent" => advice.push(format!(
            "to use an NVIDIA GPU, install its driver so that {LIBRARY} is found (in a container: start it with the \
             NVIDIA runtime); without one everything runs on the CPU"
        )),
        "failing" => advice.push(
            "the driver's library is there but does not start: see that its kernel module is loaded and of the same \
             version (nvidia-smi), and that /dev/nvidia* may be opened"
                .to_owned(),
        ),
        _ if devices.is_empty() => advice.push(
            "the driver shows no GPU: see that one is plugged in and that CUDA_VISIBLE_DEVICES does not hide it"
                .to_owned(),
        ),
        _ => {}
    }
    for device in devices {
        match (&device.ptx, &device.error) {
            (None, _) => advice.push(format!(
                "{} has compute capability {}: the kernels need one of {} or later; it is not used",
                device.name,
                device.capability,
                ptx::targets()
            )),
            (Some(_), Some(error)) => advice.push(error.clone()),
            (Some(_), None) => {}
        }
    }
    if counters == Counters::AdminOnly {
        advice.push(
            "GPU hardware counters are for administrators only: run as root, or load the nvidia module with \
             NVreg_RestrictProfilingToAdminUsers=0 (a line in /etc/modprobe.d, then reboot)"
                .to_owned(),
        );
    }
    advice
}

fn text(report: &DoctorReport) -> String {
    let unknown = || "unknown".to_owned();
    let bytes = |value: Option<u64>| value.map_or_else(unknown, |value| Bytes(value).to_string());
    let CpuReport { cpu, features } = &report.cpu;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.add_row(["program", &format!("{} {}", report.env.version, report.env.commit)]);
    table.add_row(["cpu", &format!("{}, {} threads", cpu.model, cpu.threads)]);
    table.add_row(["", &format!("kernels for {}; has {}", cpu.simd, features.join(" "))]);
    let memory = &report.memory;
    let limit = memory.limit_bytes.map_or_else(String::new, |limit| format!(", limited to {}", Bytes(limit)));
    table.add_row([
        "memory",
        &format!("{} of {} available{limit}", bytes(memory.available_bytes), bytes(memory.total_bytes)),
    ]);
    for kernels in &report.kernels {
        let PtxReport { target, ptx, kernels, hash, compiler, committed } = kernels;
        let ptx = ptx.clone().unwrap_or_else(unknown);
        let origin = if *committed { "from the repository" } else { "built with the program" };
        table.add_row(["kernels", &format!("{kernels} for {target}, PTX {ptx}, {hash}, {origin}, {compiler}")]);
    }
    let driver = &report.driver;
    let line = match (&driver.reason, driver.state) {
        (Some(reason), "absent") => format!("no NVIDIA driver: {reason}"),
        (Some(reason), _) => format!("the NVIDIA driver does not start: {reason}"),
        (None, _) => format!(
            "NVIDIA {}, CUDA {}",
            driver.version.clone().unwrap_or_else(unknown),
            driver.cuda.clone().unwrap_or_else(unknown)
        ),
    };
    table.add_row(["driver", &line]);
    for device in &report.devices {
        let (memory, l2) = (Bytes(device.memory_bytes), Bytes(device.l2_bytes));
        table.add_row([
            format!("cuda:{}", device.index),
            format!(
                "{}, compute capability {}, {memory}, {} multiprocessors at {} MHz, L2 {l2}",
                device.name, device.capability, device.multiprocessors, device.clock_mhz
            ),
        ]);
        let ptx = device.ptx.as_ref().map_or_else(|| "no kernels".to_owned(), |ptx| format!("kernels for {ptx}"));
        let loads = if device.error.is_none() { "they load" } else { "they do not load" };
        table.add_row([String::new(), format!("{ptx}: {}; {loads}", device.why)]);
    }
    let counters = match report.counters {
        Counters::Permitted => "permitted",
        Counters::PermittedAsAdmin => "permitted to administrators, which this is",
        Counters::AdminOnly => "not permitted",
        Counters::Unknown => "unknown",
    };
    table.add_row(["counters", counters]);
    let mut text = table.trim_fmt() + "\n";
    for advice in &report.advice {
        text.push_str(&format!("\n* {advice}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_tables_are_read() {
        let info = "MemTotal:       16384 kB\nMemAvailable:    8192 kB\n";
        assert_eq!(meminfo(info, "MemTotal"), Some(16 << 20));
        assert_eq!(meminfo(info, "MemAvailable"), Some(8 << 20));
        assert_eq!(meminfo(info, "Mem"), None);
        assert!(is_admin("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!is_admin("Name:\tx\nCapEff:\t0000000000000000\n"));
        assert!(!is_admin(""));
    }

    #[test]
    fn every_absence_has_its_advice() {
        let driver = |state| DriverReport::new(state, Some("no such file".to_owned()), None);
        let device = |ptx: Option<&str>, error: Option<&str>| DeviceReport {
            index: 0,
            name: "NVIDIA Test".to_owned(),
            capability: "8.0".to_owned(),
            memory_bytes: 1,
            multiprocessors: 1,
            l2_bytes: 1,
            clock_mhz: 1,
            ptx: ptx.map(str::to_owned),
            why: String::new(),
            error: error.map(str::to_owned),
        };
        let cases = [
            (driver("absent"), vec![], Counters::Unknown, Some("install its driver")),
            (driver("failing"), vec![], Counters::Unknown, Some("kernel module")),
            (driver("ready"), vec![], Counters::Permitted, Some("CUDA_VISIBLE_DEVICES")),
            (driver("ready"), vec![device(None, None)], Counters::Permitted, Some("need one of sm_90, sm_120")),
            (driver("ready"), vec![device(Some("sm_90"), Some("too old"))], Counters::Permitted, Some("too old")),
            (driver("ready"), vec![device(Some("sm_90"), None)], Counters::AdminOnly, Some("RestrictProfiling")),
            (driver("ready"), vec![device(Some("sm_90"), None)], Counters::Permitted, None),
        ];
        for (driver, devices, counters, expected) in cases {
            let advice = advice(&driver, &devices, counters);
            match expected {
                Some(text) => assert!(advice.len() == 1 && advice[0].contains(text), "{advice:?}, not {text}"),
                None => assert!(advice.is_empty(), "{advice:?}"),
            }
        }
        assert_eq!(Counters::new(Some(false), true), Counters::PermittedAsAdmin);
        assert_eq!(Counters::new(Some(false), false), Counters::AdminOnly);
    }
}
