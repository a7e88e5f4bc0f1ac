//! Lays a kernel out in guest memory, as the kernel's `Documentation/arch/x86/boot.rst` has it, and
//! enters it in protected mode.

use super::Outcome;
use super::sys::Memory;
use kvm_bindings::kvm_segment;
use kvm_ioctls::VcpuFd;

const GDT: u64 = 0x500;
const ZERO_PAGE: u64 = 0x7000;
const COMMAND_LINE: u64 = 0x2_0000;
/// Where memory below 1 MiB ends. After it a PC has its ROMs.
const LOW_END: u64 = 0x9_fc00;
const KERNEL: u64 = 0x10_0000;
const PAGE: u64 = 4096;

/// A flat segment of code at selector 0x10, one of data at 0x18.
const SEGMENTS: [u64; 4] = [0, 0, 0x00cf_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// Where the setup header is in the file and in the zero page, and what of it we read or set.
const HEADER: usize = 0x1f1;
const MAGIC: usize = 0x202;
const LOADER: u64 = 0x210;
const INITRD: u64 = 0x218;
const COMMAND_LINE_POINTER: u64 = 0x228;
const COMMAND_LINE_SIZE: usize = 0x238;
const INIT_SIZE: usize = 0x260;
const PREFERRED_ADDRESS: usize = 0x258;
const E820_ENTRIES: u64 = 0x1e8;
const E820: u64 = 0x2d0;
const E820_RAM: u32 = 1;
/// A loader that has no number of its own.
const LOADER_UNKNOWN: u8 = 0xff;

fn number<const BYTES: usize>(kernel: &[u8], at: usize) -> Outcome<[u8; BYTES]> {
    let bytes = kernel.get(at..at + BYTES);
    let bytes = bytes.ok_or("the kernel ends within its header")?;
    Ok(bytes.try_into()?)
}

/// The setup header, and what is to be loaded at 1 MiB.
fn parts(kernel: &[u8]) -> Outcome<(&[u8], &[u8])> {
    if number(kernel, MAGIC)? != *b"HdrS" {
        return Err("this is no bzImage".into());
    }
    let [sectors] = number(kernel, HEADER)?;
    let [jump] = number(kernel, MAGIC - 1)?;
    let setup_sectors = if sectors == 0 {
        4
    } else {
        usize::from(sectors)
    };
    let header = kernel.get(HEADER..MAGIC + usize::from(jump));
    let code = kernel.get((setup_sectors + 1) * 512..);
    Ok(header
        .zip(code)
        .ok_or("the kernel ends within its header")?)
}

/// Writes kernel, RAM disk and command line to memory, and what the kernel wants to know of them.
pub(crate) fn load(
    memory: &Memory,
    kernel: &[u8],
    initrd: &[u8],
    command_line: &str,
) -> Outcome<()> {
    let (header, code) = parts(kernel)?;
    let longest = u32::from_le_bytes(number(kernel, COMMAND_LINE_SIZE)?);
    if command_line.len() > longest as usize {
        return Err(format!("this kernel's command line has at most {longest} bytes").into());
    }
    let preferred = u64::from_le_bytes(number(kernel, PREFERRED_ADDRESS)?);
    let init_bytes = u32::from_le_bytes(number(kernel, INIT_SIZE)?);
    let unpacked = preferred.saturating_add(init_bytes.into());
    let initrd_at = memory.bytes().saturating_sub(initrd.len() as u64) / PAGE * PAGE;
    if initrd_at < unpacked.max(KERNEL + code.len() as u64) {
        return Err("kernel and RAM disk need more memory".into());
    }
    let put = |address, bytes: &[u8]| match memory.write(address, bytes) {
        true => Ok(()),
        false => Err("the guest has too little memory"),
    };
    put(KERNEL, code)?;
    put(initrd_at, initrd)?;
    put(COMMAND_LINE, command_line.as_bytes())?;
    put(COMMAND_LINE + command_line.len() as u64, &[0])?;
    put(GDT, &SEGMENTS.map(u64::to_le_bytes).concat())?;
    put(ZERO_PAGE, &[0; PAGE as usize])?;
    put(ZERO_PAGE + HEADER as u64, header)?;
    put(ZERO_PAGE + LOADER, &[LOADER_UNKNOWN])?;
    let disk = [initrd_at as u32, initrd.len() as u32].map(u32::to_le_bytes);
    put(ZERO_PAGE + INITRD, &disk.concat())?;
    let pointer = (COMMAND_LINE as u32).to_le_bytes();
    put(ZERO_PAGE + COMMAND_LINE_POINTER, &pointer)?;
    let ranges = [(0, LOW_END), (KERNEL, memory.bytes() - KERNEL)];
    put(ZERO_PAGE + E820_ENTRIES, &[ranges.len() as u8])?;
    for (at, (start, bytes)) in (E820..).step_by(20).zip(ranges) {
        let entry = [start.to_le_bytes(), bytes.to_le_bytes()].concat();
        put(ZERO_PAGE + at, &entry)?;
        put(ZERO_PAGE + at + 16, &E820_RAM.to_le_bytes())?;
    }
    Ok(())
}

/// Sets the registers to the kernel's entry for loaders in protected mode.
pub(crate) fn enter(vcpu: &VcpuFd) -> Outcome<()> {
    let mut sregs = vcpu.get_sregs()?;
    sregs.gdt.base = GDT;
    sregs.gdt.limit = size_of_val(&SEGMENTS) as u16 - 1;
    sregs.cs = segment(0x10, 11);
    for data in [
        &mut sregs.ds,
        &mut sregs.es,
        &mut sregs.fs,
        &mut sregs.gs,
        &mut sregs.ss,
    ] {
        *data = segment(0x18, 3);
    }
    sregs.cr0 |= 1;
    vcpu.set_sregs(&sregs)?;
    let mut regs = vcpu.get_regs()?;
    regs.rip = KERNEL;
    regs.rsi = ZERO_PAGE;
    regs.rflags = 2;
    Ok(vcpu.set_regs(&regs)?)
}

/// A flat segment of this type (`SDM` 3A, 3.4.5.1: 11 is code, 3 data).
fn segment(selector: u16, type_: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    }
}
