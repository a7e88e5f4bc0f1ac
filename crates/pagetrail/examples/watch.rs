//! Prints the dirty pages of a process: `watch PID ROUNDS [TECHNIQUE]`.

#![allow(clippy::print_stdout, reason = "an example prints")]
use pagetrail::{Choice, Target, Technique, Watch};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let pid = arguments.next().ok_or("a PID is needed")?.parse()?;
    let rounds: u32 = arguments.next().map_or(Ok(10), |n| n.parse())?;
    let choice = match arguments.next() {
        Some(name) => Choice::Technique(name.parse::<Technique>()?),
        None => Choice::Auto,
    };
    let mut watch = Watch::builder()
        .target(Target::process(pid)?)
        .technique(choice)
        .start()?;
    println!(
        "{}: {}; stopped for {:?}",
        watch.technique(),
        watch.reason(),
        watch.attach_stopped()
    );
    for untracked in watch.untracked() {
        println!("untracked: {untracked}");
    }
    for _ in 0..rounds {
        watch.wait(Duration::from_millis(200));
        let round = watch.collect()?;
        let (pages, fresh, cost) = (
            round.dirty().page_count(),
            round.newly_mapped().page_count(),
            round.cost(),
        );
        println!(
            "round {}: {pages} pages ({fresh} newly mapped), {cost:?} {:?}",
            round.index(),
            round.events()
        );
        round.commit();
    }
    Ok(())
}
