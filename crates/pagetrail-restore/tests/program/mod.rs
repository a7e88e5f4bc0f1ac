//! Programs that are checkpointed, killed and started anew: shared by the tests of this crate.

#![allow(dead_code, reason = "each test uses its part")]

use crate::support;
use pagetrail_checkpoint::storage::InMemory;
use pagetrail_checkpoint::{
    Error, Image, ProcessCheckpointer, ProcessOptions, Store, WriterOptions,
};
use pagetrail_restore::{Missing, RestoreOptions};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs::{self, File};
use std::process::{Command, Stdio as Standard};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// A program in a directory of its own, a child of this process: started, or restored.
pub(crate) struct Program {
    pub(crate) pid: Pid,
    pub(crate) directory: TempDir,
}

impl Program {
    /// Starts a command with nothing open but files.
    pub(crate) fn start(command: &mut Command, directory: TempDir) -> Self {
        let output = File::create(directory.path().join("output")).unwrap();
        let child = command
            .stdin(Standard::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        Self { pid, directory }
    }

    /// Starts the victim `name` with its directory and `arguments`, and waits until it is ready;
    /// otherwise the test is skipped.
    pub(crate) fn of_victim(name: &str, arguments: &[&str]) -> Option<Self> {
        let program = support::victim_program(name)?;
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.arg(directory.path()).args(arguments);
        let running = Self::start(&mut command, directory);
        running.await_output("ready");
        Some(running)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    /// Waits until the program has something said; fails if it ends before.
    pub(crate) fn await_output(&self, wanted: &str) {
        while !self.text("output").contains(wanted) {
            self.assert_running();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn assert_running(&self) {
        let ended = waitpid(Some(self.pid), WaitOptions::NOHANG).unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", self.text("output"));
    }

    pub(crate) fn kill(&self) {
        kill_process(self.pid, Signal::KILL).unwrap();
        waitpid(Some(self.pid), WaitOptions::empty()).unwrap();
    }

    /// Waits for the end; gives the exit code.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        let status = waitpid(Some(self.pid), WaitOptions::empty()).unwrap();
        status.unwrap().1.exit_status()
    }

    /// Waits for the end of a program that has found nothing wrong.
    pub(crate) fn ends_clean(&self) {
        let code = self.exit_code();
        assert_eq!(code, Some(0), "{}", self.text("output"));
        assert!(self.text("output").ends_with("clean\n"));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended, and been waited for.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
    }
}

/// A checkpoint of a process, in a store in memory.
pub(crate) fn checkpoint(pid: u32) -> Image {
    let store = Store::create_on(Arc::new(InMemory::new())).unwrap();
    let mut writer = store.writer(WriterOptions::default()).unwrap();
    let options = ProcessOptions {
        restartable: true,
        ..ProcessOptions::default()
    };
    // A child that another test is just starting has the pager's descriptors until it executes.
    let mut process = loop {
        match ProcessCheckpointer::attach(pid, options) {
            Err(Error::NotNow(_)) => std::thread::sleep(Duration::from_millis(1)),
            attached => break attached.unwrap(),
        }
    };
    process.checkpoint(&mut writer).unwrap();
    store.newest_image().unwrap()
}

/// What the harness leaves open in its children does not matter, and files have grown since.
pub(crate) fn options() -> RestoreOptions {
    RestoreOptions {
        on_missing: Missing::Null,
        allow_changed_files: true,
        ..RestoreOptions::default()
    }
}

/// Whether this machine lets a process choose its PID; otherwise the test is skipped.
pub(crate) fn may_choose_pids() -> bool {
    let may = support::is_root();
    if !may {
        pagetrail_skips::not_here("processes get the PIDs that they had only by root");
    }
    may
}
