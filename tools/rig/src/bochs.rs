//! `cargo xtask bochs`: runs a static program on an emulated Intel processor with EPT and page
//! modification logging, which no QEMU emulates.
//!
//! Bochs is a single, slow processor, and the guest has nothing but this program: see `bochs.sh`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::apt::{AMD64, Apt};
use super::cache::{Cache, Kind};
use super::initrd::Archive;
use super::kernel::Series;
use super::mirror::Mirror;
use super::process::{Running, bound, bound_offline};
use super::{STATUS_TIMED_OUT, busybox, guest, seconds};
use pagetrail_steps::repo::Repo;
use pagetrail_steps::steps::NotHere;

const USAGE: &str = "\
usage: cargo xtask bochs [--timeout SECONDS] [--shadow] -- STATIC_PROGRAM [ARGUMENT ..]

Runs a statically linked program, as root and alone, on an emulated Intel processor with EPT and page
modification logging: /dev/kvm is there. With --shadow KVM has shadow page tables instead of EPT. Booting takes one to two minutes (default time-out: 600).
What the program prints, on both outputs, comes when it has ended.

Exit status: that of the program; 124 if it ran out of time; 3 if it is not possible here, 2 if it failed.
";

const PACKAGES: &[&str] = &[
    "bochs",
    // The smallest of the displays, one of which must be installed. It is not used.
    "bochs-term",
    "bochsbios",
    "isolinux",
    "syslinux-common",
    "vgabios",
    "xorriso",
];

/// `cargo xtask bochs ARGS`.
pub fn run(repo: &Repo, args: &[String]) -> Result<ExitCode> {
    if args == ["--help"] || args == ["-h"] {
        print!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    let (settings, command) = parse(args)?;
    let ran = run_program(repo, settings, command)?;
    guest::print_bytes(&ran.printed)?;
    match ran.status {
        Some(status) => Ok(ExitCode::from(status)),
        None => {
            eprintln!(
                "xtask: ended after {} s (--timeout)",
                settings.timeout.as_secs()
            );
            Ok(ExitCode::from(STATUS_TIMED_OUT))
        }
    }
}

/// How KVM translates the addresses of its guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paging {
    /// The processor does, by a second page table (EPT).
    Nested,
    /// KVM keeps shadow page tables: copies of the guest's, with the host's addresses. A guest
    /// that may have paging off needs EPT, so there are none of these.
    Shadow,
}

impl Paging {
    /// The parameters of the module `kvm_intel`.
    fn parameters(self) -> &'static str {
        match self {
            Self::Nested => "",
            Self::Shadow => " ept=0 unrestricted_guest=0",
        }
    }
}

/// How a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long it may run.
    pub timeout: Duration,
    /// What its guests get.
    pub paging: Paging,
    /// Its memory, in which its files lie, too.
    pub memory_mib: u32,
}

/// Its memory where nothing but a program runs.
const MEMORY_MIB: u32 = 512;

impl Settings {
    /// With nested paging.
    pub fn nested(timeout: Duration) -> Self {
        Self {
            timeout,
            paging: Paging::Nested,
            memory_mib: MEMORY_MIB,
        }
    }
}

/// What a program came to.
pub struct Ran {
    /// What the program printed.
    pub printed: Vec<u8>,
    /// `None` if it ran out of time.
    pub status: Option<u8>,
}

/// A static program of several that run in one boot.
pub struct Program {
    /// Its path, and its arguments.
    pub command: Vec<String>,
    /// What its guests get.
    pub paging: Paging,
}

/// Runs static programs one after the other in one boot, which takes longer than most of them;
/// `settings` has the paging to begin with. What a program that ran came to is at its place; one
/// that comes after the time is over came to nothing.
pub fn run_all(repo: &Repo, settings: Settings, programs: &[Program]) -> Result<Vec<Ran>> {
    let mut files = Vec::new();
    for (number, program) in programs.iter().enumerate() {
        files.push((place(number), PathBuf::from(&program.command[0])));
    }
    let script = repo.target.join("bochs-programs.sh");
    fs::write(&script, script_of(settings.paging, programs))?;
    let ran = run_with(repo, settings, &[script.display().to_string()], &files)?;
    let parts = parts(&ran.printed);
    let printed = String::from_utf8_lossy(&ran.printed);
    ensure!(!parts.is_empty(), "no program ended: {printed}");
    Ok(parts)
}

/// Where a program of several lies.
fn place(number: usize) -> String {
    format!("program-{number}")
}

/// The commands that run programs, each with a mark and its status after its output.
fn script_of(mut paging: Paging, programs: &[Program]) -> String {
    let mut script = "#!/bin/busybox sh\n".to_owned();
    for (number, program) in programs.iter().enumerate() {
        if program.paging != paging {
            paging = program.paging;
            // The file's name has a dash in some kernels' packages.
            let parameters = paging.parameters();
            script += &format!("rmmod kvm_intel; insmod /modules/kvm?intel{parameters} || exit\n");
        }
        let words = program.command[1..].iter().map(|word| guest::quote(word));
        let words: Vec<String> = words.collect();
        let program = place(number);
        script += &format!(
            "/{program} {}\nprintf '\\nRIG rc=%s\\n' $?\n",
            words.join(" ")
        );
    }
    script
}

/// What programs printed, each before its mark, and their statuses.
fn parts(printed: &[u8]) -> Vec<Ran> {
    let text = String::from_utf8_lossy(printed);
    let mut parts = Vec::new();
    let mut rest = &text[..];
    while let Some((own, after)) = rest.split_once("\nRIG rc=") {
        let (status, after) = after.split_once('\n').unwrap_or((after, ""));
        parts.push(Ran {
            printed: own.as_bytes().to_vec(),
            status: status.parse().ok(),
        });
        rest = after;
    }
    parts
}

/// Runs a static program, with its arguments.
pub fn run_program(repo: &Repo, settings: Settings, command: &[String]) -> Result<Ran> {
    run_with(repo, settings, command, &[])
}

/// Runs a static program that finds files of the host at other paths; each parent of these has to
/// be in the list before, as a directory of the host.
pub fn run_with(
    repo: &Repo,
    settings: Settings,
    command: &[String],
    files: &[(String, PathBuf)],
) -> Result<Ran> {
    let program = &command[0];
    let payload = fs::read(program).with_context(|| format!("cannot read {program}"))?;
    let cache = Cache::open()?;
    let _turn = cache.turn(Kind::OtherProcessor)?;
    let fetching = cache.lock()?;
    let bochs = Bochs::fetch(&cache, repo.target.join("bochs"))?;
    let disc = bochs.disc(&cache, settings.paging, &payload, command, files)?;
    drop(fetching);
    let in_time = bochs.boot(&disc, settings)?;
    let output = fs::read(bochs.dir.join("output")).unwrap_or_default();
    let (printed, status) = split(&output);
    if status.is_none() && in_time {
        bail!("the guest died; see {}", bochs.dir.display());
    }
    Ok(Ran {
        printed: printed.to_vec(),
        status,
    })
}

fn parse(args: &[String]) -> Result<(Settings, &[String])> {
    let mut settings = Settings::nested(Duration::from_secs(600));
    let mut rest = args;
    loop {
        rest = match rest {
            [option, value, rest @ ..] if option == "--timeout" => {
                settings.timeout = seconds(value)?;
                rest
            }
            [option, rest @ ..] if option == "--shadow" => {
                settings.paging = Paging::Shadow;
                rest
            }
            [dashes, command @ ..] if dashes == "--" && !command.is_empty() => {
                return Ok((settings, command));
            }
            _ => bail!("no program\n{USAGE}"),
        };
    }
}

/// What the program printed, and its exit status, if it came to that.
fn split(output: &[u8]) -> (&[u8], Option<u8>) {
    const MARK: &[u8] = b"\nRIG rc=";
    let Some(at) = output
        .windows(MARK.len())
        .rposition(|window| window == MARK)
    else {
        return (output, None);
    };
    let status = String::from_utf8_lossy(&output[at + MARK.len()..]);
    match status.trim_end().parse() {
        Ok(status) => (&output[..at], Some(status)),
        Err(_) => (output, None),
    }
}

/// The emulator, unpacked, and a directory for its files.
struct Bochs {
    piece: PathBuf,
    dir: PathBuf,
}

impl Bochs {
    fn fetch(cache: &Cache, dir: PathBuf) -> Result<Self> {
        let piece = cache.piece("bochs", |fresh| {
            let mirror = Mirror::find()?;
            let Some(suite) = mirror.host_suite.as_deref() else {
                return Err(NotHere::error("Bochs is only fetched on Debian"));
            };
            eprintln!("xtask: fetching Bochs");
            let apt = Apt::open(cache.dir.join("apt").join(suite), &mirror, &[suite])?;
            apt.fetch_with_missing(PACKAGES, suite, fresh)
        })?;
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        Ok(Self { piece, dir })
    }

    /// A file of one of the packages: unpacked, or the host's where the package was there already.
    fn file(&self, path: &str) -> PathBuf {
        let unpacked = self.piece.join(path);
        if unpacked.exists() {
            unpacked
        } else {
            Path::new("/").join(path)
        }
    }

    /// A bootable disc with kernel, RAM disk and program.
    fn disc(
        &self,
        cache: &Cache,
        paging: Paging,
        payload: &[u8],
        command: &[String],
        files: &[(String, PathBuf)],
    ) -> Result<PathBuf> {
        let kernel = Series::named("6.12")?.fetch(cache, AMD64)?;
        let busybox = busybox(cache, AMD64)?;
        let mut archive = Archive::default();
        for dir in ["bin", "dev", "proc", "sys", "tmp", "modules"] {
            archive.directory(dir);
        }
        archive.file("init", include_bytes!("bochs.sh"));
        archive.file("bin/busybox", &fs::read(&busybox)?);
        archive.file("payload", payload);
        archive.file("command.sh", script(&command[1..]).as_bytes());
        for (place, file) in files {
            match file.is_dir() {
                true => archive.directory(place),
                false => {
                    let content = fs::read(file).with_context(|| file.display().to_string())?;
                    archive.file(place, &content);
                }
            }
        }
        let mut order = String::new();
        for (name, code) in kernel.modules(&["kvm_intel".to_owned()], &busybox)? {
            archive.file(&format!("modules/{name}"), &code);
            let parameters = match name.as_str() {
                "kvm_intel" | "kvm-intel" => paging.parameters(),
                _ => "",
            };
            order += &format!("{name}{parameters}\n");
        }
        archive.file("modules/order", order.as_bytes());

        let tree = self.dir.join("disc");
        fs::create_dir_all(tree.join("isolinux"))?;
        fs::write(tree.join("initrd"), archive.finish())?;
        fs::copy(&kernel.image, tree.join("vmlinuz"))?;
        fs::write(tree.join("isolinux/isolinux.cfg"), BOOT_LOADER)?;
        for file in ["ISOLINUX/isolinux.bin", "syslinux/modules/bios/ldlinux.c32"] {
            let name = file.rsplit('/').next().unwrap_or(file);
            fs::copy(
                self.file(&format!("usr/lib/{file}")),
                tree.join("isolinux").join(name),
            )?;
        }
        let disc = self.dir.join("disc.iso");
        let mut xorriso = bound(self.file("usr/bin/xorriso"));
        xorriso
            .args(["-as", "mkisofs", "-quiet", "-b", "isolinux/isolinux.bin"])
            .args([
                "-c",
                "isolinux/boot.cat",
                "-no-emul-boot",
                "-boot-load-size",
                "4",
            ])
            .args(["-boot-info-table", "-o"])
            .args([&disc, &tree])
            .stderr(Stdio::null());
        let status = self.with_libraries(&mut xorriso).status()?;
        ensure!(status.success(), "xorriso cannot make the disc");
        Ok(disc)
    }

    /// Boots the disc; false if it was not over in time.
    fn boot(&self, disc: &Path, settings: Settings) -> Result<bool> {
        let deadline = Instant::now() + settings.timeout;
        let configuration = self.dir.join("bochsrc");
        fs::write(
            &configuration,
            self.configuration(disc, settings.memory_mib),
        )?;
        let log = fs::File::create(self.dir.join("bochs.log"))?;
        // It offers its screen to the network, which nobody has asked for.
        let mut bochs = bound_offline(self.file("usr/bin/bochs-bin"));
        bochs.arg("-q").arg("-f").arg(configuration);
        if self.has_debugger()? {
            let script = self.dir.join("debugger");
            fs::write(&script, "c\n")?;
            bochs.arg("-rc").arg(script);
        }
        bochs.stdout(log.try_clone()?).stderr(log);
        Running::start(self.with_libraries(&mut bochs))?.ends_by(deadline)
    }

    /// True for a Bochs that stops before the first instruction and waits for the command to go on.
    fn has_debugger(&self) -> Result<bool> {
        let mut help = bound(self.file("usr/bin/bochs-bin"));
        let output = self.with_libraries(help.arg("--help")).output()?;
        let text = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&text).contains("-rc "))
    }

    fn with_libraries<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let libraries = self.piece.join("usr/lib/x86_64-linux-gnu");
        let plugins = self.file("usr/lib/x86_64-linux-gnu/bochs/plugins");
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env("LTDL_LIBRARY_PATH", plugins)
            .env("BXSHARE", self.file("usr/share/bochs"))
    }

    fn configuration(&self, disc: &Path, memory_mib: u32) -> String {
        let bios = self.file("usr/share/bochs/BIOS-bochs-latest");
        let vga_bios = self.file("usr/share/bochs/VGABIOS-lgpl-latest");
        format!(
            "\
cpu: model=corei7_skylake_x, count=1, ips=50000000, reset_on_triple_fault=0
memory: guest={memory_mib}, host={memory_mib}
clock: sync=none
romimage: file={}
vgaromimage: file={}
ata0-master: type=cdrom, path={}, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={}
com2: enabled=1, mode=file, dev={}
display_library: rfb, options=\"timeout=0\"
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
speaker: enabled=0, mode=none
log: /dev/stdout
panic: action=fatal
error: action=ignore
info: action=ignore
",
            bios.display(),
            vga_bios.display(),
            disc.display(),
            self.dir.join("console.log").display(),
            self.dir.join("output").display(),
        )
    }
}

/// One processor, no power management worth its time, and a guest that stays dead when it panics.
const BOOT_LOADER: &str = "\
DEFAULT linux
PROMPT 0
LABEL linux
 KERNEL /vmlinuz
 INITRD /initrd
 APPEND console=ttyS0 quiet mitigations=off nokaslr nosmp nolapic_timer tsc=reliable lsm= apparmor=0 audit=0 lpj=1000000 no_timer_check
";

fn script(args: &[String]) -> String {
    let args: Vec<String> = args.iter().map(|arg| guest::quote(arg)).collect();
    format!("exec /payload {}\n", args.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_one_boot_are_separate() {
        let program = |words: &[&str], paging| Program {
            command: words.iter().map(|&word| word.to_owned()).collect(),
            paging,
        };
        let programs = [
            program(&["/first"], Paging::Nested),
            program(&["/second", "a b"], Paging::Shadow),
            program(&["/third"], Paging::Shadow),
        ];
        let script = script_of(Paging::Nested, &programs);
        let lines: Vec<&str> = script.lines().collect();
        assert_eq!(lines.len(), 8, "{script}");
        assert!(lines[3].contains("ept=0"), "{script}");
        assert_eq!(lines[4], "/program-1 'a b'");
        assert_eq!(lines[6].trim_end(), "/program-2");

        let ran = parts(b"a\nb\n\nRIG rc=0\n\nRIG rc=7\ncut");
        let ran: Vec<_> = ran.iter().map(|ran| (&*ran.printed, ran.status)).collect();
        assert_eq!(ran, [(&b"a\nb\n"[..], Some(0)), (&b""[..], Some(7))]);
    }

    #[test]
    fn the_status_is_split_from_the_output() {
        assert_eq!(split(b"a\nb\n\nRIG rc=7\n"), (&b"a\nb\n"[..], Some(7)));
        assert_eq!(split(b"\nRIG rc=0\n"), (&b""[..], Some(0)));
        assert_eq!(split(b"cut off\nRIG rc="), (&b"cut off\nRIG rc="[..], None));
        assert_eq!(split(b"a\n"), (&b"a\n"[..], None));
    }

    #[test]
    fn reads_its_arguments() {
        let parsed = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            parse(&words).map(|(settings, command)| {
                (settings.timeout.as_secs(), settings.paging, command.len())
            })
        };
        assert_eq!(
            parsed("--timeout 9 -- prog --shadow").unwrap(),
            (9, Paging::Nested, 2)
        );
        assert_eq!(
            parsed("--shadow --timeout 9 -- prog").unwrap(),
            (9, Paging::Shadow, 1)
        );
        assert_eq!(parsed("-- prog").unwrap(), (600, Paging::Nested, 1));
        for line in [
            "",
            "--",
            "prog",
            "--timeout -- prog",
            "--timeout 9",
            "--fast -- prog",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
