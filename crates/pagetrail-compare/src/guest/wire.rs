//! What host and guest say to each other over the guest's second serial port: a line of JSON each.
//!
//! ```text
//! guest: {"Ready": {..}}           once, when it can run something
//! host:  {"suite": .., "test": ..}
//! guest: "Prepared"                and waits, while the host reads what KVM has counted
//! host:  an empty line
//! guest: "Ended"                   the program has run; waits again
//! host:  an empty line
//! guest: {"Done": {..}}            or {"Refused": ".."}, also in the place of the other answers
//! ```

use serde::{Deserialize, Serialize};

use crate::method::Outcome;

/// What the guest is to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The suite.
    pub suite: String,
    /// The test.
    pub test: String,
}

/// What the guest says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It waits for orders.
    Ready {
        /// The version of its kernel.
        kernel: String,
        /// Its processors.
        cpus: usize,
    },
    /// The program is about to be started.
    Prepared,
    /// The program has ended.
    Ended,
    /// What became of the run.
    Done(Outcome),
    /// The program cannot be started there; why.
    Refused(String),
}

/// A line as the other side understands it, its end included.
///
/// # Panics
///
/// Never: all that is said here can be written as JSON.
pub fn line(said: &impl Serialize) -> String {
    let mut line = serde_json::to_string(said).expect("it has no maps but with names as keys");
    line.push('\n');
    line
}

/// What a line says; `None` where it is no such line.
pub fn read<T: for<'de> Deserialize<'de>>(line: &str) -> Option<T> {
    serde_json::from_str(line.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::behaviour::{Behaviour, Digest, End};
    use crate::sample::{Counts, Sample};

    #[test]
    fn what_is_said_is_understood() {
        let order = Order {
            suite: "program".into(),
            test: "sh -c 'echo \"\n'".into(),
        };
        let line_of_order = line(&order);
        assert_eq!(line_of_order.matches('\n').count(), 1);
        assert_eq!(read::<Order>(&line_of_order), Some(order));
        let sample = Sample {
            time_ns: 1_234_567.0,
            counts: Counts {
                user_ns: 7.0,
                ..Counts::default()
            },
            behaviour: Behaviour {
                end: End::Exited(3),
                output: Digest::of(b"said"),
                errors: Digest::of(b""),
                message: "é".into(),
            },
            kvm: Default::default(),
        };
        let said = line(&Reply::Done(Outcome::Ran(sample.clone())));
        let Some(Reply::Done(Outcome::Ran(read_again))) = read(&said) else {
            panic!("{said}");
        };
        // A digest is the same on both sides: what is compared are numbers made by the same code.
        assert_eq!(read_again.behaviour, sample.behaviour);
        assert_eq!(read_again.time_ns, sample.time_ns);
        assert!(matches!(
            read(&line(&Reply::Prepared)),
            Some(Reply::Prepared)
        ));
        assert!(read::<Reply>("[    1.0] random: crng init done").is_none());
    }
}
