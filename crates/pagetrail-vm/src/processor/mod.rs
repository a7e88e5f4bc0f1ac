//! The virtual processor (vCPU): how it enters and leaves the program, and what CPUID offers.
//!
//! The program runs in ring 3. Ring 0 has a few instructions ([`entry`]), which only exit to this
//! process: a system call and an exception are one VM exit each. [`cpuid`] decides what the program
//! sees of the processor.

pub(crate) mod cpuid;
pub(crate) mod entry;
pub(crate) mod fault;
mod state;

use std::os::fd::RawFd;

use kvm_bindings::{kvm_regs, kvm_sregs, kvm_xsave};
use pagetrail::HeldThread;

use crate::check;
use crate::error::{Error, Result};
use crate::memory::{Memory, SYSTEM_BASE};
use crate::standing::registers_of;
use crate::sys::kvm::{Cpu, Exit, Vm};
use crate::sys::ring::Ring;
use crate::sys::signal;
use cpuid::Features;
use entry::{Frame, Page, Place};
use fault::Exception;

/// Under QEMU's emulation of an AMD processor, KVM's shadow paging ends every guest at its first
/// instructions, one with Linux, too.
const WITHOUT_NESTED_PAGING: &str = "guests that run without nested paging (kvm_amd has npt=0, which ends \
     every guest on an AMD processor that QEMU emulates): load kvm_amd with npt=1";

/// Why the program has stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The program made a system call.
    Call,
    /// The program caused an exception.
    Exception(Exception),
    RingFull,
    Interrupted,
    /// A page that the page tables map has no memory.
    BadMemory,
}

/// A vCPU in long mode.
#[derive(Debug)]
pub(crate) struct Processor {
    cpu: Cpu,
    page: Page,
    features: Features,
    /// Whether the time stamp counter is this machine's.
    shares_counter: bool,
}

/// All of a program's state in a vCPU.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) context: kvm_regs,
    sregs: kvm_sregs,
    xsave: Box<kvm_xsave>,
}

impl Processor {
    /// Adds vCPU `id` to a virtual machine with this memory.
    pub(crate) fn add(vm: &Vm, memory: &mut Memory, id: u64) -> Result<Self> {
        let page = Page::of(id);
        if id == 0 {
            entry::write_common(memory.system());
            for common in entry::COMMON_PAGES {
                memory.map_system(common)?;
            }
        }
        page.write(memory.system());
        memory.map_system(page.physical())?;
        let mut cpu = vm.add_cpu(id)?;
        let cpuid = cpuid::offered(vm.supported_cpuid()?);
        cpu.set_cpuid(&cpuid)?;
        let has = cpuid::features(&cpuid);
        cpu.set_sregs(&state::initial(cpu.sregs()?, memory.root(), page, has))?;
        if has.xcr0 != 0 {
            cpu.set_xcr0(has.xcr0)?;
        }
        cpu.set_msrs(&state::system_call_msrs())?;
        if id == 0 {
            cpu.check_that_it_runs()?;
        }
        let shares_counter = cpu.share_counter();
        Ok(Self {
            cpu,
            page,
            features: has,
            shares_counter,
        })
    }

    /// Whether the program can use the kernel's vDSO: that computes the time from the time stamp
    /// counter, and the CPU's number by `RDPID`, without which it reads a descriptor of Linux's.
    pub(crate) fn can_use_vdso(&self) -> bool {
        self.shares_counter && self.features.rdpid
    }

    /// Binds the vCPU to the calling thread, whose signals make it exit from now on.
    pub(crate) fn bind_to_this_thread(&mut self) {
        signal::use_stop_byte(self.cpu.stop_byte());
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.cpu.descriptor()
    }

    pub(crate) fn take_ring(&mut self) -> Option<Ring> {
        self.cpu.take_ring()
    }

    /// Runs the program until the next exit.
    pub(crate) fn run(&mut self) -> Exit {
        self.cpu.run()
    }

    /// Decodes an exit.
    pub(crate) fn stop(&mut self, exit: Exit, memory: impl FnOnce(Page) -> Frame) -> Result<Stop> {
        match exit {
            Exit::Out(entry::PORT_CALL) => Ok(Stop::Call),
            Exit::Out(port) if entry::vector(port).is_some() => {
                let vector = entry::vector(port).unwrap_or_default();
                Ok(Stop::Exception(Exception {
                    vector,
                    frame: memory(self.page),
                }))
            }
            Exit::RingFull => Ok(Stop::RingFull),
            Exit::Interrupted => Ok(Stop::Interrupted),
            Exit::BadMemory => Ok(Stop::BadMemory),
            Exit::Out(port) => Err(Error::Stopped(format!("port {port:#x}"))),
            Exit::Stopped(why) if why == "Shutdown" && check::has_shadow_paging_of_amd() => {
                Err(Error::Lacks(WITHOUT_NESTED_PAGING))
            }
            Exit::Stopped(why) => {
                let rip = self.cpu.regs().rip;
                Err(Error::Stopped(format!("{why} at {rip:#x}")))
            }
        }
    }

    /// The registers as they are: those of ring 0, if the vCPU has just left the program.
    pub(crate) fn raw(&mut self) -> &kvm_regs {
        self.cpu.regs()
    }

    /// The program's registers at a system call, with RIP and RFLAGS from where `SYSCALL` saved
    /// them.
    pub(crate) fn at_call(&mut self) -> kvm_regs {
        let regs = *self.cpu.regs();
        kvm_regs {
            rip: regs.rcx,
            rflags: regs.r11,
            ..regs
        }
    }

    /// The program's registers at an exception.
    pub(crate) fn at_exception(&mut self, frame: &Frame) -> kvm_regs {
        kvm_regs {
            rax: frame.rax,
            rip: frame.rip,
            rsp: frame.rsp,
            rflags: frame.rflags,
            ..*self.cpu.regs()
        }
    }

    /// The program's registers where a signal has stopped the vCPU. Returns `None` while the vCPU
    /// is within an entry, which must complete, or about to enter one.
    pub(crate) fn at_stop(&mut self, memory: &Memory) -> Result<Option<kvm_regs>> {
        let regs = *self.cpu.regs();
        let frame = self.page.frame(memory.system());
        Ok(match entry::place(regs.rip) {
            // The vCPU would deliver that exception on top of whatever it enters next.
            Place::Program if self.cpu.is_delivering()? => None,
            Place::Program => {
                self.to_ring_0()?;
                Some(regs)
            }
            Place::AfterCall => Some(self.at_call()),
            place @ (Place::Returning | Place::ReturningWithoutRax) => Some(kvm_regs {
                rax: match place {
                    Place::Returning => regs.rax,
                    _ => self.page.rax_in_return(memory.system()),
                },
                rip: frame.rip,
                rsp: frame.rsp,
                rflags: frame.rflags,
                ..regs
            }),
            Place::AfterException => Some(self.at_exception(&frame)),
            Place::Within => None,
        })
    }

    /// The enabled components of the extended state (XCR0).
    pub(crate) fn state_parts(&self) -> u64 {
        self.features.xcr0
    }

    /// The length of the extended state in bytes.
    pub(crate) fn state_bytes(&self) -> usize {
        self.features.state_bytes
    }

    /// The extended state in the processor's standard format.
    pub(crate) fn state(&self) -> Result<Vec<u8>> {
        let xsave = self.cpu.xsave()?;
        let mut bytes: Vec<u8> = xsave
            .region
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        bytes.truncate(self.state_bytes());
        Ok(bytes)
    }

    /// Sets the extended state from the processor's standard format, of which only the components
    /// in `parts` count; all others are reset. Fails for a state that the processor refuses.
    pub(crate) fn set_state(&self, bytes: &[u8], parts: u64) -> Result<()> {
        let mut xsave = kvm_xsave::default();
        for (word, bytes) in xsave.region.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = bytes.try_into().map_or(0, u32::from_le_bytes);
        }
        let [low, high] = &mut xsave.region[state::PARTS..state::PARTS + 2] else {
            return Ok(());
        };
        // A state with more than the legacy area has a header that says which components are there.
        let there = match bytes.len() > state::OLD_AREA_BYTES {
            true => u64::from(*low) | u64::from(*high) << 32,
            false => parts,
        };
        let known = match self.features.xcr0 {
            0 => state::OLD_PARTS,
            known => known,
        };
        let there = there & parts & known;
        (*low, *high) = (there as u32, (there >> 32) as u32);
        state::complete(&mut xsave, there);
        self.cpu.set_xsave(&xsave)
    }

    /// Resets the extended state to that of a new program, with which a handler starts, too.
    pub(crate) fn reset_state(&self) -> Result<()> {
        self.set_state(&[], 0)
    }

    /// Whether single-stepping has stopped the program; true once per step.
    pub(crate) fn takes_steps(&self) -> Result<bool> {
        self.cpu.take_single_step()
    }

    /// Lets a system call return.
    pub(crate) fn return_from_call(&mut self, result: i64) {
        self.cpu.regs_mut().rax = result as u64;
    }

    /// Continues the program with these registers, and with the page tables as they are now.
    pub(crate) fn enter(&mut self, memory: &Memory, context: &kvm_regs) {
        let stack = self.page.write_return(memory.system(), context);
        *self.cpu.regs_mut() = kvm_regs {
            rip: SYSTEM_BASE + entry::RETURN,
            rsp: stack,
            rflags: 2,
            ..*context
        };
    }

    /// The bases of FS and GS.
    pub(crate) fn bases(&self) -> Result<(u64, u64)> {
        let sregs = self.cpu.sregs()?;
        Ok((sregs.fs.base, sregs.gs.base))
    }

    pub(crate) fn set_bases(&self, fs: Option<u64>, gs: Option<u64>) -> Result<()> {
        let mut sregs = self.cpu.sregs()?;
        sregs.fs.base = fs.unwrap_or(sregs.fs.base);
        sregs.gs.base = gs.unwrap_or(sregs.gs.base);
        self.cpu.set_sregs(&sregs)
    }

    /// Saves all of the program's state in the vCPU; `context` are its registers.
    pub(crate) fn save(&self, context: kvm_regs) -> Result<Saved> {
        Ok(Saved {
            context,
            sregs: self.cpu.sregs()?,
            xsave: self.cpu.xsave()?,
        })
    }

    /// Continues from saved state, possibly that of another vCPU.
    pub(crate) fn restore(&mut self, memory: &Memory, saved: &Saved) -> Result<()> {
        self.cpu.set_xsave(&saved.xsave)?;
        self.set_bases(Some(saved.sregs.fs.base), Some(saved.sregs.gs.base))?;
        self.to_ring_0()?;
        self.enter(memory, &saved.context);
        Ok(())
    }

    /// Continues with the registers of a thread that was held. The vCPU is in ring 0.
    pub(crate) fn resume_with(&mut self, memory: &Memory, thread: &HeldThread) -> Result<()> {
        let Some((context, [fs, gs], state)) = registers_of(thread) else {
            return Ok(());
        };
        self.set_state(&state, u64::MAX)?;
        self.set_bases(Some(fs), Some(gs))?;
        self.enter(memory, &context);
        Ok(())
    }

    /// Puts the vCPU into ring 0, where [`Self::enter`] works.
    fn to_ring_0(&self) -> Result<()> {
        let mut sregs = self.cpu.sregs()?;
        state::set_ring_0(&mut sregs);
        self.cpu.set_sregs(&sregs)
    }
}
