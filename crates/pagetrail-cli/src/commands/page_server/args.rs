//! What `page-server` looks like on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::commands::checkpoint::args::{Which, WritingArgs};

/// Where it listens by default.
const LISTEN_DEFAULT: &str = "127.0.0.1:9466";

/// Arguments of `page-server`.
#[derive(Args, Debug)]
pub(crate) struct PageServerArgs {
    /// The store: a directory, made where there is none, or s3://BUCKET/PREFIX and the like where
    /// this is built in
    #[arg(long, value_name = "STORE")]
    pub(crate) store: PathBuf,
    /// Listen at this address and port; port 0 is one that is free, which is said
    #[arg(long, value_name = "ADDRESS", default_value = LISTEN_DEFAULT)]
    pub(crate) listen: SocketAddr,
    /// Give out pages of this checkpoint, by its number or its label; of the newest when left out
    #[arg(long, value_name = "N", value_parser = Which::parse)]
    pub(crate) at: Option<Which>,
    /// End after the first dump or restore, with exit code 2 if it failed
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) writing: WritingArgs,
    /// Write a JSON document to standard output for each connection, a line each
    #[arg(long)]
    pub(crate) json: bool,
}
