//! Runs jobs in a guest, one after the other, within bounds of time and memory, and leaves nothing
//! behind.
//!
//! What a job prints comes over two virtio serial ports; over a third come the lines `RIG start`
//! and, with the exit status of each job, `RIG rc=N`. The console is the kernel's, in
//! `console.log` beside them: `target/vm/1`, or `2` for a guest beside another one.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::clock;
use super::doorbell::Doorbell;
use super::initrd::Archive;
use super::jobs::{self, Output};
use super::kernel::Kernel;
use super::ooh::Ooh;
use super::process::Running;
use super::qemu::Qemu;

/// A guest boots in 5 to 10 s on an idle machine.
const BOOT_TIME_MAX: Duration = Duration::from_secs(120);

/// The serial port of the guest that a socket of the host may be.
pub const CHANNEL: &str = "/dev/vport0p4";

/// The guest's machine, and how long it may run.
#[derive(Debug)]
pub struct Machine {
    /// Memory of the guest.
    pub memory_mib: u32,
    /// A second node, without processors and slow.
    pub numa: bool,
    /// AMD's virtualization, with nested paging.
    pub nested: bool,
    /// One processor, whose clock advances by a nanosecond per instruction, so that its time stamp
    /// counter counts them.
    pub counted: bool,
    /// A plugin for the emulator, and the file that it writes.
    pub plugin: Option<(PathBuf, PathBuf)>,
    /// A log of dirty pages, and the module that drives it.
    pub ooh: Option<Ooh>,
    /// Modules to load besides those that the rig needs.
    pub modules: Vec<String>,
    /// A socket of the host that is [`CHANNEL`] in the guest.
    pub channel: Option<PathBuf>,
    /// For each job; the guest's boot is not counted.
    pub timeout: Duration,
}

impl Machine {
    /// Whether nothing of the job runs on the first processor.
    ///
    /// In QEMU, any processor that restores floating-point state (`XRSTOR`, at every task switch)
    /// changes a flag of the *first* one without a lock (`cpu_clear_ignne` in
    /// target/i386/tcg/system/fpu_helper.c), in the word that also says whether that one translates
    /// by nested tables. If it enters or leaves a guest just then, it goes on with the wrong
    /// tables: the guest dies of a triple fault, or the host's registers become the guest's.
    fn spares_first(&self) -> bool {
        self.nested && !self.counted
    }

    /// Two for the job.
    fn processors(&self) -> u32 {
        match self.counted {
            true => 1,
            false => 2 + u32::from(self.spares_first()),
        }
    }
}

/// What to run in a guest.
#[derive(Debug)]
pub struct Job {
    /// The working directory: a path of the host, as all paths in a guest are.
    pub dir: PathBuf,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Variables of its environment.
    pub env: Vec<(String, String)>,
}

/// How a command in a guest ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The command ended, with this exit status.
    Exited(u8),
    /// The command was ended by the timeout.
    TimedOut,
}

/// A guest that can be started.
#[derive(Debug)]
pub struct Guest<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) qemu: &'a Qemu,
    pub(super) busybox: &'a Path,
    pub(super) machine: &'a Machine,
    /// For the console's log, the RAM disk, and `out`, which the guest may write to.
    pub(super) dir: &'a Path,
}

/// How one start of a guest went.
struct Start {
    /// The exit statuses of the jobs that ended.
    statuses: Vec<u8>,
    /// What kept the next one from its end, if there is a next one.
    stopped: Option<Stopped>,
}

enum Stopped {
    TimedOut,
    /// Without a result; the text says how.
    Lost(&'static str),
}

/// Takes the standard output of jobs as it comes, with the number of the job.
pub(super) type Sink<'a> = dyn FnMut(usize, &[u8]) -> io::Result<()> + 'a;

impl Guest<'_> {
    /// Where a guest of `dir` leaves files for the host.
    pub fn out(dir: &Path) -> PathBuf {
        dir.join("out")
    }

    /// Runs jobs one after the other; how each ended. Their standard output goes to `stdout` as it
    /// comes, their standard error to ours.
    ///
    /// One guest runs them all, unless it dies or a job takes too long: then the rest has a fresh
    /// one. A job whose guest dies twice is an error, which does not concern the others.
    pub fn run(&self, jobs: &[Job], stdout: &mut Sink<'_>) -> Result<Vec<Result<End>>> {
        let initrd = self.dir.join("initrd");
        let mut ends: Vec<Result<End>> = Vec::new();
        let mut second = None;
        while let rest @ [_, ..] = &jobs[ends.len()..] {
            fs::write(&initrd, self.initrd(rest)?)?;
            let first = ends.len();
            let mut numbered = |job: usize, bytes: &[u8]| stdout(first + job, bytes);
            let start = self.start(&initrd, rest.len(), &mut numbered)?;
            ends.extend(start.statuses.into_iter().map(|it| Ok(End::Exited(it))));
            match start.stopped {
                None => {}
                Some(Stopped::TimedOut) => ends.push(Ok(End::TimedOut)),
                Some(Stopped::Lost(how)) if second == Some(ends.len()) => {
                    let console = self.console();
                    ends.push(Err(anyhow!("the guest {how}; see {}", console.display())));
                }
                Some(Stopped::Lost(_)) => {
                    eprintln!("xtask: once more");
                    second = Some(ends.len());
                }
            }
        }
        Ok(ends)
    }

    /// Starts a guest that runs `count` jobs.
    fn start(&self, initrd: &Path, count: usize, stdout: &mut Sink<'_>) -> Result<Start> {
        fs::write(self.result(), "")?;
        let (mut command, _doorbell) = self.command(initrd)?;
        let mut qemu = Emulator::start(&mut command)?;
        let mut output = Output::default();
        let mut split = |bytes: &[u8]| output.feed(bytes, stdout);
        let in_time = qemu.forward(&mut split, &mut self.clock())?;
        output.finish(stdout)?;
        drop(qemu);
        let lines = fs::read_to_string(self.result())?;
        let statuses = jobs::statuses(&lines);
        let stopped = if statuses.len() >= count {
            None
        } else if !in_time && jobs::have_begun(&lines) {
            // The kernel names who has waited for minutes.
            eprint!("{}", self.console_tail());
            Some(Stopped::TimedOut)
        } else {
            let how = match in_time {
                true => "died",
                false => "did not boot in time",
            };
            eprintln!("{}xtask: the guest {how}", self.console_tail());
            Some(Stopped::Lost(how))
        };
        Ok(Start { statuses, stopped })
    }

    /// Tells at any moment whether the guest's time is over: first to boot, then for each job.
    fn clock(&self) -> impl FnMut() -> bool {
        let mut deadline = Instant::now() + BOOT_TIME_MAX;
        let mut seen = 0;
        move || {
            let lines = fs::read_to_string(self.result()).unwrap_or_default();
            let said = lines.lines().count();
            if said > seen {
                seen = said;
                deadline = Instant::now() + self.machine.timeout;
            }
            Instant::now() > deadline
        }
    }

    fn initrd(&self, jobs: &[Job]) -> Result<Vec<u8>> {
        let mut wanted = [
            "virtio_pci",
            "virtio_console",
            "9p",
            "9pnet_virtio",
            "overlay",
        ]
        .map(str::to_owned)
        .to_vec();
        if self.machine.nested {
            wanted.push("kvm_amd".to_owned());
        }
        wanted.extend(self.machine.modules.iter().cloned());
        let mut archive = Archive::default();
        for dir in [
            "bin",
            "dev",
            "proc",
            "sys",
            "host",
            "ram",
            "new",
            "modules",
            "job",
            "job/commands",
        ] {
            archive.directory(dir);
        }
        archive.file("init", include_bytes!("init.sh"));
        archive.file("bin/busybox", &fs::read(self.busybox)?);
        let mut order = String::new();
        for (name, code) in self.kernel.modules(&wanted, self.busybox)? {
            archive.file(&format!("modules/{name}"), &code);
            order += &format!("{name}\n");
        }
        if let Some(ooh) = &self.machine.ooh {
            archive.file("modules/ooh", &fs::read(&ooh.module)?);
            order += "ooh\n";
        }
        archive.file("modules/order", order.as_bytes());
        archive.file("job/out", path_text(&Self::out(self.dir))?.as_bytes());
        archive.file("job/main.sh", include_bytes!("main.sh"));
        for (number, job) in jobs.iter().enumerate() {
            let script = job.script(self.machine.spares_first())?;
            archive.file(&format!("job/commands/{number:03}"), script.as_bytes());
        }
        Ok(archive.finish())
    }

    /// The emulator's command, and what is to be kept while it runs.
    fn command(&self, initrd: &Path) -> Result<(Command, Option<Doorbell>)> {
        let mut command = self.qemu.command();
        let cpu = if self.machine.nested {
            "max,+svm"
        } else {
            "max"
        };
        let clock: &[&str] = match self.machine.counted {
            true => &["-accel", "tcg,thread=single", "-icount", "shift=0"],
            false => &["-accel", "tcg,thread=multi"],
        };
        command
            .args(clock)
            .args(["-smp", &self.machine.processors().to_string()])
            .args(["-cpu", cpu])
            .args([
                "-nodefaults",
                "-display",
                "none",
                "-no-reboot",
                "-monitor",
                "none",
            ])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(initrd)
            .args(["-append", &kernel_parameters(self.machine)?])
            .arg("-serial")
            .arg(format!("file:{}", qemu_path(&self.console())))
            .args(["-device", "virtio-serial-pci"]);
        let result = qemu_path(&self.result());
        for (port, file) in [("1", "/dev/stdout"), ("2", "/dev/stderr"), ("3", &result)] {
            command
                .args(["-chardev", &format!("file,id=port{port},path={file}")])
                .args([
                    "-device",
                    &format!("virtserialport,chardev=port{port},nr={port}"),
                ]);
        }
        if let Some(socket) = &self.machine.channel {
            let socket = qemu_path(socket);
            command
                .args([
                    "-chardev",
                    &format!("socket,id=port4,path={socket},server=on,wait=off"),
                ])
                .args(["-device", "virtserialport,chardev=port4,nr=4"]);
        }
        let out = qemu_path(&Self::out(self.dir));
        for (tag, export) in [
            ("root", "path=/,readonly=on,multidevs=remap".to_owned()),
            ("out", format!("path={out}")),
        ] {
            command
                .args([
                    "-fsdev",
                    &format!("local,id={tag},security_model=none,{export}"),
                ])
                .args([
                    "-device",
                    &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
                ]);
        }
        command.args(self.memory());
        if let Some((plugin, out)) = &self.machine.plugin {
            let (plugin, out) = (qemu_path(plugin), qemu_path(out));
            command.args(["-plugin", &format!("{plugin},out={out}")]);
        }
        let ooh = self.machine.ooh.as_ref();
        let ooh = ooh.map(|ooh| ooh.arguments(qemu_path)).transpose()?;
        let doorbell = ooh.and_then(|ooh| {
            command.args(ooh.words);
            ooh.doorbell
        });
        Ok((command, doorbell))
    }

    /// The machine and its memory: one node, or two with the second behind a long way.
    fn memory(&self) -> Vec<String> {
        let total = self.machine.memory_mib;
        let size = format!("{total}M");
        if !self.machine.numa {
            return ["-machine", "pc", "-m", &size].map(str::to_owned).to_vec();
        }
        let near = format!("memory-backend-ram,id=near,size={}M", total - total / 2);
        let far = format!("memory-backend-ram,id=far,size={}M", total / 2);
        let mut args = vec![
            "-machine",
            "pc,hmat=on",
            "-m",
            &size,
            "-object",
            &near,
            "-object",
            &far,
        ];
        let last = self.machine.processors() - 1;
        let first_node = format!("node,nodeid=0,memdev=near,cpus=0-{last},initiator=0");
        for numa in [
            first_node.as_str(),
            "node,nodeid=1,memdev=far,initiator=0",
            "dist,src=0,dst=1,val=80",
            "hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-latency,latency=10",
            "hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-bandwidth,bandwidth=20G",
            "hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=400",
            "hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=2G",
        ] {
            args.extend(["-numa", numa]);
        }
        args.into_iter().map(str::to_owned).collect()
    }

    fn result(&self) -> PathBuf {
        self.dir.join("result")
    }

    fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// The last lines of the console, for a guest that gave no result, or none in time.
    fn console_tail(&self) -> String {
        let console = fs::read(self.console()).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let tail = &lines[lines.len().saturating_sub(40)..];
        tail.iter()
            .map(|line| format!("console: {line}\n"))
            .collect()
    }
}

/// `nokaslr` and no mitigations make emulation faster; a panic ends the guest at once, and so does
/// an oops, after which a process that waits for a lock of its thread would wait for ever. A busy
/// machine gives the emulator so little time that the kernel's test of its timer fails, and with it
/// the boot. DAMON's statistics of newer kernels would clear accessed bits under us.
const KERNEL_PARAMETERS: &str = "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic nokaslr \
                                 mitigations=off tsc=reliable no_timer_check \
                                 damon_stat.enabled=N";

/// All parameters of a guest's kernel.
fn kernel_parameters(machine: &Machine) -> Result<String> {
    let clock = clock::parameter(machine.counted)?;
    Ok(format!("{KERNEL_PARAMETERS} {clock}"))
}

impl Job {
    /// The job as a shell script; on the second and third processor only, if so wanted.
    fn script(&self, spares_first: bool) -> Result<String> {
        let mut script = format!("cd {} || exit 126\n", quote(path_text(&self.dir)?));
        for (name, value) in &self.env {
            script += &format!("export {name}={}\n", quote(value));
        }
        let command: Vec<String> = self.command.iter().map(|word| quote(word)).collect();
        let on = if spares_first { "taskset -c 1,2 " } else { "" };
        script += &format!("exec {on}{}\n", command.join(" "));
        Ok(script)
    }
}

/// A running emulator.
struct Emulator(Running);

impl Emulator {
    fn start(command: &mut Command) -> Result<Self> {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(command).map(Self)
    }

    /// Passes on what the guest prints until it is off; false if its time was over before.
    fn forward(
        &mut self,
        stdout: &mut dyn FnMut(&[u8]) -> io::Result<()>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<bool> {
        let mut errors = self.0.0.stderr.take().context("no standard error")?;
        let errors = thread::spawn(move || io::copy(&mut errors, &mut io::stderr()));
        let mut output = self.0.0.stdout.take().context("no standard output")?;
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..length].to_owned()).is_err() {
                    break;
                }
            }
        });
        loop {
            match receiver.recv_timeout(Duration::from_millis(100)) {
                Ok(bytes) => stdout(&bytes)?,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                // Its output is closed: it has ended, or is about to.
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if is_over() {
                return Ok(false);
            }
        }
        self.0.0.wait()?;
        // What it printed last is still on its way to our standard error.
        let _ = errors.join();
        Ok(true)
    }
}

/// A word for the shell.
pub(super) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A path within an option of QEMU's, where a comma stands for two.
fn qemu_path(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

fn path_text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Writes to our standard output at once.
pub fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_given_the_rate_of_its_counter() {
        for counted in [false, true] {
            let machine = Machine {
                counted,
                ..Machine::default()
            };
            let parameters = kernel_parameters(&machine).unwrap();
            let mut words = parameters.split(' ');
            let khz = words.find_map(|word| word.strip_prefix("tsc_early_khz="));
            assert!(khz.unwrap().parse::<u32>().unwrap() > 0, "{parameters}");
        }
    }

    #[test]
    fn a_script_keeps_every_byte_of_an_argument() {
        let job = Job {
            dir: "/".into(),
            command: ["printf", "%s|", "it's", "$HOME `x`", "a\nb", ""]
                .map(str::to_owned)
                .to_vec(),
            env: vec![("NAME".to_owned(), "va'lue".to_owned())],
        };
        let output = Command::new("sh")
            .arg("-c")
            .arg(job.script(false).unwrap())
            .output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(output, "it's|$HOME `x`|a\nb||");
    }
}
