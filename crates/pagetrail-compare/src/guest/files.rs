//! [`Files`]: the host's files that a guest has, at the same paths, with what it takes to start
//! them.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use super::archive::{Archive, Mode};
use super::elf::{Kind, listed};

/// As many as the kernel follows in a path; `path_resolution(7)`.
const LINKS_MAX: u32 = 40;

/// Directories whose files the guest's own kernel has.
const OF_THE_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Why files cannot be in a guest; one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The initial RAM disk cannot be written.
    #[error("cannot write the guest's files: {0}")]
    Write(io::Error),
    /// They are too many.
    #[error("the guest's files are more than {max} bytes, half of its memory, at {}", path.display())]
    TooLarge {
        /// The file that was one too many.
        path: PathBuf,
        /// What there is room for.
        max: u64,
    },
    /// A directory that is no place for files.
    #[error("{} is the kernel's, and a guest has a kernel of its own", .0.display())]
    OfTheKernel(PathBuf),
    /// Symbolic links that lead nowhere.
    #[error("too many symbolic links at {}", .0.display())]
    Links(PathBuf),
}

/// Files on their way into a guest.
#[derive(Debug)]
pub struct Files<W> {
    archive: Archive<W>,
    /// Paths that are there, links not followed.
    seen: HashSet<PathBuf>,
    bytes: u64,
    bytes_max: u64,
    /// For shared objects, which name none.
    loader: Option<PathBuf>,
}

impl<W: Write> Files<W> {
    /// None yet, and no more than so many bytes.
    pub fn new(out: W, bytes_max: u64) -> Self {
        Self {
            archive: Archive::new(out),
            seen: HashSet::from([PathBuf::from("/")]),
            bytes: 0,
            bytes_max,
            loader: None,
        }
    }

    /// Adds a file of our own, at an absolute path.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn own(&mut self, path: &Path, mode: Mode, content: &[u8]) -> Result<(), Error> {
        for parent in path.ancestors().skip(1).collect::<Vec<_>>().iter().rev() {
            if self.seen.insert(parent.to_path_buf()) {
                self.write(parent, Mode::DIRECTORY, &[])?;
            }
        }
        self.seen.insert(path.into());
        self.write(path, mode, content)
    }

    /// Adds a program by its path, or by its name as `path`, a list of directories, finds it; with
    /// what starts it. One that is nowhere is left out: starting it says so.
    ///
    /// # Errors
    ///
    /// Those of [`Files::add`].
    pub fn program(&mut self, name: &OsStr, path: &OsStr) -> Result<(), Error> {
        let found = match name.as_bytes().contains(&b'/') {
            true => Some(PathBuf::from(name)),
            false => {
                let places = std::env::split_paths(path).map(|directory| directory.join(name));
                let mut files = places.filter(|place| place.is_file());
                files.find(|file| is_executable(file))
            }
        };
        match found.filter(|file| file.exists()) {
            Some(file) => self.add(&file),
            None => Ok(()),
        }
    }

    /// Adds a file, or a directory with all that is in it; links lead to what they name, which is
    /// added, too, and programs and shared objects come with what they need to be started.
    ///
    /// # Errors
    ///
    /// What cannot be read or written; more than there is room for.
    pub fn add(&mut self, path: &Path) -> Result<(), Error> {
        let place = self.parents(path)?;
        let metadata = metadata(&place)?;
        if metadata.is_dir() {
            return self.tree(&place);
        }
        self.regular(&place, &metadata)
    }

    /// Adds a directory without what is in it.
    ///
    /// # Errors
    ///
    /// Those of [`Files::add`].
    pub fn directory(&mut self, path: &Path) -> Result<(), Error> {
        self.parents(path).map(drop)
    }

    /// The archive.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn finish(self) -> Result<W, Error> {
        self.archive.finish().map_err(Error::Write)
    }

    /// Adds all directories and links on the way to a path, and the path itself unless it is a
    /// file; gives the place it leads to.
    fn parents(&mut self, path: &Path) -> Result<PathBuf, Error> {
        let path = std::path::absolute(path).map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        let mut rest: Vec<PathBuf> = parts(&path);
        let mut at = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = rest.pop() {
            if part.as_os_str() == ".." {
                at.pop();
                continue;
            }
            at.push(part);
            if OF_THE_KERNEL.iter().any(|own| at == Path::new(own)) {
                return Err(Error::OfTheKernel(path));
            }
            let metadata = metadata(&at)?;
            if metadata.is_symlink() {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Error::Links(path));
                }
                let target = fs::read_link(&at).map_err(|source| Error::Read {
                    path: at.clone(),
                    source,
                })?;
                if self.seen.insert(at.clone()) {
                    let content = target.as_os_str().as_bytes();
                    self.write(&at, Mode::LINK, content)?;
                }
                match target.is_absolute() {
                    true => at = PathBuf::from("/"),
                    false => drop(at.pop()),
                }
                rest.extend(parts(&target));
            } else if metadata.is_dir() && self.seen.insert(at.clone()) {
                self.write(&at, mode(&metadata), &[])?;
            }
        }
        Ok(at)
    }

    /// Adds what is in a directory.
    fn tree(&mut self, directory: &Path) -> Result<(), Error> {
        let read = |source| Error::Read {
            path: directory.into(),
            source,
        };
        for entry in fs::read_dir(directory).map_err(read)? {
            let path = entry.map_err(read)?.path();
            let metadata = metadata(&path)?;
            if metadata.is_dir() {
                self.parents(&path)?;
                self.tree(&path)?;
            } else if metadata.is_file() {
                self.regular(&path, &metadata)?;
            } else if metadata.is_symlink() {
                // One that leads nowhere here does so there; the content of a directory that it
                // leads to may hold the link itself, and is not followed.
                match self.parents(&path) {
                    Ok(place) if place.is_file() => self.add(&place)?,
                    Ok(_) | Err(Error::Read { .. } | Error::OfTheKernel(_) | Error::Links(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            // Sockets, pipes and devices are nothing without the processes at their other end.
        }
        Ok(())
    }

    /// Adds a file to which no link leads any more, and what starts it.
    fn regular(&mut self, path: &Path, metadata: &Metadata) -> Result<(), Error> {
        if !metadata.is_file() || !self.seen.insert(path.into()) {
            return Ok(());
        }
        let content = fs::read(path).map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        self.write(path, mode(metadata), &content)?;
        match Kind::of(&content) {
            Kind::Program(loader) => {
                self.add(&loader)?;
                let needed = needs(&loader, path);
                self.loader.get_or_insert(loader);
                needed.iter().try_for_each(|file| self.add(file))
            }
            Kind::Shared => match self.loader.clone() {
                Some(loader) => {
                    let needed = needs(&loader, path);
                    needed.iter().try_for_each(|file| self.add(file))
                }
                None => Ok(()),
            },
            Kind::Script(interpreter, argument) if interpreter.exists() => {
                self.add(&interpreter)?;
                // `env` and its like find the program by its name.
                let name = argument.unwrap_or_default();
                let search = std::env::var_os("PATH").unwrap_or_default();
                match name.is_empty() || name.starts_with(b"-") {
                    true => Ok(()),
                    false => self.program(OsStr::from_bytes(&name), &search),
                }
            }
            Kind::Script(..) | Kind::Other => Ok(()),
        }
    }

    fn write(&mut self, path: &Path, mode: Mode, content: &[u8]) -> Result<(), Error> {
        self.bytes += content.len() as u64;
        if self.bytes > self.bytes_max {
            let path = path.into();
            let max = self.bytes_max;
            return Err(Error::TooLarge { path, max });
        }
        self.archive.add(path, mode, content).map_err(Error::Write)
    }
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some(PathBuf::from("..")),
        _ => None,
    });
    parts.collect()
}

/// What a program or a shared object needs, as its loader finds it. A loader that fails says
/// nothing: then the program will say what it lacks.
fn needs(loader: &Path, file: &Path) -> Vec<PathBuf> {
    let mut command = Command::new(loader);
    command.arg("--list").arg(file);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output();
    output.map_or_else(|_| Vec::new(), |output| listed(&output.stdout))
}

fn metadata(path: &Path) -> Result<Metadata, Error> {
    fs::symlink_metadata(path).map_err(|source| Error::Read {
        path: path.into(),
        source,
    })
}

fn mode(metadata: &Metadata) -> Mode {
    Mode {
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
    }
}

fn is_executable(file: &Path) -> bool {
    let metadata = fs::metadata(file);
    metadata.is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}
