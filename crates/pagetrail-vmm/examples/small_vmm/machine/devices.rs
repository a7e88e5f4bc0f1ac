//! The devices: a serial port, one that writes to guest memory as disks and networks do, and the
//! guest's share of its log.

use super::Outcome;
use super::sys::{self, Memory};
use kvm_ioctls::VmFd;
use pagetrail_vmm::{GuestLog, OwnWrites, Tracker};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};

const COM1: u16 = 0x3f8;
const COM1_IRQ: u32 = 4;
/// Where the registers of a PC's clock are read.
const CLOCK: u16 = 0x71;
/// A register of 32 bits outside of memory. A write of the number of a page has the page filled
/// with a number, of which there is a new one each time; a read returns the last one.
///
/// It is no port, since the guest's program uses it: QEMU refuses ports to the programs of a guest
/// of its guest once that guest's task register has been set (`helper_check_io` expects one that
/// is not busy).
const FILL: u64 = 0xd000_0000;
const PAGE: u64 = 4096;
/// Where the guest finds its log (the parameter `at` of the module in `research/ooh`).
const LOG: u64 = 0xd100_0000;
const DOORBELL: u64 = LOG + GuestLog::DOORBELL;

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
    /// What the log's memory has.
    log: Vec<(u64, u64)>,
}

impl DeviceState {
    /// Adds all of it, for a file.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let serial = &self.serial;
        out.extend([
            serial.baud_divisor_low,
            serial.baud_divisor_high,
            serial.interrupt_enable,
            serial.interrupt_identification,
            serial.line_control,
            serial.line_status,
            serial.modem_control,
            serial.modem_status,
            serial.scratch,
        ]);
        out.extend(sys::bytes_of(&(serial.in_buffer.len() as u32)));
        out.extend(&serial.in_buffer);
        out.extend(sys::bytes_of(&self.filled));
        out.extend(sys::bytes_of(&(self.log.len() as u32)));
        for (at, word) in &self.log {
            out.extend(sys::bytes_of(at));
            out.extend(sys::bytes_of(word));
        }
    }

    /// Takes what [`Self::put`] added off the front; `None` if there is too little.
    pub(crate) fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (registers, rest) = bytes.split_first_chunk::<9>()?;
        *bytes = rest;
        let waiting: u32 = sys::take(bytes)?;
        let (in_buffer, rest) = bytes.split_at_checked(waiting as usize)?;
        *bytes = rest;
        let [
            low,
            high,
            enable,
            identification,
            line,
            status,
            modem,
            modem_status,
            scratch,
        ] = *registers;
        let serial = SerialState {
            baud_divisor_low: low,
            baud_divisor_high: high,
            interrupt_enable: enable,
            interrupt_identification: identification,
            line_control: line,
            line_status: status,
            modem_control: modem,
            modem_status,
            scratch,
            in_buffer: in_buffer.to_vec(),
        };
        let filled = sys::take(bytes)?;
        let words: u32 = sys::take(bytes)?;
        let log = (0..words).map(|_| Some((sys::take(bytes)?, sys::take(bytes)?)));
        let log: Vec<(u64, u64)> = log.collect::<Option<_>>()?;
        let fits = |(at, _): &(u64, u64)| at % 8 == 0 && *at < GuestLog::MEMORY_BYTES;
        log.iter().all(fits).then_some(Self {
            serial,
            filled,
            log,
        })
    }
}

pub(crate) struct Devices {
    serial: Serial<Edge, NoEvents, Console>,
    memory: Arc<Memory>,
    writes: OwnWrites,
    /// How many pages were filled.
    filled: u32,
    log: GuestLog,
    /// Dropped after the log.
    log_memory: Memory,
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
        let log_memory = Memory::of_device(LOG, GuestLog::MEMORY_BYTES)?;
        let log = log_memory.device();
        let log = match state {
            None => GuestLog::new(log)?,
            Some(state) => {
                state
                    .log
                    .iter()
                    .for_each(|(at, word)| log.store(*at, *word));
                GuestLog::restored(log)?
            }
        };
        Ok(Self {
            serial,
            memory,
            writes,
            filled: state.map_or(0, |state| state.filled),
            log,
            log_memory,
        })
    }

    /// The memory of devices.
    pub(crate) fn memory(&self) -> &Memory {
        &self.log_memory
    }

    /// The guest's share of the log.
    pub(crate) fn log(&self) -> &GuestLog {
        &self.log
    }

    /// Lets the guest have what the tracker finds.
    pub(crate) fn share(&mut self, tracker: Option<&Tracker>) {
        self.log.share(tracker);
    }

    pub(crate) fn state(&self) -> DeviceState {
        DeviceState {
            serial: self.serial.state(),
            filled: self.filled,
            log: self.log.memory().words().collect(),
        }
    }

    /// The guest reads a port. Where no device is, all bits are set.
    pub(crate) fn read(&mut self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        match (port, data) {
            (COM1.., [byte]) if port - COM1 < 8 => *byte = self.serial.read((port - COM1) as u8),
            // No clock, and so none that is just being set: Linux before 7 would wait for it with
            // 65,000 reads, which in emulation is half a minute.
            (CLOCK, [byte]) => *byte = 0,
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
        let Ok(number) = data.try_into().map(u32::from_le_bytes) else {
            return;
        };
        match address {
            FILL => self.fill(number),
            DOORBELL => self.log.ring(number),
            _ => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use kvm_ioctls::Kvm;
    use pagetrail_vmm::{Regions, Start};

    const MEMORY_BYTES: u64 = 1 << 20;

    fn machine() -> Outcome<Arc<VmFd>> {
        let vm = Kvm::new()?.create_vm()?;
        vm.create_irq_chip()?;
        Ok(Arc::new(vm))
    }

    /// Any access to any port and any address that a guest can make: the monitor goes on, and has
    /// all that was written to the guest's memory.
    #[test]
    fn a_hostile_guest_may_access_what_it_likes() {
        let vm = match machine() {
            Ok(vm) => vm,
            Err(error) => return pagetrail_skips::not_here(format!("no KVM: {error}")),
        };
        for seed in 0..20 {
            let memory = Arc::new(Memory::new(MEMORY_BYTES).unwrap());
            let writes = OwnWrites::new();
            let regions = Regions::new([memory.region()]).unwrap();
            let tracker = Tracker::new(regions, vec![Box::new(writes.clone())]).unwrap();
            let consumer = tracker.consumer(Start::Now).unwrap();
            let console = Console::default();
            let devices = Devices::new(vm.clone(), memory.clone(), console, writes, None);
            let mut devices = devices.unwrap();
            devices.share(Some(&tracker));
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..20_000 {
                let port = match random.bool() {
                    true => COM1 + random.u16(0..9),
                    false => random.u16(..),
                };
                let address = match random.u8(0..4) {
                    0 => FILL,
                    1 => DOORBELL,
                    2 => FILL + random.u64(0..64 << 20),
                    _ => random.u64(..),
                };
                let number = match random.bool() {
                    true => random.u32(0..300),
                    false => random.u32(..),
                };
                let mut data = number.to_le_bytes().repeat(2);
                data.truncate([1, 2, 4, 8][random.usize(0..4)]);
                match random.u8(0..5) {
                    0 => devices.read(port, &mut data),
                    1 => devices.write(port, &data).unwrap(),
                    2 => devices.read_memory(address, &mut data),
                    3 => devices.write_memory(address, &data),
                    _ => {
                        let at = random.u64(0..GuestLog::MEMORY_BYTES / 8) * 8;
                        devices.log.memory().store(at, random.u64(..));
                    }
                }
            }
            // Pages that were filled have a number, and are in the round; the others are zeros.
            let round = consumer.collect().unwrap();
            let filled = round.dirty().of_slot(0).unwrap();
            assert!(!filled.is_empty());
            let mut page = [0; PAGE as usize];
            for number in 0..MEMORY_BYTES / PAGE {
                memory.region().copy(number * PAGE, &mut page);
                let is_zeros = page.iter().all(|byte| *byte == 0);
                assert_eq!(
                    is_zeros,
                    !filled.contains(number),
                    "page {number}, seed {seed}"
                );
            }
            round.commit();
            // And it can be saved.
            let mut bytes = Vec::new();
            devices.state().put(&mut bytes);
            let mut rest = &bytes[..];
            assert!(DeviceState::take(&mut rest).is_some() && rest.is_empty());
        }
    }
}
