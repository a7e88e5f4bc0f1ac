//! What runs of the machine model come to: the library behind `pagetrail model`.
//!
//! `pagetrail-model` runs a design on a machine in software and counts events. Here a [`program`]
//! (a workload, or a trace of [`traces`]) is run, its events are priced by a cost table ([`costs`],
//! or one that [`calibrate`] makes of a benchmark), and the result is a document: of [`single`]
//! runs, of techniques side by side ([`compare`]), and of a paper's tables beside the model's
//! values and recorded ones ([`reproduced`]). Documents are shown as text, HTML and Markdown, and
//! serialized as docs/model-format.md describes. Nothing here writes to a terminal.

pub mod calibrate;
pub mod compare;
pub mod costs;
#[cfg(test)]
mod fuzzing;
pub mod outcome;
pub mod program;
pub mod reproduced;
pub mod single;
pub mod traces;
