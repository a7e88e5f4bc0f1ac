//! Events in the life of a process: fork, exec, exit.

use super::{Outcome, Trial, broken, not_applicable, pages};
use pagetrail::{AtExit, Error, Event, State, Technique, page_size};
use std::time::Duration;

pub(super) fn fork(t: &mut Trial<'_>) -> Outcome {
    if t.subject.own {
        return not_applicable("a test process with threads does not fork itself");
    }
    let p = page_size();
    let start = t.map("anon", 16)?;
    let memory = pages(start, 16);
    t.actor.act(&format!("fill {start} 16 1"));
    t.begin(&[memory])?;
    t.value += 1;
    t.actor
        .act(&format!("fork-write {} {}", start + p, t.value));
    t.write(start + 3 * p);
    t.expect(&[start + 3 * p], memory)?;
    if t.actor.act(&format!("read {}", start + p)) != 1 {
        return broken("the child wrote to our memory");
    }
    t.write(start + p);
    t.expect(&[start + p], memory)
}

pub(super) fn exec(t: &mut Trial<'_>) -> Outcome {
    if t.subject.own {
        return not_applicable("this process stays what it is");
    }
    let first = t.map("anon", 4)?;
    t.begin(&[pages(first, 4)])?;
    t.actor.act("exec");
    // The new image answers once it runs.
    t.actor.act("pid");
    let stack = t.actor.act("deep 10") + page_size();
    let round = t.watch().collect()?;
    let reported = round
        .events()
        .iter()
        .any(|event| matches!(event, Event::Exec { .. }));
    let written = round.dirty().contains(stack);
    round.commit();
    if !reported || !written {
        return broken(format!(
            "exec reported: {reported}, stack of the new image written: {written}"
        ));
    }
    let start = t.map("anon", 16)?;
    t.collect()?;
    t.write(start + page_size());
    t.expect(&[start + page_size()], pages(start, 16))
}

pub(super) fn exit(t: &mut Trial<'_>) -> Outcome {
    if t.subject.own {
        return not_applicable("this process goes on");
    }
    t.at_exit = AtExit::Hold;
    let start = t.map("anon", 16)?;
    t.begin(&[pages(start, 16)])?;
    t.write(start + page_size());
    t.actor.tell("exit 7");
    let launched = t.subject.launched && t.technique != Technique::SoftDirty;
    if launched {
        if t.watch().wait(Duration::from_secs(60)) != State::Exiting {
            return broken("the end was not announced");
        }
        t.expect(&[start + page_size()], pages(start, 16))?;
        t.watch().release_exit();
    }
    match t.watch().wait(Duration::from_secs(60)) {
        State::Ended(how) if !t.subject.launched || how == Some(pagetrail::Ended::Exited(7)) => {}
        other => return broken(format!("after its end the target is {other:?}")),
    }
    match t.watch().collect() {
        Err(Error::Gone { .. }) => Ok(()),
        other => broken(format!(
            "collect after the end returns {:?}",
            other.map(|round| round.index())
        )),
    }
}
