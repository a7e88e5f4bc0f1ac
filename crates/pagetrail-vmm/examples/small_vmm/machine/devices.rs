//! The devices: a serial port, and one that writes to guest memory as disks and networks do.

use super::Outcome;
use super::sys::Memory;
use kvm_ioctls::VmFd;
use pagetrail_vmm::OwnWrites;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};

const COM1: u16 = 0x3f8;
const COM1_IRQ: u32 = 4;
/// A register of 32 bits outside of memory. A write of the number of a page has the page filled
/// with a number, of which there is a new one each time; a read returns the last one.
///
/// It is no port, since the guest's program uses it: QEMU refuses ports to the programs of a guest
/// of its guest once that guest's task register has been set (`helper_check_io` expects one that
/// is not busy).
const FILL: u64 = 0xd000_0000;
const PAGE: u64 = 4096;

/// What the guest has printed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Console(Arc<Mutex<Vec<u8>>>);

impl Console {
    pub(crate) fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Interrupt 4, which is raised by its edge.
struct Edge(Arc<VmFd>);

impl Trigger for Edge {
    type E = kvm_ioctls::Error;

    fn trigger(&self) -> Result<(), Self::E> {
        self.0.set_irq_line(COM1_IRQ, true)?;
        self.0.set_irq_line(COM1_IRQ, false)
    }
}

/// What the devices are in the middle of.
pub(crate) struct DeviceState {
    serial: SerialState,
    filled: u32,
}

pub(crate) struct Devices {
    serial: Serial<Edge, NoEvents, Console>,
    memory: Arc<Memory>,
    writes: OwnWrites,
    /// How many pages were filled.
    filled: u32,
}

impl Devices {
    pub(crate) fn new(
        vm: Arc<VmFd>,
        memory: Arc<Memory>,
        console: Console,
        writes: OwnWrites,
        state: Option<&DeviceState>,
    ) -> Outcome<Self> {
        let serial = match state {
            None => Serial::new(Edge(vm), console),
            Some(state) => Serial::from_state(&state.serial, Edge(vm), NoEvents, console)
                .map_err(|error| format!("the serial port cannot go on: {error:?}"))?,
        };
        Ok(Self {
            serial,
            memory,
            writes,
            filled: state.map_or(0, |state| state.filled),
        })
    }

    pub(crate) fn state(&self) -> DeviceState {
        DeviceState {
            serial: self.serial.state(),
            filled: self.filled,
        }
    }

    /// The guest reads a port. Where no device is, all bits are set.
    pub(crate) fn read(&mut self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        match (port, data) {
            (COM1.., [byte]) if port - COM1 < 8 => *byte = self.serial.read((port - COM1) as u8),
            _ => {}
        }
    }

    /// The guest reads where no memory is.
    pub(crate) fn read_memory(&mut self, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        if address == FILL && data.len() == 4 {
            data.copy_from_slice(&self.filled.to_le_bytes());
        }
    }

    /// The guest writes where no memory is.
    pub(crate) fn write_memory(&mut self, address: u64, data: &[u8]) {
        if let (FILL, &[a, b, c, d]) = (address, data) {
            self.fill(u32::from_le_bytes([a, b, c, d]));
        }
    }

    /// The guest writes to a port.
    pub(crate) fn write(&mut self, port: u16, data: &[u8]) -> Outcome<()> {
        match (port, data) {
            (COM1.., &[byte]) if port - COM1 < 8 => {
                let written = self.serial.write((port - COM1) as u8, byte);
                written.map_err(|error| format!("the serial port fails: {error:?}"))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Fills a page of the guest, which may name any: what is none of its own stays as it is.
    fn fill(&mut self, page: u32) {
        let number = u64::from(self.filled.wrapping_add(1));
        let contents = number.to_le_bytes().repeat(PAGE as usize / 8);
        let address = u64::from(page) * PAGE;
        if self.memory.write(address, &contents) {
            self.filled = number as u32;
            self.writes.mark(address, PAGE);
        }
    }
}
