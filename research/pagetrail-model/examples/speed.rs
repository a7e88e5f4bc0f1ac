//! Measures how many memory accesses the model makes in a second: `cargo run --release --example
//! speed`.

#![allow(clippy::print_stdout, reason = "the result of an example")]

use std::time::Instant;

use pagetrail_model::machine::{Gva, PAGE_BYTES};
use pagetrail_model::technique::TechniqueKind;
use pagetrail_model::workload::{Workload, WorkloadKind};
use pagetrail_model::{Error, Host, HostConfig, RunConfig, VmConfig, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (what, pages) in [("warm TLB", 1000), ("a walk each", 1 << 18)] {
        let (accesses, seconds) = accesses(pages)?;
        println!(
            "{what:>12}: {:6.1} million accesses a second",
            accesses as f64 / seconds / 1e6
        );
    }
    for kind in [
        TechniqueKind::Oracle,
        TechniqueKind::SoftDirty,
        TechniqueKind::Spml,
        TechniqueKind::Epml,
    ] {
        let listing = Workload {
            kind: WorkloadKind::Listing1,
            bytes: 1 << 30,
            rounds: 1,
            seed: 0,
        };
        let start = Instant::now();
        let report = run(&RunConfig::new(kind), listing.ops())?;
        let written = report.rounds[0].written;
        println!(
            "{kind:>12}: {:.2} s for 1 GiB of Listing 1 ({written} pages)",
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Writes to `pages` pages in turn, 20 million times.
fn accesses(pages: u64) -> Result<(u64, f64), Error> {
    let mut host = Host::new(&HostConfig::default())?;
    let vm = host.add_vm(&VmConfig::default())?;
    let process = host.spawn(vm)?;
    let vcpu = vm.vcpu(0);
    host.schedule(process, vcpu)?;
    let area = host.map(process, pages * PAGE_BYTES)?;
    let mut round = |times: u64| {
        (0..times)
            .try_for_each(|_| (0..pages).try_for_each(|page| touch(&mut host, vcpu, area, page)))
    };
    round(2)?;
    let start = Instant::now();
    let times = 20_000_000 / pages;
    round(times)?;
    Ok((times * pages, start.elapsed().as_secs_f64()))
}

fn touch(
    host: &mut Host,
    vcpu: pagetrail_model::VcpuId,
    area: Gva,
    page: u64,
) -> Result<(), Error> {
    host.access(vcpu, area.add_pages(page), true)
}
